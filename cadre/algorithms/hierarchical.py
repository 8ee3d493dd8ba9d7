"""GRPO for a planner and its workers, as three papers have it: who is compared, who is trained, what weighs alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from cadre.advantages.plan import Plan
from cadre.algorithms.grpo import Episodes
from cadre.settings import LossConfig


class Matpo(Episodes):
    """MATPO (arXiv 2510.04678): planner and workers are one model, and all they say is judged in one group a task."""

    policies = "shared"
    name: Literal["matpo"]


class FlowGrpo(Episodes):
    """Flow-GRPO (arXiv 2510.05592): one role learns the episode's outcome at every turn, the others are frozen."""

    group = "task_role"
    policies = "one_role"
    name: Literal["flow_grpo"]

    def plan(self) -> Plan:
        """Every turn has the episode's advantage; a turn's tokens are averaged first, then its episode's turns
        (equation 5)."""
        return replace(super().plan(), loss=LossConfig(aggregate="sequence_mean"), tree_weight="by_episode")


class MGrpo(Episodes):
    """M-GRPO (arXiv 2511.13288): a policy a role, each role with its own group, and every episode weighs alike."""

    group = "task_role"
    policies = "by_role"
    name: Literal["m_grpo"]

    def plan(self) -> Plan:
        """A role's samples of an episode share the weight of one, as resampling to equally many has it on average."""
        return replace(super().plan(), tree_weight="by_episode")
