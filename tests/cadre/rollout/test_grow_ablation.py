"""Credit by ablation: steps without some roles, and the contributions that are computed of them, by hand."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from bench.parity.trees import assign, sample
from cadre.advantages.batch import build_batch
from cadre.advantages.groups import check_parts_reported, comparison_of
from cadre.advantages.returns import RETURNS, required_ablation, samples_of
from cadre.config.experiment import Config, parse
from cadre.config.resolve import resolve
from cadre.env import Env
from cadre.envs.wrappers import centralised
from cadre.errors import ConfigError, ContractError
from cadre.rollout import shapes, walk
from cadre.rollout.episodes import SampledTrees, grow_many
from cadre.rollout.failures import failure_of
from cadre.rollout.grow import Rollout, grow, step_ablated
from cadre.training.asynchronous import SampledStep, read_sampled_steps, write_sampled_steps
from cadre.training.metrics import tree_metrics
from cadre.types import Branch, Message, Node, Observation, Reward, Sample, Task, Tool, Tree
from cadre_analysis.audit import AuditSettings, execute_decisions, sample_decisions
from tests.cadre.algorithms.test_algorithms_presets import named
from tests.helpers.games import Scripted, scripted_team

TASK = Task("t", {})


class Crew(Env):
    """Agents say numbers at once: `a` times `b`, and `c` where it acts, are the team's reward. The judge counts what it
    was asked, as a judge with a state would."""

    roles: ClassVar[tuple[str, ...]] = ("a", "b", "c")
    absence: ClassVar[str] = ""
    stepped: ClassVar[list[tuple[str, ...]]] = []
    closed: ClassVar[int] = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.over, self.judged = False, 0

    def observe(self) -> dict[str, Observation]:
        return {} if self.over else {role: Observation(role, (Message("user", role),)) for role in self.roles}

    async def step(self, actions: dict[str, str]) -> Reward:
        await asyncio.sleep(0)
        self.stepped.append(tuple(actions.values()))
        self.over, self.judged = True, self.judged + 1
        number = {role: float(text or 0) for role, text in actions.items()}
        return Reward(number["a"] * number["b"] + number.get("c", 0.0), parts={"judged": float(self.judged)})

    def default_action(self, role: str) -> str:
        return self.absence

    def close(self) -> None:
        type(self).closed += 1

    @property
    def success(self) -> bool:
        return self.over

    @classmethod
    def tasks(cls, split: str, **settings: Any) -> list[Task]:
        return [Task(f"{split}-{index}", {}) for index in range(4)]


class Duo(Crew):
    roles: ClassVar[tuple[str, ...]] = ("a", "b")


class Stubborn(Duo):
    absence: ClassVar[str] = "not a number"


class Crowd(Crew):
    roles: ClassVar[tuple[str, ...]] = tuple("abcdefg")


def grown(env: type[Env], text: dict[str, list[str]], ablation: str, k: int = 1, **options: Any) -> Node:
    team, _ = scripted_team(env, lambda request, index: text[request.role][index])
    rollout = Rollout(env, team, shapes.independent(k), 1.0, ablation=ablation, **options)
    root = asyncio.run(grow(env(TASK), rollout, 7))
    assert root is not None
    return root


def contributions(root: Node, returns: str, **numbers: float) -> dict[str, float]:
    credit = comparison_of(returns, "node", "none", "none", **numbers)
    samples = walk.tree_samples([Tree(TASK, root)])
    return {f"{sample.role}{sample.index}": RETURNS[returns](sample, credit) for sample in samples}


def test_three_agents_by_hand() -> None:
    """2 * 3 + 4 = 10. Without a or b 4 are left, without c 6, so that they contribute 6, 6 and 4. In orders of coming
    a and b make 6 together, whoever is the later one: 3 each, and c always 4."""
    root = grown(Crew, {"a": ["2"], "b": ["3"], "c": ["4"]}, "all")
    assert root.branches[0].reward.team == 10.0
    teams = {absent: reward.team for absent, reward in root.branches[0].ablated.items()}
    assert teams == {"a": 4.0, "b": 4.0, "c": 6.0, "a b": 4.0, "a c": 0.0, "b c": 0.0, "a b c": 0.0}
    assert contributions(root, "counterfactual") == {"a0": 6.0, "b0": 6.0, "c0": 4.0}
    assert contributions(root, "shapley") == {"a0": 3.0, "b0": 3.0, "c0": 4.0}
    assert contributions(root, "shapley", alpha=0.5) == {"a0": 1.5, "b0": 1.5, "c0": 2.0}


def test_two_agents_by_hand_with_a_default_that_does_something() -> None:
    """An absent one counts as 1: R(all) = 6, R(without a) = 3, R(without b) = 2, R(nobody) = 1."""

    class Helped(Duo):
        absence = "1"

    root = grown(Helped, {"a": ["2"], "b": ["3"]}, "all")
    assert contributions(root, "counterfactual") == {"a0": 3.0, "b0": 4.0}
    assert contributions(root, "shapley") == {"a0": 2.0, "b0": 3.0}  # ((6 - 3) + (2 - 1)) / 2, ((6 - 2) + (3 - 1)) / 2


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_shapley_values_share_out_what_all_add_to_nobody(count: int) -> None:
    """The values sum to R(all) - R(nobody) for any rewards of the sets of roles."""
    roles = "abcde"[:count]
    draw = random.Random(count).gauss
    absences = [set_ for size in range(1, count + 1) for set_ in itertools.combinations(roles, size)]
    ablated = {" ".join(absent): Reward(draw(0.0, 3.0)) for absent in absences}
    root = Node(
        0,
        {role: Observation(role, ()) for role in roles},
        {role: (sample(role, role),) for role in roles},
        (branch := Branch(dict.fromkeys(roles, 0), Reward(5.0), True, False, ablated=ablated),),
    )
    values = contributions(root, "shapley")
    assert sum(values.values()) == pytest.approx(branch.reward.team - ablated[" ".join(roles)].team)


def test_a_role_is_paid_by_its_own_reward() -> None:
    """A local reward is its role's alone: saying 4 pays c 1 of its own, and without c nothing."""

    class Paid(Crew):
        async def step(self, actions: dict[str, str]) -> Reward:
            reward = await super().step(actions)
            return replace(reward, local={"c": 1.0 if actions["c"] else 0.0})

    root = grown(Paid, {"a": ["2"], "b": ["3"], "c": ["4"]}, "each")
    assert contributions(root, "counterfactual") == {"a0": 6.0, "b0": 6.0, "c0": 5.0}


