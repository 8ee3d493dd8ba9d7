"""Loading a causal language model and its tokenizer, and the few facts about them that the engine needs.

Safetensors only; Python that ships with a checkpoint does not run unless the policy asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from cadre.engines import chat_template, host_memory, hub
from cadre.engines import pictures as seeing
from cadre.engines.context import context_of
from cadre.engines.model_folder import check_folder, estimate_parameters, has_large_numbers, reading
from cadre.engines.model_text import stops_of
from cadre.engines.pictures import Pictures
from cadre.engines.torch.base import device_memory, storage
from cadre.engines.torch.base.layer_attention import LayerAttention
from cadre.engines.torch.base.lora import Adapters
from cadre.engines.torch.base.model_checks import check_padding, check_tokens, check_torch_defaults, check_weights
from cadre.errors import EngineError
from cadre.file_limits import read_json, size_of
from cadre.learn import tensor_files
from cadre.plugins import embedded_models
from cadre.settings import PolicyConfig
from cadre.settings.vision import VISION_MODELS

# transformers changes torch for the whole process while it loads a model: two at once can leave that so for good, and
# tied weights without data. Engines have threads of their own.
ONE_AT_A_TIME = threading.Lock()
# What layers hand their attention beside what is attended to, and changes nothing of it without gradients.
IDLE = ("position_ids", "cache_position", "is_causal")
# Some hundred layers of some hundred experts, each of several linear layers.
MOST_MODULES = 400_000
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Loaded:
    """A model with what belongs to it: `templates` by policy, `stops`, the ids that end a turn, `context`, the longest
    sequence, and `pictures`, how it reads them, None for a model of text."""

    source: str
    model: Any
    adapters: Adapters
    tokenizer: Any
    templates: Mapping[str, chat_template.Template]
    attention: LayerAttention
    stops: tuple[int, ...]
    context: int
    pictures: Pictures | None = None

    def parameters(self, policy: str) -> dict[str, nn.Parameter]:
        """What training the policy changes."""
        adapted = policy in self.adapters.pairs
        return self.adapters.parameters(policy) if adapted else dict(self.model.named_parameters())


def locate(name: str | Path) -> str:
    """The folder or hub name that `name` stands for; `seed` and `games` are the models in the package.

    Raises EngineError where it looks like a folder and holds no model, before anything heavy is imported or read.
    """
    text = str(name)
    folder = embedded_models().get(text, Path(text))
    if folder.is_dir():
        _check_folder(text, folder)
        return str(folder)
    looks_like_hub = text.count("/") <= 1 and not text.startswith((".", "/", "~")) and text not in embedded_models()
    if looks_like_hub:
        return hub.available(text)
    raise EngineError(
        f"The model {text!r} was not found: got {folder}, which is not a folder. Expected 'seed', a folder with "
        "config.json and *.safetensors, or a hub name such as 'Qwen/Qwen3-1.7B'. Check the path."
    )


def _check_folder(name: str, folder: Path) -> None:
    lacking = [pattern for pattern in ("config.json", "*.safetensors") if not list(folder.glob(pattern))]
    if lacking:
        raise EngineError(
            f"The model {name!r} cannot be loaded: {folder} has no {' and no '.join(lacking)}. Expected a Hugging Face "
            "folder with config.json, a tokenizer and weights as safetensors (pickled weights are not read). Save the "
            "model there with save_pretrained."
        )
    check_folder(name, folder)


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one, else the CPU. Raises EngineError for a GPU that is not there."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if count else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        there = f"cuda:0 to cuda:{count - 1} and cpu" if count else "cpu alone"
        raise EngineError(f"device: got {name!r}, and this machine has {there}; expected one of them, or auto. Fix it.")
    return device


def class_of(model_type: str) -> Any:
    """The class of transformers that makes a model of this type, as `config.json` calls it."""
    return AutoModelForImageTextToText if model_type in VISION_MODELS else AutoModelForCausalLM


def load_weights(source: str, policy: PolicyConfig, dtype: torch.dtype) -> Any:
    """The model alone, on the CPU, in eval mode. Raises EngineError where it cannot be loaded."""
    check_memory(source, policy, dtype)
    with reading(source, "model"), ONE_AT_A_TIME, limit_modules(source):
        check_torch_defaults()
        check_padding(source, AutoConfig.from_pretrained(source, trust_remote_code=policy.trust_remote_code))
        model, found = class_of(hub.model_type(source)).from_pretrained(
            source,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=policy.trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below
        )
    if other := sorted(found["mismatched_keys"]):
        name, saved, asked = other[0]
        raise EngineError(
            f"The weights of {source!r} do not fit its config.json: {name} is {list(saved)} in the file and would be "
            f"{list(asked)} by the configuration, and so are {len(other) - 1} others. Expected weights and "
            "configuration of one model. Fix the sizes in config.json (vocab_size, hidden_size), or download it again."
        )
    if missing := sorted(found["missing_keys"]):
        raise EngineError(
            f"The model of {source!r} is not whole: of the weights that config.json asks for {len(missing)} are not "
            f"there ({missing[0]}), and would be drawn at random. Expected weights and configuration of one model. "
            "Download it again, or fix config.json (tie_word_embeddings, where the vocabulary projection is missing)."
        )
    check_weights(source, model, found["unexpected_keys"])
    # Stock SDPA ignores soft-capped attention scores (Gemma 2), so such a model takes the eager form.
    if getattr(model.config, "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")
    return model.eval()


def check_memory(source: str, policy: PolicyConfig, dtype: torch.dtype) -> None:
    """Raise EngineError where the weights that config.json describes take more than this machine has, before they are
    allocated: the system would end the process without a word."""
    with reading(source, "configuration"):
        described = read_json(hub.configuration_file(source))
    there, _ = device_memory.total_and_free(torch.device("cpu"))
    there += host_memory.swap()  # weights that are not used yet may lie there, or stay in their files
    if (device := pick_device(policy.device)).type == "cuda":
        there = max(there, device_memory.total_and_free(device)[0])
    if 2 * dtype.itemsize * estimate_parameters(described) < there and not has_large_numbers(described):
        return
    with reading(source, "model"), ONE_AT_A_TIME, limit_modules(source), torch.device("meta"):
        config = AutoConfig.from_pretrained(source, trust_remote_code=policy.trust_remote_code)
        model = class_of(config.model_type).from_config(config, trust_remote_code=policy.trust_remote_code)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    needed = parameters * dtype.itemsize + sum(buffer.nbytes for buffer in model.buffers())
    if needed > there:
        raise EngineError(
            f"The model {source!r} is not loaded: its config.json describes {parameters:,} parameters, which take "
            f"{size_of(needed)} with buffers, and this machine has {size_of(there)} of memory. Expected a model that "
            "fits. Choose a smaller one, dtype: bfloat16 for a frozen one, or a larger machine; or fix config.json."
        )


@contextmanager
def limit_modules(source: str) -> Iterator[None]:
    """Within it, a model of this thread's that is built of more than MOST_MODULES modules raises EngineError, as it
    would take hours."""
    thread, built = threading.get_ident(), 0

    def count(*_: object) -> None:
        nonlocal built
        built += threading.get_ident() == thread
        if built > MOST_MODULES:
            raise EngineError(
                f"The model {source!r} is not built: its config.json describes more than {MOST_MODULES:,} modules; "
                "expected fewer. Fix the numbers of its layers and experts, or choose another model."
            )

    handle = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def trains_whole(policy: PolicyConfig) -> bool:
    """Whether training the policy changes the model itself."""
    return policy.lora is None and not policy.frozen


def load(source: str, policies: Mapping[str, PolicyConfig], device: torch.device, seed: int) -> Loaded:
    """The model without gradients, fresh adapters for the policies that have some, and the tokenizer.

    A model that is trained whole is held as float32 masters, a frozen base in the precision of its forward. Raises
    EngineError where something cannot be used.
    """
    policy = next(iter(policies.values()))
    dtype = torch.float32 if trains_whole(policy) else DTYPES[policy.dtype]
    loras = {name: policy.lora for name, policy in policies.items() if policy.lora}
    # The command line has a live display of its own.
    disable_progress_bar()
    tokenizer = load_tokenizer(source, policy)
    model = load_weights(source, policy, dtype).to(device).requires_grad_(False)
    with reading(source, "tokenizer"):
        pictures = seeing.of_model(source, tokenizer, policy.trust_remote_code)
        templates = templates_of(tokenizer, policies, pictures)
        configured = getattr(model.generation_config, "eos_token_id", None)
        stops = stops_of(configured, tokenizer, next(iter(templates.values())))
    check_tokens(source, model, tokenizer, templates, stops)
    config = model.config.get_text_config()
    context = context_of(config) or 1 << 20
    adapters = Adapters(model, loras, seed)
    for name, lora in loras.items():
        if lora.path is not None:
            storage.load_adapter(adapters.parameters(name), Path(lora.path))
    attention = LayerAttention.of(config)
    if pictures is not None and attention.window is not None:
        raise EngineError(
            f"The model {source!r} reads pictures and attends within a window of {attention.window} tokens; expected a "
            "vision-language model whose layers attend to all before. Choose another one."
        )
    return Loaded(source, model, adapters, tokenizer, templates, attention, stops, context, pictures)


def load_model(model: Any, source: str, policy: PolicyConfig) -> None:
    """Write the weights of a Hugging Face folder into a model of the same architecture, in place.

    They may be shards that the ranks of a group wrote together.
    """
    if tensor_files.is_sharded(Path(source)):
        tensor_files.read(dict(model.named_parameters()), Path(source), "model")
        return
    saved = load_weights(source, policy, torch.float32)
    storage.copy_tensors(dict(saved.named_parameters()), dict(model.named_parameters()))


def load_tokenizer(source: str, policy: PolicyConfig) -> Any:
    """The model's tokenizer. Raises EngineError where it cannot be loaded."""
    with reading(source, "tokenizer"):
        return AutoTokenizer.from_pretrained(source, trust_remote_code=policy.trust_remote_code)


