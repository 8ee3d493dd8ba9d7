"""The processes and GPUs of each base model in a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cadre.errors import ConfigError
from cadre.settings import ClusterConfig
from cadre.settings.engines import PlacementConfig
from cadre.settings.section import apply_changes


@dataclass(frozen=True)
class Placement:
    """The resources of the actors of one base model.

    samplers        how many there are
    sampler_gpus   GPUs of each; a fraction if they share the learner's
    learner_gpus   GPUs of the learner
    together        whether all of them must be on one machine, on the same GPUs
    """

    samplers: int
    sampler_gpus: float
    learner_gpus: float
    together: bool


def plan_placement(config: ClusterConfig, policies: Sequence[str], trains: bool) -> Placement:
    """Return the placement of the base model of these policies. Raises ConfigError if their settings differ."""
    plain = PlacementConfig(**{name: getattr(config, name) for name in PlacementConfig.model_fields})
    settings = {name: apply_changes(plain, config.policies.get(name, PlacementConfig())) for name in policies}
    first = settings[policies[0]]
    for name, setting in settings.items():
        if setting != first:
            raise ConfigError(
                f"cluster.policies.{name}: got other numbers than for {policies[0]}, which is on the same base model "
                "and sampled and trained with it; expected the same. Name them once, or for both alike."
            )
    learner = float(first.learner_gpus) if trains else 0.0
    if not first.colocated:
        return Placement(first.samplers, float(first.sampler_gpus), learner, False)
    # The learner's GPUs in equal parts for all samplers and the learner.
    fraction = first.learner_gpus / (first.samplers + trains)
    return Placement(first.samplers, fraction, fraction if trains else 0.0, True)


def check_policies(config: ClusterConfig, policies: Mapping[str, object]) -> None:
    """Raise ConfigError for the placement of an unknown policy."""
    for name in config.policies:
        if name not in policies:
            raise ConfigError(
                f"cluster.policies.{name}: there is no such policy; expected one of {', '.join(policies)}. Fix the "
                "name."
            )
