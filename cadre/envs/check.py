"""The environment contract as a callable test: `examine` plays an environment and says what holds and what does not.

Use `check_env` in your own tests, or `cadre check my_file.py:MyEnv`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cadre import random_keys
from cadre.env import Split
from cadre.envs import check_values, declarations
from cadre.envs.check_episode import Episode
from cadre.envs.findings import Broken, Findings
from cadre.envs.spec import EnvSpec
from cadre.envs.splits import shared_tasks
from cadre.errors import ContractError
from cadre.types import Message, Task, Tool

SPLIT_SAMPLE = 200
# A program whose answer is drawn: it must draw the same in equal states.
DRAWN_MOVES = "```python\nimport random\nprint('Moves: ' + ''.join(random.choices('UDLR', k=12)))\n```"
ACTIONS = (
    "",
    "1",
    "U",
    "RRDD",
    "Moves: RRD",
    "print('RRD')",
    "```python\nprint(1)\n```",
    DRAWN_MOVES,
    "\\boxed{4}",
    "é\x00\n",
    "nan",
    "²",
    "9" * 5_000,
    "A " * 500,
)
RULES = {
    "observe": "observe is pure",
    "fork": "forks are independent of their origin",
    "replay": "equal actions give equal episodes",
    "reward": "rewards are finite, local ones only for roles that acted",
    "tasks": "train and test are disjoint and the same at every call",
    "end": "every episode ends",
}


@dataclass(frozen=True)
class Report:
    """What an environment keeps of the contract.

    held     the rules that held, a line each
    broken   a paragraph for every fault: what, got, expected, what to do
    notes    what is allowed and seldom meant
    prompts  the first conversation that each role saw
    tools    what it was offered there
    """

    held: tuple[str, ...]
    broken: tuple[str, ...]
    notes: tuple[str, ...]
    prompts: Mapping[str, tuple[Message, ...]]
    tools: Mapping[str, tuple[Tool, ...]] = field(default_factory=dict)


async def check_env(env_spec: EnvSpec, episodes: int = 5, actions: Sequence[str] = ACTIONS, seed: int = 0) -> list[str]:
    """Raise `ContractError` with all broken rules, a paragraph each; else return the rules that held, one line each."""
    report = await examine(env_spec, episodes, actions, seed)
    if report.broken:
        raise ContractError(*report.broken)
    return list(report.held)


async def examine(
    env_spec: EnvSpec,
    episodes: int = 5,
    actions: Sequence[str] = ACTIONS,
    seed: int = 0,
    step_seconds: float = math.inf,
) -> Report:
    """Look at the class, its tasks, and `episodes` episodes of actions drawn from `actions`.

    Faults do not raise and do not end the check: all that can be found at once is in the report. Only a call that takes
    longer than `step_seconds` raises DeadlineError, as those that follow might take as long.
    """
    findings = Findings()
    faults = declarations.faults(env_spec)
    for fault in faults:
        findings.add(fault.name, fault.paragraph)
    if any(fault.fatal for fault in faults):
        return Report((), findings.paragraphs, (), {})
    splits = {split: _checked_tasks(findings, env_spec, split) for split in ("train", "test")}
    _check_disjoint(findings, env_spec.env_class.__name__, splits)
    judged = not any(fault.name == "success" for fault in faults)
    played = [Episode(findings, env_spec, task, judged, step_seconds) for task in splits["train"][:episodes]]
    for number, episode in enumerate(played):
        with findings.noting():
            await episode.play(actions, random_keys.generator(seed, episode.task.id), thorough=number == 0)
    return _report(findings, env_spec, played)


def _report(findings: Findings, env_spec: EnvSpec, played: Sequence[Episode]) -> Report:
    name = env_spec.env_class.__name__
    ended = any(episode.ended for episode in played)
    held = [f"{name}: {words}" for rule, words in RULES.items() if ended and rule not in findings.rules]
    prompts: dict[str, tuple[Message, ...]] = {}
    tools: dict[str, tuple[Tool, ...]] = {}
    for episode in played:
        prompts |= {role: messages for role, messages in episode.prompts.items() if role not in prompts}
        tools = {**episode.tools, **tools}
    notes = [] if findings.paragraphs else _notes(env_spec.roles, played, prompts)
    return Report(tuple(held), findings.paragraphs, tuple(notes), prompts, tools)


def _notes(roles: Sequence[str], played: Sequence[Episode], prompts: Mapping[str, Any]) -> list[str]:
    notes = [
        f"{role} never acted in {len(played)} episodes; a role that never acts is not trained."
        for role in roles
        if role not in prompts
    ]
    if len({reward for episode in played for reward in episode.rewards}) == 1:
        notes.append(
            "every step paid the same, whatever was said (nonsense, so this may be right); a team learns only from "
            "answers that are paid differently."
        )
    return notes


def _checked_tasks(findings: Findings, env_spec: EnvSpec, split: Split) -> list[Task]:
    """The first tasks of a split; none where something is wrong with them."""
    with findings.noting():
        where = f"{env_spec.env_class.__name__}.tasks({split!r})"
        first, again = (_drawn(findings, env_spec, split, where) for _ in range(2))
        if not first:
            raise Broken("tasks", f"{where}: got no tasks; expected at least one. Make some, or change the settings.")
        faults = [
            fault for i, task in enumerate(first) for fault in check_values.task_faults(f"{where}: task {i}", task)
        ]
        findings.refuse("tasks", faults[:1])
        _check_repeated(findings, where, first, again)
        return first
    return []


def _drawn(findings: Findings, env_spec: EnvSpec, split: Split, where: str) -> list[Any]:
    """Up to `SPLIT_SAMPLE` items of a split."""
    with findings.calling("tasks", where):
        tasks = env_spec.tasks(split)
        if not isinstance(tasks, Sequence) or isinstance(tasks, str):
            raise Broken(
                "tasks",
                f"{where}: got {check_values.described(tasks)}; expected a sequence of Task with a length and items by "
                "index. Return a list, or GeneratedTasks(count, make, name).",
            )
        return [tasks[i] for i in range(min(SPLIT_SAMPLE, len(tasks)))]


def _check_repeated(findings: Findings, where: str, first: list[Task], again: list[Task]) -> None:
    """No name twice in a split, and the same tasks at every call."""
    names = [task.id for task in first]
    twice = sorted({name for name in names if names.count(name) > 1})
    findings.require(
        not twice,
        "tasks",
        f"{where}: got the id {twice[:1]} more than once; expected every task to have its own. Number them.",
    )
    findings.require(
        first == again,
        "tasks",
        f"{where}: differs between calls; expected the same tasks at every call. Seed what it draws, as in "
        'random.Random(f"{split}-{index}").',
    )


def _check_disjoint(findings: Findings, name: str, splits: Mapping[str, Sequence[Task]]) -> None:
    shared = shared_tasks(splits["train"], splits["test"])
    findings.require(
        not shared,
        "tasks",
        f"{name}.tasks: test task {', '.join(shared[:1])} is also a training task, {len(shared)} of "
        f"{len(splits['test'])} are; expected disjoint splits. Divide the problems by the split.",
    )
