"""Models and sequences for lab/gpu.py: random weights in known shapes, engines and learners of them, and the GPU.

The tokenizer has one token a word. No model here can end an answer: the first component of every token's embedding is
the same positive number, no layer changes that component, and the end token's row of the head has a large negative one
there, so that its logit is far below all others. All answers therefore have the longest length, in every engine, and
equal work is compared.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from cadre import random_keys
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.engines.vllm.sampler import VllmSampler
from cadre.learn.token_notes import TokenNotes
from cadre.rollout.batching import gather
from cadre.settings import LearnerConfig, LoraConfig, PolicyConfig
from cadre.settings.models import KNOWN_MODELS
from cadre.training.metrics import PEAKS, find_peaks
from cadre.types import Message, Request, Sample, Sampling, TrainingSequence
from lab.gpu_words import FIRST_WORD, random_words

ROLES = ("planner", "tool")
LORA = LoraConfig(rank=16, alpha=32.0)
# The end token, and the first component of the other tokens' embeddings and of its own. Embeddings are drawn with a
# standard deviation of 0.02, and the norm before the head makes some 0.1 to 2 of ANCHOR, by the depth of a model.
END, ANCHOR, END_ANCHOR = 1, 0.1, -2000.0
SPECIAL = ("<|pad|>", "<|im_end|>", "<|im_start|>", "system", "user", "assistant", "tool", "<|unk|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|> {{ message.role }} {{ message.content }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)
# Tokens that it adds to one message of the user's.
TEMPLATE_TOKENS = 5


# ---- The GPU


@dataclass(frozen=True)
class Card:
    """The device that is measured: its name, memory in bytes, peak bytes and bfloat16 FLOP per second."""

    device: torch.device
    name: str
    memory: int
    bandwidth: float
    flops: float

    @staticmethod
    def here(tiny: bool) -> Card:
        """Return the first GPU, or with `tiny` the CPU. Exits if there is none, or its peaks are unknown."""
        if tiny:
            return Card(torch.device("cpu"), "CPU", 1 << 30, 1e10, 1e11)
        if not torch.cuda.is_available():
            raise SystemExit("lab/gpu.py: no CUDA card here, which it measures; `--tiny` runs its code on the CPU.")
        facts = torch.cuda.get_device_properties(0)
        peaks = find_peaks(facts.name)
        if peaks is None:
            supported = ", ".join(" ".join(words) for words, _ in PEAKS)
            raise SystemExit(
                f"lab/gpu.py: the peaks of a {facts.name!r} are not known; expected one of {supported}. Add it to "
                "cadre/training/metrics.py."
            )
        return Card(torch.device("cuda"), facts.name, facts.total_memory, peaks.bandwidth, peaks.flops)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def reset_peak(self) -> None:
        """Return cached memory, which other processes may need, and begin a new peak."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        """Return the most bytes that tensors took since then; 0 on a CPU."""
        return torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0


# ---- Models


@dataclass(frozen=True)
class Shape:
    """A model by the keys of its config.json, and whether it is trained whole or as two adapters."""

    name: str
    config_keys: Mapping[str, Any]
    full: bool = True

    @cached_property
    def config(self) -> Any:
        keys = dict(self.config_keys)
        return AutoConfig.for_model(keys.pop("model_type"), **keys, bos_token_id=None, eos_token_id=END, pad_token_id=0)

    @cached_property
    def parameters(self) -> int:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config)
        return sum(weight.numel() for weight in model.parameters())

    @property
    def multiplied(self) -> int:
        """Weights in matrix products: all but the embeddings of the input, where the head has weights of its own."""
        embeddings = 0 if self.config.tie_word_embeddings else self.vocabulary * self.config.hidden_size
        return self.parameters - embeddings

    @property
    def vocabulary(self) -> int:
        return int(self.config_keys["vocab_size"])

    @property
    def slot_bytes(self) -> int:
        """Bytes of a token's keys and values over all layers, in bfloat16."""
        return int(4 * self.config.num_key_value_heads * self.config.head_dim * self.config.num_hidden_layers)

    def learning_flops(self, tokens: float) -> float:
        """Return the arithmetic of training on so many tokens: 6 operations per weight and token (2 forward, 4
        backward), or 4 with adapters, as a frozen weight has no gradient. Attention and recomputation do not count."""
        return (6 if self.full else 4) * self.multiplied * tokens

    def sampling_bound(self, card: Card, sequences: int, prompt: int, longest: int) -> float:
        """Return the tokens per second at which decoding so many sequences at once would read weights and keys and
        values at the peak bandwidth, at the mean length of a sequence."""
        read = 2 * self.multiplied + sequences * self.slot_bytes * (prompt + longest / 2)
        return sequences * card.bandwidth / read


def known_shape(name: str, full: bool = True, **changes: Any) -> Shape:
    return Shape(name, {**KNOWN_MODELS[name].shape, **changes}, full)


