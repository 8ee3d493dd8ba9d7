"""Samples from and trains any Hugging Face causal language model in this process, on a processor or one GPU."""

from cadre.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine"]
