"""Any point of the axes, named one by one; every name may be a function of the user's own file."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from cadre.advantages.baselines import BASELINES, GroupReturns
from cadre.advantages.credit import Count, Credit
from cadre.advantages.group_relative import GROUPINGS, SCALES
from cadre.advantages.plan import Plan
from cadre.advantages.returns import RETURNS
from cadre.algorithms.branching import BUDGET, DECISIONS, ROUNDS, SIBLINGS, WHERE_WORDS, Where
from cadre.algorithms.common import CARRY, LOOKAHEAD, Algorithm, Carry, ManySiblings, Scale
from cadre.errors import ConfigError
from cadre.rollout.branching import WHERE
from cadre.rollout.shapes import SHAPES
from cadre.rollout.tree_shape import CARRIES, Shape
from cadre.settings import Section, TreeWeight
from cadre.settings.user_code import load_function, one_of

# What functions of the user's are tried with before anything is sampled.
TWO_RETURNS = GroupReturns((0.0, 1.0), (1.0, 1.0), (0.0, 0.0))
OPTIONS = ("carry", "joint", "lookahead", "where", "decisions", "siblings", "rounds", "budget")
TO_GO = ("reward_to_go", "best_to_go")
OF_THE_FUTURE = (*TO_GO, "episode", "difference", "passed")
# What weighs alike where the setting leaves it open; under any other shape every tree does.
TREE_WEIGHTS: dict[str, TreeWeight] = {"independent": "by_sample", "greedy": "by_decision"}


class Comparison(Section):
    """A comparison whose advantage is added to that of the algorithm."""

    returns: Annotated[str, one_of(RETURNS)] = Field(description="what a sample is worth")
    group: Annotated[str, one_of(GROUPINGS)] = Field(description="which samples it is compared with")
    baseline: Annotated[str, one_of(BASELINES)] = Field(description="what is subtracted; not running")
    scale: Scale = Field(description="what the difference is divided by")
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount of a turn, with reward_to_go or best_to_go")
    weight: float = Field(1.0, gt=0.0, description="what it counts beside the first")


class Custom(Algorithm):
    """Any point of the four axes, each a name of a table in `cadre.rollout` or `cadre.advantages`, or
    `my_file.py:function`."""

    name: Literal["custom"]
    shape: Annotated[str, one_of(SHAPES)] = Field(description="how a tree grows")
    k: ManySiblings = Field(4, description="siblings a decision, also by turn or by role; one number for independent")
    carry: Carry | None = Field(None, description=f"{CARRY}; for shapes that choose")
    joint: Literal["aligned", "cross"] | None = Field(None, description="which answers are tried together; for full")
    lookahead: int | None = Field(None, ge=0, description=f"{LOOKAHEAD}; 2 where returns is first_paid")
    where: Where | None = Field(None, description=f"{WHERE_WORDS}; for branch")
    decisions: int | None = Field(None, ge=1, le=100, description=f"{DECISIONS}; for branch")
    siblings: int | None = Field(None, ge=1, le=100, description=f"{SIBLINGS}; for branch")
    rounds: int | None = Field(None, ge=1, le=100, description=f"{ROUNDS}; for branch")
    budget: int | None = Field(None, ge=0, description=f"{BUDGET}; for branch")
    returns: Annotated[str, one_of(RETURNS)] = Field(description="what a sample is worth")
    group: Annotated[str, one_of(GROUPINGS)] = Field(description="which samples it is compared with")
    baseline: Annotated[str, one_of(BASELINES)] = Field(description="what is subtracted")
    scale: Scale = Field(description="what the difference is divided by")
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount of a turn, with reward_to_go or best_to_go")
    second: Comparison | None = Field(None, description="another comparison, whose advantage is added")

    def plan(self) -> Plan:
        """The axes as they are named; what the chosen shape or return would ignore is refused."""
        shape = self.chosen_shape()
        self.check_lookahead()
        check_comparison("algorithm", self, shape)
        credit = credit_of(self, self.alpha)
        if self.second is not None:
            check_comparison("algorithm.second", self.second, shape)
            check_second(self, self.second)
            second = credit_of(self.second, self.alpha)
            credit = replace(credit, second=second, second_weight=self.second.weight)
        return Plan(shape, credit, tree_weight=TREE_WEIGHTS.get(self.shape, "alike"))

    @property
    def asks_what_follows(self) -> bool:
        """Whether a comparison takes what the decisions after one pay."""
        return "first_paid" in (self.returns, self.second.returns if self.second else "")

    def chosen_shape(self) -> Shape:
        """The shape with the options that are set."""
        make = load_function("algorithm.shape", self.shape, SHAPES)
        options: dict[str, Any] = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        self.check_options(options, parameters(make))
        if self.where is not None:
            options["where"] = load_function("algorithm.where", self.where, WHERE)
        if self.carry is not None:
            options["carry"] = load_function("algorithm.carry", self.carry, CARRIES)
        if self.asks_what_follows and "lookahead" in parameters(make):
            options = {"lookahead": 2, **options}
        shape: object = make(self.k, **options)
        if not isinstance(shape, Shape):
            raise ConfigError(
                f"algorithm.shape: {self.shape} returned {type(shape).__name__}; expected a "
                "cadre.rollout.tree_shape.Shape. Return one."
            )
        return shape

    def check_options(self, options: dict[str, Any], taken: set[str]) -> None:
        """Refuse what the shape, which takes the parameters `taken`, would ignore."""
        for name, value in options.items():
            if name not in taken:
                owners = [shape for shape, function in SHAPES.items() if name in parameters(function)]
                raise ConfigError(
                    f"algorithm.{name}: got {value!r} with shape {self.shape}, which ignores it; only "
                    f"{' and '.join(owners)} takes it. Remove the option or set algorithm.shape={owners[0]}."
                )

    def check_lookahead(self) -> None:
        """Refuse to look ahead for a return that does not ask what follows."""
        if self.lookahead and not self.asks_what_follows:
            raise ConfigError(
                f"algorithm.lookahead: got {self.lookahead} with returns {self.returns}, which ignores it; expected it "
                "unset. Remove it or set algorithm.returns=first_paid."
            )


def credit_of(axes: Custom | Comparison, alpha: float) -> Credit:
    """The comparison that is named."""
    count: Count = "episodes" if axes.returns == "episode" else "decisions"
    return Credit(axes.returns, axes.group, axes.baseline, axes.scale, alpha, axes.gamma, count)


def check_comparison(key: str, axes: Custom | Comparison, shape: Shape) -> None:
    """Refuse a return of what was not played, what the return would ignore, names that nobody defines, and functions
    that say something else than numbers. `key` is where the axes stand."""
    if not shape.plays_all and axes.returns in OF_THE_FUTURE:
        raise ConfigError(
            f"{key}.returns: got {axes.returns} with shape {shape.name}, where siblings left behind have no future to "
            "sum; expected step or first_paid. Set one of them, or a shape that plays every branch out."
        )
    if axes.gamma != 1.0 and axes.returns not in TO_GO:
        raise ConfigError(
            f"{key}.gamma: got {axes.gamma} with returns {axes.returns}, which ignores it; expected 1. Remove it or "
            f"set {key}.returns=reward_to_go."
        )
    check_functions(key, axes)


def check_functions(key: str, axes: Custom | Comparison) -> None:
    """The functions that the axes name are there and say numbers."""
    load_function(f"{key}.returns", axes.returns, RETURNS)
    load_function(f"{key}.group", axes.group, GROUPINGS)
    scale = load_function(f"{key}.scale", axes.scale, SCALES)(TWO_RETURNS)
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ConfigError(f"{key}.scale: {axes.scale} returned {scale!r}; expected one finite number. Return that.")
    baseline: Any = load_function(f"{key}.baseline", axes.baseline, BASELINES)(TWO_RETURNS)
    if not isinstance(baseline, list | tuple) or len(baseline) != len(TWO_RETURNS.values):
        raise ConfigError(
            f"{key}.baseline: {axes.baseline} returned {baseline!r} for a group of {len(TWO_RETURNS.values)}; "
            "expected a list with a number a sample. Return that."
        )
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in baseline):
        raise ConfigError(
            f"{key}.baseline: {axes.baseline} returned {baseline!r} for the returns {TWO_RETURNS.values}; expected "
            "finite numbers. Guard against what it divides by."
        )


def check_second(first: Custom, second: Comparison) -> None:
    """Running means belong to one comparison."""
    if "running" in (first.baseline, second.baseline):
        raise ConfigError(
            "algorithm.second: got the baseline running in a sum of two comparisons, whose running means would be "
            "mixed; expected a baseline of the group. Use mean or leave_one_out."
        )


def parameters(function: Callable[..., Any]) -> set[str]:
    """The names of what a function takes."""
    return set(inspect.signature(function).parameters)
