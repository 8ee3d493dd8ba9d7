"""A baseline of the group needs a group: one sample that is compared with itself has no advantage."""

import pytest

from cadre.algorithms import ALGORITHMS
from cadre.config.checks import find_training_warnings
from cadre.config.experiment import load
from cadre.config.resolve import resolve, resolve_for_evaluation
from cadre.errors import ConfigError

REFUSED = {
    *("at_grpo", "grpo", "grpo_by_role", "matpo", "flow_grpo", "m_grpo", "c3", "magrpo", "ma_rloo", "ma_remax"),
    *("magrpo_central", "dr_mas", "dr_mamr", "ma_dpo", "hierarchical_grpo", "teamtr"),
}
CUSTOM = [
    "algorithm={name: custom, shape: independent, returns: episode, group: task, baseline: mean, scale: std, k: 1}"
]
# Those whose teams are made of other policies or roles.
RECIPES = {name: f"plan-path-{name.replace('_', '-')}" for name in ("flow_grpo", "m_grpo", "magrpo_central")}


def refused(*overrides: str, recipe: str = "plan-path") -> str:
    try:
        resolve(load(recipe, overrides))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - {"custom"}))
def test_every_algorithm_with_one_sample(name: str) -> None:
    message = refused(f"algorithm={name}", "algorithm.k=1", recipe=RECIPES.get(name, "plan-path"))
    assert ("algorithm.k: got 1" in message) == (name in REFUSED), message


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ([], True),
        (["algorithm.baseline=leave_one_out"], True),
        (["algorithm.baseline=max", "algorithm.group=node"], True),
        (["algorithm.group=role", "train.tasks_per_step=1"], True),
        (["algorithm.group=role"], False),
        (["algorithm.baseline=none"], False),
        (["algorithm.baseline=running", "algorithm.group=role"], False),
        (["algorithm.returns=reward_to_go"], False),
        (["algorithm.returns=reward_to_go", "algorithm.group=node"], True),
        (["algorithm.shape=greedy", "algorithm.returns=step", "algorithm.group=node", "algorithm.k=[1, 4]"], False),
        (["algorithm.k=2"], False),
        (["algorithm.second={returns: step, group: task, baseline: none, scale: none}"], False),
        (["algorithm.second={returns: step, group: node, baseline: mean, scale: none}"], True),
    ],
)
def test_what_is_compared_says_whether_one_is_enough(changes: list[str], is_refused: bool) -> None:
    message = refused(*CUSTOM, *changes)
    assert bool(message) == is_refused, message
    assert not message or "every advantage is 0" in message


def test_a_role_with_one_sample_beside_others_is_told_of() -> None:
    experiment = resolve(load("plan-path", ["algorithm.k={tool: 1, planner: 4}"]))
    assert any("tool has algorithm.k 1" in paragraph for paragraph in find_training_warnings(experiment))


def test_nobody_learns_in_an_evaluation() -> None:
    assert resolve_for_evaluation(load("plan-path", ["algorithm.k=1"])).policies
