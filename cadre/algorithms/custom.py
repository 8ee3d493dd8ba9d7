"""The algorithm `custom`: every choice by name, or a function of a file of the user's."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from cadre.advantages.batch import Plan
from cadre.advantages.groups import ADVANTAGES, BASELINES, GROUPINGS, SCALES, GroupReturns, check_advantages
from cadre.advantages.returns import RETURNS, Count, Credit, ScoredSample
from cadre.algorithms.branching import BUDGET, DECISIONS, ROUNDS, SIBLINGS, WHERE_WORDS, Where
from cadre.algorithms.common import CARRY, LOOKAHEAD, Algorithm, Carry, ManySiblings, Scale
from cadre.errors import ConfigError
from cadre.rollout.branching import WHERE
from cadre.rollout.shapes import CARRIES, SHAPES, Shape
from cadre.rollout.walk import TreeSample
from cadre.settings import Section, TreeWeight
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
OPTIONS = ("carry", "joint", "lookahead", "where", "decisions", "siblings", "rounds", "budget")
DISCOUNTED_RETURNS = ("reward_to_go", "best_to_go")
FUTURE_RETURNS = (*DISCOUNTED_RETURNS, "episode", "difference", "passed")
# The default of `credit.tree_weight` by shape; under any other shape every tree weighs alike.
TREE_WEIGHTS: dict[str, TreeWeight] = {"independent": "by_sample", "greedy": "by_decision"}


class Comparison(Section):
    """A comparison whose advantage is added to that of the algorithm."""

    returns: Annotated[str, one_of(RETURNS)] = Field(description="the return of a sample")
    group: Annotated[str, one_of(GROUPINGS)] = Field(description="which samples it is compared with")
    baseline: Annotated[str, one_of(BASELINES)] | None = Field(None, description=f"{BASELINE}; not running")
    scale: Scale | None = Field(None, description="divisor of the return less its baseline")
    advantages: Annotated[str, one_of(ADVANTAGES)] | None = Field(None, description=ADVANTAGES_OF)
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount per turn, with reward_to_go or best_to_go")
    weight: float = Field(1.0, gt=0.0, description="weight of its advantage relative to the first")


class Custom(Algorithm):
    """Any point of the four axes, each a name of a table in `cadre.rollout` or `cadre.advantages`, or
    `my_file.py:function`."""

    name: Literal["custom"]
    shape: Annotated[str, one_of(SHAPES)] = Field(description="how a tree grows")
    k: ManySiblings = Field(
        4, description="completions per decision; also by turn or by role; one number for independent"
    )
    carry: Carry | None = Field(None, description=f"{CARRY}; for shapes that choose")
    joint: Literal["aligned", "cross"] | None = Field(
        None, description="which completions form joint actions; for full"
    )
    lookahead: int | None = Field(None, ge=0, description=f"{LOOKAHEAD}; 2 where returns is first_paid")
    where: Where | None = Field(None, description=f"{WHERE_WORDS}; for branch")
    decisions: int | None = Field(None, ge=1, le=100, description=f"{DECISIONS}; for branch")
    siblings: int | None = Field(None, ge=1, le=100, description=f"{SIBLINGS}; for branch")
    rounds: int | None = Field(None, ge=1, le=100, description=f"{ROUNDS}; for branch")
    budget: int | None = Field(None, ge=0, description=f"{BUDGET}; for branch")
    returns: Annotated[str, one_of(RETURNS)] = Field(description="the return of a sample")
    group: Annotated[str, one_of(GROUPINGS)] = Field(description="which samples it is compared with")
    baseline: Annotated[str, one_of(BASELINES)] | None = Field(None, description=BASELINE)
    scale: Scale | None = Field(None, description="divisor of the return less its baseline")
    advantages: Annotated[str, one_of(ADVANTAGES)] | None = Field(None, description=ADVANTAGES_OF)
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount per turn, with reward_to_go or best_to_go")
    second: Comparison | None = Field(None, description="another comparison, whose advantage is added")

    def plan(self) -> Plan:
        """Return the plan of the named functions. Raises ConfigError for functions that cannot work together."""
        shape = self.chosen_shape()
        check_comparison("algorithm", self, shape)
        credit = credit_of(self, self.alpha)
        if self.second is not None:
            check_comparison("algorithm.second", self.second, shape)
            if "running" in (self.baseline, self.second.baseline):
                raise ConfigError(
                    "algorithm.second: got the baseline running in a sum of two comparisons, whose running means would "
                    "be mixed; expected a baseline of the group. Use mean or leave_one_out."
                )
            credit = replace(credit, second=credit_of(self.second, self.alpha), second_weight=self.second.weight)
        return Plan(shape, credit, tree_weight=TREE_WEIGHTS.get(self.shape, "alike"))

    @property
    def uses_lookahead(self) -> bool:
        """Return True if a comparison uses the rewards of the decisions after one."""
        return "first_paid" in (self.returns, self.second.returns if self.second else "")

    def chosen_shape(self) -> Shape:
        """Return the shape with those of its options that are set."""
        make, parameters = load_function("algorithm.shape", self.shape, SHAPES), shape_options(self.shape)
        options: dict[str, Any] = {
            name: value for name in OPTIONS if name in parameters and (value := getattr(self, name)) is not None
        }
        if self.where is not None and "where" in options:
            options["where"] = load_function("algorithm.where", self.where, WHERE)
        if self.carry is not None and "carry" in options:
            options["carry"] = load_function("algorithm.carry", self.carry, CARRIES)
        if self.uses_lookahead and "lookahead" in parameters:
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


def credit_of(axes: Custom | Comparison, alpha: float) -> Credit:
    """Return the credit of the named functions."""
    count: Count = "episodes" if axes.returns == "episode" else "decisions"
    baseline, scale = axes.baseline or "none", axes.scale or "none"
    advantages = axes.advantages or ""
    return Credit(axes.returns, axes.group, baseline, scale, alpha, axes.gamma, count, advantages=advantages)


def check_comparison(key: str, axes: Custom | Comparison, shape: Shape) -> None:
    """Raise ConfigError for a comparison that cannot work with the shape. `key` is the section of the settings.

    That is a return of a future that was not played, an unknown name, and a function that returns something else than
    numbers.
    """
    if not shape.selects_all and axes.returns in FUTURE_RETURNS:
        raise ConfigError(
            f"{key}.returns: got {axes.returns} with shape {shape.name}, where siblings left behind have no future to "
            "sum; expected step or first_paid. Set one of them, or a shape that plays every branch out."
        )
    load_function(f"{key}.returns", axes.returns, RETURNS)
    load_function(f"{key}.group", axes.group, GROUPINGS)
    if axes.advantages is not None:
        if axes.baseline is not None or axes.scale is not None:
            raise ConfigError(
                f"{key}.advantages: got {axes.advantages} beside a baseline or a scale, which it replaces; expected "
                "one of the two. Remove baseline and scale."
            )
        own: object = load_function(f"{key}.advantages", axes.advantages, ADVANTAGES)(TWO_RETURNS)
        check_advantages(axes.advantages, own, len(TWO_RETURNS.values))
        return
    if axes.baseline is None or axes.scale is None:
        missing = "baseline" if axes.baseline is None else "scale"
        raise ConfigError(
            f"{key}.{missing}: is missing; expected a baseline and a scale, or advantages in place of both. Add it."
        )
    scale = load_function(f"{key}.scale", axes.scale, SCALES)(TWO_RETURNS)
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ConfigError(f"{key}.scale: {axes.scale} returned {scale!r}; expected one finite number. Return that.")
    baseline: Any = load_function(f"{key}.baseline", axes.baseline, BASELINES)(TWO_RETURNS)
    if not isinstance(baseline, list | tuple) or len(baseline) != len(TWO_RETURNS.values):
        raise ConfigError(
            f"{key}.baseline: {axes.baseline} returned {baseline!r} for a group of {len(TWO_RETURNS.values)}; "
            "expected a list of numbers, one per sample. Return that."
        )
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in baseline):
        raise ConfigError(
            f"{key}.baseline: {axes.baseline} returned {baseline!r} for the returns {TWO_RETURNS.values}; expected "
            "finite numbers. Guard against what it divides by."
        )
