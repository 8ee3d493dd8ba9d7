"""Training a Bradley-Terry reward model on preference pairs.

What is written is a plain Hugging Face folder (AutoModelForSequenceClassification with one label, safetensors). The
loop, which can be interrupted, is `cadre.training.reward_model`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from pydantic import BaseModel
from torch import Tensor
from torch.nn.functional import logsigmoid

from cadre import random_keys
from cadre.data.preferences import Pair
from cadre.engines.answers import AnswerEncoder
from cadre.engines.model_folder import reading
from cadre.engines.torch.base.loading import locate
from cadre.engines.torch.reward_model import TOKENS, RewardModel, load_scorer, parts_of
from cadre.errors import ConfigError, DataError, DivergedError, EngineError, first_line
from cadre.file_limits import LINE, read_json
from cadre.files import publish_atomically, to_json
from cadre.intervals import rate_interval
from cadre.learn import tensor_files
from cadre.learn.optimiser import Optimiser
from cadre.settings import LearnerConfig

PATIENCE = 3
WEIGHTS, PROGRESS = "weights", "progress.json"
SCORED = 100  # answers that have mean 0 in the end
# The ids of a pair's two scored sequences, the chosen one first.
Encoded = tuple[tuple[int, ...], tuple[int, ...]]


class Progress(BaseModel):
    """`progress.json`: the loss of every step that is done, and the accuracy on held-out pairs before the first."""

    losses: list[float | None]
    before: float | None


@dataclass(frozen=True)
class Settings:
    """How a reward model is trained: `validate` is the share of prompts held out, `pairs` how many make a step."""

    steps: int = 200
    learning_rate: float = 1e-5
    seed: int = 0
    validate: float = 0.1
    pairs: int = 16
    tokens: int = TOKENS


@dataclass(frozen=True)
class Report:
    """What came of it: `losses` by step, the share of held-out pairs in the right order before and after, and
    `prompts`, that share by held-out prompt after."""

    losses: tuple[float, ...]
    before: float
    after: float
    held_out: int
    prompts: tuple[float, ...] = ()

    @property
    def margin(self) -> float:
        """How far the mean over held-out prompts is above chance, at the low end of its 95% interval; pairs of one
        prompt are not independent, so prompts are what counts. Not a number below two prompts."""
        if len(self.prompts) < 2:
            return float("nan")
        return rate_interval(self.prompts)[1] - 0.5

    def against_chance(self) -> str:
        """The margin in words."""
        if math.isnan(self.margin):
            return f"Held-out prompts: {len(self.prompts)}, too few to say whether it beats chance. Hold out more."
        if not self.margin > 0.0:
            return "It does not beat chance on held-out prompts: more pairs, steps or another learning rate are needed."
        return f"It beats chance by {self.margin:.1%} at least, on {len(self.prompts)} held-out prompts (95% interval)."


class Training:
    """A reward model that is being trained, with its optimiser; `losses` has one of every step that is done.

    Raises ConfigError where there are too few prompts to hold some out and DataError for a pair that is longer than the
    model's context, both before the model is loaded.
    """

    def __init__(self, pairs: Sequence[Pair], model: str, settings: Settings) -> None:
        self.settings, self.losses, self.before = settings, list[float](), float("nan")
        self.learned, self.held = split(pairs, settings.validate, settings.seed)
        source = locate(model)
        with reading(source, "reward model"):
            encoder = AnswerEncoder.of(source)
        encoded = {pair: fitting(pair, encoder) for pair in pairs}
        self._encoded = [encoded[pair] for pair in self.learned]
        self.scorer = RewardModel(*load_scorer(source, settings.seed), settings.tokens)
        self._weights = dict(self.scorer.model.named_parameters())
        rate = LearnerConfig(learning_rate=settings.learning_rate)
        self._optimiser = Optimiser(self._weights, rate, settings.steps)

    def step(self) -> float:
        """The loss of one step more. Raises DivergedError after three in a row that were not finite."""
        if not self.losses:
            self.before = accuracy(self.scorer, self.held)
        chosen = _picked(len(self._encoded), len(self.losses), self.settings)
        self.losses.append(_step(self.scorer, self._optimiser, [self._encoded[index] for index in chosen]))
        return self.losses[-1]

    def save(self, folder: Path) -> None:
        """Write what `load` goes on from."""
        tensor_files.write(self._weights, folder, WEIGHTS)
        self._optimiser.save(folder)
        (folder / PROGRESS).write_text(to_json({"losses": self.losses, "before": self.before}))

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote of the same pairs, model and settings."""
        tensor_files.read(self._weights, folder, WEIGHTS)
        self._optimiser.load(folder)
        try:
            told = Progress.model_validate(read_json(folder / PROGRESS, LINE), strict=True)
        except (OSError, ValueError) as error:
            raise EngineError(
                f"{folder / PROGRESS} is damaged ({first_line(error)}); expected the losses of a reward model that "
                "is not complete. Remove the folder and call it again."
            ) from None
        # What is no number is null in JSON: a loss that was not finite, an accuracy of no pairs.
        self.losses = [float("nan") if loss is None else loss for loss in told.losses]
        self.before = float("nan") if told.before is None else told.before

    def finish(self, out: Path) -> Report:
        """Judge the held-out pairs, and write the model to the new folder `out`."""
        rights = orders(self.scorer, self.held)
        by_prompt: dict[object, list[float]] = {pair.prompt: [] for pair in self.held}
        for pair, right in zip(self.held, rights, strict=True):
            by_prompt[pair.prompt].append(right)
        after = fmean(rights) if rights else float("nan")
        shares = tuple(map(fmean, by_prompt.values()))
        centre(self.scorer, self.learned, self.settings.seed)
        _save(self.scorer, out)
        return Report(tuple(self.losses), self.before, after, len(self.held), shares)


