"""What an experiment comes to, in one record that all later stages take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cadre.advantages.plan import Plan
from cadre.envs.spec import EnvSpec
from cadre.experiment.config import Config
from cadre.rollout.episodes import Failure
from cadre.rollout.grow import Rollout
from cadre.settings import LearnerConfig, PolicyConfig
from cadre.settings.section import merged
from cadre.team import Team
from cadre.types import Sampling


@dataclass(frozen=True)
class Experiment:
    """A configuration, resolved: made by `cadre.experiment.resolve`, which refuses what cannot be.

    config     what the user wrote
    env_spec   makes episodes to learn from and knows the training split
    held_out   makes episodes of held-out tasks and knows the test split; the same but for `evaluate.settings`
    plan       how trees grow, what samples are worth, and how that becomes a gradient
    policies   every policy, those included that only a critic is
    models     by policy whose weights are here: the folder or the hub name of its model
    heads      by policy that judges: its value heads
    learners   by policy that is trained: the experiment's learner with the policy's changes
    sampling   by role: the experiment's sampling with the changes of the policy that plays it
    """

    config: Config
    env_spec: EnvSpec
    held_out: EnvSpec
    plan: Plan
    policies: Mapping[str, PolicyConfig]
    models: Mapping[str, str]
    heads: Mapping[str, tuple[str, ...]]
    learners: Mapping[str, LearnerConfig]
    sampling: Mapping[str, Sampling]

    @property
    def trained_roles(self) -> dict[str, str]:
        """The policy of each role that is trained."""
        return {role: name for role, name in self.config.team.roles.items() if name in self.learners}

    @property
    def on_vllm(self) -> tuple[str, ...]:
        """The policies with weights here whose completions vLLM draws."""
        drawn = {name: merged(self.config.sampling, policy.sampling) for name, policy in self.policies.items()}
        played = set(self.config.team.roles.values()) & set(self.models)
        return tuple(name for name, sampling in drawn.items() if name in played and sampling.engine == "vllm")

    def rollout(self, team: Team, failed: Callable[[Failure], None] = lambda failure: None) -> Rollout:
        """How the team grows the trees of a training; `failed` is told of every episode that fails."""
        return Rollout(self.env_spec.make, team, self.plan.shape, self.plan.credit.alpha, self.config.episodes, failed)

    def evaluation(self, team: Team, failed: Callable[[Failure], None] = lambda failure: None) -> Rollout:
        """The same for held-out tasks."""
        return replace(self.rollout(team, failed), make=self.held_out.make)