SHAPES = [known_shape("qwen3-0.6b"), known_shape("qwen3-1.7b"), known_shape("qwen3-8b", full=False)]
_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the least that vLLM has on a CPU
    "vocab_size": 512,
}
TINY = [
    replace(known_shape("qwen3-0.6b", full, **_SMALL), name=name)
    for name, full in (("tiny", True), ("tiny-adapters", False))
]


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of special tokens and the words w8, w9, ..., one token each, with a chat template."""
    names = [*SPECIAL, *(f"w{index}" for index in range(FIRST_WORD, vocabulary))]
    core = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<|unk|>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        unk_token="<|unk|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def save_model(shape: Shape, folder: Path, device: torch.device) -> None:
    """Write random weights of the shape in bfloat16, and the tokenizer, to `folder`."""
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(shape.config, dtype=torch.bfloat16)
    with torch.no_grad():
        embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embeddings[:, 0] = ANCHOR
        # Tied or not, the head's rows agree in the anchor, except that of the end token.
        head[:, 0] = ANCHOR
        head[END, 0] = END_ANCHOR
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight[0] = 0.0  # nothing is added to the first component of the residual stream
    model.save_pretrained(folder)
    GenerationConfig(eos_token_id=END, pad_token_id=0).save_pretrained(folder)
    word_tokenizer(shape.vocabulary).save_pretrained(folder)


@contextmanager
def scratch_folder(size: float) -> Iterator[Path]:
    """Yield an empty folder, in memory if there is room for so many bytes."""
    memory = Path("/dev/shm")
    in_memory = memory.is_dir() and shutil.disk_usage(memory).free > size
    with tempfile.TemporaryDirectory(prefix="cadre-gpu-", dir=memory if in_memory else None) as folder:
        yield Path(folder)


@contextmanager
def saved(shape: Shape, card: Card) -> Iterator[Path]:
    """Yield a folder with a model of the shape."""
    with scratch_folder(4 * shape.parameters) as folder:
        save_model(shape, folder, card.device)
        card.reset_peak()
        yield folder


def make_engine(folder: Path, device: torch.device, dtype: str, full: bool, memory: int | None = None) -> TorchEngine:
    """Return an engine of one policy that is trained whole, named as the first role, or of an adapter per role."""
    lora, roles = (None, ROLES[:1]) if full else (LORA, ROLES)
    policy = PolicyConfig(model=str(folder), device=device.type, dtype=dtype, lora=lora)
    return TorchEngine(folder, dict.fromkeys(roles, policy), 0, memory)


def make_learner(engine: TorchEngine, notes: TokenNotes | None = None, **settings: Any) -> TorchLearner:
    """Return a learner of all policies of the engine, with these changes to the default settings."""
    learners = {name: LearnerConfig(learning_rate=1e-6, **settings) for name in engine.policies}
    return TorchLearner(engine, TrainingSettings(learners, notes=notes or TokenNotes(0)))


# ---- Sequences


@dataclass(frozen=True)
class Sizes:
    """Prompts of an update and their words, completions of each, and tokens of a completion."""

    prompts: int
    words: int
    completions: int
    tokens: int

    @property
    def sampled(self) -> int:
        """Tokens of all completions."""
        return self.prompts * self.completions * self.tokens


# 32 prompts of 512 words with 8 completions of 256 tokens: what a step is compared with other libraries on.
STEP_SIZES = Sizes(32, 512, 8, 256)
TINY_SIZES = Sizes(2, 24, 2, 6)


def make_sequences(sizes: Sizes, policies: Sequence[str], vocabulary: int, start: int = 0) -> list[TrainingSequence]:
    """Return random completions of random prompts, which all begin with the same `start` tokens; prompts are dealt to
    the policies in turn."""
    draw, sequences = random.Random(0), []
    for number in range(sizes.prompts):
        suffix = [draw.randrange(FIRST_WORD, vocabulary) for _ in range(sizes.words - start)]
        prompt = [*range(FIRST_WORD, FIRST_WORD + start), *suffix]
        policy, prompt_length = policies[number % len(policies)], len(prompt)
        for index in range(sizes.completions):
            ids = (*prompt, *(draw.randrange(FIRST_WORD, vocabulary) for _ in range(sizes.tokens)))
            sequences.append(
                make_sequence(policy, ids, prompt_length, (-7.0,) * sizes.tokens, (number, (), policy, index))
            )
    return sequences


def make_sequence(
    policy: str,
    ids: tuple[int, ...],
    prompt_length: int,
    logprobs: tuple[float, ...],
    position: tuple[int, Any, str, int],
) -> TrainingSequence:
    """Return a sequence whose first `before` tokens are the prompt; completions of a group have the advantages 1 and -1
    in turn."""
    zeros, completion_length = (0.0,) * prompt_length, len(ids) - prompt_length
    return TrainingSequence(
        policy,
        "any",
        ids,
        mask=(False,) * prompt_length + (True,) * completion_length,
        logprobs=zeros + logprobs,
        advantages=zeros + ((-1.0) ** position[3],) * completion_length,
        version=0,
        position=position,
    )


def sample_sequences(
    engine: TorchEngine | VllmSampler, sizes: Sizes, vocabulary: int, first: int = 0
) -> list[TrainingSequence]:
    """Return completions that the engine drew, with its log-probabilities; prompts are dealt to the policies in turn.
    Positions are those of `make_sequences`, counted from the prompt `first` on."""
    policies, sampling = list(engine.policies), Sampling(max_tokens=sizes.tokens)
    requests = []
    for number in range(first, first + sizes.prompts):
        policy, message = (
            policies[number % len(policies)],
            Message("user", random_words(number, sizes.words, vocabulary)),
        )
        key = random_keys.key(0, "bench", number)
        requests.append(Request(policy, policy, (message,), sizes.completions, sampling, key))

    async def sample() -> list[list[Sample]]:
        return await gather(*(engine.sample(request) for request in requests))

    sequences = []
    for number, samples in enumerate(asyncio.run(sample()), first):
        for index, completion in enumerate(samples):
            ids, prompt_length = completion.prompt_ids + completion.token_ids, len(completion.prompt_ids)
            sequences.append(
                make_sequence(
                    completion.policy, ids, prompt_length, completion.logprobs, (number, (), completion.policy, index)
                )
            )
    return sequences
