"""Tiny random models of every supported architecture, with a byte tokenizer, saved as Hugging Face folders."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from bench.tiny_models import CHATML, byte_tokenizer, save
from cadre.advantages import batch
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.rollout.batching import gather
from cadre.settings import LearnerConfig, LoraConfig, PolicyConfig
from cadre.team import Metrics
from cadre.types import Message, Request, Sample, Sampling, TrainingSequence

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 256,
    "eos_token_id": 257,
    "bos_token_id": None,
}
WINDOW = 12
ARCHITECTURES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": WINDOW}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 8}),
    "gemma": (GemmaForCausalLM, GemmaConfig, {"head_dim": 8}),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0},
    ),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {
            "head_dim": 8,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}


def build(folder: Path, architecture: str = "llama", template: str | None = CHATML, **changes: object) -> Path:
    """A model of two layers and 260 tokens whose logits are far from uniform, in `folder`."""
    kind, config_kind, family_settings = ARCHITECTURES[architecture]
    settings = {"vocab_size": 260, **SHAPE, **family_settings, **changes}
    save(lambda: kind(config_kind(**settings)), folder)
    byte_tokenizer(template).save_pretrained(folder)
    return folder


def judge(source: Path, folder: Path, **config: object) -> Path:
    """A reward model in `folder`: model and tokenizer of `source` with a head, and more in its configuration."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1)
    model.config.update(config)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def policy(folder: Path, **settings: object) -> PolicyConfig:
    """A policy of the model in `folder`, on the CPU unless a device is named."""
    return PolicyConfig(model=str(folder), **{"device": "cpu", **settings})


def engine(folder: Path, seed: int = 0, dtype: str = "float32", device: str = "cpu") -> TorchEngine:
    """An engine with one full policy named `p`."""
    return TorchEngine(folder, {"p": policy(folder, dtype=dtype, device=device)}, seed)


def learner(
    folder: Path,
    dtype: str = "float32",
    device: str = "cpu",
    **settings: object,
) -> TorchLearner:
    """A learner of one full policy named `p`."""
    training = TrainingSettings({"p": LearnerConfig(**settings)})
    return TorchLearner(engine(folder, dtype=dtype, device=device), training)


def team(
    folder: Path,
    ranks: Mapping[str, int],
    frozen: Sequence[str] = (),
    dtype: str = "float32",
    changes: Mapping[str, dict] = MappingProxyType({}),
    **settings: object,
) -> TorchLearner:
    """A learner of an adapter of each of `ranks` on one base, beside frozen policies that are the base itself.

    `changes` are settings of the learner by policy.
    """
    policies = {
        name: policy(folder, lora=LoraConfig(rank=rank, alpha=2.0 * rank), dtype=dtype) for name, rank in ranks.items()
    }
    policies |= {name: policy(folder, frozen=True, dtype=dtype) for name in frozen}
    learners = {name: LearnerConfig(**{**settings, **changes.get(name, {})}) for name in ranks}
    return TorchLearner(TorchEngine(folder, policies, 0), TrainingSettings(learners))


def request(text: str, count: int = 1, key: int = 1, policy: str = "p", **sampling: object) -> Request:
    """A request of role `r` for a policy with one user message."""
    settings = {"max_tokens": 16, **sampling}
    return Request("r", policy, (Message("user", text),), count, Sampling(**settings), key)


def sample(side: TorchEngine | TorchLearner, *requests: Request) -> list[list[Sample]]:
    """Run all requests at once in a new event loop."""
    engine = side.engine if isinstance(side, TorchLearner) else side
    return asyncio.run(gather(*(engine.sample(request) for request in requests)))


def update(learner: TorchLearner, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
    """One update, in an event loop of its own."""
    return asyncio.run(learner.update(data))


def datum(sample: Sample, advantage: float, temperature: float = 1.0) -> TrainingSequence:
    """The training sequence of a sample."""
    return batch.sequence_of(sample, advantage, temperature)
