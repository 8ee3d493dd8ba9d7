"""Load a causal language model and its tokenizer; check that weights, configuration, tokens and torch fit together.

Safetensors only. Python code that ships with a checkpoint runs only if the policy asks for it (`trust_remote_code`).
Reading from top to bottom: where a model is and on which device it runs, how its weights are loaded, what is checked,
and the few changes to its forward (attention function, projected positions, autocast) that sampler and learner share.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
)
from transformers.utils.logging import disable_progress_bar

from cadre.engines import host, model_folder
from cadre.engines.media import MediaProcessor, load_processor
from cadre.engines.model_folder import check_folder, context_length, wrap_load_errors
from cadre.engines.text.model import collect_stops
from cadre.engines.text.template import Template, with_adapter_template
from cadre.engines.torch import memory, storage
from cadre.engines.torch.lora import Adapters, describe_reach
from cadre.errors import EngineError
from cadre.file_limits import read_json, size_of
from cadre.learn import tensor_files
from cadre.plugins import embedded_models
from cadre.settings import PolicyConfig
from cadre.settings.models import AUDIO_MODELS, VISION_MODELS
from cadre.types import Message, Tool

# By the setting `dtype`; a policy that was not resolved by `config.resolve` has `auto`.
DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}
# transformers changes torch's defaults for the whole process while it loads a model. Two loads at once, in the threads
# of two engines, can leave the defaults changed for good and tied weights without data.
LOADING_LOCK = threading.RLock()
FULL, SLIDING = "full_attention", "sliding_attention"  # transformers' names
# Keywords that layers pass to their attention function and that change nothing without gradients.
HARMLESS_KEYWORDS = ("position_ids", "cache_position", "is_causal")


@dataclass(frozen=True)
class LayerAttention:
    """The attention types of a model's layers, and the window of the sliding ones in tokens."""

    types: frozenset[str]
    window: int | None

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Read a transformers configuration. Layers of other kinds, such as a state space, are among the types."""
        window: int | None = getattr(config, "sliding_window", None) if _may_have_window(config) else None
        types = frozenset(getattr(config, "layer_types", None) or [SLIDING if window else FULL])
        return cls(types, window if SLIDING in types else None)


def find_window(attention: Any) -> int | None:
    """Return the sliding window that an attention module passes on when it is called: its own, or Mistral's settings'.
    Settings of other models may name one that their attention does not have."""
    config = getattr(attention, "config", None)
    has_setting = getattr(config, "model_type", None) == "mistral"
    window: int | None = getattr(config if has_setting else attention, "sliding_window", None)
    return window


def _may_have_window(config: Any) -> bool:
    """Return False if a `sliding_window` in these settings is not their model's, as in Llama's, which ignores it."""
    kind = type(config)
    names = {"sliding_window", "layer_types"}
    is_declared = any(hasattr(kind, name) for name in names) or names & set(getattr(kind, "attribute_map", {}))
    return bool(is_declared) or not kind.__module__.startswith("transformers.models.")


@dataclass(frozen=True)
class LoadedModel:
    """A model with its adapters, tokenizer and chat templates (by policy).

    stops      token ids that end a turn
    context    tokens of the longest sequence
    pictures   the processor of a vision-language or audio-language model; None for a model of text
    """

    source: str
    model: Any
    adapters: Adapters
    tokenizer: Any
    templates: Mapping[str, Template]
    attention: LayerAttention
    stops: tuple[int, ...]
    context: int
    pictures: MediaProcessor | None = None

    def parameters(self, policy: str) -> dict[str, nn.Parameter]:
        """Return the weights that training the policy changes."""
        has_adapter = policy in self.adapters.pairs
        return self.adapters.parameters(policy) if has_adapter else dict(self.model.named_parameters())

    def encode(self, policy: str, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Return the token ids of a conversation that the policy would answer next."""
        return self.templates[policy].prompt_ids(messages, None, self.stops, tools)


