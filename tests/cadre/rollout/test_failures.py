"""One branch that fails ends there with a reward, and the others of its tree are kept; rewards worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from cadre.advantages.groups import comparison_of
from cadre.advantages.returns import RETURNS
from cadre.env import Env, Split
from cadre.errors import ContractError, EngineError, PromptError, ReplayDiverged, SandboxUnavailable
from cadre.rollout import shapes, walk
from cadre.rollout.episodes import Failure, Replacements, check_failures, grow_many, sample_step
from cadre.rollout.failures import Reason, final_branches, set_failure_rewards, without_unrewarded
from cadre.rollout.grow import Rollout
from cadre.rollout.shapes import branch
from cadre.settings import EpisodesConfig
from cadre.team import Team
from cadre.training.metrics import failure_metrics
from cadre.types import Branch, BranchFailure, Message, Node, Observation, Request, Reward, Sample, Sampling, Task, Tree
from tests.helpers.rounds import finished

OVERLONG = BranchFailure("prompt", "too long")
NO_SANDBOX = BranchFailure("sandbox", "gone", rewarded=False)


class Chain(Env):
    """Three numbers are said one after the other; each is paid as it is. The test says what fails where."""

    roles: ClassVar[tuple[str, ...]] = ("a",)
    fails_at: ClassVar[dict[tuple[int, ...], Exception]] = {}

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.said: tuple[int, ...] = ()

    def observe(self) -> dict[str, Observation]:
        shown = (Message("user", ",".join(map(str, self.said))),)
        return {} if len(self.said) == 3 else {"a": Observation("a", shown)}

    async def step(self, actions: dict[str, str]) -> Reward:
        self.said = (*self.said, int(actions["a"]))
        if self.said in self.fails_at:
            raise self.fails_at[self.said]
        return Reward(team=float(self.said[-1]))

    @property
    def success(self) -> bool:
        return len(self.said) == 3

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return [Task(f"{split}-{number}", {}) for number in range(4)]


class Numbers:
    """Says 1, 2, 3 ... to each request; a prompt that begins as one of `overlong` does not fit, and remote siblings of
    `silent` have no answer."""

    def __init__(
        self, overlong: Sequence[str] = (), silent: Sequence[int] = (), error: Exception | None = None
    ) -> None:
        self.overlong, self.silent, self.error = overlong, silent, error or PromptError("the prompt has 9 tokens")
        self.prompts: list[str] = []

    async def sample(self, request: Request) -> list[Sample]:
        prompt = request.messages[-1].content
        self.prompts.append(prompt)
        if prompt in self.overlong:
            raise self.error
        return [self.said(request, index) for index in range(request.count)]

    def said(self, request: Request, index: int) -> Sample:
        failure = BranchFailure("prompt", "filtered") if index in self.silent else None
        text = "" if failure else str(index + 1)
        return Sample(request.role, "p", text, (1,), (2,), (-1.0,), "stop", 0, failure=failure)


def grown(
    shape: shapes.Shape,
    sampler: Numbers | None = None,
    fails_at: dict[tuple[int, ...], Exception] | None = None,
    **limits: Any,
) -> tuple[list[Tree], list[Failure], list[Failure]]:
    """The trees of four tasks, those that were dropped, and every failure that was reported."""

    class FailingEnv(Chain):
        pass

    FailingEnv.fails_at = fails_at or {}
    reported: list[Failure] = []
    team = Team({"a": "p"}, {"p": sampler or Numbers()}, {"a": Sampling()})  # type: ignore[dict-item]
    rollout = Rollout(FailingEnv, team, shape, 1.0, EpisodesConfig(**limits), reported.append)
    trees, dropped = finished(grow_many(list(FailingEnv.tasks("train")), rollout, 0))
    return trees, dropped, reported


SHAPES = [
    pytest.param(shapes.independent(4), id="independent"),
    pytest.param(shapes.greedy(4), id="greedy"),
    pytest.param(shapes.greedy(4, lookahead=2), id="lookahead"),
    pytest.param(shapes.full(4), id="full"),
    pytest.param(branch(4, siblings=2), id="branch"),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("how", ["prompt", "step"])
def test_one_failing_sibling_is_a_branch_with_a_reward_in_every_shape(shape: shapes.Shape, how: str) -> None:
    """The first decision's best sibling says 4; after it the prompt is too long, or its step raises."""
    if how == "prompt":
        trees, dropped, reported = grown(shape, Numbers(["4"]))
    else:
        trees, dropped, reported = grown(shape, fails_at={(4,): KeyError("unknown word")})
    assert len(trees) == 4
    assert dropped == []
    failed = trees[0].root.branches[3]
    assert failed.failure is not None
    assert failed.failure.reason == {"prompt": "prompt", "step": "raised"}[how]
    assert (failed.over, failed.success, failed.child) == (True, False, None)
    assert failed.reward.team <= min(branch.reward.team for branch in trees[0].root.branches[:3])
    assert all(branch.failure is None for branch in trees[0].root.branches[:3])
    assert any(path[-1][1].success for path in walk.episodes(trees[0].root))
    stored = [failure for failure in reported if failure.branches]
    assert len(stored) == 4  # one a tree
    assert all(0.0 < failure.lost < 1.0 for failure in stored)


