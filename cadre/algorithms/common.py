"""The base of all algorithms' settings, and the types and descriptions that several of them use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, FiniteFloat

from cadre.advantages.batch import Plan
from cadre.advantages.groups import SCALES
from cadre.errors import ConfigError
from cadre.rollout import shapes
from cadre.rollout.shapes import PerTurn
from cadre.settings import Section
from cadre.settings.objective import WITHOUT_PAIRS, teaches_alone
from cadre.settings.section import Given, ReadIf
from cadre.settings.user_code import one_of

Parts = Annotated[dict[str, FiniteFloat], Field(description="a part of the reward: its weight")]
Selection = Annotated[str, one_of(shapes.SELECTIONS)]
Scale = Annotated[str, one_of(SCALES)]

SELECT = "which completion of a decision the episode continues with"
LOOKAHEAD = "decisions in a row without a reward whose completions are all continued, for their later rewards; 0: none"
SCALE = "divide by the group's standard deviation (std), by its mean absolute return (mean), or by nothing (none)"
MANY = "completions per decision; also by turn or by role"
PARTS = "parts of the reward with their weights, each normalised separately (GDPO, arXiv 2601.05242); none: the reward"
ALPHA = "a role's reward is alpha * team + local"


def _siblings(value: Any) -> Any:
    """Return a number of siblings, one a turn, or either by role. Raises ValueError with what is expected."""
    if isinstance(value, dict) and value and all(isinstance(role, str) for role in value):
        return {role: _siblings(number) for role, number in value.items()}
    turns = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not turns or not all(isinstance(count, int) and not isinstance(count, bool) and count >= 1 for count in turns):
        raise ValueError(
            "an integer greater than or equal to 1, a list of them by turn (the last repeats), or a mapping of role to "
            "either"
        )
    return turns if isinstance(value, list | tuple) else turns[0]


# A number for all, by turn, by role, or by role and turn: 4, [8, 4], {tool: 8, planner: 4}, {tool: [8, 4], planner: 4}.
ManySiblings = Annotated[PerTurn | dict[str, PerTurn], BeforeValidator(_siblings)]


TrainedPolicies = Literal["any", "shared", "one_role", "by_role"]


def _advantage_axes(plan: Plan) -> tuple[object, ...]:
    """Return what of a plan decides the advantages of samples, and not which samples there are or their loss."""
    shape, credit = plan.shape, plan.credit
    if not shape.selects_all and (shape.select is not shapes.SELECTIONS["random"] or shape.lookahead):
        # Branches are selected by the same reward.
        comparisons = tuple((replace(comparison, alpha=1.0), weight) for comparison, weight in credit.comparisons)
        credit = replace(credit, comparisons=comparisons)
    return credit, plan.critic, plan.reward_model, plan.influence


def _outlives_rewards(setting: Given) -> bool:
    """Return True unless a teacher gives all advantages and the setting changes nothing but advantages."""
    section, field = setting.section, type(setting.section).model_fields[setting.name]
    if not teaches_alone(setting) or field.is_required():
        return True
    try:
        usual = section.model_copy(update={setting.name: field.get_default(call_default_factory=True)}).plan()
    except ConfigError:
        return True  # other settings need this one
    return setting.name != "kl" and _advantage_axes(usual) == _advantage_axes(section.plan())


class Algorithm(Section):
    """The settings of an algorithm, and the plan that they make."""

    conditions: ClassVar[Sequence[ReadIf]] = (
        ReadIf("rewards are learned from, which teacher.alone leaves out", _outlives_rewards),
    )

    # The one role `team` writes the parts of all roles; only an environment with one role can be played.
    central: ClassVar[bool] = False
    single_agent: ClassVar[bool] = False
    # Which policies are trained: any, one for all roles, one that plays one role, or one for each role.
    policies: ClassVar[TrainedPolicies] = "any"

    name: str
    k: Any
    kl: Annotated[float, WITHOUT_PAIRS] = Field(
        0.0, ge=0.0, description="a sample's return loses kl * sum(log pi - log reference), k1"
    )
    alpha: Annotated[
        float, ReadIf("algorithm.parts is empty", lambda given: not getattr(given.section, "parts", None))
    ] = Field(1.0, description=ALPHA)

    def plan(self) -> Plan:
        """Return the shape, the credit and the loss; `kl` is added by `cadre.algorithms.plan_of`. Raises ConfigError if
        one setting would be ignored under another."""
        raise NotImplementedError
