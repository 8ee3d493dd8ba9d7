"""The page on one's own algorithm: its file is run as it is printed, alone by hand and in a training."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console

from bench.parity.trees import assign, leaf, node, sample
from cadre.advantages import batch
from cadre.advantages.returns import samples_of
from cadre.algorithms.custom import Custom
from cadre.algorithms.schedules import learning_policies
from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.errors import ConfigError
from cadre.learn.loss import example_tokens
from cadre.learn.loss_functions import AGGREGATES, Denominators
from cadre.rollout.grow import Rollout, grow
from cadre.settings import LossConfig
from cadre.settings.user_code import load_function
from cadre.types import Node, Sample, Task, Tree
from tests.helpers.games import Pair, scripted_team
from tests.helpers.training import configured, play

PAGE = Path(__file__).parents[3] / "docs" / "algorithms" / "write_your_own.md"


@pytest.fixture
def sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """The page's last sections, with its files in the working folder."""
    (ideas, code), (recipe, section) = (
        re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL) for language in ("python", "yaml")
    )
    for name, text in (("ideas.py", ideas), ("ideas.yaml", recipe), ("my_algorithm.py", code)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return yaml.safe_load(section)


@pytest.mark.usefixtures("sections")
def test_an_advantage_a_loss_and_a_schedule_in_one_file_of_thirty_lines() -> None:
    experiment = resolve(load("ideas.yaml"))
    assert len(Path("ideas.py").read_text().splitlines()) <= 30
    root = node(0, {"a": 4}, [leaf({"a": i}, pay) for i, pay in enumerate((5.0, 1.0, 9.0, 5.0))])
    (group,) = assign([Tree(Task("t", {}), root)], experiment.plan.credit)
    assert [scored.advantages[0] for scored in group.samples] == pytest.approx([0.0, -1.0, 1.0, 0.0])
    tokens = example_tokens()
    loss, metrics = load_function("loss.function", "ideas.py:focal", {})(tokens, power=2.0)
    focus = (1 - tokens.logprobs.exp()) ** 2
    assert torch.allclose(metrics["focus"], focus)
    assert torch.allclose(loss, -tokens.advantages * focus * tokens.logprobs)
    learning = [learning_policies("ideas.py:three_to_one", 1, step, ["one", "two"]) for step in range(4)]
    assert learning == [{"one"}, {"one"}, {"one"}, {"two"}]


@pytest.fixture
def settings(sections: dict) -> dict:
    """The page's algorithm."""
    return sections["algorithm"]


def test_median_and_median_deviation_by_hand(settings: dict) -> None:
    credit = Custom(**settings).plan().credit
    root = node(0, {"a": 5}, [leaf({"a": i}, pay) for i, pay in enumerate((0.0, 1.0, 2.0, 4.0, 9.0))])
    (group,) = assign([Tree(Task("t", {}), root)], credit)
    # the median is 2, the deviations 2, 1, 0, 2, 7 with the median 2
    assert [scored.advantages[0] for scored in group.samples] == [-1.0, -0.5, 0.0, 1.0, 3.5]
    limit = node(0, {"a": 3}, [leaf({"a": i}, pay) for i, pay in enumerate((1.0, 1.0, 4.0))])
    (group,) = assign([Tree(Task("t", {}), limit)], credit)
    assert [scored.advantages[0] for scored in group.samples] == [0.0, 0.0, 3.0]  # a deviation of 0 divides nothing


def test_the_beam_carries_two(settings: dict) -> None:
    team, sampler = scripted_team(Pair, lambda request, index: str(index))
    plan = Custom(**{**settings, "k": 3}).plan()
    root = asyncio.run(grow(Pair(Task("t", {}), 2), Rollout(Pair, team, plan.shape, 1.0), 0))
    assert root is not None
    # all agree, and the higher digits pay a little more
    assert [branch.selected for branch in root.branches] == [False, True, True]
    assert [branch.child is not None for branch in root.branches] == [False, True, True]
    assert len(sampler.requests) == 2 * (1 + 2)
    assert not plan.shape.selects_all
    assert plan.tree_weight == "alike"
    assert {branch.child.weight for branch in root.branches if branch.child} == {0.5}


def test_the_aggregate_lies_between_a_sum_and_a_mean(sections: dict) -> None:
    loss = LossConfig(**sections["loss"])
    data = [batch.sequence_of(sample, 1.0, 1.0) for sample in (long_sample(4), long_sample(16))]
    full = Denominators.of(data)
    aggregate = load_function("loss.aggregate", loss.aggregate, AGGREGATES)
    assert [aggregate(length, full) for length in (4, 16)] == [1 / (2 * 2), 1 / (2 * 4)]
    # with trees alike each of two has half of the update, whatever the loss makes of its length
    trees = [Tree(Task(str(n), {}), one_answer(sample)) for n, sample in enumerate((long_sample(4), long_sample(16)))]
    weighed = batch.weight_by_tree(samples_of(trees), "alike", loss)
    parts = [scored.weight * length * aggregate(length, full) for scored, length in zip(weighed, (4, 16), strict=True)]
    assert parts[0] == pytest.approx(parts[1])


def long_sample(length: int) -> Sample:
    return replace(sample("a", "said"), token_ids=(3,) * length, logprobs=(-1.0,) * length)


def one_answer(sample: Sample) -> Node:
    return replace(node(0, {"a": 1}, [leaf({"a": 0}, 1.0)]), samples={"a": (sample,)})


@pytest.mark.slow
def test_it_trains(sections: dict, speaker: Path, tmp_path: Path, quiet: Console) -> None:
    chosen = configured(
        speaker,
        "Handshake",
        settings={"turns": 2},
        algorithm={**sections["algorithm"], "k": 16},
        loss=sections["loss"],
        sampling={"max_tokens": 1},
        learner={"learning_rate": 1e-2},
        train={"steps": 9, "tasks_per_step": 4},
    )
    _, run = play(chosen, tmp_path / "run", quiet)
    initial_evaluations, final_evaluations = run.evaluations()
    assert final_evaluations["reward"] >= initial_evaluations["reward"] + 0.5  # of at most 2
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["rollout/episodes"] == 4 * 4  # two branches a decision, over two turns


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"baseline": "my_algorithm.py:midle"}, ["algorithm.baseline", "midle", "Did you mean middle?"]),
        ({"shape": "other_kinds.py:flat"}, ["algorithm.shape", "returned int", "Shape"]),
        ({"baseline": "other_kinds.py:flat"}, ["algorithm.baseline", "returned 1", "group of 2"]),
        ({"scale": "other_kinds.py:flat_list"}, ["algorithm.scale", "returned [1]", "a finite number"]),
        ({"shape": "other.py:beam2"}, ["algorithm.shape", "no file other.py"]),
        ({"scale": "broken.py:mad"}, ["algorithm.scale", "line 2", "ZeroDivisionError"]),
        ({"returns": "episode"}, ["algorithm.returns", "left behind"]),
    ],
)
def test_what_cannot_work_is_one_paragraph(settings: dict, changes: dict, expected: list[str]) -> None:
    Path("broken.py").write_text("x = 1\n1 / 0\n")
    Path("other_kinds.py").write_text("def flat(k):\n    return 1\n\ndef flat_list(k):\n    return [1]\n")
    with pytest.raises(ConfigError) as caught:
        Custom(**{**settings, **changes}).plan()
    for part in expected:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("axis", ["shape", "returns", "group", "baseline", "scale"])
def test_an_unknown_name_gets_the_nearest_known_one(settings: dict, axis: str) -> None:
    close = {"shape": "gredy", "returns": "steps", "group": "nod", "baseline": "means", "scale": "sd"}[axis]
    with pytest.raises(ValueError, match=f"got|one of .*{'' if axis == 'scale' else 'Did you mean'}"):
        Custom(**{**settings, axis: close})


def test_a_return_and_a_grouping_of_ones_own(settings: dict) -> None:
    Path("mine.py").write_text(
        "def halved(decision, credit):\n"
        "    return sum(branch.reward.team for branch in decision.branches) / 2\n\n"
        "def by_turn(decision):\n"
        "    return (decision.node.turn,)\n"
    )
    chosen = Custom(**{**settings, "returns": "mine.py:halved", "group": "mine.py:by_turn", "scale": "none"}).plan()
    trees = [Tree(Task(str(i), {}), node(0, {"a": 1}, [leaf({"a": 0}, 4.0 * i)])) for i in range(3)]
    (group,) = assign(trees, chosen.credit)
    assert [scored.advantages[0] for scored in group.samples] == [-2.0, 0.0, 2.0]
