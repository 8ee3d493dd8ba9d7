"""Which models read pictures: what `config.json` calls their type. Here, so that nothing heavy is imported to know."""

from __future__ import annotations

from pathlib import Path

from cadre.file_limits import read_json

VISION_MODELS = ("idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def model_type(folder: Path) -> str:
    """The type of the model in a folder; empty where its config.json names none."""
    try:
        named = read_json(folder / "config.json").get("model_type", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return str(named)
