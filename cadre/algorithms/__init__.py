"""The published algorithms by name: a file a family, with each algorithm's settings and the plan that they make."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, get_args

from cadre.advantages.batch import Plan
from cadre.algorithms import common
from cadre.algorithms.actor_critic import Ippo, Mappo, Rlhf
from cadre.algorithms.branching import Arpo, Bpo, TreeGrpo, TreeRl
from cadre.algorithms.custom import Custom
from cadre.algorithms.grpo import (
    AtGrpo,
    Counterfactual,
    DrMamr,
    DrMas,
    FlowGrpo,
    Gigpo,
    Grpo,
    GrpoByRole,
    HierarchicalGrpo,
    Matpo,
    MGrpo,
    Shapley,
    Sirius,
    Spiral,
    StateValue,
    TeamTr,
)
from cadre.algorithms.magrpo import C3, MaDpo, Magrpo, MagrpoCentral, MaReinforce, MaRemax, MaRloo

KINDS: tuple[type[common.Algorithm], ...] = (
    *(AtGrpo, Grpo, GrpoByRole, Matpo, FlowGrpo, MGrpo, HierarchicalGrpo, TeamTr, Gigpo, StateValue),
    *(TreeGrpo, TreeRl, Arpo, Bpo, C3, Counterfactual, Shapley),
    *(Magrpo, MaReinforce, MaRloo, MaRemax, MagrpoCentral),
    *(DrMas, DrMamr, Spiral, Sirius, MaDpo, Ippo, Mappo, Rlhf, Custom),
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
