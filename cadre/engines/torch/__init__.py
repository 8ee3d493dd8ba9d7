"""Samples from and trains causal language models of transformers (docs/families.md), on a CPU or one GPU."""

from cadre.engines.torch.engine import TorchEngine
from cadre.engines.torch.learner import TorchLearner
from cadre.engines.torch.trainer import TrainingSettings

__all__ = ["TorchEngine", "TorchLearner", "TrainingSettings"]