def locate(name: str | Path) -> str:
    """Return the folder or hub name that `name` stands for; `seed` and `games` are models in the package. Raises
    EngineError if it looks like a folder and holds no model, before anything heavy is imported or read."""
    text = str(name)
    folder = embedded_models().get(text, Path(text))
    if folder.is_dir():
        missing = [pattern for pattern in ("config.json", "*.safetensors") if not list(folder.glob(pattern))]
        if missing:
            raise EngineError(
                f"The model {text!r} cannot be loaded: {folder} has no {' and no '.join(missing)}. Expected a Hugging "
                "Face folder with config.json, a tokenizer and weights as safetensors (pickled weights are not read). "
                "Save the model there with save_pretrained."
            )
        check_folder(text, folder)
        return str(folder)
    looks_like_hub = text.count("/") <= 1 and not text.startswith((".", "/", "~")) and text not in embedded_models()
    if looks_like_hub:
        return model_folder.find_hub_model(text)
    raise EngineError(
        f"The model {text!r} was not found: got {folder}, which is not a folder. Expected 'seed', a folder with "
        "config.json and *.safetensors, or a hub name such as 'Qwen/Qwen3-1.7B'. Check the path."
    )


def pick_device(name: str) -> torch.device:
    """Return the device; `auto` is the GPU if there is one, else the CPU. Raises EngineError for a missing GPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if count else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        devices = f"cuda:0 to cuda:{count - 1} and cpu" if count else "cpu alone"
        raise EngineError(
            f"device: got {name!r}, and this machine has {devices}; expected one of them, or auto. Fix it."
        )
    return device


def with_number(device: torch.device) -> torch.device:
    """Return a GPU with its number, as `cuda` is `cuda:0` where no thread has chosen another one."""
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def is_fully_trained(policy: PolicyConfig) -> bool:
    """Return True if training the policy changes the model's own weights, not an adapter."""
    return policy.lora is None and not policy.frozen


def select_model_class(model_type: str) -> Any:
    """Return the transformers class for a `model_type` of config.json."""
    if model_type in AUDIO_MODELS:
        return AutoModelForMultimodalLM
    return AutoModelForImageTextToText if model_type in VISION_MODELS else AutoModelForCausalLM


def load(source: str, policies: Mapping[str, PolicyConfig], device: torch.device, seed: int) -> LoadedModel:
    """Return the model without gradients, with fresh adapters for LoRA policies, its tokenizer and its templates.

    A model whose own weights are trained is held as float32 masters, a frozen base in the precision of its forward.
    Raises EngineError if the model cannot be used.
    """
    policy = next(iter(policies.values()))
    dtype = torch.float32 if is_fully_trained(policy) else DTYPES[policy.dtype]
    disable_progress_bar()  # the command line has a live display of its own
    tokenizer = load_tokenizer(source, policy)
    model = load_weights(source, policy, dtype, device).to(device).requires_grad_(False)
    with wrap_load_errors(source, "tokenizer"):
        pictures = load_processor(source, tokenizer, policy.trust_remote_code)
        templates = make_templates(tokenizer, policies, pictures)
        configured = getattr(model.generation_config, "eos_token_id", None)
        stops = collect_stops(configured, tokenizer, *templates.values())

    loras = {name: policy.lora for name, policy in policies.items() if policy.lora}
    adapters = Adapters(model, loras, seed)
    for adapted, pairs in adapters.pairs.items():
        reach, is_partial = describe_reach(model, map(model.get_submodule, pairs))
        if is_partial and loras[adapted].targets == "all-linear":
            warnings.warn(
                f"Policy {adapted!r}: {reach}, and stay as they are. Leave lora out to train them too.", stacklevel=2
            )
    for name, lora in loras.items():
        if lora.path is not None:
            storage.load_adapter(adapters.parameters(name), Path(lora.path))

    config = model.config.get_text_config()
    attention = LayerAttention.from_config(config)
    if pictures is not None and attention.window is not None:
        raise EngineError(
            f"The model {source!r} reads pictures and attends within a window of {attention.window} tokens; expected a "
            "vision-language model whose layers attend to all before. Choose another one."
        )
    context = context_length(config) or 1 << 20
    return LoadedModel(source, model, adapters, tokenizer, templates, attention, stops, context, pictures)