def test_ablated_steps_leave_no_trace_but_their_rewards() -> None:
    """The judge of a branch has been asked once, each ablated one too; equal ablated actions are stepped once, their
    forks are closed, and the tree is otherwise that of a rollout without them."""
    text = {"a": ["2", "2"], "b": ["3", "5"]}
    plain = grown(Duo, text, "none", k=2)
    Duo.stepped.clear()
    Crew.closed = Duo.closed = 0
    root = grown(Duo, text, "each", k=2)
    assert sorted(Duo.stepped) == sorted([("2", "3"), ("2", "5"), ("", "3"), ("", "5"), ("2", "")])
    assert Duo.closed == 3  # the forks of the ablated steps; those of the branches are the episodes'
    rewards = [reward for branch in root.branches for reward in (branch.reward, *branch.ablated.values())]
    assert {reward.parts["judged"] for reward in rewards} == {1.0}
    assert replace(root, branches=tuple(replace(branch, ablated={}) for branch in root.branches)) == plain
    trees = [Tree(TASK, root)]
    assert tree_metrics(trees, 1.0)["rollout/ablated_steps"] == 3
    assert tree_metrics(trees, 1.0)["rollout/env_steps"] == 2
    assert "rollout/ablated_steps" not in tree_metrics([Tree(TASK, plain)], 1.0)


