"""The training of a Bradley-Terry reward model on preference pairs.

Until the model is written, the state of the training of `OUT` is in `OUT.unfinished`: its settings, and the last save.
The same call resumes it.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import AutoConfig
from transformers.utils import logging

from cadre import random_keys
from cadre.engines.model_folder import wrap_load_errors
from cadre.engines.text import template as chat_template
from cadre.engines.text.model import AnswerEncoder
from cadre.engines.torch.model import locate
from cadre.engines.torch.reward_model import (
    MEAN,
    TOKENS,
    RewardModel,
    is_classifier,
    load_classifier,
    split_by_size,
)
from cadre.errors import ConfigError, DataError, DivergedError, RunError
from cadre.files import (
    OpenRecord,
    Text,
    find_damage,
    publish_atomically,
    read_record,
    to_json,
    write_text_atomically,
    write_with_manifest,
)
from cadre.learn import tensor_files
from cadre.learn.optimiser import Optimiser
from cadre.runs.folder import RunLock
from cadre.settings import LearnerConfig
from cadre.statistics import rate_interval
from cadre.training.checkpoint import checkpoint_name, checkpoint_steps, remove_old_checkpoints
from cadre.training.interrupt import Interrupt
from cadre_tasks.reward_models.pairs import PreferencePair, pair_to_json

START_FILE = "begun.json"
WEIGHTS, PROGRESS = "weights", "progress.json"  # files of a saved step
SAVE_EVERY = 20  # steps
PATIENCE = 3  # steps in a row that are not finite before training has diverged
CENTRED = 100  # answers whose mean score is 0 after training

# The ids of a pair's two scored sequences, the chosen one first.
EncodedPair = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class RewardSettings:
    """Settings of a training: `validate` is the fraction of prompts held out, `pairs` the pairs of a step."""

    steps: int = 200
    learning_rate: float = 1e-5
    seed: int = 0
    validate: float = 0.1
    pairs: int = 16
    tokens: int = TOKENS


@dataclass(frozen=True)
class RewardReport:
    """The result of a training.

    losses           by step
    before, after    fraction of held-out pairs in the right order
    held_out         number of held-out pairs
    prompts          `after` by held-out prompt
    """

    losses: tuple[float, ...]
    before: float
    after: float
    held_out: int
    prompts: tuple[float, ...] = ()

    @property
    def margin(self) -> float:
        """The lower end of the 95% interval of the mean accuracy over held-out prompts, less chance.

        Pairs of one prompt are not independent, so prompts are counted. NaN below two prompts.
        """
        if len(self.prompts) < 2:
            return float("nan")
        return rate_interval(self.prompts)[1] - 0.5

    def against_chance(self) -> str:
        """Return the margin as a sentence."""
        if math.isnan(self.margin):
            return f"Held-out prompts: {len(self.prompts)}, too few to say whether it beats chance. Hold out more."
        if not self.margin > 0.0:
            return "It does not beat chance on held-out prompts: more pairs, steps or another learning rate are needed."
        return f"It beats chance by {self.margin:.1%} at least, on {len(self.prompts)} held-out prompts (95% interval)."


class RewardModelStart(OpenRecord):
    """`begun.json`: the model, a checksum of the pairs, and the settings of a training that is not complete."""

    model: Text
    checksum: Text


class RewardProgress(OpenRecord):
    """`progress.json`: the loss of every finished step, and the accuracy on held-out pairs before the first."""

    losses: list[float | None]
    before: float | None


def train_reward_model(
    pairs: Sequence[PreferencePair], model: str, out: Path, settings: RewardSettings, tell: Callable[[int, float], None]
) -> RewardReport | None:
    """Train a head and the model below it on preference pairs, from the last save if there is one, and write it to the
    new folder `out`. Returns None if it was interrupted; the same call resumes it.

    `tell` is called with every step's number and loss. Raises RunError if `out` exists, or if the unfinished training
    was started with something else; ConfigError, DataError and DivergedError as `RewardTraining` does.
    """
    if out.exists():
        raise RunError(f"reward-model: {out} exists; expected a new folder, as nothing is ever overwritten.")
    checksum = hashlib.sha256("\n".join(map(pair_to_json, pairs)).encode()).hexdigest()
    source = str(Path(model).absolute()) if Path(model).is_dir() else model
    home, start = unfinished_folder(out), {"model": source, "checksum": checksum, **asdict(settings)}
    if (home / START_FILE).is_file():
        old_start = read_record(home / START_FILE, RewardModelStart).model_dump()
        for name, value in start.items():
            if old_start.get(name) != value:
                raise RunError(
                    f"reward-model: {home} holds a training that was begun with {name}={old_start.get(name)}; expected "
                    f"the same to go on with, got {value}. Call it as before, remove the folder, or name another --out."
                )
    training = RewardTraining(pairs, model, settings)
    home.mkdir(parents=True, exist_ok=True)
    with RunLock(home):
        write_text_atomically(home / START_FILE, json.dumps(start, indent=1) + "\n")
        try:
            report = _train_steps(training, home, out, tell)
        except DivergedError:
            shutil.rmtree(home)  # resuming would diverge again
            raise
        if report is not None:
            shutil.rmtree(home)
    return report


def unfinished_folder(out: Path) -> Path:
    """Return the folder of a training that is not complete."""
    return out.with_name(f"{out.name}.unfinished")


def count_saved_steps(out: Path) -> int:
    """Return the number of saved steps of a training that is not complete."""
    return max(checkpoint_steps(unfinished_folder(out)), default=0)


def _train_steps(
    training: RewardTraining, home: Path, out: Path, tell: Callable[[int, float], None]
) -> RewardReport | None:
    if steps := checkpoint_steps(home):
        saved = home / checkpoint_name(steps[-1])
        if (damage := find_damage(saved)) is not None:
            raise RunError(
                f"reward-model: {saved} is damaged ({damage}). Restore it, or remove {home} and begin again."
            )
        training.load(saved)

    def save() -> None:
        steps = len(training.losses)
        if steps and steps not in checkpoint_steps(home):
            write_with_manifest(home / checkpoint_name(steps), training.save)
            remove_old_checkpoints(home, steps, 1, None)

    interrupt, total = Interrupt(), training.settings.steps
    with interrupt.on_signals():
        while len(training.losses) < total and not interrupt.requested:
            loss = training.step()
            tell(len(training.losses) - 1, loss)
            if len(training.losses) % SAVE_EVERY == 0:
                save()
        save()  # at the end, and after an interrupt, however late in a step
        return None if interrupt.requested else training.finish(out)


class RewardTraining:
    """A reward model in training, with its optimiser; `losses` has one loss for every finished step.

    Raises ConfigError if there are too few prompts to hold some out and DataError for a pair that is longer than the
    model's context, both before the model is loaded.
    """

    def __init__(self, pairs: Sequence[PreferencePair], model: str, settings: RewardSettings) -> None:
        self.settings, self.losses, self.before = settings, list[float](), float("nan")
        self.training_pairs, self.held_out_pairs = split(pairs, settings.validate, settings.seed)
        source = locate(model)
        with wrap_load_errors(source, "reward model"):
            encoder = AnswerEncoder.of(source)
        encoded = {pair: encode_pair(pair, encoder) for pair in pairs}
        self._encoded = [encoded[pair] for pair in self.training_pairs]
        self.scorer = RewardModel(*load_trainable(source, settings.seed), settings.tokens)
        self._weights = dict(self.scorer.model.named_parameters())
        rate = LearnerConfig(learning_rate=settings.learning_rate)
        self._optimiser = Optimiser(self._weights, rate, settings.steps)

    def step(self) -> float:
        """Make one optimiser step on the mean loss of the next pairs, and return the loss.

        Raises DivergedError after three in a row that were not finite.
        """
        if not self.losses:
            self.before = accuracy(self.scorer, self.held_out_pairs)
        chosen = pick_pairs(len(self._encoded), len(self.losses), self.settings)
        pairs = [self._encoded[index] for index in chosen]

        def size(index: int) -> int:
            return 2 * max(map(len, pairs[index]))

        total = 0.0
        for part in split_by_size(sorted(range(len(pairs)), key=size, reverse=True), size, self.scorer.tokens):
            scores = self.scorer.forward([pairs[index][side] for side in (0, 1) for index in part])
            loss = preference_loss(scores[: len(part)], scores[len(part) :]).sum() / len(pairs)
            torch.autograd.backward(loss)
            total += float(loss.detach())
        self._optimiser.step(total)
        self._optimiser.updates += 1
        if self._optimiser.skips >= PATIENCE:
            raise DivergedError(
                f"reward-model: {PATIENCE} steps in a row were not finite; nothing was written. Lower --learning-rate."
            )
        self.losses.append(total)
        return total

    def save(self, folder: Path) -> None:
        """Write the state that `load` continues from."""
        tensor_files.write(self._weights, folder, WEIGHTS)
        self._optimiser.save(folder)
        (folder / PROGRESS).write_text(to_json({"losses": self.losses, "before": self.before}))

    def load(self, folder: Path) -> None:
        """Continue from the state that `save` wrote of the same pairs, model and settings."""
        tensor_files.read(self._weights, folder, WEIGHTS)
        self._optimiser.load(folder)
        progress = read_record(folder / PROGRESS, RewardProgress)
        # NaN is null in JSON: a loss that was not finite, an accuracy of no pairs.
        self.losses = [float("nan") if loss is None else loss for loss in progress.losses]
        self.before = float("nan") if progress.before is None else progress.before

    def finish(self, out: Path) -> RewardReport:
        """Score the held-out pairs, centre the scores, and write the model to the new folder `out`."""
        correct = order_correct(self.scorer, self.held_out_pairs)
        by_prompt: dict[object, list[float]] = {pair.prompt: [] for pair in self.held_out_pairs}
        for pair, right in zip(self.held_out_pairs, correct, strict=True):
            by_prompt[pair.prompt].append(right)
        accuracy_after = fmean(correct) if correct else float("nan")
        prompt_accuracies = tuple(map(fmean, by_prompt.values()))
        centre(self.scorer, self.training_pairs, self.settings.seed)
        with publish_atomically(out) as (folder,):  # written completely or not at all
            self.scorer.model.save_pretrained(folder)
            self.scorer.tokenizer.save_pretrained(folder)
        return RewardReport(
            tuple(self.losses), self.before, accuracy_after, len(self.held_out_pairs), prompt_accuracies
        )


def load_trainable(source: str, seed: int) -> tuple[Any, Any]:
    """Return model and tokenizer; a head that the folder does not have is drawn by `seed`.

    transformers reads the head at the last token that is no padding. If the padding is the token that ends an answer,
    that is one too early, so a new head is trained with another padding token; an existing head keeps its own.
    """
    with wrap_load_errors(source, "reward model"):
        has_head = is_classifier(AutoConfig.from_pretrained(source))
    verbosity = logging.get_verbosity()
    # That a causal model lacks this head and has another is expected here, and no warning.
    logging.set_verbosity_error()
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model, tokenizer = load_classifier(source)
    finally:
        logging.set_verbosity(verbosity)
    ends = {chat_template.Template(tokenizer).end_of_turn, tokenizer.eos_token_id}
    if not has_head and tokenizer.pad_token_id in ends:
        candidates = (tokenizer.unk_token_id, tokenizer.bos_token_id, *range(len(tokenizer)))
        padding = next(index for index in candidates if index is not None and index not in ends)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(padding)
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def preference_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Return `-log sigmoid(chosen - rejected)` [B] (Bradley-Terry; InstructGPT, arXiv 2203.02155, equation 1)."""
    return -logsigmoid(chosen - rejected)


