"""Samples from and trains any Hugging Face causal language model in this process, on a CPU or one GPU."""

from cadre.engines.torch.engine import TorchEngine
from cadre.engines.torch.learner import TorchLearner
from cadre.engines.torch.trainer import TrainingSettings

__all__ = ["TorchEngine", "TorchLearner", "TrainingSettings"]