def load_weights(source: str, policy: PolicyConfig, dtype: torch.dtype, device: torch.device | None = None) -> Any:
    """Return the model alone, in eval mode, on the CPU, or quantised on `device` if it is given and the policy says so:
    in NF4 with double quantization, as in QLoRA (arXiv 2305.14314), with products in `dtype`. Raises EngineError if it
    cannot be loaded."""
    options: dict[str, Any] = {}
    if device is not None and policy.quantization is not None:
        config = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
        )
        options = {"quantization_config": config, "device_map": {"": device}}
    check_memory(source, policy, dtype)
    check_stored_precision(source, policy)
    with wrap_load_errors(source, "model"), LOADING_LOCK:
        check_torch_defaults()
        model, report = select_model_class(model_folder.model_type(source)).from_pretrained(
            source,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=policy.trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below with a clearer message
            **options,
        )
    if mismatched := sorted(report["mismatched_keys"]):
        name, saved_shape, config_shape = mismatched[0]
        raise EngineError(
            f"The weights of {source!r} do not fit its config.json: {name} is {list(saved_shape)} in the file and "
            f"would be {list(config_shape)} by the configuration, and so are {len(mismatched) - 1} others. Expected "
            "weights and configuration of one model. Fix the sizes in config.json (vocab_size, hidden_size), or "
            "download it again."
        )
    if missing := sorted(report["missing_keys"]):
        raise EngineError(
            f"The model of {source!r} is not whole: of the weights that config.json asks for {len(missing)} are not "
            f"there ({missing[0]}), and would be drawn at random. Expected weights and configuration of one model. "
            "Download it again, or fix config.json (tie_word_embeddings, where the vocabulary projection is missing)."
        )
    check_weights(source, model, report["unexpected_keys"])
    # Stock SDPA ignores soft-capped attention scores (Gemma 2), so such a model takes the eager form.
    if getattr(model.config, "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")
    # On CPUs with AVX512-BF16 bitsandbytes would pack weights of four bits anew at the first product in eval mode, for
    # products without a gradient: adapters below such a layer would be trained with wrong gradients.
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model.eval()


def restore_weights(model: Any, source: str, policy: PolicyConfig) -> None:
    """Write the weights of a Hugging Face folder into a model of the same architecture, in place. Either side may be
    divided among the ranks of a group."""
    weights = dict(model.named_parameters())
    if tensor_files.is_sharded(Path(source)) or any(isinstance(weight, DTensor) for weight in weights.values()):
        tensor_files.read(weights, Path(source), "model")
        return
    saved = load_weights(source, policy, torch.float32)
    storage.copy_tensors(dict(saved.named_parameters()), weights)


def restore_policy(loaded: LoadedModel, name: str, policy: PolicyConfig, folder: Path) -> None:
    """Read a policy's weights from what `export_policy` or a group wrote. Raises EngineError if they belong to another
    model."""
    if name in loaded.adapters.pairs:
        storage.load_adapter(loaded.parameters(name), folder)
    else:
        restore_weights(loaded.model, locate(folder), policy)


