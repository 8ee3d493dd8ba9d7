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


# Of all sizes of a family, and of single sizes by the columns below.
QWEN3 = {"model_type": "qwen3", "max_position_embeddings": 40_960, "head_dim": 128, "vocab_size": 151_936}
CODER = {"model_type": "qwen2", "max_position_embeddings": 32_768}
COLUMNS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SIZES = {
    "qwen3-0.6b": ("Qwen/Qwen3-0.6B", (1024, 3072, 28, 16, 8), QWEN3),
    "qwen3-1.7b": ("Qwen/Qwen3-1.7B", (2048, 6144, 28, 16, 8), QWEN3),
    "qwen3-4b": ("Qwen/Qwen3-4B", (2560, 9728, 36, 32, 8), QWEN3),
    "qwen3-8b": ("Qwen/Qwen3-8B", (4096, 12_288, 36, 32, 8), QWEN3),
    "qwen2.5-coder-0.5b": ("Qwen/Qwen2.5-Coder-0.5B-Instruct", (896, 4864, 24, 14, 2), CODER),
    "qwen2.5-coder-1.5b": ("Qwen/Qwen2.5-Coder-1.5B-Instruct", (1536, 8960, 28, 12, 2), CODER),
    "qwen2.5-coder-3b": ("Qwen/Qwen2.5-Coder-3B", (2048, 11_008, 36, 16, 2), CODER),
    "qwen2.5-coder-7b": ("Qwen/Qwen2.5-Coder-7B-Instruct", (3584, 18_944, 28, 28, 4), CODER),
}


def _known(name: str) -> KnownModel:
    hub, size, family = SIZES[name]
    # The largest model of a family has untied embeddings, and that of the coders a larger vocabulary.
    is_largest = name in ("qwen3-8b", "qwen2.5-coder-7b")
    rest = {"tie_word_embeddings": not is_largest, "vocab_size": 152_064 if is_largest else 151_936}
    return KnownModel(hub, {**dict(zip(COLUMNS, size, strict=True)), **rest, **family})


KNOWN_MODELS = {name: _known(name) for name in SIZES}
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
