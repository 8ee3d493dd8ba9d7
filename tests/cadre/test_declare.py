"""Properties that functions declare: those of the bundled ones hold, and those of a user's file reach Cadre."""

import random
from pathlib import Path

import pytest

from cadre.advantages.groups import BASELINES, GroupReturns
from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.declare import declare, declared
from cadre.errors import ConfigError
from cadre.learn.loss_functions import AGGREGATES, Denominators
from cadre.rollout import shapes
from cadre.rollout.shapes import CARRIES, Shape, count_leaves, every_decision
from cadre.settings.user_code import load_function

CUSTOM = "algorithm={{name: custom, k: 3, shape: {}, returns: {}, group: node, baseline: {}, scale: none}}"


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_made_of_the_group_gives_equal_returns_no_advantage(name: str) -> None:
    own = [
        list(BASELINES[name](GroupReturns((value,) * n, (1.0,) * n, (0.0,) * n))) == [value] * n
        for value in (1.0, 2.0)
        for n in (1, 2)
    ]
    assert declared(BASELINES[name], "needs_group") == all(own)


@pytest.mark.parametrize("name", CARRIES)
def test_a_carry_continues_as_many_branches_as_it_declares(name: str) -> None:
    assert len(CARRIES[name]([0.0] * 8, random.Random(0))) == declared(CARRIES[name], "selects") == 1


@pytest.mark.parametrize(
    ("shape", "continued"),
    [(shapes.independent(64), 64), (shapes.greedy(64), 1), (shapes.full(64), 64), (shapes.branch(64), 64)],
)
def test_a_bundled_shape_continues_as_many_branches_as_it_declares(shape: Shape, continued: int) -> None:
    assert len(shape.select([0.0] * 64, random.Random(0))) == continued
    assert shape.selects == ("all" if continued == 64 else continued)


@pytest.mark.parametrize("name", AGGREGATES)
def test_an_aggregate_that_sums_tokens_gives_each_the_same_weight(name: str) -> None:
    of_one, of_two = (AGGREGATES[name](length, Denominators(1, length, 1, 3.0)) for length in (1, 2))
    assert declared(AGGREGATES[name], "sums_tokens") == (of_one == of_two)


def test_a_shape_that_stops_by_a_reward_does_not_continue_all() -> None:
    assert not shapes.full(4, stop_at=100.0).selects_all
    assert shapes.full(4).selects_all


def test_an_undeclared_shape_counts_as_one_that_may_continue_all() -> None:
    undeclared = Shape("beam", every_decision(3), lambda scores, generator: [0, 1])
    beam = Shape("beam", every_decision(3), lambda scores, generator: [0, 1], selects=2)
    acting = [["a"]] * 4
    assert not undeclared.selects_all
    assert count_leaves(undeclared, acting) == 3**4
    assert count_leaves(beam, acting) == 2**3 * 3


def test_an_unknown_property_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"got 'need_group'.*Did you mean needs_group\?"):
        declare(need_group=True)


def test_a_declaration_in_a_users_file_counts(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from cadre.declare import declare\n"
        "from cadre.rollout.shapes import Shape, every_decision\n"
        "def low(group):\n    return [min(group.values)] * len(group.values)\n"
        "@declare(needs_group=True)\ndef lowest(group):\n    return low(group)\n"
        "def wide(k):\n"
        "    return Shape('wide', every_decision(k), lambda scores, random: range(len(scores)))\n"
        "def whole(k):\n"
        "    return Shape('whole', every_decision(k), lambda scores, random: range(len(scores)), selects='all')\n"
        "@declare(selects=2)\ndef pair(scores, random):\n    return [0, 1]\n"
    )

    def chosen(*overrides: str):
        return resolve(load("plan-path", ["settings.turns=1", *overrides]))

    drop = "credit.without_std=drop"
    own = CUSTOM.format("greedy", "step", f"{tmp_path}/mine.py:low")
    with pytest.raises(ConfigError, match=r"declare\(needs_group=True\) of your own"):
        chosen(own, drop)
    assert chosen(CUSTOM.format("greedy", "step", f"{tmp_path}/mine.py:lowest"), drop)
    with pytest.raises(ConfigError, match="left behind have no future"):
        chosen(CUSTOM.format(f"{tmp_path}/mine.py:wide", "episode", "mean"))
    assert chosen(CUSTOM.format(f"{tmp_path}/mine.py:whole", "episode", "mean")).plan.shape.selects_all
    assert chosen(f"algorithm={{name: at_grpo, carry: '{tmp_path}/mine.py:pair'}}").plan.shape.selects == 2
    assert declared(load_function("algorithm.carry", f"{tmp_path}/mine.py:pair", {}), "selects") == 2
