"""Policies as files that their users expect: a Hugging Face folder for a model, a PEFT folder for an adapter.

Safetensors and JSON only. Nothing in a folder needs Cadre to be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cadre.engines.torch.base.lora import Pair
from cadre.errors import EngineError
from cadre.learn import tensor_files
from cadre.settings import LoraConfig

PREFIX = "base_model.model."


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """A Hugging Face folder: weights, configuration, tokenizer and chat template."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_state(model: Any, state: Mapping[str, Tensor], tokenizer: Any, folder: Path) -> None:
    """The same with the weights `state` in place of the model's."""
    model.save_pretrained(folder, state_dict=dict(state))
    tokenizer.save_pretrained(folder)


def save_description(model: Any, tokenizer: Any, folder: Path) -> None:
    """A Hugging Face folder but for its weights, which lie in it as shards."""
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def copy_tensors(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Write tensors into those of the same names, in place. Raises EngineError where names or shapes differ."""
    if {name: value.shape for name, value in source.items()} != {name: value.shape for name, value in target.items()}:
        raise EngineError(
            f"The weights do not fit: got {len(source)} tensors, expected {len(target)} of the names and shapes that "
            "the policy has here. Use the configuration that they were trained with."
        )
    with torch.no_grad():
        for name, weight in target.items():
            if weight is not source[name]:
                weight.copy_(source[name])


def save_adapter(
    parameters: Mapping[str, nn.Parameter], config: LoraConfig, base: str, tokenizer: Any, folder: Path
) -> None:
    """A PEFT folder: `adapter_model.safetensors`, `adapter_config.json`, and the tokenizer with its chat template."""
    write_adapter(parameters, config, base, folder)
    tokenizer.save_pretrained(folder)


def write_adapter(parameters: Mapping[str, Tensor], config: LoraConfig, base: str, folder: Path) -> None:
    """A PEFT folder without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"{PREFIX}{name}": value.detach().cpu().contiguous() for name, value in parameters.items()}
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    modules = {name.removesuffix(".lora_A.weight") for name in parameters if name.endswith(".lora_A.weight")}
    (folder / "adapter_config.json").write_text(json.dumps(_peft_config(config, base, modules), indent=2))


def _peft_config(config: LoraConfig, base: str, modules: set[str]) -> dict[str, Any]:
    adapted = {module.rpartition(".")[2] for module in modules}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "target_modules": sorted(adapted if config.targets == "all-linear" else config.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
    }


def load_adapter(parameters: Mapping[str, nn.Parameter], folder: Path) -> None:
    """Write the weights of a PEFT folder into an adapter. Raises EngineError where they are another adapter's."""
    saved = tensor_files.read_file(folder / "adapter_model.safetensors")
    shapes = {f"{PREFIX}{name}": value.shape for name, value in parameters.items()}
    if {name: value.shape for name, value in saved.items()} != shapes:
        raise EngineError(
            f"The adapter in {folder} does not fit: got {len(saved)} weights, expected {len(shapes)} of the rank and "
            "targets that the policy's lora section says. Use the configuration that it was trained with."
        )
    copy_tensors({name.removeprefix(PREFIX): value for name, value in saved.items()}, parameters)


def save_merged(model: Any, pairs: Mapping[str, Pair], tokenizer: Any, folder: Path) -> None:
    """A Hugging Face folder of the base with an adapter added to its weights; the base itself stays as it is."""
    save_state(model, merged(model.state_dict(), pairs), tokenizer, folder)


@torch.no_grad()
def merged(state: Mapping[str, Tensor], pairs: Mapping[str, Pair]) -> dict[str, Tensor]:
    """The weights of a base with an adapter added to them."""
    sums = dict(state)
    for name, pair in pairs.items():
        weight = state[f"{name}.weight"]
        sums[f"{name}.weight"] = (weight.float() + pair.weight().to(weight.device)).to(weight.dtype)
    return sums


def save_heads(parameters: Mapping[str, nn.Parameter], folder: Path) -> None:
    """The weights of a policy's value heads, `heads.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().cpu().contiguous() for name, value in parameters.items()}
    save_file(weights, folder / "heads.safetensors")


def load_heads(parameters: Mapping[str, nn.Parameter], folder: Path) -> None:
    """Write saved value heads into those of the same names. Raises EngineError where the names differ."""
    saved = tensor_files.read_file(folder / "heads.safetensors")
    if set(saved) != set(parameters):
        raise EngineError(
            f"The value heads in {folder} do not fit: got {', '.join(sorted(saved))}; expected "
            f"{', '.join(sorted(parameters))}. Use the configuration that they were trained with."
        )
    copy_tensors(saved, parameters)
