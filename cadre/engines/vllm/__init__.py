"""Samples from vLLM, one engine a base model in processes of its own; its weights come from whoever trains them."""

from cadre.engines.vllm.sampler import VllmSampler

__all__ = ["VllmSampler"]
