"""Validation of engines: samplers, Ray clusters, ranks, and models that read images.

Each function checks one setting and raises ConfigError.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from cadre.config.experiment import Experiment
from cadre.config.placement import check_policies, plan_placement
from cadre.errors import ConfigError
from cadre.plugins import install_command
from cadre.settings.models import AUDIO_MODELS, MEDIA_MODELS, read_model_type

MAX_VLLM_RANK = 512  # of an adapter


def check_samplers(experiment: Experiment) -> None:
    """vLLM is installed and can sample the policies that it is set for."""
    for name in experiment.vllm_policies:
        policy, learner = experiment.policies[name], experiment.learners.get(name)
        model_type = read_model_type(Path(experiment.models[name]))
        if model_type in MEDIA_MODELS:
            raise ConfigError(
                f"sampling.engine: got vllm for policy {name}, whose model of type {model_type} reads "
                f"{'sounds' if model_type in AUDIO_MODELS else 'pictures'}, which vLLM is not handed here; expected "
                "torch. Set it for that policy."
            )
        if policy.device.startswith("cuda:") and policy.device != "cuda:0":
            raise ConfigError(
                f"team.policies.{name}.device: got {policy.device} with sampling.engine=vllm, which takes the first "
                "GPU; expected auto, cpu, cuda or cuda:0. Set CUDA_VISIBLE_DEVICES to the GPU instead."
            )
        if policy.lora is not None and policy.lora.path is not None:
            raise ConfigError(
                f"team.policies.{name}.lora.path: got {policy.lora.path} with sampling.engine=vllm, which begins from "
                "fresh adapters alone; expected sampling.engine=torch for this policy. Set that, or merge the adapter "
                "into its base (PEFT's merge_and_unload, or cadre export --merge) and name that model."
            )
        if policy.lora is not None and policy.lora.rank > MAX_VLLM_RANK:
            raise ConfigError(
                f"team.policies.{name}.lora.rank: got {policy.lora.rank} with sampling.engine=vllm; expected at most "
                f"{MAX_VLLM_RANK}. Lower it, or set sampling.engine=torch."
            )
        # Taking turns in a GPU's memory needs a learner in this process.
        if experiment.colocated and learner is not None and learner.ranks > 1:
            raise ConfigError(
                f"learner.ranks: got {learner.ranks} for {name} with vllm.colocated, under which sampler and learner "
                "take turns in one GPU's memory; expected 1. Remove one of the two."
            )
        if experiment.config.vllm.sleep == "discard" and (learner is None or policy.lora is not None):
            raise ConfigError(
                f"vllm.sleep: got discard, and {name} keeps the weights of its base model, which no sync sends again; "
                "expected another value. Remove it."
            )
    if experiment.vllm_policies and find_spec("vllm") is None:
        raise ConfigError(
            f"sampling.engine: got vllm for {', '.join(experiment.vllm_policies)}, and vLLM is not installed; expected "
            f"version 0.32 of it. Run {install_command('vllm')} (without a card: make vllm, in the clone), or set "
            "sampling.engine=torch."
        )


def check_quantization(experiment: Experiment) -> None:
    """A base is quantised only where nothing trains it, torch alone runs it, and the library is installed."""
    for name, policy in experiment.policies.items():
        if policy.quantization is None:
            continue
        setting = f"team.policies.{name}.quantization: got {policy.quantization}"
        if policy.lora is None and not policy.frozen:
            raise ConfigError(
                f"{setting}, and the policy is trained whole, which packed weights of four bits cannot be; expected an "
                "adapter. Add lora: {}, or remove quantization."
            )
        if name in experiment.vllm_policies:
            raise ConfigError(
                f"{setting} with sampling.engine=vllm, which loads weights of its own; expected torch, which samples "
                "with the learner's. Set sampling.engine=torch, or remove quantization."
            )
        if name in experiment.learners and experiment.learners[name].ranks > 1:
            raise ConfigError(
                f"{setting} with learner.ranks={experiment.learners[name].ranks}, which divide the weights of each "
                "layer; expected 1. Remove one of the two."
            )
        if find_spec("bitsandbytes") is None:
            raise ConfigError(
                f"{setting}, and bitsandbytes is not installed. Run {install_command('quantization')}, or remove "
                "quantization."
            )


def check_cluster(experiment: Experiment) -> None:
    """The policies of one base model have one placement, and nothing is placed that cannot be in another process."""
    config = experiment.cluster
    if config is None:
        return
    # A program runs beside the endpoint that answers it.
    if config.environments and experiment.env_spec.declared.starts_processes:
        raise ConfigError(
            f"cluster.environments: got {config.environments} with an environment that is a program, which has "
            "processes of its own here; expected 0. Remove it."
        )
    check_policies(config, experiment.policies)
    for names in experiment.engines:
        ranks = experiment.ranks(names)
        placed = plan_placement(config, names, trains=ranks > 0)
        if ranks > 1 and placed.learner_gpus not in (0, ranks):
            raise ConfigError(
                f"cluster.learner_gpus: got {placed.learner_gpus:.0f} with learner.ranks={ranks} for policy "
                f"{names[0]}, each rank of which takes a GPU; expected {ranks}, or 0 to learn on CPUs. Set both alike."
            )
    if experiment.colocated:
        raise ConfigError(
            "vllm.colocated: got true with a cluster, whose samplers are in other processes than learners and cannot "
            "take turns with them; expected false. Remove it, or the section cluster."
        )


def check_learner_ranks(experiment: Experiment) -> None:
    """The policies of one model are trained by the same number of ranks, and every rank may have a GPU of its own."""
    for names in experiment.engines:
        ranks = {name: experiment.learners[name].ranks for name in names if name in experiment.learners}
        if len(set(ranks.values())) > 1:
            counts = ", ".join(f"{name}: {count}" for name, count in ranks.items())
            raise ConfigError(
                f"learner.ranks: got {counts} for policies on one model, which are trained in one forward; expected "
                "the same for all of them. Set learner.ranks for the experiment."
            )
        device = experiment.policies[names[0]].device
        if max(ranks.values(), default=1) > 1 and ":" in device:
            raise ConfigError(
                f"team.policies.{names[0]}.device: got {device} with learner.ranks={max(ranks.values())}, of which "
                "each takes a GPU of its own; expected cuda, cpu or auto. Remove the number, or set learner.ranks=1."
            )


def check_vision_learners(experiment: Experiment) -> None:
    """Models that read images are trained padded, by one rank: in a prefix tree equal ids with other images would be
    one node, and positions in an image are no depths."""
    for name in experiment.learners:
        check_vision_learner(experiment, name, partial(read_model_type, Path(experiment.models[name])))


def check_vision_learner(experiment: Experiment, name: str, find: Callable[[], str]) -> None:
    """Raise ConfigError if a policy's model reads images and its learner does not support that. `find` returns the
    model's type, and is called only if that matters."""
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
    if (kind := find()) in MEDIA_MODELS:
        media = "sounds" if kind in AUDIO_MODELS else "pictures"
        raise ConfigError(f"{got} for policy {name}, whose model of type {kind} reads {media}{why}")
