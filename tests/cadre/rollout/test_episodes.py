"""The boundary: what fails is tried again with the same noise, then dropped and counted; past a share all stops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from cadre.env import Env
from cadre.errors import ContractError, EngineError, PromptError, SandboxError, SandboxUnavailable
from cadre.rollout import shapes
from cadre.rollout.episodes import Failure, grow_many
from cadre.rollout.grow import NO_LIMITS, Rollout
from cadre.settings import EpisodesConfig
from cadre.team import Team
from cadre.types import Message, Observation, Request, Reward, Sample, Sampling, Task, Tree
from tests.helpers.games import Digit, Relay, scripted_team
from tests.helpers.rounds import Batching, Slow, finished, team_of

ONCE_MORE = EpisodesConfig(retries=1, failed_fraction=1.0)


def played(
    env: type[Env], limits: EpisodesConfig = ONCE_MORE, sampler: Any = None, shape: shapes.Shape | None = None
) -> tuple[list[Tree], list[Failure], list[Failure]]:
    """The trees of four tasks, what was dropped, and every failure."""
    messages: list[Failure] = []
    team = team_of(env, sampler) if sampler else scripted_team(env, lambda request, index: str(index))[0]
    rollout = Rollout(env, team, shape or shapes.greedy(2), 1.0, limits, messages.append)
    trees, dropped = finished(grow_many(list(env.tasks("train"))[:4], rollout, 0))
    return trees, dropped, messages


def failing(how_often: int, digits: Sequence[int] = (1, 2), error: Exception | None = None) -> type[Digit]:
    """Digit whose tasks of these digits fail in their first so many episodes."""
    counter: Counter[int] = Counter()

    class Failing(Slow):
        def __init__(self, task: Task) -> None:
            super().__init__(task)
            counter[task.data["digit"]] += 1

        async def step(self, actions: dict[str, str]) -> Reward:
            digit = self.task.data["digit"]
            if digit in digits and counter[digit] <= how_often:
                raise error or ValueError("bad luck")
            return await super().step(actions)

    return Failing


def test_an_episode_that_failed_by_bad_luck_ends_as_if_it_had_not() -> None:
    """Nothing is drawn a second time, so what shares a batch with what is the same too."""
    full, again = Batching(), Batching()
    expected, _, _ = played(failing(0), sampler=full)
    trees, dropped, message = played(failing(1), sampler=again)
    assert trees == expected
    assert dropped == []
    assert sorted((failure.task.data["digit"], failure.reason, failure.dropped) for failure in message) == [
        (1, "raised", False),
        (2, "raised", False),
    ]
    assert again.batches == full.batches


def test_later_decisions_share_their_batches_with_the_others_after_a_retry() -> None:
    counter: Counter[str] = Counter()

    class Unlucky(Relay):
        lucky = True

        def __init__(self, task: Task) -> None:
            super().__init__(task, 2)
            counter[task.id] += 1

        async def step(self, actions: dict[str, str]) -> Reward:
            if not self.lucky and self.task.id == "train-1" and self.past and counter["train-1"] == 1:
                raise OSError("gone")
            return await super().step(actions)

    lucky = Batching()
    expected, _, _ = played(Unlucky, sampler=lucky)
    Unlucky.lucky = False
    counter.clear()
    unlucky = Batching()
    trees, _, message = played(Unlucky, sampler=unlucky)
    assert len(message) == 1
    assert trees == expected
    assert unlucky.batches == lucky.batches


def test_one_that_fails_each_time_is_dropped_and_the_error_is_told() -> None:
    trees, dropped, message = played(failing(9))
    assert [tree.task.data["digit"] for tree in trees] == [0, 3]
    assert Counter((failure.task.id, failure.dropped) for failure in message) == Counter(
        (f"train-{digit}", last) for digit in (1, 2) for last in (False, True)
    )
    assert {failure.error.partition(" at line")[0] for failure in dropped} == {"ValueError: bad luck"}
    assert "in step" in dropped[0].error
    assert dropped[0].traceback.startswith("Traceback")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("x"), "raised"),
        (ContractError("x"), "contract"),
        (SandboxUnavailable("x"), "sandbox"),
        (PromptError("x"), "prompt"),
    ],
)
def test_what_an_episode_is_blamed_for(error: Exception, reason: str) -> None:
    _, dropped, _ = played(failing(9, error=error))
    assert [failure.reason for failure in dropped] == [reason, reason]


@pytest.mark.parametrize("error", [EngineError("x"), SandboxError("x")])
def test_what_is_nobodys_episode_ends_the_call(error: Exception) -> None:
    with pytest.raises(type(error), match="x"):
        played(failing(9, error=error))


def test_a_sampler_that_fails_is_no_failure_of_an_episode() -> None:
    """However it fails; the others' episodes are not played on without those whose answers it lost."""

    class BrokenEpisode:
        async def sample(self, request: Request) -> list[Sample]:
            raise RuntimeError("CUDA out of memory")

    team = Team({"guesser": "far"}, {"far": BrokenEpisode()}, {"guesser": Sampling()})  # type: ignore[dict-item]
    requests = team.sample(Observation("guesser", (Message("user", "1"),)), 2, 0, None)
    with pytest.raises(EngineError, match=r"Role 'guesser': policy 'far' .* RuntimeError: CUDA out of memory"):
        asyncio.run(requests)


