"""Properties that functions declare: those of the bundled ones hold, and those of a user's file reach Cadre."""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.parity.trees import node
from cadre.advantages.groups import (
    ADVANTAGES,
    BASELINES,
    GROUPINGS,
    SCALES,
    AdvantageGroup,
    GroupReturns,
    compare_samples,
)
from cadre.advantages.returns import RETURNS, samples_of
from cadre.algorithms.custom import Custom
from cadre.config.experiment import load
from cadre.config.resolve import resolve, resolve_recipe
from cadre.declare import DEFAULTS, declare, declared
from cadre.errors import ConfigError
from cadre.learn.loss_functions import AGGREGATES, Denominators
from cadre.rollout import shapes
from cadre.rollout.shapes import SELECTIONS, Shape, count_leaves, every_decision
from cadre.settings.user_code import load_function
from cadre.types import Branch, Node, Reward, Task, Tree
from tests.helpers.slow import few_of

CUSTOM = "algorithm={{name: custom, k: 3, shape: {}, returns: {}, group: node, baseline: {}, scale: none}}"


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_made_of_the_group_gives_equal_returns_no_advantage(name: str) -> None:
    has_no_advantage = [
        list(BASELINES[name](GroupReturns((value,) * n, (1.0,) * n, (0.0,) * n))) == [value] * n
        for value in (1.0, 2.0)
        for n in (1, 2)
    ]
    assert declared(BASELINES[name], "needs_group") == all(has_no_advantage)


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_selection_continues_as_many_branches_as_it_declares(name: str) -> None:
    assert len(SELECTIONS[name]([0.0] * 8, random.Random(0))) == declared(SELECTIONS[name], "selects") == 1


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


def test_an_unknown_property_or_value_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"got 'need_group'.*Did you mean needs_group\?"):
        declare(need_group=True)
    with pytest.raises(
        ConfigError, match=r"got scope='tasks'; expected one of \('decision', 'turn', 'task', 'batch'\)"
    ):
        declare(scope="tasks")


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
    own_format = CUSTOM.format("greedy", "step", f"{tmp_path}/mine.py:low")
    with pytest.raises(ConfigError, match=r"declare\(needs_group=True\) of your own"):
        chosen(own_format, drop)
    assert chosen(CUSTOM.format("greedy", "step", f"{tmp_path}/mine.py:lowest"), drop)
    with pytest.raises(ConfigError, match="left behind have no future"):
        chosen(CUSTOM.format(f"{tmp_path}/mine.py:wide", "episode", "mean"))
    assert chosen(CUSTOM.format(f"{tmp_path}/mine.py:whole", "episode", "mean")).plan.shape.selects_all
    assert chosen(f"algorithm={{name: at_grpo, select: '{tmp_path}/mine.py:pair'}}").plan.shape.selects == 2
    assert declared(load_function("algorithm.select", f"{tmp_path}/mine.py:pair", {}), "selects") == 2


# Every bundled function under another name, by axis.
TABLES: dict[str, Mapping[str, Any]] = {
    "returns": RETURNS,
    "group": GROUPINGS,
    "baseline": BASELINES,
    "scale": SCALES,
    "advantages": ADVANTAGES,
}
BUNDLED = [(axis, name) for axis, table in TABLES.items() for name in table]
QUICK = [("returns", "episode"), ("group", "role_turn_task"), ("baseline", "running")]
# Settings under which some of them are refused.
SITUATIONS: tuple[list[str], ...] = (
    [],
    ["algorithm.shape=greedy"],
    ["algorithm.shape=greedy", "algorithm.lookahead=3"],
    ["algorithm.gamma=0.5"],
    ["algorithm.k=1", "algorithm.shape=independent"],
    ["algorithm.k=1", "algorithm.shape=independent", "algorithm.returns=episode"],
    ["algorithm.k=1", "algorithm.shape=independent", "algorithm.group=task_role"],
    ["algorithm.k=1", "algorithm.shape=independent", "algorithm.baseline=running"],
    ["algorithm.second={returns: step, group: node, baseline: mean, scale: none}"],
    ["credit.without_std=drop"],
)


