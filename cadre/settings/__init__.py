"""The sections of a recipe, a pydantic model each. The settings of algorithms are in `cadre.algorithms`."""

from cadre.settings.engines import ClusterConfig, LearnerConfig, Packing, SamplingConfig, VllmConfig
from cadre.settings.objective import CreditConfig, CriticConfig, KlConfig, LossConfig, TeacherConfig, TreeWeight
from cadre.settings.run import EpisodesConfig, EvaluateConfig, SandboxConfig, TrackersConfig, TrainConfig
from cadre.settings.section import Positive, Section
from cadre.settings.team import LoraConfig, PolicyConfig, TeamConfig

__all__ = [
    "ClusterConfig",
    "CreditConfig",
    "CriticConfig",
    "EpisodesConfig",
    "EvaluateConfig",
    "KlConfig",
    "LearnerConfig",
    "LoraConfig",
    "LossConfig",
    "Packing",
    "PolicyConfig",
    "Positive",
    "SamplingConfig",
    "SandboxConfig",
    "Section",
    "TeacherConfig",
    "TeamConfig",
    "TrackersConfig",
    "TrainConfig",
    "TreeWeight",
    "VllmConfig",
]