def encode_pair(pair: PreferencePair, encoder: AnswerEncoder) -> EncodedPair:
    """Return the pair's scored sequences. Raises DataError if one does not fit into the model's context."""
    encode = encoder.encode_for_scoring
    encoded = encode(pair.prompt, pair.chosen), encode(pair.prompt, pair.rejected)
    length = max(map(len, encoded))
    if encoder.context is not None and length > encoder.context:
        raise DataError(
            f"{pair.where or 'pairs: a pair'}: has {length} tokens; expected at most the model's context, "
            f"{encoder.context}."
        )
    return encoded


def split(
    pairs: Sequence[PreferencePair], fraction: float, seed: int
) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Return pairs for training and held-out pairs, no prompt in both; `fraction` is that of held-out prompts."""
    prompts = list(dict.fromkeys(pair.prompt for pair in pairs))
    if fraction == 0.0:
        return list(pairs), []
    if len(prompts) < 2:
        raise ConfigError(
            f"--validate: got {fraction} of {len(prompts)} prompt; expected two prompts or more. Set --validate 0."
        )
    count = min(len(prompts) - 1, max(1, round(fraction * len(prompts))))
    held_out = set(random_keys.generator(seed, "held out").sample(prompts, count))
    return (
        [pair for pair in pairs if pair.prompt not in held_out],
        [pair for pair in pairs if pair.prompt in held_out],
    )


def pick_pairs(count: int, step: int, settings: RewardSettings) -> list[int]:
    """Return the indices of a step's pairs, which go through all in epochs."""
    return random_keys.in_epochs(count, settings.pairs, step, settings.seed, "pairs")