def test_nothing_ablated_is_trained_on() -> None:
    text = {"a": ["2", "1"], "b": ["3", "5"]}
    root, plan = grown(Duo, text, "each", k=2), named("counterfactual", k=2)
    team, _ = scripted_team(Duo, lambda request, index: "")
    sequences = build_batch([Tree(TASK, root)], plan, team).sequences
    assert len(sequences) == 4


def test_the_presets_compare_a_role_with_itself_on_the_task() -> None:
    """a contributes 6 and 5: (6 - 5.5) / 0.5 = 1 and -1; b 6 and 5. The team is paid 6 and 5 as well, and the part
    `judged` is 1 in both, so that the Shapley preset has twice the sign."""
    root = grown(Duo, {"a": ["2", "1"], "b": ["3", "5"]}, "all", k=2)

    def judged(name: str, **options: Any) -> dict[str, float]:
        groups = assign([Tree(TASK, root)], named(name, k=2, **options).credit)
        members = [scored for group in groups for scored in group.samples]
        return {f"{member.sample.role}{member.tree_sample.index}": member.advantages[0] for member in members}

    assert judged("counterfactual") == pytest.approx({"a0": 1.0, "a1": -1.0, "b0": 1.0, "b1": -1.0})
    assert judged("shapley") == pytest.approx({"a0": 2.0, "a1": -2.0, "b0": 2.0, "b1": -2.0})
    weighted = judged("shapley", broadcast=3.0, part_weights={"judged": 2.0}, scale="none")
    # Values 3 and 2.5: 0.25 off their mean; rewards 6 and 5: 0.5 off, thrice.
    assert weighted == pytest.approx({"a0": 1.75, "a1": -1.75, "b0": 1.75, "b1": -1.75})
    absent = named("shapley", k=2, part_weights={"tool": 1.0}).credit
    with pytest.raises(ConfigError, match="got 'tool', which no reward of the step reports"):
        check_parts_reported(samples_of([Tree(TASK, root)]), absent)


def test_returns_are_summed_before_they_are_normalised_as_in_sharp() -> None:
    """Shapley values of a: 1/2, 1 and 3/2, as an absent agent leaves nothing of the product; rewards 1, 2 and 3. With
    the weight 3 and 1 of the part that is 4, 4 and 1 their sums are 7.5, 11 and 11.5: mean 10, deviation sqrt(19/6)."""

    class ToldReward(Duo):
        async def step(self, actions: dict[str, str]) -> Reward:
            reward = await super().step(actions)
            return replace(reward, parts={"a/tool": 1.0 if actions["a"] == "3" else 4.0})

    root = grown(ToldReward, {"a": ["1", "2", "3"], "b": ["1", "1", "1"]}, "all", k=3)

    def judged(**options: Any) -> dict[str, float]:
        credit = named("shapley", k=3, broadcast=3.0, part_weights={"a/tool": 1.0}, **options).credit
        groups = assign([Tree(TASK, root)], credit)
        return {
            sample.sample.role + sample.sample.text: sample.advantages[0]
            for group in groups
            for sample in group.samples
        }

    deviation = math.sqrt((2.5**2 + 1.0 + 1.5**2) / 3)
    summed = judged(normalise="sum")
    assert [summed[f"a{n}"] for n in (1, 2, 3)] == pytest.approx([-2.5 / deviation, 1 / deviation, 1.5 / deviation])
    # Apart: values and rewards are -sqrt(3/2), 0, sqrt(3/2), the part sqrt(1/2) twice and -sqrt(2).
    root32, root2 = math.sqrt(1.5), math.sqrt(2.0)
    separate = judged()
    assert [separate[f"a{n}"] for n in (1, 2, 3)] == pytest.approx(
        [-4 * root32 + root2 / 2, root2 / 2, 4 * root32 - root2]
    )


