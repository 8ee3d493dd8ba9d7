"""Facts about models that are known without a network: the shapes of models with short names, and vision models.

The shapes are those of the models' own config.json. Weights, tokenizers and chat templates come from the hub or a
folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadre.file_limits import read_json


@dataclass(frozen=True)
class KnownModel:
    """A model by its name on the hub, with the keys of its config.json that give its shape."""

    hub: str
    shape: Mapping[str, Any]


def _qwen3(hub: str, width: tuple[int, int], layers: int, heads: int, tied: bool = True) -> KnownModel:
    """Return a Qwen3 model; `width` is (residual stream, inside of an MLP)."""
    shape = {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "max_position_embeddings": 40_960,
        "hidden_size": width[0],
        "intermediate_size": width[1],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
    }
    return KnownModel(hub, shape)


def _coder(hub: str, width: tuple[int, int], layers: int, heads: tuple[int, int], vocabulary: int) -> KnownModel:
    """Return a Qwen2.5-Coder model; `heads` is (queries, keys). Only the largest has untied embeddings."""
    shape = {
        "model_type": "qwen2",
        "vocab_size": vocabulary,
        "max_position_embeddings": 32_768,
        "hidden_size": width[0],
        "intermediate_size": width[1],
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "tie_word_embeddings": vocabulary == 151_936,
    }
    return KnownModel(hub, shape)


KNOWN_MODELS: dict[str, KnownModel] = {
    "qwen3-0.6b": _qwen3("Qwen/Qwen3-0.6B", (1024, 3072), 28, 16),
    "qwen3-1.7b": _qwen3("Qwen/Qwen3-1.7B", (2048, 6144), 28, 16),
    "qwen3-4b": _qwen3("Qwen/Qwen3-4B", (2560, 9728), 36, 32),
    "qwen3-8b": _qwen3("Qwen/Qwen3-8B", (4096, 12_288), 36, 32, tied=False),
    "qwen2.5-coder-0.5b": _coder("Qwen/Qwen2.5-Coder-0.5B-Instruct", (896, 4864), 24, (14, 2), 151_936),
    "qwen2.5-coder-1.5b": _coder("Qwen/Qwen2.5-Coder-1.5B-Instruct", (1536, 8960), 28, (12, 2), 151_936),
    "qwen2.5-coder-3b": _coder("Qwen/Qwen2.5-Coder-3B", (2048, 11_008), 36, (16, 2), 151_936),
    "qwen2.5-coder-7b": _coder("Qwen/Qwen2.5-Coder-7B-Instruct", (3584, 18_944), 28, (28, 4), 152_064),
}
SHAPES: dict[str, Mapping[str, Any]] = {model.hub: model.shape for model in KNOWN_MODELS.values()}

# Types (as in config.json) of models that read images. A table, so that no heavy library is imported to know.
VISION_MODELS = ("idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
# Types of models that read sounds.
AUDIO_MODELS = ("qwen2_audio", "voxtral")
MEDIA_MODELS = (*VISION_MODELS, *AUDIO_MODELS)


def read_model_type(folder: Path) -> str:
    """Return the type of the model in a folder, or "" if its config.json has none."""
    try:
        return str(read_json(folder / "config.json").get("model_type", ""))
    except (OSError, ValueError, AttributeError):
        return ""
