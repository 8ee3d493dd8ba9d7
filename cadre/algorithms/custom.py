"""Any point of the axes, named one by one; every name may be a function of the user's own file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from cadre.advantages.credit import Credit
from cadre.advantages.group_relative import BASELINES, GROUPINGS, SCALES, GroupReturns
from cadre.advantages.plan import Plan
from cadre.advantages.returns import RETURNS
from cadre.algorithms.common import CARRY, LOOKAHEAD, Algorithm, Carry, ManySiblings, Scale
from cadre.errors import ConfigError
from cadre.rollout.tree_shape import CARRIES, SHAPES, Shape
from cadre.settings import TreeWeight
from cadre.settings.user_code import load_function, one_of

# What functions of the user's are tried with before anything is sampled.
TWO_RETURNS = GroupReturns((0.0, 1.0), (1.0, 1.0), (0.0, 0.0))
OPTIONS = ("carry", "joint", "lookahead")
# What weighs alike where the setting leaves it open; under any other shape every tree does.
TREE_WEIGHTS: dict[str, TreeWeight] = {"independent": "by_sample", "greedy": "by_decision"}


class Custom(Algorithm):
    """Any point of the four axes, each a name of a table in `cadre.rollout.tree_shape` or `cadre.advantages`, or
    `my_file.py:function`."""

    name: Literal["custom"]
    shape: Annotated[str, one_of(SHAPES)] = Field(description="how a tree grows")
    k: ManySiblings = Field(4, description="siblings a decision, also by turn or by role; one number for independent")
    carry: Carry | None = Field(None, description=f"{CARRY}; for shapes that choose")
    joint: Literal["aligned", "cross"] | None = Field(None, description="which answers are tried together; for full")
    lookahead: int | None = Field(None, ge=0, description=f"{LOOKAHEAD}; 2 where returns is first_paid")
    returns: Annotated[str, one_of(RETURNS)] = Field(description="what a sample is worth")
    group: Annotated[str, one_of(GROUPINGS)] = Field(description="which samples it is compared with")
    baseline: Annotated[str, one_of(BASELINES)] = Field(description="what is subtracted")
    scale: Scale = Field(description="what the difference is divided by")
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount of a turn, with reward_to_go")

    def plan(self) -> Plan:
        """The axes as they are named; what the chosen shape or return would ignore is refused."""
        shape = self.chosen_shape()
        self.check_returns(shape)
        self.check_functions()
        credit = Credit(
            self.returns,
            self.group,
            self.baseline,
            self.scale,
            self.alpha,
            self.gamma,
            count="episodes" if self.returns == "episode" else "decisions",
        )
        return Plan(shape, credit, tree_weight=TREE_WEIGHTS.get(self.shape, "alike"))

    def chosen_shape(self) -> Shape:
        """The shape with the options that are set."""
        make = load_function("algorithm.shape", self.shape, SHAPES)
        options: dict[str, Any] = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        self.check_options(options, parameters(make))
        if self.carry is not None:
            options["carry"] = load_function("algorithm.carry", self.carry, CARRIES)
        if self.returns == "first_paid" and "lookahead" in parameters(make):
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

    def check_returns(self, shape: Shape) -> None:
        """Refuse a return of what was not played, and what the return would ignore."""
        if not shape.plays_all and self.returns in ("reward_to_go", "episode"):
            raise ConfigError(
                f"algorithm.returns: got {self.returns} with shape {self.shape}, where siblings left behind have no "
                "future to sum; expected step or first_paid. Set one of them, or a shape that plays every branch out."
            )
        if self.gamma != 1.0 and self.returns != "reward_to_go":
            raise ConfigError(
                f"algorithm.gamma: got {self.gamma} with returns {self.returns}, which ignores it; expected 1. "
                "Remove it or set algorithm.returns=reward_to_go."
            )
        if self.lookahead and self.returns != "first_paid":
            raise ConfigError(
                f"algorithm.lookahead: got {self.lookahead} with returns {self.returns}, which ignores it; expected it "
                "unset. Remove it or set algorithm.returns=first_paid."
            )

    def check_functions(self) -> None:
        """Refuse names that nobody defines, and functions that say something else than numbers."""
        load_function("algorithm.returns", self.returns, RETURNS)
        load_function("algorithm.group", self.group, GROUPINGS)
        scale = load_function("algorithm.scale", self.scale, SCALES)(TWO_RETURNS)
        if not isinstance(scale, int | float):
            raise ConfigError(f"algorithm.scale: {self.scale} returned {scale!r}; expected one number. Return that.")
        baseline: Any = load_function("algorithm.baseline", self.baseline, BASELINES)(TWO_RETURNS)
        if not isinstance(baseline, list | tuple) or len(baseline) != len(TWO_RETURNS.values):
            raise ConfigError(
                f"algorithm.baseline: {self.baseline} returned {baseline!r} for a group of {len(TWO_RETURNS.values)}; "
                "expected a list with a number a sample. Return that."
            )


def parameters(function: Callable[..., Any]) -> set[str]:
    """The names of what a function takes."""
    return set(inspect.signature(function).parameters)