def templates_of(
    tokenizer: Any, policies: Mapping[str, PolicyConfig], pictures: Pictures | None = None
) -> dict[str, chat_template.Template]:
    """The chat template by policy, one for all that are alike."""
    asked = {name: policy.enable_thinking for name, policy in policies.items()}
    distinct = dict.fromkeys(asked.values())
    templates = {thinking: chat_template.Template(tokenizer, thinking, pictures) for thinking in distinct}
    return {name: templates[thinking] for name, thinking in asked.items()}


@contextmanager
def projecting(model: Any, sequences: Tensor, positions: Tensor) -> Iterator[None]:
    """Within it the vocabulary projection sees `hidden[sequences, positions]` only; logits come out as [1, N, V].

    The model's own code goes on from there, so that scaled or soft-capped logits stay what the model means by them.
    """

    def pick(head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (inputs[0][sequences, positions].unsqueeze(0),)

    handle = model.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def check_defaults() -> None:
    """Raise EngineError where torch's defaults have been changed since the model was loaded."""
    with ONE_AT_A_TIME:
        check_torch_defaults()


@contextmanager
def attending(model: Any, name: str) -> Iterator[None]:
    """Within it the model attends by the function that is registered with transformers under this name."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Raise EngineError where a layer hands such a function what it knows nothing of, as a sink: it would be lost."""
    unknown = [name for name, value in keywords.items() if name not in IDLE and (isinstance(value, Tensor) or value)]
    if unknown:
        raise EngineError(
            f"Layers of the model hand their attention {unknown[0]!r}, of which this form of it knows nothing; "
            "expected scores of queries and keys, and a window. Leave learner.pack at auto."
        )


def autocast(model: Any, dtype: torch.dtype) -> torch.autocast:
    """The forward in `dtype` on the model's device; off where the weights have that precision already."""
    weights = next(model.parameters())
    return torch.autocast(weights.device.type, dtype=torch.bfloat16, enabled=dtype != weights.dtype)
