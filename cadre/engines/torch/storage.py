"""Policies as files that other tools read: a Hugging Face folder for a model, a PEFT folder for an adapter.

Safetensors and JSON only. Nothing in a folder needs Cadre to be read.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cadre.engines.torch.lora import Adapters, Pair
from cadre.errors import EngineError
from cadre.learn import tensor_files
from cadre.plugins import embedded_models
from cadre.settings import LoraConfig
from cadre.settings.team import PEFT_PREFIX
from cadre.team import Weights


def save_model(
    model: Any, stops: Sequence[int], tokenizer: Any, folder: Path, state: Mapping[str, Tensor] | None = None
) -> None:
    """Write a Hugging Face folder: weights (`state`, or the model's own), configuration, tokenizer, chat template.
    `stops` are the ids that end a turn, as in `save_description`."""
    generation = model.generation_config
    model.generation_config = type(generation)()  # what is written of it is replaced below
    try:
        model.save_pretrained(folder, state_dict=None if state is None else dict(state))
    finally:
        model.generation_config = generation
    save_description(model, stops, tokenizer, folder)


def save_description(model: Any, stops: Sequence[int], tokenizer: Any, folder: Path) -> None:
    """Write a Hugging Face folder without its weights, which lie in it as shards.

    `generation_config.json` names the `stops`, the ids that ended a turn in training: of a base model whose chat
    template ends turns with another token than its own, other libraries would write on after it. All else in it is as
    the model came, also where `GenerationConfig.save_pretrained` refuses it (a temperature without do_sample).
    """
    model.config.save_pretrained(folder)
    generation = copy.copy(model.generation_config)
    generation.eos_token_id = list(stops) if len(stops) > 1 else stops[0]
    generation.to_json_file(folder / "generation_config.json", keys_to_pop=["compile_config"])
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def merge_adapter(state: Mapping[str, Tensor], pairs: Mapping[str, Pair]) -> dict[str, Tensor]:
    """Return the weights of a base with an adapter added to them; the base itself stays as it is."""
    merged = dict(state)
    for name, pair in pairs.items():
        weight = state[f"{name}.weight"]
        merged[f"{name}.weight"] = (weight.float() + pair.weight().to(weight.device)).to(weight.dtype)
    return merged


def copy_tensors(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Write tensors into those of the same names, in place. Raises EngineError if names or shapes differ."""
    if {name: value.shape for name, value in source.items()} != {name: value.shape for name, value in target.items()}:
        raise EngineError(
            f"The weights do not fit: got {len(source)} tensors, expected {len(target)} of the names and shapes that "
            "the policy has here. Use the configuration that they were trained with."
        )
    with torch.no_grad():
        for name, weight in target.items():
            if weight is not source[name]:
                weight.copy_(source[name])


def weights_folder(weights: Weights) -> Path:
    """Return the folder of weights without tensors. Raises EngineError if they have none."""
    if weights.folder is None:
        raise EngineError(
            f"Got weights of policy {weights.policy!r} without tensors, which stay in the process that has them; "
            "expected a folder. Have the learner write one."
        )
    return weights.folder


def name_of_base(model: str, source: str) -> str:
    """Return what an adapter's folder calls its base: the hub name that the policy has as `model`, or else the folder
    `source`. Without a connection the source of a hub name is a folder of this machine's cache."""
    is_folder = model in embedded_models() or Path(model).expanduser().is_dir()
    return source if is_folder else model


def write_adapter(parameters: Mapping[str, Tensor], config: LoraConfig, base: str, folder: Path) -> None:
    """Write a PEFT folder: `adapter_model.safetensors` and `adapter_config.json`, without a tokenizer."""
    weights = {f"{PEFT_PREFIX}{name}": value for name, value in parameters.items()}
    folder.mkdir(parents=True, exist_ok=True)
    on_cpu = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    save_file(on_cpu, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    modules = {name.removesuffix(".lora_A.weight") for name in parameters if name.endswith(".lora_A.weight")}
    adapted = {module.rpartition(".")[2] for module in modules}
    # What is left out here has PEFT's defaults: no dropout, no bias.
    peft_config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "target_modules": sorted(adapted if config.targets == "all-linear" else config.targets),
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(peft_config, indent=2))


def load_adapter(parameters: Mapping[str, nn.Parameter], folder: Path) -> None:
    """Read the weights of a PEFT folder into an adapter. Raises EngineError if they belong to a different adapter."""
    tensor_files.read({f"{PEFT_PREFIX}{name}": weight for name, weight in parameters.items()}, folder, "adapter_model")


def copy_adapters(adapters: Adapters, folders: Mapping[str, str]) -> dict[str, dict[str, Tensor]]:
    """Return copies of the adapter weights of these policies, as they are in a PEFT folder, or here where it is ""."""
    copies: dict[str, dict[str, Tensor]] = {}
    for policy in folders.keys() & adapters.pairs.keys():
        weights = {name: nn.Parameter(own.detach().clone(), False) for name, own in adapters.parameters(policy).items()}
        if folders[policy]:
            load_adapter(weights, Path(folders[policy]))
        copies[policy] = {name: weight.data for name, weight in weights.items()}
    return copies