def test_greedy_goes_on_with_the_next_best_where_the_best_has_failed() -> None:
    trees, _, _ = grown(shapes.greedy(4), Numbers(["4", "3"]))
    assert [branch.selected for branch in trees[0].root.branches] == [False, True, False, False]
    assert [branch.failure is not None for branch in trees[0].root.branches] == [False, False, True, True]
    trees, _, _ = grown(shapes.greedy(4), fails_at={(4,): ValueError()})
    assert [branch.selected for branch in trees[0].root.branches] == [False, False, True, False]


def test_a_tree_whose_later_decision_fails_altogether_keeps_what_came_before() -> None:
    """Greedy: all four siblings of the second decision fail, and the first still compares its own."""
    fails: dict[tuple[int, ...], Exception] = {(2, 1): ValueError(), (2, 2): ValueError()}
    trees, dropped, _ = grown(shapes.greedy(2), fails_at=fails, failed_fraction=1.0)
    assert dropped == []
    root = trees[0].root
    assert [branch.failure for branch in root.branches] == [None, None]
    assert all(branch.failure for branch in root.branches[1].child.branches)  # type: ignore[union-attr]


def test_a_tree_all_of_whose_branches_fail_is_a_failed_episode() -> None:
    sampler = Numbers(["1", "2"])
    with pytest.raises(ContractError, match=r"Every episode failed \(4 prompt\).* the prompt has 9 tokens"):
        grown(shapes.independent(2), sampler, failed_fraction=1.0)
    assert sampler.prompts.count("") == 4  # a prompt that is too long is not tried again


def test_a_step_is_tried_again_before_its_branch_fails() -> None:
    _, _, reported = grown(shapes.independent(2), fails_at={(1,): ValueError("x")}, retries=1)
    assert [(failure.dropped, failure.branches, failure.lost) for failure in reported] == [
        *[(False, 0, 0.0)] * 4,
        *[(False, 1, 0.5)] * 4,
    ]


def test_what_is_no_branch_s_still_ends_the_call() -> None:
    with pytest.raises(EngineError, match="endpoint is down"):
        grown(shapes.independent(2), Numbers(["1"], error=EngineError("the endpoint is down")))


@pytest.mark.parametrize("error", [SandboxUnavailable("no sandbox"), ConnectionError("refused"), MemoryError()])
def test_what_the_machine_fails_at_is_left_out_and_pays_nobody(error: Exception) -> None:
    trees, dropped, reported = grown(shapes.independent(3), fails_at={(2, 1): error})
    assert dropped == []
    root = trees[0].root
    assert [sample.text for sample in root.samples["a"]] == ["1", "3"]
    assert [branch.choice for branch in root.branches] == [{"a": 0}, {"a": 1}]
    assert all(branch.failure is None for branch in final_branches(root))
    assert [failure.lost for failure in reported if failure.branches] == [pytest.approx(1 / 3)] * 4


