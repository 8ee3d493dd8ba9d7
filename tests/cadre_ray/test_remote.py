"""Answers of a pool's samplers; every request has one. Actors are plain objects here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bench.parity.critics import Learner, named, node, played_by, team_of
from bench.parity.trees import leaf
from cadre.advantages.batch import build_batch
from cadre.errors import EngineError, PromptError
from cadre.settings import TeacherConfig
from cadre.types import Request, Sample, Task, Tree
from cadre_ray.processes import LearnerProcess, Outcome, SamplerProcess
from cadre_ray.remote import PoolSampler, RemoteLearner, WaitingRequest
from tests.cadre.engines.tiny import request
from tests.helpers.extras import skip_without

skip_without("ray")


class Sampler:
    """Says each prompt again; one has to be short."""

    async def sample(self, request: Request) -> list[Sample]:
        text = request.messages[-1].content
        if len(text) > 9:
            raise PromptError("too long")
        return [Sample(request.role, request.policy, text, (), (), (), "stop", 0)]


class InProcess:
    """A learner's process that is this one: `handle.METHOD.remote(...)` is the method's own result."""

    def __init__(self, process: LearnerProcess) -> None:
        self.process = process
        self.recover: Any = None

    def call(self, work: Callable[[Any], Any]) -> Any:
        return asyncio.run(work(self))

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self.process, name))


class Streaming:
    """The `sample` of a process, as Ray streams it; raises `broken` once it has told so many."""

    def __init__(self, process: SamplerProcess, broken: Exception | None, message: int) -> None:
        self.process, self.broken, self.told = process, broken, message

    async def remote(self, scope: int, requests: Sequence[Request]) -> AsyncIterator[Any]:
        async for number, outcome in self.process.sample(scope, requests):
            if self.broken is not None and number >= self.told:
                raise self.broken
            yield _there((number, outcome))


async def _there(outcome: tuple[int, Outcome]) -> tuple[int, Outcome]:
    return outcome


class Actor:
    def __init__(self, broken: Exception | None = None, message: int = 1) -> None:
        process = SamplerProcess()
        process.sampler, process._scope = Sampler(), None  # type: ignore[assignment]
        self.sample = Streaming(process, broken, message)


class Replaced:
    """A member whose actors are these, one after the other."""

    def __init__(self, *actors: Actor) -> None:
        self.handle, *self.left = actors
        self.deaths: list[Exception] = []
        self.recover: Any = None

    def replace(self, dead: Actor, error: Exception, reached: int) -> int:
        self.deaths.append(error)
        if not self.left:
            raise EngineError("died too often")
        self.handle = self.left.pop(0)
        return reached + 1


def drawn(member: Replaced, *texts: str) -> list[Any]:
    """The texts or the error that come of each prompt."""

    async def draw() -> list[Any]:
        new = asyncio.get_running_loop().create_future
        part = [WaitingRequest(request(text), new(), None) for text in texts]
        sampler = PoolSampler(member, lambda handle: None)  # type: ignore[arg-type]
        await asyncio.wait_for(sampler.sample(1, part), 20)
        assert all(waiting.future.done() for waiting in part)
        return await asyncio.gather(*(waiting.future for waiting in part), return_exceptions=True)

    return [outcome if isinstance(outcome, Exception) else outcome[0].text for outcome in asyncio.run(draw())]


def test_a_prompt_that_cannot_be_asked_is_an_error_of_its_own() -> None:
    first, second, third = drawn(Replaced(Actor()), "one", "a long one", "three")
    assert (first, third) == ("one", "three")
    assert isinstance(second, PromptError)
    assert str(second) == "too long"


def test_whatever_a_sampler_dies_of_it_is_replaced() -> None:
    from ray.exceptions import ActorDiedError, NodeDiedError, OutOfMemoryError

    for death in (ActorDiedError(), OutOfMemoryError("the node is short of memory"), NodeDiedError("gone")):
        member = Replaced(Actor(death), Actor())
        assert drawn(member, "one", "two", "three") == ["one", "two", "three"]
        assert member.deaths == [death]


def test_whatever_goes_wrong_every_request_has_an_answer() -> None:
    from ray.exceptions import OutOfMemoryError, RayTaskError

    engine_error, strange = EngineError("no memory left"), ValueError("strange")
    for broken, expected in ((RayTaskError("sample", "", engine_error), engine_error), (strange, strange)):
        assert drawn(Replaced(Actor(broken)), "one", "two", "three") == ["one", expected, expected]
    once, *rest = drawn(Replaced(Actor(OutOfMemoryError("short"))), "one", "two", "three")
    assert once == "one"
    assert [str(error) for error in rest] == ["died too often"] * 2


def test_an_error_on_another_machine_names_it() -> None:
    import ray
    from ray.exceptions import RayTaskError

    from cadre_ray.ray_actors import unwrap_error

    here = ray.util.get_node_ip_address()
    for address, message in ((here, "no model"), ("10.9.9.9", "On 10.9.9.9, which reads .* own disk: no model")):
        text = f"ray::Process.begin() (pid=7, ip={address}, actor_id=1)\ncadre.errors.EngineError: no model"
        raised = RayTaskError("begin", text, EngineError("no model"), ip=address).as_instanceof_cause()
        assert re.fullmatch(message, str(unwrap_error(raised)))


@pytest.mark.parametrize("teacher", [{"hint": True}, {"weights": "initial"}, {"policy": "two"}])
def test_a_teacher_in_the_learners_process_scores_as_one_here(teacher: dict[str, Any]) -> None:
    """Real actors are tested in test_cluster.py."""
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": i}, float(i)) for i in range(2)], "p", privileged="It is 7.")
    tree = Tree(Task("t", {}), played_by(root, a="one", b="two"))
    plan = replace(named("grpo"), teacher=TeacherConfig(**teacher, alone=True))

    def learned(remote: bool) -> list[tuple[float, ...]]:
        learner = Learner(
            ("one", "two"),
            present=lambda datum: (0.0,) * (len(datum.token_ids) - 2) + (-1.0, -len(datum.token_ids) / 8),
            reference=lambda datum: (0.0,) * (len(datum.token_ids) - 2) + (-2.0, -0.5),
        )
        process = LearnerProcess()
        process.learner = learner
        present: Any = RemoteLearner(InProcess(process), learner.policies, 1)  # type: ignore[arg-type]
        team = team_of(present if remote else learner, a="one", b="two")
        return [sequence.advantages for sequence in build_batch([tree], plan, team).sequences]

    assert learned(remote=True) == learned(remote=False)
    assert any(learned(remote=True)[0])
