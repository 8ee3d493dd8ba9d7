"""The algorithm `custom`: every choice by name, or a function of a file of the user's."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from cadre.advantages import groups
from cadre.advantages.batch import Plan
from cadre.advantages.groups import ADVANTAGES, BASELINES, GROUPINGS, GroupReturns
from cadre.advantages.returns import RETURNS, Comparison, Credit, ScoredSample
from cadre.algorithms.branching import BUDGET, DECISIONS, ROUNDS, SIBLINGS, WHERE_WORDS, Where
from cadre.algorithms.common import LOOKAHEAD, SELECT, Algorithm, ManySiblings, Scale, Selection
from cadre.declare import declared
from cadre.errors import ConfigError
from cadre.rollout.shapes import SELECTIONS, SHAPES, WHERE, Shape
from cadre.rollout.walk import TreeSample
from cadre.settings import Section
from cadre.settings.section import Given, ReadIf
from cadre.settings.user_code import load_function, one_of
from cadre.types import Branch, Node, Observation, Reward, Sample

# The group that functions of the user's are tried with before anything is sampled: one right answer, one wrong.
_ANSWERS = tuple(Sample("role", "policy", text, (1,), (2, 3), (-0.5, -0.5), "stop", 0) for text in ("right", "wrong"))
_BRANCHES = tuple(Branch({"role": index}, Reward(1.0 - index), True, index == 0) for index in (0, 1))
_NODE = Node(0, {"role": Observation("role", ())}, {"role": _ANSWERS}, _BRANCHES)
TWO_RETURNS = GroupReturns(
    (1.0, 0.0),
    (1.0, 1.0),
    (0.0, 0.0),
    samples=tuple(ScoredSample(TreeSample(0, (), (), _NODE, "role", index), returns=1.0 - index) for index in (0, 1)),
)
ADVANTAGES_OF = "in place of baseline and scale: state_value is Q - V of a group that is a state"
BASELINE = "baseline subtracted from the return"
OPTIONS = ("select", "joint", "lookahead", "where", "decisions", "siblings", "rounds", "budget")


def _looks_ahead(setting: Given) -> bool:
    # It is unknown of a function of the user's that declares nothing.
    return any(one.returns.uses_lookahead is not False for one, _ in setting.experiment.plan.credit.comparisons)


def _discounts(setting: Given) -> bool:
    comparison, _ = setting.experiment.plan.credit.comparisons[setting.path.startswith("algorithm.second.")]
    return comparison.returns.discounted is not False


BY_SHAPE = ReadIf(
    "the function of algorithm.shape takes it", lambda given: given.name in shape_options(given.section.shape)
)
DISCOUNTED = ReadIf("the returns beside it are discounted", _discounts)


class ComparisonConfig(Section):
    """A comparison whose advantage is added to that of the algorithm."""

    returns: Annotated[str, one_of(RETURNS)] = Field(description="the return of a sample")
    group: Annotated[str, one_of(GROUPINGS)] = Field(description="which samples it is compared with")
    baseline: Annotated[str, one_of(BASELINES)] | None = Field(None, description=f"{BASELINE}; not running")
    scale: Scale | None = Field(None, description="divisor of the return less its baseline")
    advantages: Annotated[str, one_of(ADVANTAGES)] | None = Field(None, description=ADVANTAGES_OF)
    gamma: Annotated[float, DISCOUNTED] = Field(1.0, ge=0.0, le=1.0, description="discount per turn of the returns")
    weight: float = Field(1.0, gt=0.0, description="weight of its advantage relative to the first")


class Custom(Algorithm):
    """Any point of the four axes, each a name of a table in `cadre.rollout` or `cadre.advantages`, or
    `my_file.py:function`."""

    name: Literal["custom"]
    shape: Annotated[str, one_of(SHAPES)] = Field(description="how a tree grows")
    k: ManySiblings = Field(
        4, description="completions per decision; also by turn or by role; one number for independent"
    )
    select: Annotated[Selection | None, BY_SHAPE] = Field(None, description=f"{SELECT}; for shapes that choose")
    joint: Annotated[Literal["aligned", "cross"] | None, BY_SHAPE] = Field(
        None, description="which completions form joint actions; for full"
    )
    lookahead: Annotated[
        int | None, BY_SHAPE, ReadIf("algorithm.returns reads the rewards of later decisions", _looks_ahead)
    ] = Field(None, ge=0, description=f"{LOOKAHEAD}; 2 where returns is first_reward")
    where: Annotated[Where | None, BY_SHAPE] = Field(None, description=f"{WHERE_WORDS}; for branch")
    decisions: Annotated[int | None, BY_SHAPE] = Field(None, ge=1, le=100, description=f"{DECISIONS}; for branch")
    siblings: Annotated[int | None, BY_SHAPE] = Field(None, ge=1, le=100, description=f"{SIBLINGS}; for branch")
    rounds: Annotated[int | None, BY_SHAPE] = Field(None, ge=1, le=100, description=f"{ROUNDS}; for branch")
    budget: Annotated[int | None, BY_SHAPE] = Field(None, ge=0, description=f"{BUDGET}; for branch")
    returns: Annotated[str, one_of(RETURNS)] = Field(description="the return of a sample")
    group: Annotated[str, one_of(GROUPINGS)] = Field(description="which samples it is compared with")
    baseline: Annotated[str, one_of(BASELINES)] | None = Field(None, description=BASELINE)
    scale: Scale | None = Field(None, description="divisor of the return less its baseline")
    advantages: Annotated[str, one_of(ADVANTAGES)] | None = Field(None, description=ADVANTAGES_OF)
    gamma: Annotated[float, DISCOUNTED] = Field(1.0, ge=0.0, le=1.0, description="discount per turn of the returns")
    second: ComparisonConfig | None = Field(None, description="another comparison, whose advantage is added")

    def plan(self) -> Plan:
        """Return the plan of the named functions. Raises ConfigError for functions that cannot work together."""
        credit = Credit.of(chosen_comparison("algorithm", self, self.alpha))
        if self.second is not None:
            second = chosen_comparison("algorithm.second", self.second, self.alpha)
            credit = Credit.of(credit.first, (second, self.second.weight))
            if any(comparison.baseline.uses_running for comparison, _ in credit.comparisons):
                raise ConfigError(
                    "algorithm.second: got the baseline running in a sum of two comparisons, whose running means would "
                    "be mixed; expected a baseline of the group. Use mean or leave_one_out."
                )
        shape = self.chosen_shape(credit)
        for comparison, _ in credit.comparisons:
            if not shape.selects_all and comparison.returns.of_future:
                possible = ", ".join(name for name, return_ in RETURNS.items() if not declared(return_, "of_future"))
                raise ConfigError(
                    f"{comparison.returns.setting}: got {comparison.returns.name} with shape {shape.name}, where "
                    f"siblings left behind have no future to sum; expected one of {possible}. Set one of them, or a "
                    "shape that plays every branch out."
                )
        return Plan(shape, credit, tree_weight=shape.tree_weight)

    def chosen_shape(self, credit: Credit) -> Shape:
        """Return the shape with those of its options that are set. It looks ahead by default if returns use that."""
        make, parameters = load_function("algorithm.shape", self.shape, SHAPES), shape_options(self.shape)
        options: dict[str, Any] = {
            name: value for name in OPTIONS if name in parameters and (value := getattr(self, name)) is not None
        }
        if self.where is not None and "where" in options:
            options["where"] = load_function("algorithm.where", self.where, WHERE)
        if self.select is not None and "select" in options:
            options["select"] = load_function("algorithm.select", self.select, SELECTIONS)
        if "lookahead" in parameters and any(comparison.returns.uses_lookahead for comparison, _ in credit.comparisons):
            options = {"lookahead": 2, **options}
        shape: object = make(self.k, **options)
        if not isinstance(shape, Shape):
            raise ConfigError(
                f"algorithm.shape: {self.shape} returned {type(shape).__name__}; expected a "
                "cadre.rollout.shapes.Shape. Return one."
            )
        return shape


def shape_options(shape: str) -> tuple[str, ...]:
    """Return the keyword options that a shape's function takes, by the names of settings."""
    return tuple(inspect.signature(load_function("algorithm.shape", shape, SHAPES)).parameters)


def chosen_comparison(key: str, axes: Custom | ComparisonConfig, alpha: float) -> Comparison:
    """Return the comparison of the functions that the section `key` of the settings names. Raises ConfigError for an
    unknown name, and a function of the group that returns something else than numbers."""
    if axes.advantages is not None and (axes.baseline is not None or axes.scale is not None):
        raise ConfigError(
            f"{key}.advantages: got {axes.advantages} beside a baseline or a scale, which it replaces; expected "
            "one of the two. Remove baseline and scale."
        )
    if axes.advantages is None and (axes.baseline is None or axes.scale is None):
        missing = "baseline" if axes.baseline is None else "scale"
        raise ConfigError(
            f"{key}.{missing}: is missing; expected a baseline and a scale, or advantages in place of both. Add it."
        )
    names = (axes.returns, axes.group, axes.advantages or axes.baseline or "", axes.scale or "")
    comparison = groups.comparison_of(*names, alpha, axes.gamma, section=key)
    if comparison.returns.whole_episode:
        comparison = replace(comparison, count="episodes")
    groups.call_baseline(comparison.baseline, TWO_RETURNS)
    if comparison.scale is not None:
        groups.finite_number(comparison.scale, comparison.scale.function(TWO_RETURNS))
    return comparison
