"""Samples from vLLM: one engine a base model, in processes of its own, whose weights come from a learner."""

from cadre.engines.vllm.sampler import VllmSampler

__all__ = ["VllmSampler"]
