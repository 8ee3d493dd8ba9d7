"""What each actor asks Ray for, from the settings. Plain numbers; nothing here knows Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cadre.errors import ConfigError
from cadre.settings.cluster import ClusterConfig, PlacementConfig
from cadre.settings.section import merged


@dataclass(frozen=True)
class Placement:
    """What the actors of one base model ask for.

    samplers        how many there are
    sampler_cards   of each; a fraction where they share the learner's
    learner_cards   of the learner
    together        whether all of them must be on one machine, on the same cards
    """

    samplers: int
    sampler_cards: float
    learner_cards: float
    together: bool


def placement(config: ClusterConfig, policies: Sequence[str], trains: bool) -> Placement:
    """The placement of the base model of these policies. Raises ConfigError where they want different ones."""
    wanted = {name: _of(config, name) for name in policies}
    first = wanted[policies[0]]
    for name, other in wanted.items():
        if other != first:
            raise ConfigError(
                f"cluster.policies.{name}: got other numbers than for {policies[0]}, which is on the same base model "
                "and sampled and trained with it; expected the same. Name them once, or for both alike."
            )
    learner = float(first.learner_cards) if trains else 0.0
    if not first.colocated:
        return Placement(first.samplers, float(first.sampler_cards), learner, False)
    share = first.learner_cards / (first.samplers + trains)
    return Placement(first.samplers, share, share if trains else 0.0, True)


def check_policies(config: ClusterConfig, known: Mapping[str, object]) -> None:
    """Raises ConfigError for a placement of a policy that there is not."""
    for name in config.policies:
        if name not in known:
            raise ConfigError(
                f"cluster.policies.{name}: there is no such policy; expected one of {', '.join(known)}. Fix the name."
            )


def _of(config: ClusterConfig, policy: str) -> PlacementConfig:
    plain = PlacementConfig(**{name: getattr(config, name) for name in PlacementConfig.model_fields})
    return merged(plain, config.policies.get(policy, PlacementConfig()))