def accuracy(scorer: RewardModel, pairs: Sequence[PreferencePair]) -> float:
    """Return the fraction of pairs whose chosen answer scores higher, a tie counting half; NaN without pairs."""
    return fmean(order_correct(scorer, pairs)) if pairs else float("nan")


def order_correct(scorer: RewardModel, pairs: Sequence[PreferencePair]) -> list[float]:
    """Return for each pair 1 if the chosen answer scores higher, 0 if the rejected one does, 0.5 for a tie."""
    prompts = [pair.prompt for pair in pairs]
    chosen = scorer.score(prompts, [pair.chosen for pair in pairs])
    rejected = scorer.score(prompts, [pair.rejected for pair in pairs])
    return [0.5 if high == low else float(high > low) for high, low in zip(chosen, rejected, strict=True)]


def centre(scorer: RewardModel, pairs: Sequence[PreferencePair], seed: int) -> None:
    """Centre the scores of the pairs' answers, each counted once, at 0.

    Only differences of scores are learned, and critics begin at 0. At most CENTRED answers are scored, which gives the
    mean to a tenth of their spread.
    """
    answers = list(dict.fromkeys((pair.prompt, text) for pair in pairs for text in (pair.chosen, pair.rejected)))
    sampled = random_keys.generator(seed, "mean").sample(answers, min(len(answers), CENTRED))
    scorer.mean += fmean(scorer.score([prompt for prompt, _ in sampled], [text for _, text in sampled]))
    setattr(scorer.model.config, MEAN, scorer.mean)
