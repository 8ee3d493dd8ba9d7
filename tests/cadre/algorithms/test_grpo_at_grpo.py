"""AT-GRPO without a reward at a decision: with per-role policies the first role learns by the later one, or never."""

import asyncio
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from cadre.advantages.groups import compare_samples
from cadre.advantages.returns import samples_of
from cadre.algorithms.custom import Custom
from cadre.algorithms.grpo import AtGrpo
from cadre.rollout import walk
from cadre.rollout.grow import Rollout, grow
from cadre.runs.folder import Run
from cadre.team import Team
from cadre.types import Request, Sampling, Task, Tree
from cadre_tasks.patterns.lead import Lead
from tests.helpers.games import Scripted
from tests.helpers.training import configured, play


def whispered(speaker: Path, folder: Path, console: Console, lookahead: int) -> Run:
    """A run in which `teller` and `echo` have a policy of their own."""
    chosen = configured(
        speaker,
        "Whisper",
        ("teller", "echo"),
        algorithm={"name": "at_grpo", "k": 8, "lookahead": lookahead},
        sampling={"max_tokens": 1},
        learner={"learning_rate": 1e-2},
        train={"steps": 30, "tasks_per_step": 8},
    )
    _, run = play(chosen, folder, console)
    return run


@pytest.mark.slow  # that its decisions are told apart is seen below, by hand
def test_a_role_that_is_paid_later_learns(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    run = whispered(speaker, tmp_path / "run", quiet, lookahead=2)
    assert run.evaluations()[-1]["reward"] == 1.0
    first = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[0])
    assert first["teller/zero_variance_groups/0"] < 1.0


@pytest.mark.slow
def test_without_looking_ahead_it_does_not(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    run = whispered(speaker, tmp_path / "run", quiet, lookahead=0)
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert {line["teller/zero_variance_groups"] for line in lines} == {1.0}
    assert not any("teller/grad_norm" in line for line in lines)
    assert any("echo/grad_norm" in line for line in lines)
    assert run.evaluations()[-1]["reward"] < 1.0


SECOND = {"returns": "first_reward", "group": "node", "baseline": "mean", "scale": "none"}


@pytest.mark.parametrize(
    ("options", "lookahead"),
    [
        ({"returns": "first_reward"}, 2),
        ({"returns": "first_reward", "lookahead": 1}, 1),
        ({"returns": "step"}, 0),
        ({"returns": "step", "second": SECOND}, 2),
    ],
)
def test_custom_looks_ahead_where_its_return_asks_for_it(options: dict, lookahead: int) -> None:
    axes = {"name": "custom", "shape": "greedy", "group": "node", "baseline": "mean", "scale": "std"}
    plan = Custom(**axes, **options).plan()
    assert plan.shape.lookahead == lookahead
    assert plan.tree_weight == "by_decision"


def test_the_papers_search_is_lookahead_0() -> None:
    assert AtGrpo(name="at_grpo").plan().shape.lookahead == 2
    assert AtGrpo(name="at_grpo", lookahead=0).plan().shape.lookahead == 0


def test_a_leader_and_its_workers_are_told_apart_by_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """`lead` pays its answer alone: right are those of the second plan's second report."""

    async def right(self: Lead, answer: str) -> bool:
        return "plan 1: report 1" in answer

    def answer(request: Request, index: int) -> str:
        shown = request.messages[0].content
        if request.role != "leader":
            return f"{shown}: report {index}"
        return f"{index} {shown}" if "Now answer." in shown else f"1. plan {index}"

    monkeypatch.setattr(Lead, "right", right)
    roles = dict.fromkeys(("leader", "worker1"), "shared")
    team = Team(roles, {"shared": Scripted(answer)}, dict.fromkeys(roles, Sampling()))
    plan = AtGrpo(name="at_grpo", k=3).plan()
    rollout = Rollout(Lead, team, plan.shape, plan.credit.alpha)
    root = asyncio.run(grow(Lead(Task("t", {"question": "What is 6 * 7?"}), workers=1), rollout, 0))
    assert root is not None
    groups = compare_samples(samples_of([Tree(Task("t", {}), root)]), plan.credit)
    by_place = {group.key[1:]: [scored.advantages[0] for scored in group.samples] for group in groups}
    # the second of three stands out: (1 - 1/3) / sqrt(2/9) and (0 - 1/3) / sqrt(2/9)
    best, rest = 2 / math.sqrt(2), -1 / math.sqrt(2)
    assert by_place["leader",] == pytest.approx([rest, best, rest])
    assert by_place["worker1", 1] == pytest.approx([rest, best, rest])
    assert by_place["worker1", 0] == by_place["worker1", 2] == [0.0] * 3
    (path,) = walk.episodes(root)
    assert path[-1][1].success
