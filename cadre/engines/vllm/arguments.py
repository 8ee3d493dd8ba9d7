"""How an engine of vLLM is asked for: from policies and settings to the arguments that it is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import AutoConfig, GenerationConfig

from cadre.engines.context import context_of
from cadre.engines.model_text import ModelText, stops_of
from cadre.engines.torch.model import is_fully_trained, load_tokenizer, make_templates, pick_device
from cadre.engines.vllm.adapters import rank_of, slots
from cadre.errors import EngineError
from cadre.settings import PolicyConfig, VllmConfig

# Keys and values on a CPU, where nothing is said of them.
CPU_MEMORY = 1 << 30
# Of a card that the learner lives on too, for the weights, and for keys and values where nothing is said of them.
CARD_SHARE = 0.4
# Nothing of a run is told to anybody, and errors alone to the terminal. A process that has threads cannot be forked.
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
# vLLM would take cores for itself, one thread each, whatever else is there.
ON_CPU = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
# Handles of a card's memory cross between our own processes as Python objects.
OVER_IPC = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}


@dataclass(frozen=True)
class Options:
    """What the experiment chooses: `memory` are bytes for keys and values, `max_staleness` how many updates sampling
    runs ahead of learning."""

    config: VllmConfig = field(default_factory=VllmConfig)
    memory: int | None = None
    max_staleness: int = 0


@dataclass(frozen=True)
class Launch:
    """An engine as it is asked for: `arguments` are those of vLLM's AsyncEngineArgs, `transfer` how weights of the
    whole model come ("" where none do), `room` how many versions of adapters there may be."""

    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    transfer: str
    room: int

    @property
    def source(self) -> str:
        """The folder or hub name of the model."""
        return str(self.arguments["model"])


def text_of(source: str, policies: Mapping[str, PolicyConfig], options: Options) -> ModelText:
    """The model's tokenizer, templates and context. Raises EngineError where it has no use as a chat model."""
    policy = next(iter(policies.values()))
    tokenizer = load_tokenizer(source, policy)
    templates = make_templates(tokenizer, policies)
    config = AutoConfig.from_pretrained(source, trust_remote_code=policy.trust_remote_code)
    stops = stops_of(_configured_stops(source, config), tokenizer, next(iter(templates.values())))
    longest = context_of(config) or 1 << 20
    return ModelText(templates, stops, min(longest, options.config.context or longest))


def _configured_stops(source: str, config: Any) -> Any:
    try:
        return GenerationConfig.from_pretrained(source).eos_token_id
    except OSError:
        return getattr(config.get_text_config(), "eos_token_id", None)


def of(source: str, policies: Mapping[str, PolicyConfig], options: Options, context: int) -> Launch:
    """The engine for these policies, on a card where torch sees one and the policies may use it."""
    policy = next(iter(policies.values()))
    ranks = [each.lora.rank for each in policies.values() if each.lora is not None]
    room = slots(len(ranks), options.max_staleness)
    on_card = pick_device(policy.device).type == "cuda"
    _check_card(options, on_card)
    whole = any(is_fully_trained(each) for each in policies.values())
    transfer = ("ipc" if on_card else "cadre") if whole else ""
    arguments = {
        "model": source,
        "dtype": policy.dtype,
        "trust_remote_code": policy.trust_remote_code,
        "max_model_len": context,
        "max_num_seqs": options.config.sequences,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "async_scheduling": False,
        "disable_log_stats": True,
        **(_on_card(options) if on_card else _on_cpu(options, context)),
        **(_adapters(ranks, room) if ranks else {}),
        **({"weight_transfer_config": {"backend": transfer}} if transfer else {}),
    }
    environment = ENVIRONMENT | ({} if on_card else ON_CPU) | (OVER_IPC if transfer == "ipc" else {})
    return Launch(arguments, environment, transfer, room)


def _check_card(options: Options, on_card: bool) -> None:
    config = options.config
    if not on_card and (config.colocated or config.cards > 1):
        name, got = ("colocated", "true") if config.colocated else ("cards", str(config.cards))
        raise EngineError(
            f"vllm.{name}: got {got}, and the model is on a CPU, where nothing can be shared so; expected a GPU. "
            "Remove the setting."
        )


def _adapters(ranks: list[int], room: int) -> dict[str, Any]:
    # In a batch that mixes adapters, rows without one have been given the one in the last slot: none is ever there.
    return {"enable_lora": True, "max_lora_rank": rank_of(ranks), "max_loras": room + 1}


def _on_card(options: Options) -> dict[str, Any]:
    memory = {} if options.memory is None else {"kv_cache_memory_bytes": options.memory}
    return {
        "enforce_eager": bool(options.config.eager),
        "tensor_parallel_size": options.config.cards,
        "enable_sleep_mode": options.config.colocated,
        "gpu_memory_utilization": CARD_SHARE,
        **memory,
    }


def _on_cpu(options: Options, context: int) -> dict[str, Any]:
    """Prompts are read whole: a generator on the CPU cannot be set back, as vLLM does after a part of a prompt."""
    return {
        "enforce_eager": options.config.eager is not False,
        "block_size": 32,
        "kv_cache_memory_bytes": options.memory or CPU_MEMORY,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(context, options.config.sequences),
    }