def test_contributions_are_standardised_over_the_run_and_bent_as_in_ccpo() -> None:
    """Contributions of a: 1 and 3 in the first batch (mean 2, variance 1), then 2, 3 and 5: z = 0, 1 and 3. The mean is
    then 0.99 * 2 + 0.01 * 10/3, the variance 0.99 * 1 + 0.01 * 14/9."""
    plan, state = named("counterfactual", k=3, normalise="history"), {}
    team, _ = scripted_team(Duo, lambda request, index: "")

    def judged(*text: str) -> list[float]:
        root = grown(Duo, {"a": list(text), "b": ["1"] * len(text)}, "each", k=len(text))
        groups = build_batch([Tree(TASK, root)], plan, team, state).groups
        members = [sample for group in groups for sample in group.samples if sample.sample.role == "a"]
        return [member.advantages[0] for member in sorted(members, key=lambda scored: scored.tree_sample.index)]

    assert judged("1", "3") == pytest.approx([-1.0, 1.0])  # nothing to standardise by
    assert (state["a/return/mean"], state["a/return/variance"]) == pytest.approx((2.0, 1.0))
    # tanh 0, 1 and 3 are 0, 0.76159 and 0.99505: mean 0.58555, deviation 0.42487; unbent -1.06904, -0.26726, 1.33631.
    assert judged("2", "3", "5") == pytest.approx([-1.37817, 0.41434, 0.96383], abs=1e-5)
    assert (state["a/return/mean"], state["a/return/variance"]) == pytest.approx((2.0133333, 1.0055556))
    # Without a deviation z is the difference from the mean: tanh 0.5 twice, and tanh 1.5.
    state |= {"a/return/mean": 1.5, "a/return/variance": 0.0}
    root2 = math.sqrt(2.0)
    assert judged("2", "2", "3") == pytest.approx([-1 / root2, -1 / root2, root2])


def test_a_part_is_added_with_its_own_weight() -> None:
    """Part 4 - 2 = 2 off 3: +1 and -1 unscaled, times 2, beside contributions of 1 and 1 and no broadcast."""

    class ToldReward(Duo):
        async def step(self, actions: dict[str, str]) -> Reward:
            reward = await super().step(actions)
            return replace(reward, parts={"tool": float(actions["b"] or 0)})

    root = grown(ToldReward, {"a": ["1", "2"], "b": ["4", "2"]}, "all", k=2)
    credit = named("shapley", k=2, broadcast=0.5, part_weights={"tool": 2.0}, scale="none").credit
    groups = assign([Tree(TASK, root)], credit)
    got = {
        sample.sample.role + sample.sample.text: sample.advantages[0] for group in groups for sample in group.samples
    }
    assert got == pytest.approx({"a1": 2.0, "a2": -2.0, "b4": 2.0, "b2": -2.0})


def test_a_branch_that_fails_with_and_without_a_role_owes_it_nothing() -> None:
    """a says what no step takes: without a the step is 3 (c), without b or c it fails as it did."""

    root = grown(Crew, {"a": ["?"], "b": ["2"], "c": ["3"]}, "each", contain=failure_of)
    assert root.branches[0].failure is not None
    assert {absent: reward.team for absent, reward in root.branches[0].ablated.items()} == {"a": 3.0}
    assert contributions(root, "counterfactual") == {"a0": -3.0, "b0": 0.0, "c0": 0.0}


def test_a_default_action_that_makes_steps_fail_is_named() -> None:
    with pytest.raises(ContractError, match="default_action: the step without a failed"):
        grown(Stubborn, {"a": ["1"], "b": ["2"]}, "each", contain=failure_of)


def test_a_tree_without_ablated_steps_has_no_contributions() -> None:
    with pytest.raises(ConfigError, match="found no step without a"):
        contributions(grown(Duo, {"a": ["1"], "b": ["2"]}, "none"), "counterfactual")


def test_exact_values_of_seven_roles_at_once_are_refused() -> None:
    env, answers = Crowd(TASK), {role: sample(role, "1") for role in Crowd.roles}
    rollout = Rollout(Crowd, scripted_team(Crowd, lambda request, index: "")[0], shapes.independent(1), 1.0)
    with pytest.raises(ConfigError, match=r"got 7 roles that act at once .* 128 steps .* at most 6"):
        asyncio.run(step_ablated(env, env.observe(), [answers], {}, replace(rollout, ablation="all")))


