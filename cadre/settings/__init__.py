"""What one YAML may say: a pydantic model a stage. The algorithms' own settings stand in `cadre.algorithms`."""

from cadre.settings.cluster import ClusterConfig
from cadre.settings.credit import CreditConfig, TreeWeight
from cadre.settings.critic import CriticConfig
from cadre.settings.learner import LearnerConfig, Packing
from cadre.settings.loss import LossConfig
from cadre.settings.policy import LoraConfig, PolicyConfig
from cadre.settings.run import EpisodesConfig, EvaluateConfig, SandboxConfig, TrainConfig
from cadre.settings.sampling import SamplingConfig
from cadre.settings.section import Positive, Section, Share
from cadre.settings.team import TeamConfig
from cadre.settings.trackers import TrackersConfig
from cadre.settings.vllm import VllmConfig

__all__ = [
    "ClusterConfig",
    "CreditConfig",
    "CriticConfig",
    "EpisodesConfig",
    "EvaluateConfig",
    "LearnerConfig",
    "LoraConfig",
    "LossConfig",
    "Packing",
    "PolicyConfig",
    "Positive",
    "SamplingConfig",
    "SandboxConfig",
    "Section",
    "Share",
    "TeamConfig",
    "TrackersConfig",
    "TrainConfig",
    "TreeWeight",
    "VllmConfig",
]
