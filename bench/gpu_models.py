"""What bench/gpu.py measures on and against: random models of known shapes, what a card could do, and material."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.settings import LearnerConfig, LoraConfig, PolicyConfig
from cadre.settings.models import KNOWN_MODELS
from cadre.types import TrainingSequence
from tests.engines.tiny import byte_tokenizer

ROLES = ("planner", "tool")
LORA = LoraConfig(rank=16, alpha=32.0)
# By a part of the card's name: bytes a second of its memory, and bfloat16 operations a second without sparsity.
CARDS = {
    "B200": (8.0e12, 2.25e15),
    "H200": (4.8e12, 0.989e15),
    "H100": (3.35e12, 0.989e15),
    "A100": (2.0e12, 0.312e15),
    "L40S": (0.864e12, 0.362e15),
    "4090": (1.008e12, 0.165e15),
}


@dataclass(frozen=True)
class Shape:
    """A model by the words of its config.json, and whether the bench trains it whole or as two adapters."""

    name: str
    words: Mapping[str, Any]
    whole: bool = True

    @property
    def parameters(self) -> int:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config())
        return sum(weight.numel() for weight in model.parameters())

    def config(self) -> Any:
        words = dict(self.words)
        return AutoConfig.for_model(words.pop("model_type"), **words)


def known(name: str, whole: bool = True, **changes: Any) -> Shape:
    return Shape(name, {**KNOWN_MODELS[name].shape, **changes}, whole)


SHAPES = [known("qwen3-0.6b"), known("qwen3-1.7b"), known("qwen3-8b", whole=False)]
# Smallest first.
LADDER = [
    known("qwen3-0.6b"),
    known("qwen3-1.7b"),
    known("qwen3-4b"),
    known("qwen3-8b"),
    replace(
        known("qwen3-8b", hidden_size=5120, intermediate_size=17_408, num_hidden_layers=40, num_attention_heads=40),
        name="qwen3-14b",
    ),
]
_SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}
TINY = [
    replace(known("qwen3-0.6b", whole, **_SMALL, num_key_value_heads=2, vocab_size=512), name=name)
    for name, whole in (("tiny", True), ("tiny-adapters", False))
]


@dataclass(frozen=True)
class Card:
    """What is measured on: its device, name, memory in bytes, and what it could do in a second at most."""

    device: torch.device
    name: str
    memory: int
    bandwidth: float
    flops: float

    @staticmethod
    def here(tiny: bool) -> Card:
        """The first card; the CPU as a stand-in where all is tiny. Exits where there is none."""
        if tiny:
            return Card(torch.device("cpu"), "CPU", 1 << 30, 1e10, 1e11)
        if not torch.cuda.is_available():
            raise SystemExit("bench/gpu.py: no CUDA card here, which it measures; `--tiny` runs its code on the CPU.")
        facts = torch.cuda.get_device_properties(0)
        peaks = next((peaks for part, peaks in CARDS.items() if part in facts.name), None)
        if peaks is None:
            raise SystemExit(f"bench/gpu.py: the peaks of a {facts.name!r} are not known; add them to CARDS.")
        return Card(torch.device("cuda"), facts.name, facts.total_memory, *peaks)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def forget_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        """Bytes that were in use at the most since then; 0 on a CPU."""
        return torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0


@contextmanager
def saved(shape: Shape, card: Card) -> Iterator[Path]:
    """A folder of random weights in bfloat16, in memory where the system has such a place."""
    place = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="cadre-gpu-", dir=place if place.is_dir() else None))
    try:
        torch.manual_seed(0)
        with card.device:
            model = AutoModelForCausalLM.from_config(shape.config(), dtype=torch.bfloat16)
        model.save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
        del model
        card.forget_peak()
        yield folder
    finally:
        shutil.rmtree(folder)


def engine(folder: Path, device: torch.device, dtype: str, whole: bool) -> TorchEngine:
    """One policy that is trained whole, named as the first role, or an adapter a role; nothing ends early."""
    lora, roles = (None, ROLES[:1]) if whole else (LORA, ROLES)
    policy = PolicyConfig(model=str(folder), device=device.type, dtype=dtype, lora=lora)
    made = TorchEngine(folder, dict.fromkeys(roles, policy), 0)
    made.loaded = replace(made.loaded, stops=(-1,))
    return made


def learner(of: TorchEngine, **settings: Any) -> TorchLearner:
    learners = {name: LearnerConfig(learning_rate=1e-6, **settings) for name in of.policies}
    return TorchLearner(of, TrainingSettings(learners))


def prompts(count: int, length: int, vocabulary: int) -> list[tuple[int, ...]]:
    draw = random.Random(0)
    return [tuple(draw.randrange(vocabulary) for _ in range(length)) for _ in range(count)]


def siblings(
    asked: Sequence[tuple[int, ...]], policies: Sequence[str], count: int, said: int
) -> list[TrainingSequence]:
    """`count` random completions of `said` tokens after each prompt; prompts are dealt to the policies in turn."""
    draw = random.Random(1)
    data = []
    for number, prompt in enumerate(asked):
        for k in range(count):
            ids = (*prompt, *(draw.choice(prompt) for _ in range(said)))
            before, mask = (0.0,) * len(prompt), (False,) * len(prompt) + (True,) * said
            advantages = before + ((-1.0) ** k,) * said
            policy = policies[number % len(policies)]
            data.append(TrainingSequence(policy, "any", ids, mask, before + (-7.0,) * said, advantages, 0))
    return data