def own(tmp_path: Path, axis: str, name: str, declares: bool = True) -> str:
    """A function of a user's file that calls the bundled one, with its declaration or with none."""
    function = TABLES[axis][name]
    properties = {key: declared(function, key) for key in DEFAULTS} if declares else {}
    (tmp_path / "mine.py").write_text(
        "from cadre.advantages import groups, returns\n"
        "from cadre.declare import declare\n"
        "tables = {'returns': returns.RETURNS, 'group': groups.GROUPINGS, 'baseline': groups.BASELINES,\n"
        "           'scale': groups.SCALES, 'advantages': groups.ADVANTAGES}\n"
        f"@declare(**{properties!r})\ndef mine(*given):\n    return tables[{axis!r}][{name!r}](*given)\n"
    )
    return f"{tmp_path}/mine.py:mine"


def custom(axis: str, reference: str, *changes: str) -> list[str]:
    """Overrides of plan-path with the function on its axis."""
    axes = {"returns": "step", "group": "task_role", "baseline": "mean", "scale": "std"} | {axis: reference}
    if axis == "advantages":
        axes = {"returns": "reward_to_go", "group": "state", axis: reference}
    named = ", ".join(f"{key}: '{value}'" for key, value in axes.items())
    return [f"algorithm={{name: custom, k: 3, shape: full, {named}}}", *changes]


def grown() -> Tree:
    """Three answers, of which two go on to unequal ends. Every step was also taken without the role."""

    def branch(index: int, reward: float, child: Node | None = None) -> Branch:
        return Branch({"a": index}, Reward(reward), child is None, False, True, child, ablated={"a": Reward(0.1)})

    last = node(2, {"a": 1}, [branch(0, 0.7)], "x")
    fan = replace(node(1, {"a": 2}, [branch(0, 0.0, last), branch(1, 0.2)], "y"), signature="s")
    late = replace(node(1, {"a": 1}, [branch(0, -0.4)], "z"), signature="s")
    return Tree(Task("t", {}), node(0, {"a": 3}, [branch(0, 1.0, fan), branch(1, 0.0, late), branch(2, 0.3)]))


def compared(overrides: list[str]) -> list[AdvantageGroup]:
    credit = resolve(load("plan-path", overrides)).plan.credit
    return compare_samples(samples_of([grown()]), credit, {"a": 0.2, "a/0": 0.1})


def is_refused(overrides: list[str]) -> bool:
    try:
        resolve_recipe("plan-path", overrides)
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize(
    ("axis", "name"), few_of(BUNDLED, [("returns", "episode"), ("group", "role_turn_task"), ("baseline", "running")])
)
def test_a_bundled_function_under_another_name_gives_the_same(axis: str, name: str, tmp_path: Path) -> None:
    custom_function = own(tmp_path, axis, name)
    rest: list[list[str]] = [["algorithm.baseline=running"], ["algorithm.returns=episode"]]
    for changes in [[], *(rest if axis != "advantages" else [])]:
        assert compared(custom(axis, custom_function, *changes)) == compared(custom(axis, name, *changes))
    for changes in SITUATIONS:
        assert is_refused(custom(axis, custom_function, *changes)) == is_refused(custom(axis, name, *changes)), changes


def test_some_situations_refuse_each_kind_of_function(tmp_path: Path) -> None:
    """The comparison above would pass if nothing was refused."""
    for axis, name, number in (("returns", "episode", 1), ("returns", "step", 3), ("group", "task", 5)):
        assert is_refused(custom(axis, own(tmp_path, axis, name), *SITUATIONS[number]))


@pytest.mark.parametrize("name", RETURNS)
def test_nothing_is_assumed_of_a_return_that_declares_nothing(name: str, tmp_path: Path) -> None:
    """It may read gamma and the look-ahead, and what follows the step where a shape left it open."""
    custom_function = own(tmp_path, "returns", name, declares=False)
    for changes in SITUATIONS[:4]:
        assert not is_refused(custom("returns", custom_function, *changes)), changes
    (group,) = compared(custom("returns", custom_function))
    assert {scored.count for scored in group.samples} == {1.0}


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_a_bundled_shape_under_another_name_is_the_same(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"from cadre.rollout import shapes\n\ndef mine(k):\n    return shapes.{name}(k)\n"
    )
    axes = {"returns": "step", "group": "node", "baseline": "mean", "scale": "none", "name": "custom", "k": 3}
    plans = [Custom(shape=shape, **axes).plan() for shape in (name, f"{tmp_path}/mine.py:mine")]
    assert plans[0].tree_weight == plans[1].tree_weight
    assert plans[0].shape.name == plans[1].shape.name
