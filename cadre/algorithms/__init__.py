"""The published algorithms by name: a file a family, with each algorithm's settings and the plan that they make."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, get_args

from cadre.advantages.batch import Plan
from cadre.algorithms import actor_critic, branching, common, custom, grpo, magrpo

KINDS: tuple[type[common.Algorithm], ...] = (
    *(grpo.AtGrpo, grpo.Grpo, grpo.GrpoByRole, grpo.Matpo, grpo.FlowGrpo, grpo.MGrpo, grpo.HierarchicalGrpo),
    *(grpo.TeamTr, grpo.Gigpo, grpo.StateValue),
    *(branching.TreeGrpo, branching.TreeRl, branching.Arpo, branching.Bpo),
    *(magrpo.C3, grpo.Counterfactual, grpo.Shapley),
    *(magrpo.Magrpo, magrpo.MaReinforce, magrpo.MaRloo, magrpo.MaRemax, magrpo.MagrpoCentral),
    *(grpo.DrMas, grpo.DrMamr, grpo.Spiral, grpo.Sirius, magrpo.MaDpo),
    *(actor_critic.Ippo, actor_critic.Mappo, actor_critic.Rlhf, custom.Custom),
)

# Settings by name. The settings of an algorithm have its name as a field, so the table is made of them.
ALGORITHMS: dict[str, type[common.Algorithm]] = {
    get_args(kind.model_fields["name"].annotation)[0]: kind for kind in KINDS
}

# The type of a configuration's section `algorithm`: the settings of one of them, distinguished by `name`.
if TYPE_CHECKING:
    Algorithm = common.Algorithm
else:
    Algorithm: Any = reduce(or_, KINDS)


def plan_of(algorithm: common.Algorithm) -> Plan:
    """Return the plan of the settings. Raises ConfigError if one of them would be ignored."""
    return replace(algorithm.plan(), kl=algorithm.kl)
