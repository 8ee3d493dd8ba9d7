"""Serve a team behind the endpoint for programs: each role is a model, so that a trained program runs on it unchanged.

Calls that arrive while a batch is generated form the next batch. A conversation that continues keeps the token ids that
were sampled in it, as in training.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cadre import random_keys
from cadre.config.experiment import Experiment
from cadre.errors import ConfigError, EngineError, PromptError, first_line, nearest
from cadre.rollout.batching import gather
from cadre.team import Team
from cadre.types import Message, Observation, PreviousTurn, Sample
from cadre_programs.calls import Answer, ModelCall, RequestError, add_constraints_to_prompt
from cadre_programs.instances import start_server
from cadre_programs.program import Program
from cadre_programs.roles import RoleRules, make_role_rules
from cadre_programs.sessions import PendingCall, Session

if TYPE_CHECKING:
    from cadre_programs.server import Server

MAX_TURNS = 10_000


@dataclass(eq=False)
class TeamEndpoint:
    """Answers the calls of one session with a team. Belongs to the server's loop.

    rules     the role of each call
    turns     what was said lately, by the conversation that it answered
    """

    team: Team
    rules: RoleRules
    seed: int = 0
    turns: OrderedDict[str, PreviousTurn] = field(default_factory=OrderedDict)
    _waiting: list[PendingCall] = field(default_factory=list)
    _work: asyncio.Task[None] | None = None

    def receive(self, pending: PendingCall) -> None:
        """Take a call in."""
        self._waiting.append(pending)
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._answer_all())

    async def _answer_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await gather(*(self._answer(pending) for pending in batch))

    async def _answer(self, pending: PendingCall) -> None:
        """Answer one call, or say what kept it from being answered: no call may be left waiting."""
        try:
            sample = await self._sample(pending)
            message = sample.message or Message("assistant", sample.text)
            prompt_tokens, completion_tokens = len(sample.prompt_ids), len(sample.token_ids)
            answer = Answer(
                message,
                sample.finish,
                prompt_tokens,
                completion_tokens,
                token_ids=sample.token_ids,
                logprobs=sample.logprobs,
            ).with_tool_call_ids(pending.id)
        except PromptError as error:
            _reject(pending, RequestError(400, str(error), "messages", "context_length_exceeded"))
        except EngineError as error:
            _reject(pending, RequestError(503, str(error)))
        except Exception as error:  # noqa: BLE001 - others in the batch and after it are to be answered all the same
            sys.stderr.write(f"A call could not be answered:\n{traceback.format_exc()}\n")
            _reject(
                pending, RequestError(500, f"The team could not answer: {type(error).__name__}: {first_line(error)}")
            )
        else:
            if not pending.answer.done():
                pending.answer.set_result(answer)

    async def _sample(self, pending: PendingCall) -> Sample:
        call = add_constraints_to_prompt(pending.call)
        role = self.rules.find(pending.call)
        assert role is not None  # the session accepts no other
        observation = Observation(role, call.messages, call.tools, call.stop, call.max_tokens)
        key = random_keys.key(self.seed, "serve", pending.id)
        # The latest turn of the conversation that the call goes on with.
        spoke = [index for index, message in enumerate(call.messages) if message.role == "assistant"]
        names = (_conversation_key(role, call.messages[:index]) for index in reversed(spoke))
        previous = next((self.turns[name] for name in names if name in self.turns), None)
        (sample,) = await self.team.sample(observation, 1, key, previous)
        self.turns[_conversation_key(role, call.messages)] = PreviousTurn(call.messages, sample, call.tools)
        if len(self.turns) > MAX_TURNS:
            self.turns.popitem(last=False)
        return sample


def _reject(pending: PendingCall, why: RequestError) -> None:
    if not pending.answer.done():  # as it is once its session has ended
        pending.answer.set_exception(why)


def _conversation_key(role: str, messages: Sequence[Message]) -> str:
    return ModelCall(role, tuple(messages)).content


def served_rules(experiment: Experiment, options: Sequence[str] = ()) -> RoleRules:
    """Return which role answers a call: a role's name is a model, a program's `models` hold as in training, and before
    them `options`, as in `gpt-4o=critic`. Raises ConfigError for an option that names no role."""
    rules: dict[str, str] = {}
    for option in options:
        rule, _, role = option.rpartition("=")
        if not rule or role not in experiment.roles:
            raise ConfigError(
                f"--role: got {option!r}; expected RULE=ROLE, as in 'gpt-4o={next(iter(experiment.roles))}', "
                f"with one of the roles {', '.join(experiment.roles)}. Fix it.{nearest(role, experiment.roles)}"
            )
        rules[rule] = role
    is_program = issubclass(experiment.env_spec.declared, Program)
    models = experiment.env_spec.all_settings.get("models") if is_program else None
    return make_role_rules(list(experiment.roles), {**rules, **(models or {}), **rules})


def serve(team: Team, rules: RoleRules, port: int = 0, key: str = "") -> tuple[Server, Session]:
    """Answer calls at `server.url` with the key of the session, until the server is closed."""
    server = start_server(port)
    serving = TeamEndpoint(team, rules)
    role = rules.roles[-1]
    advice = f"cadre serve RUN --role '{{0}}={role}', or --role 'system:TEXT={role}' by a text of its system prompt."
    session = Session(rules.models, serving.receive, accepts=rules.find, max_kept=MAX_TURNS, advice=advice)
    session.key = key or session.key

    async def add() -> None:
        server.sessions.add(session)

    server.submit(add()).result()
    return server, session