def test_a_sibling_that_has_no_answer_fails_alone() -> None:
    trees, _, _ = grown(shapes.independent(3), Numbers(silent=[1]))
    assert [branch.failure is None for branch in trees[0].root.branches] == [True, False, True]


def test_branches_count_by_their_fraction_in_the_share_that_may_fail() -> None:
    failing: dict[tuple[int, ...], Exception] = {(1,): ValueError("x"), (2,): ValueError("x")}
    grown(shapes.independent(4), fails_at=failing, failed_fraction=0.5)
    with pytest.raises(ContractError, match=r"2 of 4 episodes failed \(2 raised\); expected at most 40%"):
        grown(shapes.independent(4), fails_at=failing, failed_fraction=0.4)


def test_a_tree_counts_by_the_fraction_of_its_branches_that_failed() -> None:
    """Three of five branches of one task failed, in two kinds; of another task all, which was dropped."""

    def branches(count: int, reason: Reason, lost: float) -> Failure:
        return Failure(Task("a", {}), reason, "x", "", False, branches=count, lost=lost)

    part = [branches(2, "diverged", 0.4), branches(1, "raised", 0.2)]
    dropped = Failure(Task("b", {}), "diverged", "x", "", True, lost=1.0)
    for failures, tasks, words in (
        (part, 1, "0.6 of 1 episodes failed (0.2 raised, 0.4 diverged)"),
        ([*part, dropped], 3, "1.6 of 3 episodes failed (0.2 raised, 1.4 diverged)"),
        ([branches(1, "raised", 1 / 6)] * 6, 1, "Every episode failed (1 raised)"),
    ):
        with pytest.raises(ContractError, match=re.escape(f"{words}; expected at most 50%")):
            check_failures(failures, tasks, 0.5)


def test_a_tree_that_loses_branches_to_divergence_counts_by_their_fraction() -> None:
    """Three of the four branches of each tree diverge, each in its own way. Mistake: each of them counts as a tree."""

    class Diverging(Chain):
        fails_at: ClassVar = {(number,): ReplayDiverged(f"asks for {number}") for number in (1, 2, 3)}

    team = Team({"a": "p"}, {"p": Numbers()}, {"a": Sampling()})  # type: ignore[dict-item]
    rollout = Rollout(Diverging, team, shapes.independent(4), 1.0, EpisodesConfig(retries=0, failed_fraction=1.0))
    none = Replacements(iter(()), 0, lambda tree: True)
    sampled = finished(sample_step(Diverging.tasks("train"), none, rollout, 0, lambda tasks: lambda: None))
    assert len(sampled.trees) == 4
    assert sampled.diverged == pytest.approx(3.0)
    assert failure_metrics(sampled)["rollout/divergence_rate"] == pytest.approx(0.75)


def sample(text: str = "x") -> Sample:
    return Sample("a", "p", text, (1,), (2,), (-1.0,), "stop", 0)


def node(*branches: Branch) -> Node:
    recorded = {"a": Observation("a", (Message("user", "?"),))}
    return Node(0, recorded, {"a": tuple(sample(str(number)) for number in range(len(branches)))}, branches)


def after(index: int, team: float, child: Node | None = None, failure: BranchFailure | None = None, **local: float):
    return Branch({"a": index}, Reward(team, local), child is None, False, True, child, None, failure)


CREDIT = comparison_of("episode", "node", "mean", "none")


def returns(tree: Node, name: str = "episode") -> list[float]:
    decisions = walk.tree_samples([Tree(Task("t", {}), tree)])
    return [RETURNS[name](decision, CREDIT) for decision in decisions if not decision.above]