def test_central_play_leaves_out_all_parts() -> None:
    central = centralised(type("Named", (Duo,), {"default_action": lambda self, role: f"no {role}"}))
    assert central(TASK).default_action("team") == "=== a ===\nno a\n=== b ===\nno b"


def recipe(env: type[Env], model: Any, **algorithm: Any) -> Config:
    """Return a recipe of an environment of this file."""
    team = {"policies": {"shared": str(model)}, "roles": dict.fromkeys(env.roles, "shared")}
    name = f"{__file__}:{env.__name__}"
    return parse({"env": name, "team": team, "algorithm": algorithm, "evaluate": {"tasks": 4}}, env)


def test_the_rollout_of_an_experiment_ablates_as_its_credit_needs(speaker: Any) -> None:
    team, _ = scripted_team(Duo, lambda request, index: "1")
    for algorithm, ablation in (("counterfactual", "each"), ("shapley", "all"), ("grpo", "none")):
        experiment = resolve(recipe(Duo, speaker, name=algorithm), Duo)
        assert experiment.rollout(team).ablation == ablation == required_ablation(experiment.plan.credit)
        assert experiment.evaluation(team).ablation == "none"


def test_an_audit_reads_counterfactual_credit(speaker: Any) -> None:
    """Credit and execution both use the step's own reward; its ablated steps play no part."""
    experiment = resolve(recipe(Duo, speaker, name="counterfactual", k=2, scale="none"), Duo)
    team, _ = scripted_team(Duo, lambda request, index: {"a": "12", "b": "34"}[request.role][index])
    settings = AuditSettings(tasks=1, plays=1)
    decisions = asyncio.run(sample_decisions(experiment, team, settings))
    outcomes = asyncio.run(execute_decisions(experiment, team, decisions, settings))
    assert {outcome.role: outcome.advantages for outcome in outcomes} == {"a": (-2.5, 2.5), "b": (-2.5, 2.5)}
    assert {outcome.role: outcome.effects for outcome in outcomes} == {"a": [-2.5, 2.5], "b": [-2.5, 2.5]}


def test_ablated_rewards_survive_a_checkpoint(tmp_path: Any) -> None:
    root = grown(Crew, {"a": ["2"], "b": ["3"], "c": ["4"]}, "all")
    step = SampledStep(0, SampledTrees([Tree(TASK, root)], []), 0.5)
    write_sampled_steps(tmp_path, [step])
    assert read_sampled_steps(tmp_path) == (step,)


def test_whole_trees_grow_with_ablated_steps_in_time() -> None:
    """Through the wrapper with deadlines, and where a shape looks ahead or comes back to earlier decisions."""
    sampler = Scripted(lambda request, index: str(index + 1))
    team = replace(scripted_team(Duo, lambda request, index: "")[0], samplers={"shared": sampler})
    for shape in (shapes.greedy(2, lookahead=2), shapes.branch(2), shapes.full(2, "cross")):
        rollout = Rollout(Duo, team, shape, 1.0, ablation="each")
        trees, failures = asyncio.run(grow_many([TASK], rollout, 3))
        assert not failures
        assert all(branch.ablated.keys() == {"a", "b"} for branch in trees[0].root.branches)


def test_a_default_action_stands_for_a_role_that_may_call_tools() -> None:
    class Tooled(Duo):
        messages: ClassVar[list[Any]] = []

        def observe(self) -> dict[str, Observation]:
            return {role: replace(recorded, tools=(Tool("add"),)) for role, recorded in super().observe().items()}

        async def step_samples(self, samples: Any) -> Reward:
            self.messages += [
                sample.message for sample in samples.values() if isinstance(sample, Sample) and not sample.text
            ]
            return await super().step_samples(samples)

    grown(Tooled, {"a": ["1"], "b": ["2"]}, "each")
    assert Tooled.messages == [Message("assistant", "")] * 2
