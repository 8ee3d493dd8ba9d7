"""`cadre chat`: talk with the roles of a team, a line at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import typer

from cadre import random_keys
from cadre.cli.terminal import At, Base, Best, Overrides, Target, Trust, console, print_lines, reject_beside, visible
from cadre.concurrency import run_coroutine
from cadre.config.resolve import find_target, resolve_for_evaluation
from cadre.errors import ConfigError, PromptError, nearest
from cadre.team import Team
from cadre.training.checkpoint import CheckpointChoice
from cadre.types import Message, Observation, PreviousTurn
from cadre_programs.calls import ModelCall
from cadre_programs.roles import RoleRules

HELP = "/role NAME talks with another role, /new begins again, /end or Ctrl-D ends."


@dataclass
class Conversations:
    """The conversations with the roles of a team, one a role. Lives as long as the command.

    An answer is drawn as in training: by the role's chat template, its limit of tokens, and with the token ids of the
    earlier answers, below its prompt of `team.prompts`.
    """

    team: Team
    rules: RoleRules
    role: str
    seed: int = 0
    prompts: Mapping[str, str] = field(default_factory=dict)
    messages: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    previous: dict[str, PreviousTurn] = field(default_factory=dict)
    turns: int = 0

    def answer(self, text: str) -> str:
        """Return the role's answer to a text. After a PromptError the conversation is as it was."""
        system = (Message("system", self.prompts[self.role]),) if self.role in self.prompts else ()
        messages = (*self.messages.get(self.role, system), Message("user", text))
        self.turns += 1
        key = random_keys.key(self.seed, "chat", self.turns)
        observation = Observation(self.role, messages)
        (sample,) = run_coroutine(self.team.sample(observation, 1, key, self.previous.get(self.role)))
        self.previous[self.role] = PreviousTurn(messages, sample)
        self.messages[self.role] = (*messages, sample.message or Message("assistant", sample.text))
        return sample.text if sample.finish == "stop" else f"{sample.text} [cut off at {len(sample.token_ids)} tokens]"

    def select_role(self, name: str) -> None:
        """Talk with another role, whose own conversation goes on. Raises ConfigError if the team has no such role."""
        self.role = _find_role(name, self.rules)

    def restart(self) -> None:
        """Forget the conversation with the present role."""
        self.messages.pop(self.role, None)
        self.previous.pop(self.role, None)


def _find_role(name: str, rules: RoleRules) -> str:
    """Return the role of a name, as in training: its own, or that of a model. Raises ConfigError if it has none."""
    if (role := rules.find(ModelCall(name, ()))) is not None:
        return role
    raise ConfigError(
        f"chat: got role {name!r}; expected one of {', '.join(rules.models)}.{nearest(name, rules.models)}"
    )


def chat(
    context: typer.Context,
    target: Target,
    overrides: Overrides = None,
    role: Annotated[str, typer.Option(help="the role to begin with; default: the first of the team")] = "",
    temperature: Annotated[float, typer.Option(min=0.0, help="of the answers; 0: greedy, as in evaluation")] = 0.0,
    seed: Annotated[int, typer.Option(help="seed of the answers at a temperature above 0")] = 0,
    base: Base = False,
    best: Best = False,
    at: At = None,
    trust: Trust = False,
) -> None:
    """Talk with the roles of a team. Lines are read from the terminal or a pipe; /role, /new and /end are commands."""
    from cadre.evaluation.loaded_team import load_team
    from cadre_programs.serving import served_rules

    if base:
        reject_beside(context, "--base", ["best", "at"])
    if best:
        reject_beside(context, "--best", ["at"])
    if temperature == 0.0:
        reject_beside(context, "temperature 0", ["seed"])
    resolved = find_target(target, overrides or [], trust=trust)
    experiment = resolve_for_evaluation(resolved.config, resolved.env, resolved.typed)
    rules = served_rules(experiment)
    first = _find_role(role, rules) if role else next(iter(experiment.roles))
    loaded = load_team(experiment, resolved.run, base, CheckpointChoice(best, at))
    try:
        print_lines([f"Roles: {', '.join(experiment.roles)}. {HELP}"])
        if offered := roles_with_tools(experiment.env_spec.declared.tools, list(experiment.roles)):
            print_lines([f"Chat offers no tools, as a conversation has no episode to run them in: {offered} has some."])
        _talk(Conversations(loaded.team.tempered(temperature), rules, first, seed, resolved.config.team.prompts))
    finally:
        loaded.close()


def roles_with_tools(tools: Mapping[str, object] | Sequence[object], roles: list[str]) -> str:
    """Return the names of the roles that an environment with these tools offers some to, "" for none."""
    return ", ".join(role for role in roles if (tools.get(role) if isinstance(tools, Mapping) else tools))


def _talk(conversations: Conversations) -> None:
    for line in _read_lines(conversations):
        command, _, rest = line.partition(" ")
        try:
            if command == "/end":
                return
            if command == "/role":
                conversations.select_role(rest.strip())
            elif command == "/new":
                conversations.restart()
            elif line.startswith("/"):
                print_lines([HELP])
            else:
                print_lines([f"{conversations.role}: {visible(conversations.answer(line))}"])
        except (ConfigError, PromptError) as error:
            print_lines([visible(str(error))])


def _read_lines(conversations: Conversations) -> Iterator[str]:
    """Yield what the user writes, without empty lines, to the end of the input."""
    while True:
        try:
            line = console.input("you: ") if sys.stdin.isatty() else sys.stdin.readline()
        except (EOFError, KeyboardInterrupt):
            return
        if not line and not sys.stdin.isatty():
            return
        if line.strip():
            yield line.strip()
