"""What a learner is told when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cadre.learn.token_notes import TokenNotes
from cadre.settings import CriticConfig, LearnerConfig, LossConfig


@dataclass(frozen=True)
class TrainingSettings:
    """How the policies of one engine learn.

    learners        the optimiser of each policy that is trained
    loss            the same for all of them
    total_steps     updates of the whole run, over which schedules fall
    heads           names of the value heads that a policy has
    critic          how value heads learn
    diverged_folder where the sequence at fault goes if training diverges; a temporary folder where None
    notes           takes what updates find out about single tokens
    """

    learners: Mapping[str, LearnerConfig]
    loss: LossConfig = field(default_factory=LossConfig)
    total_steps: int = 100
    heads: Mapping[str, Sequence[str]] = field(default_factory=dict)
    critic: CriticConfig = field(default_factory=CriticConfig)
    diverged_folder: Path | None = None
    notes: TokenNotes = field(default_factory=lambda: TokenNotes(0))
