"""Refusals of where samplers and learners are put."""

from __future__ import annotations

from cadre.cluster.placement import check_policies, placement
from cadre.errors import ConfigError
from cadre.experiment.bases import engines_of, ranks_of
from cadre.experiment.experiment import Experiment
from cadre.programs.program import Program


def cluster_policies(experiment: Experiment) -> None:
    """What is on one base model has one placement, and no policy is named that there is not."""
    config = experiment.config.cluster
    if config is None:
        return
    check_policies(config, experiment.policies)
    for names in engines_of(experiment):
        ranks = ranks_of(experiment, names)
        places = placement(config, names, trains=ranks > 0)
        if ranks > 1 and places.learner_cards not in (0, ranks):
            raise ConfigError(
                f"cluster.learner_cards: got {places.learner_cards:.0f} with learner.ranks={ranks} for policy "
                f"{names[0]}, each rank of which takes a card; expected {ranks}, or 0 to learn on CPUs. Set both alike."
            )


def cluster_vllm(experiment: Experiment) -> None:
    """Samplers that share a learner's card do so in one way."""
    config = experiment.config.cluster
    if config is not None and experiment.config.vllm.colocated:
        raise ConfigError(
            "vllm.colocated: got true with a cluster, whose samplers are in other processes than learners and cannot "
            "take turns with them; expected false. Remove it, or the section cluster."
        )


def cluster_environments(experiment: Experiment) -> None:
    """A program runs beside the endpoint that answers it, and cannot be handed to another process."""
    config = experiment.config.cluster
    if config is not None and config.environments and issubclass(experiment.env_spec.declared, Program):
        raise ConfigError(
            f"cluster.environments: got {config.environments} with an environment that is a program, which has "
            "processes of its own here; expected 0. Remove it."
        )
