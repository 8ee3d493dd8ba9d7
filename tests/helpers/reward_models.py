"""A reward model that is trained on a toy preference."""

from __future__ import annotations

from pathlib import Path

from cadre.types import Message
from cadre_tasks.reward_models.pairs import PreferencePair
from cadre_tasks.reward_models.training import RewardReport, RewardSettings, train_reward_model

FAST = RewardSettings(steps=30, learning_rate=2e-3, validate=0.25, pairs=8)


def toy(count: int = 24) -> list[PreferencePair]:
    """Polite answers are preferred, whatever the question."""
    return [
        PreferencePair((Message("user", f"q{i}"),), f"please {i * 7 % 10}", f"never {i * 3 % 10}") for i in range(count)
    ]


def trained(folders, tmp_path: Path, settings: RewardSettings = FAST, name: str = "llama") -> tuple[Path, RewardReport]:
    out = tmp_path / f"{name}-judge"
    report = train_reward_model(toy(), str(folders[name]), out, settings, lambda step, loss: None)
    assert report is not None
    return out, report