def fitting(pair: Pair, encoder: AnswerEncoder) -> Encoded:
    """The pair as it is scored. Raises DataError where it does not fit into the model's context."""
    encoded = encoder.scored(pair.prompt, pair.chosen), encoder.scored(pair.prompt, pair.rejected)
    length = max(map(len, encoded))
    if encoder.context is not None and length > encoder.context:
        raise DataError(
            f"{pair.where or 'pairs: a pair'}: a prompt and an answer have {length} tokens; expected at most "
            f"{encoder.context}, the model's context. Shorten it or leave it out."
        )
    return encoded


def centre(scorer: RewardModel, pairs: Sequence[Pair], seed: int) -> None:
    """Score so that the answers of the pairs, each counted once, have mean 0: only differences of scores are learned,
    and critics begin at 0. Of many answers so many are scored that the mean is known to a tenth of their spread."""
    answers = list(dict.fromkeys((pair.prompt, text) for pair in pairs for text in (pair.chosen, pair.rejected)))
    some = random_keys.generator(seed, "mean").sample(answers, min(len(answers), SCORED))
    scorer.centre([prompt for prompt, _ in some], [text for _, text in some])


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
    held = set(random_keys.generator(seed, "held out").sample(prompts, count))
    return [pair for pair in pairs if pair.prompt not in held], [pair for pair in pairs if pair.prompt in held]


def accuracy(scorer: RewardModel, pairs: Sequence[Pair]) -> float:
    """The share of pairs whose chosen answer scores higher; a tie is half right. Not a number where there are none."""
    return fmean(orders(scorer, pairs)) if pairs else float("nan")


def orders(scorer: RewardModel, pairs: Sequence[Pair]) -> list[float]:
    """By pair: 1 where the chosen answer scores higher, 0 where the other does, a half where none."""
    prompts = [pair.prompt for pair in pairs]
    chosen = scorer.score(prompts, [pair.chosen for pair in pairs])
    rejected = scorer.score(prompts, [pair.rejected for pair in pairs])
    return [0.5 if high == low else float(high > low) for high, low in zip(chosen, rejected, strict=True)]


def preference_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """`-log sigmoid(chosen - rejected)` [B] (Bradley-Terry; InstructGPT, arXiv 2203.02155, equation 1)."""
    return -logsigmoid(chosen - rejected)


def _step(scorer: RewardModel, optimiser: Optimiser, pairs: Sequence[Encoded]) -> float:
    """One optimiser step on the mean loss of the pairs, in as many forwards as they need."""

    def size(index: int) -> int:
        return 2 * max(map(len, pairs[index]))

    total = 0.0
    for part in parts_of(sorted(range(len(pairs)), key=size, reverse=True), size, scorer.tokens):
        scores = scorer.forward([pairs[index][side] for side in (0, 1) for index in part])
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
    """The pairs of a step."""
    return random_keys.in_epochs(count, settings.pairs, step, settings.seed, "pairs")


def _save(scorer: RewardModel, out: Path) -> None:
    """Write the folder, whole or not at all."""
    with publish_atomically(out) as (built,):
        scorer.model.save_pretrained(built)
        scorer.tokenizer.save_pretrained(built)
