"""An engine of vLLM: its arguments, chosen from policies and settings, and the records that it is called with.

`async_engine.AsyncEngine` is the engine. Nothing here imports vLLM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from transformers import AutoConfig, GenerationConfig

from cadre.engines.model_folder import context_length
from cadre.engines.text.model import ModelText, collect_stops
from cadre.engines.torch.memory import SequenceMemory
from cadre.engines.torch.model import DTYPES, is_fully_trained, load_tokenizer, make_templates, pick_device
from cadre.engines.vllm.adapters import Adapter, count_slots, supported_rank
from cadre.errors import EngineError
from cadre.settings import PolicyConfig, VllmConfig
from cadre.types import Sampling

# Bytes of the KV cache on a CPU without a setting.
CPU_CACHE_BYTES = 1 << 30
# The fraction of a GPU that vLLM takes at most without a setting, as the learner lives on it too.
GPU_FRACTION = 0.4
# Tokens of prompts that a GPU reads in one step. vLLM's default is made for latency and 8 times smaller.
GPU_BATCH_TOKENS = 16_384
# Tokens of one block of the KV cache on a GPU; a sequence takes whole blocks.
BLOCK_TOKENS = 16
# No usage statistics leave the machine, and only errors reach the terminal. A process with threads cannot be forked.
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
# vLLM would bind its threads to cores of its own, whatever else runs there.
CPU_ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
# How often a dead engine is looked for while a call waits for it.
ALIVE_SECONDS = 2.0
# Imported by vLLM in its engine process and in its workers.
SCHEDULER = "cadre.engines.vllm.scheduler.PartScheduler"
WORKER_EXTENSION = "cadre.engines.vllm.worker.WorkerExtension"
# Handles of GPU memory cross between our own processes as Python objects.
IPC_ENVIRONMENT = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """Choices of the experiment: `memory` in bytes of KV cache, `max_staleness` in updates that sampling may lag, and
    `deterministic` of the settings."""

    config: VllmConfig = field(default_factory=VllmConfig)
    memory: int | None = None
    max_staleness: int = 0
    deterministic: bool | None = None


@dataclass(frozen=True)
class Launch:
    """The start of an engine.

    arguments      those of vLLM's AsyncEngineArgs
    environment    variables that are set unless the user has set them
    transfer       the weight transfer back-end for a model that is trained whole; "" if adapters alone are trained
    slots          how many versions of adapters there may be
    deterministic  requests enter in batches that follow from the work, each with a seed of its own; else each request
                   enters when it arises
    """

    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    transfer: str
    slots: int
    deterministic: bool

    @property
    def source(self) -> str:
        """The folder or hub name of the model."""
        return str(self.arguments["model"])


def load_text(source: str, policies: Mapping[str, PolicyConfig], options: Options) -> ModelText:
    """Return the model's templates, stop tokens and context. Raises EngineError if it cannot be a chat model."""
    policy = next(iter(policies.values()))
    tokenizer = load_tokenizer(source, policy)
    templates = make_templates(tokenizer, policies)
    config = AutoConfig.from_pretrained(source, trust_remote_code=policy.trust_remote_code)
    try:
        configured = GenerationConfig.from_pretrained(source).eos_token_id
    except OSError:
        configured = getattr(config.get_text_config(), "eos_token_id", None)
    stops = collect_stops(configured, tokenizer, *templates.values())
    longest = context_length(config) or 1 << 20
    return ModelText(templates, stops, min(longest, options.config.context or longest))


def plan_launch(source: str, policies: Mapping[str, PolicyConfig], options: Options, context: int) -> Launch:
    """Return how to start the engine of these policies: on a GPU if torch has one and the policies may use it. Raises
    EngineError for settings that need a GPU."""
    config, policy = options.config, next(iter(policies.values()))
    on_gpu = pick_device(policy.device).type == "cuda"
    check_gpu_settings(config, on_gpu)
    # On a GPU sums round by what shares a batch, so that equal seeds are equal runs at a high price only.
    deterministic = not on_gpu if options.deterministic is None else options.deterministic
    arguments = {
        "model": source,
        "dtype": policy.dtype,
        "trust_remote_code": policy.trust_remote_code,
        "max_model_len": context,
        "max_num_seqs": config.sequences,
        "enable_prefix_caching": True,
        # Of the distribution that tokens are sampled from, which the loss is about.
        "logprobs_mode": "processed_logprobs",
        # The model's own generation config must not change the settings of a request.
        "generation_config": "vllm",
        "async_scheduling": on_gpu and not deterministic,
        "disable_log_stats": True,
    }
    if on_gpu:
        memory = options.memory or default_cache_bytes(source, policy, config, context)
        arguments |= {
            "enforce_eager": bool(config.eager),
            "tensor_parallel_size": config.gpus,
            "enable_sleep_mode": bool(config.colocated) and config.sleep != "none",
            "gpu_memory_utilization": GPU_FRACTION,
            "max_num_batched_tokens": max(GPU_BATCH_TOKENS, config.sequences),
            "cudagraph_capture_sizes": capture_sizes(config.sequences),
            **({} if memory is None else {"kv_cache_memory_bytes": memory}),
        }
        if not deterministic:
            arguments["scheduler_cls"] = SCHEDULER
        if is_dense(source, policy):
            # vLLM would compile every kernel that any request could need, for a minute. Those that ours need are
            # compiled by the first of them. Models with experts keep it: it also sizes memory that graphs point to.
            arguments["kernel_config"] = {"enable_jit_warmup": False}
    else:
        # Prompts are read whole: vLLM resets a generator after a part of a prompt, which one on the CPU does not
        # support.
        arguments |= {
            "enforce_eager": config.eager is not False,
            "block_size": 32,
            "kv_cache_memory_bytes": options.memory or CPU_CACHE_BYTES,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(context, config.sequences),
        }
    ranks = [item.lora.rank for item in policies.values() if item.lora is not None]
    slots = count_slots(len(ranks), options.max_staleness)
    if ranks:
        # In a batch that mixes adapters, vLLM has given rows without one the adapter of the last slot: it stays empty.
        arguments |= {"enable_lora": True, "max_lora_rank": supported_rank(ranks), "max_loras": slots + 1}
    transfer = ""
    if any(is_fully_trained(item) for item in policies.values()):
        # The buffer is in the memory of one GPU; vLLM's own back-end also reaches the others.
        transfer = "cadre" if not on_gpu else "cadre-ipc" if config.gpus == 1 else "ipc"
        arguments |= {"weight_transfer_config": {"backend": transfer}, "worker_extension_cls": WORKER_EXTENSION}
    environment = ENVIRONMENT | ({} if on_gpu else CPU_ENVIRONMENT) | (IPC_ENVIRONMENT if "ipc" in transfer else {})
    return Launch(arguments, environment, transfer, slots, deterministic)


