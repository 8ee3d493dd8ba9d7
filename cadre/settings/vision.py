"""Which models read pictures: what `config.json` calls their type. Here, so that nothing heavy is imported to know."""

from __future__ import annotations

import json
from pathlib import Path

VISION_MODELS = ("idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def model_type(folder: Path) -> str:
    """The type of the model in a folder; empty where its config.json names none."""
    try:
        named = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return str(named)
