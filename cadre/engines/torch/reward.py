"""Bradley-Terry reward models: a causal model with a head of one number, read after the end of an answer.

What is written is a plain Hugging Face folder (AutoModelForSequenceClassification with one label, safetensors). The
sequence that is scored: the prompt as the chat template renders it with the answer opened, the tokens of the answer,
and the token that ends a turn where the template has one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging
from transformers.utils.logging import disable_progress_bar

from cadre import noise
from cadre.engines.torch import chat
from cadre.engines.torch.model import locate, pick_device
from cadre.errors import ConfigError, DivergedError, EngineError, RunError
from cadre.learn.optimiser import Optimiser
from cadre.reward_model import Pair
from cadre.sections import LearnerConfig
from cadre.types import Message

PATIENCE = 3


@dataclass(frozen=True)
class Settings:
    """How a reward model is trained: `validate` is the share of prompts held out, `pairs` how many make a step."""

    steps: int = 200
    learning_rate: float = 1e-5
    seed: int = 0
    validate: float = 0.1
    pairs: int = 16
    tokens: int = 4_096


@dataclass(frozen=True)
class Report:
    """What came of it: `losses` by step, and the share of held-out pairs in the right order before and after."""

    losses: tuple[float, ...]
    before: float
    after: float
    held_out: int


class RewardModel:
    """A model with its tokenizer; lives as long as whoever asks it. `tokens` bounds the padded size of a forward."""

    def __init__(self, model: Any, tokenizer: Any, tokens: int = Settings.tokens) -> None:
        self.model, self.tokenizer, self.tokens = model.eval(), tokenizer, tokens
        self.template = chat.Template(tokenizer)
        self.pad = model.config.get_text_config().pad_token_id

    @classmethod
    def load(cls, folder: Path) -> RewardModel:
        """What `train` wrote. Raises EngineError where the folder holds another kind of model."""
        source = locate(folder)
        config = AutoConfig.from_pretrained(source)
        kinds = getattr(config, "architectures", None) or ["none"]
        if config.num_labels != 1 or not kinds[0].endswith("ForSequenceClassification"):
            raise EngineError(
                f"The reward model {source!r} is a {kinds[0]} with {config.num_labels} labels; expected a sequence "
                "classifier with one. Train one: cadre reward-model PAIRS.jsonl --model MODEL --out DIR."
            )
        return cls(*_loaded(source, seed=0))

    @torch.no_grad()
    def score(self, prompts: Sequence[Sequence[Message]], completions: Sequence[str]) -> list[float]:
        """One number a completion, the answer to the prompt beside it."""
        asked = [self.encode(prompt, answer) for prompt, answer in zip(prompts, completions, strict=True)]
        order = sorted(range(len(asked)), key=lambda index: -len(asked[index]))
        scores: dict[int, float] = {}
        for part in _parts(order, lambda index: len(asked[index]), self.tokens):
            scores |= dict(zip(part, self.forward([asked[index] for index in part]).tolist(), strict=True))
        return [scores[index] for index in range(len(asked))]

    def encode(self, prompt: Sequence[Message], answer: str) -> tuple[int, ...]:
        """The ids of a scored sequence. Raises EngineError where it is longer than the model's context."""
        said = self.tokenizer(answer, add_special_tokens=False).input_ids
        end = self.template.end_of_turn
        ids = (*self.template.prompt_ids(prompt, None, ()), *said, *(() if end is None else (end,)))
        most = getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
        if len(ids) > most:
            raise EngineError(
                f"The reward model's context holds {most} tokens, and a prompt with its answer has {len(ids)}; "
                "expected no more. Shorten the prompts, or take a model with a longer context."
            )
        return ids

    def forward(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        """Scores float32 [B] of B sequences, padded on the right. Carries the gradient."""
        rows = [torch.tensor(one) for one in sequences]
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        ids = pad_sequence(rows, batch_first=True, padding_value=self.pad)
        device = self.model.device
        logits: Tensor = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
        return logits[:, 0].float()


def train(
    pairs: Sequence[Pair], model: str, out: Path, settings: Settings, tell: Callable[[int, float], None]
) -> Report:
    """Train a head and the model below it on preference pairs, and write it to the new folder `out`.

    `tell` is called with every step's number and loss. Raises RunError where `out` exists, ConfigError where there are
    too few prompts to hold some out, DivergedError after three steps in a row that were not finite.
    """
    if out.exists():
        raise RunError(f"reward-model: {out} exists; expected a new folder, as nothing is ever overwritten.")
    learned, held = split(pairs, settings.validate, settings.seed)
    judge = RewardModel(*_loaded(locate(model), settings.seed), settings.tokens)
    optimiser = Optimiser(
        dict(judge.model.named_parameters()), LearnerConfig(learning_rate=settings.learning_rate), settings.steps
    )
    encoded = [(judge.encode(one.prompt, one.chosen), judge.encode(one.prompt, one.rejected)) for one in learned]
    before, losses = accuracy(judge, held), []
    for step in range(settings.steps):
        losses.append(_step(judge, optimiser, [encoded[index] for index in _picked(len(encoded), step, settings)]))
        tell(step, losses[-1])
    report = Report(tuple(losses), before, accuracy(judge, held), len(held))
    _save(judge, out)
    return report


def split(pairs: Sequence[Pair], share: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from and pairs held out, no prompt in both; `share` is that of the prompts that are held out."""
    prompts = list(dict.fromkeys(pair.prompt for pair in pairs))
    if share == 0.0:
        return list(pairs), []
    if len(prompts) < 2:
        raise ConfigError(
            f"--validate: got {share} of {len(prompts)} prompt, which would leave nothing to learn from; expected two "
            "prompts or more, as no prompt is both learned from and held out. Add pairs or set --validate 0."
        )
    count = min(len(prompts) - 1, max(1, round(share * len(prompts))))
    held = set(noise.generator(seed, "held out").sample(prompts, count))
    return [pair for pair in pairs if pair.prompt not in held], [pair for pair in pairs if pair.prompt in held]


def accuracy(judge: RewardModel, pairs: Sequence[Pair]) -> float:
    """The share of pairs whose chosen answer scores higher; a tie is half right. Not a number where there are none."""
    if not pairs:
        return float("nan")
    prompts = [pair.prompt for pair in pairs]
    chosen, rejected = (
        judge.score(prompts, [p.chosen for p in pairs]),
        judge.score(prompts, [p.rejected for p in pairs]),
    )
    right = (0.5 if one == other else float(one > other) for one, other in zip(chosen, rejected, strict=True))
    return sum(right) / len(pairs)


def preference_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """`-log sigmoid(chosen - rejected)` [B] (Bradley-Terry; InstructGPT, arXiv 2203.02155, equation 1)."""
    return -logsigmoid(chosen - rejected)


def _step(judge: RewardModel, optimiser: Optimiser, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> float:
    """One optimiser step on the mean loss of the pairs, in as many forwards as they need."""

    def size(index: int) -> int:
        return 2 * max(map(len, pairs[index]))

    total = 0.0
    for part in _parts(sorted(range(len(pairs)), key=size, reverse=True), size, judge.tokens):
        scores = judge.forward([pairs[index][side] for side in (0, 1) for index in part])
        loss = preference_loss(scores[: len(part)], scores[len(part) :]).sum() / len(pairs)
        torch.autograd.backward(loss)
        total += float(loss.detach())
    optimiser.step(total)
    optimiser.updates += 1
    if optimiser.skips >= PATIENCE:
        raise DivergedError(
            f"reward-model: {PATIENCE} steps in a row met a loss or gradient that is not finite; nothing was written. "
            "Lower --learning-rate."
        )
    return total


def _picked(count: int, step: int, settings: Settings) -> list[int]:
    """The pairs of a step: epochs, each in an order of its own."""

    def order(epoch: int) -> random.Random:
        return noise.generator(settings.seed, "pairs", epoch)

    positions = range(step * settings.pairs, (step + 1) * settings.pairs)
    epochs = {epoch: order(epoch).sample(range(count), count) for epoch in {place // count for place in positions}}
    return [epochs[place // count][place % count] for place in positions]


def _parts(order: Sequence[int], size: Callable[[int], int], tokens: int) -> Iterator[list[int]]:
    """Runs of an order by falling size whose padded size is at most `tokens`; a larger one stands alone."""
    part: list[int] = []
    for index in order:
        if part and size(part[0]) * (len(part) + 1) > tokens:
            yield part
            part = []
        part.append(index)
    if part:
        yield part


def _loaded(source: str, seed: int) -> tuple[Any, Any]:
    """Model and tokenizer; a head that the folder does not have is drawn by `seed`."""
    disable_progress_bar()
    verbosity = logging.get_verbosity()
    # That a causal model has no such head, and has another, is what is meant here and no warning.
    logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = AutoModelForSequenceClassification.from_pretrained(
                source, num_labels=1, dtype=torch.float32, use_safetensors=True
            )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().split("\n")[0]
        raise EngineError(
            f"The model {source!r} cannot carry a reward head: {reason} Expected 'seed', a Hugging Face folder with "
            "safetensors, or a hub name that this machine can reach. Check the name."
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return model.to(pick_device("auto")), tokenizer


def _save(judge: RewardModel, out: Path) -> None:
    """Write the folder, whole or not at all."""
    partial = out.with_name(f".partial-{out.name}")
    partial.mkdir(parents=True, exist_ok=True)
    judge.model.save_pretrained(partial)
    judge.tokenizer.save_pretrained(partial)
    partial.rename(out)
