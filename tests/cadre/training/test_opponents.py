"""A pool of earlier weights as opponents: draws and ratings by hand, who is trained, and a resumed run is the same."""

from pathlib import Path

import pytest
from rich.console import Console

from cadre.advantages.batch import Plan, build_batch
from cadre.advantages.groups import comparison_of
from cadre.advantages.returns import Credit
from cadre.config.resolve import resolve
from cadre.errors import ConfigError
from cadre.rollout import walk
from cadre.rollout.shapes import independent
from cadre.runs.kept_trees import read_all_trees
from cadre.runs.records import Rating
from cadre.team import Team
from cadre.training.checkpoint import checkpoint_name, read_state
from cadre.training.opponents import OpponentPool, draw_weights, expected_score
from cadre.types import Branch, Message, Node, Observation, Reward, Sample, Sampling, Task, Tree
from tests.helpers.training import configured, lines, play


def test_weights_of_a_draw_by_hand() -> None:
    members = [Rating(step=20, score=0.5), Rating(step=0, score=1.0), Rating(step=10, score=0.0)]
    assert draw_weights(members, "recency") == [3.0, 1.0, 2.0]
    assert draw_weights(members, "results") == [0.25, 0.05, 1.0]


def test_odds_of_elo_by_hand() -> None:
    assert expected_score(1000.0, 1000.0) == 0.5
    assert expected_score(1400.0, 1000.0) == pytest.approx(10 / 11)


def game(own: str, other: str, reward: float) -> Tree:
    """Return a game of one decision in which the learner, in seat `own`, earns `reward` and the other loses it."""
    policies = {own: "shared", "left" if own == "right" else "right": other}
    samples = {role: (Sample(role, policy, "1", (1,), (2,), (-0.7,), "stop", 0),) for role, policy in policies.items()}
    shown = {role: Observation(role, (Message("user", "go"),)) for role in policies}
    local = {role: reward if policy == "shared" else -reward for role, policy in policies.items()}
    branch = Branch(dict.fromkeys(policies, 0), Reward(local=local), over=True, success=False)
    return Tree(Task("t", {}), Node(0, shown, samples, (branch,)))


def test_ratings_after_a_step_by_hand(speaker: Path, tmp_path: Path) -> None:
    ratings = {"shared": Rating(step=0), "shared-1": Rating(step=0), "shared-2": Rating(step=1, elo=1400.0)}
    experiment = resolve(small(speaker))
    pool = OpponentPool(experiment, experiment.config.team.opponents, tmp_path, ratings)
    metrics = pool.rate([game("left", "shared-1", 1.0), game("right", "shared-1", 0.0), game("left", "shared-2", -1.0)])
    # 0.75 of two games where 0.5 was expected, and none of one where 1/11 was; each result moves 32 points at most.
    assert metrics["shared-1/elo"] == pytest.approx(1000.0 - 32 * 0.25)
    assert metrics["shared-2/elo"] == pytest.approx(1400.0 + 32 / 11)
    assert metrics["shared/elo"] == pytest.approx(1000.0 + 32 * 0.25 - 32 / 11)
    assert (metrics["shared-1/score"], metrics["shared-2/score"]) == pytest.approx((0.8 * 0.5 + 0.2 * 0.75, 0.8 * 0.5))
    assert (metrics["shared-1/from_step"], metrics["shared-2/from_step"]) == (0, 1)


def test_what_opponents_write_is_compared_with_nobody_and_has_no_gradient() -> None:
    assignment = {"left": "shared", "right": "shared"}
    team = Team(assignment, {}, dict.fromkeys(assignment, Sampling()))
    trees = [game("left", "shared-1", 1.0), game("left", "shared-2", 0.0)]
    plan = Plan(independent(1), Credit.of(comparison_of("episode", "role", "mean", "none", 1.0)))
    batch = build_batch(trees, plan, team)
    assert [scored.advantages for scored in batch.judged] == [(0.5,), (-0.5,)]
    assert {sequence.policy for sequence in batch.sequences} == {"shared"}


def small(speaker: Path, steps: int = 4, opponents: object = {"every": 1, "kept": 2}, **train: object):
    shared = {"model": str(speaker), "lora": {"rank": 2}} if train.pop("lora", False) else str(speaker)
    team = {"policies": {"shared": shared}, "roles": {"left": "shared", "right": "shared"}, "opponents": opponents}
    loop = {"steps": steps, "tasks_per_step": 4, "checkpoint_every": 1, "trees_kept": 4, **train}
    algorithm = {"name": "grpo_by_role", "k": 3}
    return configured(speaker, "Pair", team=team, algorithm=algorithm, train=loop, evaluate={"tasks": 0})


@pytest.mark.parametrize("lora", [False, True])
def test_members_play_one_seat_untrained_and_a_resumed_run_is_the_same(
    speaker: Path, tmp_path: Path, quiet: Console, lora: bool
) -> None:
    play(small(speaker, lora=lora), tmp_path / "whole", quiet)
    play(small(speaker, steps=2, lora=lora), tmp_path / "half", quiet)
    play(small(speaker, lora=lora), tmp_path / "half", quiet, resume=True)
    steps = lines(tmp_path / "whole", "metrics.jsonl")
    assert lines(tmp_path / "half", "metrics.jsonl") == steps
    file = "adapter_model.safetensors" if lora else "model.safetensors"
    saved = [(tmp_path / name / "checkpoints" / checkpoint_name(4)) for name in ("half", "whole")]
    for policy in ("shared", "shared-1", "shared-2"):
        assert (saved[0] / policy / file).read_bytes() == (saved[1] / policy / file).read_bytes()
    assert read_state(saved[0]).ratings == read_state(saved[1]).ratings

    # Slots 1 and 2 had the weights of steps 0 and 1, then of 2 and 3, then 4 and 3; each is what the learner was.
    assert [step.get("shared-1/from_step") for step in steps] == [0, 0, 2, 2]
    assert [step.get("shared-2/from_step") for step in steps] == [None, 1, 1, 3]
    assert (saved[0] / "shared-2" / file).read_bytes() == (
        saved[0].with_name(checkpoint_name(3)) / "shared" / file
    ).read_bytes()

    for kept in read_all_trees(tmp_path / "whole"):
        policies = {sample.role: sample.policy for sample in walk.samples(kept.tree.root)}
        own = ("left", "right")[(kept.step + kept.number) % 2]
        assert policies.pop(own) == "shared"
        assert set(policies.values()) <= {"shared-1", "shared-2"}
        assert all(sample.version == kept.step for sample in walk.samples(kept.tree.root) if sample.role == own)


def test_a_pool_is_refused_where_it_would_not_be_exact(speaker: Path) -> None:
    with pytest.raises(ConfigError, match="max_staleness"):
        resolve(small(speaker, max_staleness=1))
    with pytest.raises(ConfigError, match="one policy, which learns"):
        configured(
            speaker,
            "Pair",
            team={
                "policies": {"one": str(speaker), "two": str(speaker)},
                "roles": {"left": "one", "right": "two"},
                "opponents": {},
            },
        )
