"""The published algorithms by name: one file a family, its settings beside the plan that they stand for."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, get_args

from cadre.advantages.plan import Plan
from cadre.algorithms import common
from cadre.algorithms.actor_critic import Ippo, Mappo, Rlhf
from cadre.algorithms.at_grpo import AtGrpo
from cadre.algorithms.branching import Arpo, Bpo, TreeGrpo, TreeRl
from cadre.algorithms.c3 import C3
from cadre.algorithms.custom import Custom
from cadre.algorithms.dr_mas import DrMas
from cadre.algorithms.gigpo import Gigpo
from cadre.algorithms.grpo import Grpo, GrpoByRole
from cadre.algorithms.hierarchical import FlowGrpo, Matpo, MGrpo
from cadre.algorithms.ma_dpo import MaDpo
from cadre.algorithms.magrpo import Magrpo, MagrpoCentral, MaReinforce, MaRemax, MaRloo
from cadre.algorithms.sirius import Sirius
from cadre.algorithms.spiral import Spiral

KINDS: tuple[type[common.Algorithm], ...] = (
    AtGrpo,
    Grpo,
    GrpoByRole,
    Matpo,
    FlowGrpo,
    MGrpo,
    Gigpo,
    TreeGrpo,
    TreeRl,
    Arpo,
    Bpo,
    C3,
    Magrpo,
    MaReinforce,
    MaRloo,
    MaRemax,
    MagrpoCentral,
    DrMas,
    Spiral,
    Sirius,
    MaDpo,
    Ippo,
    Mappo,
    Rlhf,
    Custom,
)

# The one table of names. The settings of an algorithm carry its name, so the table is made of them.
ALGORITHMS: dict[str, type[common.Algorithm]] = {
    get_args(kind.model_fields["name"].annotation)[0]: kind for kind in KINDS
}

# What a configuration's `algorithm` is validated as: the settings of one of them, told apart by `name`.
if TYPE_CHECKING:
    Algorithm = common.Algorithm
else:
    Algorithm: Any = reduce(or_, KINDS)


def plan_of(algorithm: common.Algorithm) -> Plan:
    """The plan that the settings stand for. Raises ConfigError where one of them would be ignored."""
    return replace(algorithm.plan(), kl=algorithm.kl)
