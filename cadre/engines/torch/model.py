"""Loading a causal language model and its tokenizer, and the few facts about them that the engine needs.

Safetensors only; Python that ships with a checkpoint does not run unless the policy asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import cadre
from cadre.engines.torch import chat
from cadre.engines.torch.adapters import Adapters
from cadre.engines.torch.attention import Pattern
from cadre.errors import EngineError
from cadre.sections import LoraConfig, PolicyConfig

# What is worth turning round (see `turned`): a vocabulary projection this wide, for few states, and any matrix with so
# many weights, for so many states.
WIDE, LARGE, TURNED = 8192, 200_000, range(2, 65)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Loaded:
    """A model with what belongs to it. `stops` are the ids that end a turn, `context` the longest sequence."""

    source: str
    model: Any
    adapters: Adapters
    tokenizer: Any
    template: chat.Template
    pattern: Pattern
    stops: tuple[int, ...]
    context: int


def locate(name: str | Path) -> str:
    """The folder or hub name that `name` stands for; `seed` is the model in the package.

    Raises EngineError where it looks like a folder and holds no model, before anything heavy is imported or read.
    """
    text = str(name)
    folder = Path(cadre.__file__).parent / "models" / "seed" if text == "seed" else Path(text)
    if folder.is_dir():
        _check_folder(text, folder)
        return str(folder)
    looks_like_hub = text.count("/") <= 1 and not text.startswith((".", "/", "~")) and text != "seed"
    if looks_like_hub:
        return text
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


def pick_device(name: str) -> torch.device:
    """`auto` is the graphics card where there is one, else the processor."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load_weights(source: str, policy: PolicyConfig, dtype: torch.dtype) -> Any:
    """The model alone, on the processor, in eval mode. Raises EngineError where it cannot be loaded."""
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, use_safetensors=True, trust_remote_code=policy.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise _unloadable(source, "model", error) from error
    # Stock SDPA ignores soft-capped attention scores (Gemma 2), so such a model takes the eager form.
    if getattr(model.config, "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")
    return model.eval()


def load(
    source: str,
    policy: PolicyConfig,
    dtype: torch.dtype,
    device: torch.device,
    loras: Mapping[str, LoraConfig],
    seed: int,
) -> Loaded:
    """The model with fresh adapters, and its tokenizer. Raises EngineError where something cannot be used."""
    # The command line has a live display of its own.
    disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=policy.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise _unloadable(source, "tokenizer", error) from error
    model = load_weights(source, policy, dtype).to(device)
    template = chat.Template(tokenizer)
    stops = _stops(model, tokenizer, template)
    context = getattr(model.config, "max_position_embeddings", None) or 1 << 20
    adapters = Adapters(model, loras, seed)
    return Loaded(source, model, adapters, tokenizer, template, Pattern.of(model.config), stops, context)


def _unloadable(source: str, what: str, error: Exception) -> EngineError:
    reason = str(error).strip().split("\n")[0]
    return EngineError(
        f"The {what} of {source!r} cannot be loaded: {reason} Expected 'seed', a Hugging Face folder with safetensors, "
        "or a hub name that this machine can reach. Check the name, download the model first, or, where it needs code "
        "of its own that you trust, set trust_remote_code."
    )


def _stops(model: Any, tokenizer: Any, template: chat.Template) -> tuple[int, ...]:
    """Every id that ends a turn: of the generation configuration, of the tokenizer, of the chat template."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    found = set(configured if isinstance(configured, list) else [configured])
    found |= {tokenizer.eos_token_id, template.end_of_turn}
    stops = sorted(stop for stop in found if stop is not None)
    if not stops:
        raise EngineError(
            "The model has no token that ends a turn: neither its generation config nor its tokenizer names an "
            "end-of-sequence token. Expected at least one. Set eos_token in the tokenizer's configuration."
        )
    return tuple(stops)


@contextmanager
def projecting(model: Any, rows: Tensor, columns: Tensor) -> Iterator[list[Tensor]]:
    """Within it the vocabulary projection sees `hidden[rows, columns]` only, and logits come out as [1, N, V].

    The model's own code goes on from there, so that scaled or soft-capped logits stay what the model means by them.
    Gives a list in which each forward leaves the whole of `hidden` [B, T, H].
    """
    seen: list[Tensor] = []

    def pick(head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        seen.append(inputs[0])
        return (inputs[0][rows, columns].unsqueeze(0),)

    handle = model.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def turned(model: Any) -> Iterator[None]:
    """Within it products of few rows with a large matrix, on a processor and without gradients, are (W x^T)^T.

    The same sums, for which the matrix library takes 11 ms in place of 30 (8 rows, 49,152 x 576) or 1.2 of 2.5 (2 rows,
    4,864 x 896).
    """
    modules: list[Any] = []
    if model.device.type == "cpu":
        modules = [module for module in model.modules() if type(module) is nn.Linear and _fewest(module)]
    for module in modules:
        module.forward = partial(_turned, module, range(_fewest(module), TURNED.stop))
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _fewest(module: nn.Linear) -> int:
    """From how many rows on a product with this matrix is faster turned round; 0 for never."""
    if module.out_features >= WIDE:
        return 1
    return TURNED.start if module.weight.numel() >= LARGE else 0


def _turned(module: nn.Linear, rows: range, inputs: Tensor) -> Tensor:
    if inputs.numel() // module.in_features not in rows:
        return nn.functional.linear(inputs, module.weight, module.bias)
    product = nn.functional.linear(module.weight, inputs.flatten(0, -2)).T.contiguous()
    product = product.reshape(*inputs.shape[:-1], module.out_features)
    return product if module.bias is None else product + module.bias


@contextmanager
def attending(model: Any, name: str) -> Iterator[None]:
    """Within it the model attends by the function that is registered with transformers under this name."""
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before


def autocast(model: Any, dtype: torch.dtype) -> torch.autocast:
    """The forward in `dtype` on the model's device; off where the weights have that precision already."""
    weights = next(model.parameters())
    return torch.autocast(weights.device.type, dtype=torch.bfloat16, enabled=dtype != weights.dtype)