def test_past_a_share_of_failures_it_stops_at_once_and_says_why() -> None:
    quarter = replace_limits(failed_fraction=0.25)
    _, dropped, _ = played(failing(9, digits=[1]), quarter)
    assert len(dropped) == 1
    with pytest.raises(ContractError, match=r"2 of 4 episodes failed \(2 raised\); expected at most 25%.*bad luck"):
        played(failing(9), quarter)
    with pytest.raises(ContractError, match="Every episode failed"):
        played(failing(9, digits=range(4)))


def replace_limits(**changes: Any) -> EpisodesConfig:
    return ONCE_MORE.model_copy(update=changes)


@pytest.mark.parametrize("ending", [SystemExit(0), asyncio.CancelledError(), type("Odd", (BaseException,), {})()])
def test_an_environment_cannot_end_the_run(ending: BaseException) -> None:
    class EndingEpisode(Digit):
        async def step(self, actions: dict[str, str]) -> Reward:
            if self.task.data["digit"] == 1:
                raise ending
            return await super().step(actions)

    trees, dropped, _ = played(EndingEpisode)
    assert len(trees) == 3
    assert dropped[0].reason == "contract"


@pytest.mark.parametrize("method", ["__init__", "observe", "fork", "success", "privileged"])
def test_every_call_is_inside_the_boundary(method: str) -> None:
    class Failing(Digit):
        pass

    def fail(self: Digit, *arguments: Any) -> Any:
        task = arguments[0] if arguments else self.task
        if task.data["digit"] == 1 and (method != "observe" or self.said is not None):
            raise KeyError(method)
        plain = getattr(Digit, method)
        return plain.__get__(self) if isinstance(plain, property) else plain(self, *arguments)

    setattr(Failing, method, property(fail) if method == "success" else fail)
    trees, dropped, _ = played(Failing)
    assert len(trees) == 3
    assert [failure.reason for failure in dropped] == ["raised"]


def test_a_conversation_that_is_no_text_fails_its_episode() -> None:
    class TornEpisode(Digit):
        def observe(self) -> dict[str, Observation]:
            recorded = super().observe()
            half = Message("user", "\ud800")
            return {role: Observation(role, (half,)) for role in recorded} if self.task.data["digit"] == 2 else recorded

    _, dropped, _ = played(TornEpisode)
    assert [failure.reason for failure in dropped] == ["contract"]
    assert "surrogate" in dropped[0].error


def test_prompts_that_do_not_fit_fail_their_episodes() -> None:
    class Full(Batching):
        async def sample(self, request: Request) -> list[Sample]:
            if request.messages[-1].content == "1":
                raise PromptError("does not fit")
            return await super().sample(request)

    trees, dropped, _ = played(Slow, sampler=Full())
    assert len(trees) == 3
    assert [failure.reason for failure in dropped] == ["prompt"]


def test_without_limits_nothing_is_tried_again() -> None:
    _, dropped, message = played(failing(1), NO_LIMITS)
    assert message == dropped
    assert len(message) == 2