def test_a_failed_episode_is_worth_the_lowest_of_its_siblings() -> None:
    """Episodes of 1+2 = 3, 0+5 = 5 and one that earned 4 before it failed: 4 falls to 3."""
    tree = node(
        after(0, 1, node(after(0, 2))), after(1, 0, node(after(0, 5))), after(2, 4, node(after(0, 0, failure=OVERLONG)))
    )
    reward = set_failure_rewards(tree, "lowest", 1.0)
    assert returns(reward) == [3.0, 5.0, 3.0]
    assert returns(reward, "reward_to_go") == [3.0, 5.0, 3.0]


def test_one_that_had_earned_less_than_all_others_is_paid_nothing_for_failing() -> None:
    tree = node(after(0, 3), after(1, 5), after(2, 1, failure=OVERLONG))
    assert returns(set_failure_rewards(tree, "lowest", 1.0)) == [3.0, 5.0, 1.0]


def test_steps_are_compared_too_where_the_sibling_itself_goes_on() -> None:
    """A step of 0.5 that fails is no better than one of 0.1 that leads to 0.9."""
    tree = node(after(0, 0.1, node(after(0, 0.9))), after(1, 0.5, failure=OVERLONG))
    reward = set_failure_rewards(tree, "lowest", 1.0)
    assert returns(reward, "step") == pytest.approx([0.1, 0.1])


def test_local_rewards_fall_by_role() -> None:
    tree = node(after(0, 1.0, a=0.2, b=-1.0), after(1, 2.0, a=0.5, failure=OVERLONG))
    (_, failed) = set_failure_rewards(tree, "lowest", 1.0).branches
    assert (failed.reward.team, failed.reward.local) == (1.0, {"a": pytest.approx(0.2), "b": -1.0})


def test_parts_that_are_trained_on_fall_too() -> None:
    """Mistake: a failed episode has no penalty for its length, of which its siblings have 0.5 and 0.25."""
    costs = [Reward(1.0, parts={"cost": cost, "other": 3.0}) for cost in (-0.5, -0.25)]
    complete = [Branch({"a": n}, reward, True, False) for n, reward in enumerate(costs)]
    failed = Branch({"a": 2}, Reward(), True, False, failure=OVERLONG)
    root = node(*complete, failed)
    for rule, cost in (("lowest", -0.5), (-2.0, -2.0)):
        rewards = set_failure_rewards(root, rule, 1.0, ["cost"]).branches[-1].reward
        assert rewards == Reward(0.0 if rule == "lowest" else -2.0, {}, {"cost": cost})
    assert set_failure_rewards(root, "lowest", 1.0).branches[-1].reward.parts == {}


def test_a_number_is_paid_once_beside_what_was_earned() -> None:
    tree = node(after(0, 1, node(after(0, 2))), after(1, 4, node(after(0, 0, failure=OVERLONG))))
    assert returns(set_failure_rewards(tree, -1.5, 1.0)) == [3.0, 2.5]
    (_, failed) = set_failure_rewards(tree, -1.5, 0.0).branches
    assert failed.child.branches[0].reward == Reward(0, {"a": -1.5})


def test_left_out_branches_take_their_samples_with_them() -> None:
    inner = node(after(0, 1), after(1, 2, failure=NO_SANDBOX))
    stored = without_unrewarded(node(after(0, 0, failure=NO_SANDBOX), after(1, 3, inner)))
    assert stored is not None
    assert [sample.text for sample in stored.samples["a"]] == ["1"]
    assert [branch.choice for branch in stored.branches] == [{"a": 0}]
    assert len(stored.branches[0].child.branches) == 1  # type: ignore[union-attr]
    assert without_unrewarded(node(after(0, 0, failure=NO_SANDBOX))) is None


def test_a_failed_branch_beside_unpaid_ones_is_not_taken_for_a_step_that_pays() -> None:
    """Under look-ahead a decision that pays nobody is worth what follows; a failure beside it changes nothing there."""
    low, high = node(after(0, -1)), node(after(0, 2))
    tree = node(after(0, 0, low), after(1, 0, high), after(2, 0, failure=OVERLONG))
    assert returns(set_failure_rewards(tree, "lowest", 1.0), "first_reward") == [-1.0, 2.0, -1.0]