def default_cache_bytes(source: str, policy: PolicyConfig, config: VllmConfig, context: int) -> int | None:
    """Return the bytes of KV cache for as many sequences of the longest length as are decoded at once.

    None if they do not fit beside the weights into vLLM's fraction of the GPU, which vLLM then fills, or if the model's
    files or configuration do not say what they take.
    """
    model = AutoConfig.from_pretrained(source, trust_remote_code=policy.trust_remote_code).get_text_config()
    weights = sum(file.stat().st_size for file in Path(source).glob("*.safetensors"))
    # Latent attention caches less than keys and values, which depends on the model.
    if not weights or getattr(model, "kv_lora_rank", None) is not None:
        return None
    token_bytes = SequenceMemory.from_config(model, DTYPES[policy.dtype]).slot // config.gpus
    # Two more blocks a sequence: one that is begun, and vLLM's own.
    cache_bytes = config.sequences * (-(-context // BLOCK_TOKENS) + 2) * BLOCK_TOKENS * token_bytes
    total = torch.cuda.get_device_properties(0).total_memory
    return cache_bytes if cache_bytes + weights // config.gpus <= GPU_FRACTION * total else None


def is_dense(source: str, policy: PolicyConfig) -> bool:
    """Return True if every token takes the same way through the model, with plain attention."""
    model = AutoConfig.from_pretrained(source, trust_remote_code=policy.trust_remote_code).get_text_config()
    experts = ("num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank")
    return not any(getattr(model, name, None) for name in experts)


def capture_sizes(sequences: int) -> list[int]:
    """Return the numbers of tokens for which a step is captured as a CUDA graph; a step takes the next larger one.

    Beyond `sequences`, where all decode, are steps that also read a short prompt. vLLM's own list ends at 512 and is
    twice as long, which is start-up time: a few tokens too many cost nothing, as reading weights and keys takes long.
    """
    decoding = [size for size in (1, 2, 4, *range(8, 64, 8), *range(64, sequences, 32)) if size < sequences]
    reading = [size for size in range(64, min(2 * sequences, 512) + 1, 64) if size > sequences]
    return [*decoding, sequences, *reading]


def check_gpu_settings(config: VllmConfig, on_gpu: bool) -> None:
    """Raise EngineError for settings that need a GPU without one."""
    if not on_gpu and (config.colocated or config.gpus > 1):
        setting = "colocated: got true" if config.colocated else f"gpus: got {config.gpus}"
        raise EngineError(
            f"vllm.{setting}, and the model is on a CPU, where nothing can be shared so; expected a GPU. Remove the "
            "setting."
        )


@dataclass(frozen=True)
class Call:
    """A request to the engine: `count` completions of one prompt, sampled with an adapter or without.

    `name` is unique. Completion k samples from a generator of its own with the seed `seed + k`; without a seed all
    sample from the engine's.
    """

    name: str
    prompt_ids: tuple[int, ...]
    count: int
    limit: int
    sampling: Sampling
    seed: int | None
    stops: tuple[int, ...]
    adapter: Adapter | None = None


# How deep an engine sleeps: what it frees.
Depth = Literal["cache", "offload", "discard"]


async def wait_while_alive(work: Coroutine[Any, Any, T], is_dead: Callable[[], bool], death: EngineError) -> T:
    """Return what the engine answers. Raises `death` if it dies first. vLLM tells requests that its process has died,
    but not those who wait for its other answers: they would for ever."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=ALIVE_SECONDS)
            if not task.done() and is_dead():
                raise death
        return task.result()
    finally:
        task.cancel()


def sampling_parameters(call: Call) -> dict[str, Any]:
    """Return the call as keyword arguments of vLLM's SamplingParams.

    Log-probabilities are those of the sampled tokens alone. Text is made only for stop strings, with special tokens,
    which a string may contain. At temperature 0 nothing is sampled, and no generator is made.
    """
    sampling = call.sampling
    return {
        "n": call.count,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": call.limit,
        "seed": call.seed if sampling.temperature > 0.0 else None,
        "stop": list(sampling.stop),
        "stop_token_ids": list(call.stops),
        "logprobs": 0,
        "flat_logprobs": True,
        "detokenize": bool(sampling.stop),
        **({"skip_special_tokens": False} if sampling.stop else {}),
    }