def export_policy(
    loaded: LoadedModel,
    policy: str,
    base: str,
    folder: Path,
    merge: bool = False,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a policy for use without Cadre: a Hugging Face folder, or for an adapter a PEFT folder.

    `base` is what the settings call its model, `state` the model's weights if they are divided. `merge` adds the
    adapter to its base and writes a Hugging Face folder. Raises EngineError if there is none, or the base is quantised.
    """
    pairs, model = loaded.adapters.pairs.get(policy), loaded.model
    if merge and pairs is None:
        raise EngineError(f"Policy {policy!r} has no adapter to merge; it is a whole model. Export it without merge.")
    if getattr(model, "hf_quantizer", None) is not None and (merge or pairs is None):
        raise EngineError(
            f"Policy {policy!r} has a quantised base, to which nothing can be added exactly; expected an "
            "adapter to export. Export it without merge; PEFT merges it into the unquantised base."
        )
    tokenizer = loaded.templates[policy].tokenizer_to_save()
    if pairs is None:
        storage.save_model(model, loaded.stops, tokenizer, folder, state)
    elif merge:
        merged = storage.merge_adapter(state or model.state_dict(), pairs)
        storage.save_model(model, loaded.stops, tokenizer, folder, merged)
    else:
        name_of_base = storage.name_of_base(base, loaded.source)
        storage.write_adapter(loaded.parameters(policy), loaded.adapters.configs[policy], name_of_base, folder)
        tokenizer.save_pretrained(folder)
    if loaded.pictures is not None:
        loaded.pictures.save(folder)


def load_reference(source: str, policies: Mapping[str, PolicyConfig], start: Mapping[str, str] | None) -> Any:
    """Return the reference of a fully trained model: the model of `source`, with the weights of its policy's folder in
    `start` if it has one."""
    name, policy = next(iter(policies.items()))
    model = load_weights(source, policy, torch.float32)
    if folder := (start or {}).get(name, ""):
        restore_weights(model, locate(folder), policy)
    return model


def load_tokenizer(source: str, policy: PolicyConfig) -> Any:
    """Return the model's tokenizer. Raises EngineError if it cannot be loaded."""
    with wrap_load_errors(source, "tokenizer"):
        return AutoTokenizer.from_pretrained(source, trust_remote_code=policy.trust_remote_code)


def make_templates(
    tokenizer: Any, policies: Mapping[str, PolicyConfig], pictures: MediaProcessor | None = None
) -> dict[str, Template]:
    """Return the chat template of each policy, that of its adapter's folder if it begins from one that has some.
    Policies share one with the same thinking mode and adapter."""
    kinds = {
        name: (policy.enable_thinking, policy.lora.path if policy.lora else None) for name, policy in policies.items()
    }
    templates = {
        (mode, adapter): Template(with_adapter_template(tokenizer, adapter), mode, pictures)
        for mode, adapter in dict.fromkeys(kinds.values())
    }
    return {name: templates[kind] for name, kind in kinds.items()}


# Checks. Without them each of these faults shows later, in the middle of a run, or not at all.


def check_memory(source: str, policy: PolicyConfig, dtype: torch.dtype) -> None:
    """Raise EngineError if the weights that config.json describes exceed this machine's memory. It runs before anything
    is allocated, as the system would kill the process without a message."""
    available, _ = memory.total_and_free(torch.device("cpu"))
    available += host.read_meminfo("SwapTotal") or 0  # unused weights may lie there, or stay in their files
    if (device := pick_device(policy.device)).type == "cuda":
        available = max(available, memory.total_and_free(device)[0])
    # Four bits a weight, their scales, and the embeddings, which are not quantised.
    itemsize = dtype.itemsize if policy.quantization is None else 1
    # Build the model without data and count.
    with wrap_load_errors(source, "model"), LOADING_LOCK, torch.device("meta"):
        config = AutoConfig.from_pretrained(source, trust_remote_code=policy.trust_remote_code)
        model = select_model_class(config.model_type).from_config(config, trust_remote_code=policy.trust_remote_code)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    needed = parameters * itemsize + sum(buffer.nbytes for buffer in model.buffers())
    if needed > available:
        raise EngineError(
            f"The model {source!r} is not loaded: its config.json describes {parameters:,} parameters, which take "
            f"{size_of(needed)} with buffers, and this machine has {size_of(available)} of memory. Expected a "
            "model that fits. Choose a smaller one, dtype: bfloat16 for a frozen one, or a larger machine; or fix "
            "config.json."
        )


def check_stored_precision(source: str, policy: PolicyConfig) -> None:
    """Raise EngineError if the file's weights are quantised and the policy trains them, or asks for another form."""
    with wrap_load_errors(source, "configuration"):
        described = read_json(model_folder.configuration_file(source))
    stored = described.get("quantization_config")
    if stored is None or not (is_fully_trained(policy) or policy.quantization):
        return
    method = stored.get("quant_method", "unknown") if isinstance(stored, dict) else stored
    purpose = f"quantization={policy.quantization} asks for another form" if policy.quantization else "they are trained"
    raise EngineError(
        f"The weights of {source!r} are quantised already (quantization_config of config.json: {method}), and "
        f"{purpose}; expected weights as they were trained. Choose the model that this one was made of, or play or "
        "adapt this one as it is: frozen or lora, without quantization."
    )


def check_torch_defaults() -> None:
    """Raise EngineError if torch's default dtype or device was changed."""
    with LOADING_LOCK:
        dtype, device = torch.get_default_dtype(), torch.get_default_device()
    if dtype != torch.float32 or device.type != "cpu":
        changed = f"set_default_dtype({dtype})" if dtype != torch.float32 else f"set_default_device({str(device)!r})"
        raise EngineError(
            f"torch makes tensors of {dtype} on {device} unless told otherwise, as something in this process, such as "
            f"the environment's file, has called torch.{changed}; expected torch.float32 on cpu, as log-probabilities "
            "would differ with it. Remove the call, and name dtype and device where tensors are made."
        )


def check_weights(source: str, model: Any, unexpected: Iterable[str]) -> None:
    """Raise EngineError if the file has weights that the configuration leaves out; warn about unused other parts."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    text_config = model.config.get_text_config()
    if head is None or getattr(head, "weight", None) is None or getattr(embedding, "weight", None) is None:
        raise EngineError(
            f"The model {source!r}, of type {model.config.model_type!r}, shows no embeddings or no vocabulary "
            "projection (get_input_embeddings, get_output_embeddings); expected a causal language model with both. "
            "Choose another model."
        )
    # Only a class that names its tied weights ties them; for any other the setting has no effect.
    is_tied = getattr(model, "_tied_weights_keys", None) and getattr(text_config, "tie_word_embeddings", False)
    if is_tied and head.weight.shape == embedding.weight.shape and head.weight is not embedding.weight:
        raise EngineError(
            f"config.json of {source!r} says tie_word_embeddings: true, but the weights have a vocabulary projection "
            "of their own; expected one tensor for both. Set it to false, or remove the projection from the weights."
        )

    def without_number(name: str) -> str:
        return re.sub(r"\.\d+\.", ".#.", name)

    # An unused weight of layer 30 has the name of one of layer 3: then the configuration has too few layers.
    unused = sorted(unexpected)
    used = {without_number(name) for name in model.state_dict()}
    if skipped := [name for name in unused if without_number(name) in used]:
        raise EngineError(
            f"config.json of {source!r} describes a smaller model than its weights: {len(skipped)} weights would be "
            f"left out ({skipped[0]}). Expected weights and configuration of one model. Fix num_hidden_layers and its "
            "like in config.json, or download the model again."
        )
    if unused:
        warnings.warn(
            f"The model {source!r} is run without {len(unused)} weights of its file that its type has no use for "
            f"({unused[0]}). Expect another model than its file holds if they are more than a head of another task.",
            stacklevel=2,
        )


# Changes to a model's forward.


@contextmanager
def project_only(model: Any, sequences: Tensor, positions: Tensor) -> Iterator[None]:
    """Give the vocabulary projection only `hidden[sequences, positions]`; logits come out as [1, N, V]. The model's own
    code continues from there, so that scaled or soft-capped logits stay what the model defines."""

    def pick(head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (inputs[0][sequences, positions].unsqueeze(0),)

    with model.get_output_embeddings().register_forward_pre_hook(pick):
        yield


@contextmanager
def use_attention(model: Any, name: str) -> Iterator[None]:
    """Make the model attend by the function that is registered with transformers under this name."""
    config = model.config.get_text_config()
    previous = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = previous


def check_attention_keywords(keywords: Mapping[str, Any]) -> None:
    """Raise EngineError if a layer passes our attention function something that it would ignore, such as a sink."""
    unknown = [
        name
        for name, value in keywords.items()
        if name not in HARMLESS_KEYWORDS and (isinstance(value, Tensor) or value)
    ]
    if unknown:
        raise EngineError(
            f"Layers of the model hand their attention {unknown[0]!r}, of which this form of it knows nothing; "
            "expected scores of queries and keys, and a window. Leave learner.pack at auto."
        )


def autocast(model: Any, dtype: torch.dtype) -> torch.autocast:
    """Run the forward in `dtype` on the model's device; off if the weights have that precision already."""
    weights = next(model.parameters())
    return torch.autocast(weights.device.type, dtype=torch.bfloat16, enabled=dtype != weights.dtype)


@contextmanager
def narrow_weights(loaded: LoadedModel, dtype: torch.dtype) -> Iterator[None]:
    """Hold copies of linear layers and adapters in the precision of the forward, as autocast makes them at every use.
    Without gradients only, and while no weight changes. The model's own parameters stay as they are."""
    layers = [module for module in loaded.model.modules() if type(module) is nn.Linear and module.weight.dtype != dtype]
    layers = [layer for layer in layers if "forward" not in layer.__dict__]  # one that has another forward keeps it
    for layer in layers:
        weight, bias = layer.weight.to(dtype), None if layer.bias is None else layer.bias.to(dtype)
        layer.__dict__["forward"] = partial(nn.functional.linear, weight=weight, bias=bias)
    try:
        with loaded.adapters.narrowed(dtype):
            yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]
