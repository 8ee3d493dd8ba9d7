"""Bradley-Terry reward models: a causal model with a head of one number, and its training on preference pairs.

The scored sequence is the prompt as the chat template renders it with the answer opened, the tokens of the answer, and
the token that ends a turn if the template has one; the head is read at its end. A score is the head's number less the
mean over answers that it was trained on (InstructGPT, arXiv 2203.02155, section 3.5), which the folder's configuration
holds as `reward_mean`, 0 if it has none. A model is a plain Hugging Face folder (AutoModelForSequenceClassification
with one label, safetensors). The training loop, which can be interrupted, is
`cadre.training.reward_model`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import torch
from pydantic import BaseModel
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging
from transformers.utils.logging import disable_progress_bar

from cadre import random_keys
from cadre.engines.model_folder import context_length, wrap_load_errors
from cadre.engines.text import template as chat_template
from cadre.engines.text.model import AnswerEncoder
from cadre.engines.torch.compute import ComputeThread
from cadre.engines.torch.model import locate, pick_device
from cadre.errors import ConfigError, DataError, DivergedError, EngineError, first_line
from cadre.file_limits import LINE, read_json
from cadre.files import publish_atomically, to_json
from cadre.learn import tensor_files
from cadre.learn.optimiser import Optimiser
from cadre.preferences import PreferencePair
from cadre.settings import LearnerConfig
from cadre.statistics import rate_interval
from cadre.types import Message

TOKENS = 4_096  # padded tokens of one forward
MEAN = "reward_mean"  # in the configuration of a folder
WEIGHTS, PROGRESS = "weights", "progress.json"  # files of a training that is not complete
PATIENCE = 3  # steps in a row that are not finite before training has diverged
CENTRED = 100  # answers whose mean score is 0 after training

Item = TypeVar("Item")
# The ids of a pair's two scored sequences, the chosen one first.
EncodedPair = tuple[tuple[int, ...], tuple[int, ...]]


class RewardModel:
    """A reward model with its tokenizer; lives with its owner. `tokens` bounds the padded size of a forward.

    Answers are scored in `thread`; None for that of the caller.
    """

    def __init__(self, model: Any, tokenizer: Any, tokens: int = TOKENS, thread: ComputeThread | None = None) -> None:
        self._thread = thread
        self.model, self.tokenizer, self.tokens = model.eval(), tokenizer, tokens
        self._encoder = AnswerEncoder(tokenizer, context_length(model.config))
        self.pad = model.config.get_text_config().pad_token_id
        self.mean = float(getattr(model.config, MEAN, 0.0))

    @classmethod
    def load(cls, folder: Path) -> RewardModel:
        """Load a trained reward model, which scores beside engines. Raises EngineError if the folder holds another
        kind of model."""
        source = locate(folder)
        config = AutoConfig.from_pretrained(source)
        if config.num_labels != 1 or not _is_classifier(config):
            raise EngineError(
                f"The reward model {source!r} is a {_architecture(config)} with {config.num_labels} labels; expected a "
                "sequence classifier with one. Train one: cadre reward-model PAIRS.jsonl --model MODEL --out DIR."
            )
        thread = ComputeThread(pick_device("auto"))
        return cls(*thread.work(load_classifier, source, seed=0), thread=thread)

    def centre(self, prompts: Sequence[Sequence[Message]], completions: Sequence[str]) -> None:
        """Change the mean so that these answers have mean score 0."""
        self.mean += fmean(self.score(prompts, completions))
        setattr(self.model.config, MEAN, self.mean)

    def score(self, prompts: Sequence[Sequence[Message]], completions: Sequence[str]) -> list[float]:
        """Return the score of each completion as the answer to its prompt, less the model's mean.

        Equal answers to one prompt are scored once: padded with others they would differ by rounding, which is no
        reason to prefer one, and scores about 0 do not show how large the numbers were that were rounded.
        """
        encoded = [self.encode(prompt, answer) for prompt, answer in zip(prompts, completions, strict=True)]
        order = sorted(dict.fromkeys(encoded), key=len, reverse=True)
        scores = self._thread.work(self._score, order) if self._thread else self._score(order)
        return [scores[ids] - self.mean for ids in encoded]

    @torch.no_grad()
    def _score(self, order: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
        scores: dict[tuple[int, ...], float] = {}
        for part in split_by_size(order, len, self.tokens):
            scores |= dict(zip(part, self.forward(part).tolist(), strict=True))
        return scores

    def encode(self, prompt: Sequence[Message], answer: str) -> tuple[int, ...]:
        """Return the ids of a scored sequence. Raises EngineError if it is longer than the model's context."""
        ids, context = self._encoder.encode_for_scoring(prompt, answer), self._encoder.context
        if context is not None and len(ids) > context:
            raise EngineError(
                f"The reward model's context holds {context} tokens, and a prompt with its answer has {len(ids)}; "
                "expected no more. Shorten the prompts, or take a model with a longer context."
            )
        return ids

    def forward(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        """Return the head's output for B sequences, padded on the right: float32 [B]. Carries the gradient."""
        unpadded = [torch.tensor(ids) for ids in sequences]
        mask = pad_sequence([torch.ones_like(ids) for ids in unpadded], batch_first=True)
        ids = pad_sequence(unpadded, batch_first=True, padding_value=self.pad)
        device = self.model.device
        logits: Tensor = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
        return logits[:, 0].float()


def split_by_size(order: Sequence[Item], size: Callable[[Item], int], tokens: int) -> Iterator[list[Item]]:
    """Yield runs of items, ordered by falling size, whose padded size is at most `tokens`, or a single larger one."""
    part: list[Item] = []
    for item in order:
        if part and size(part[0]) * (len(part) + 1) > tokens:
            yield part
            part = []
        part.append(item)
    if part:
        yield part


def load_classifier(source: str, seed: int) -> tuple[Any, Any]:
    """Return model and tokenizer; a head that the folder does not have is drawn by `seed`.

    transformers reads the head at the last token that is no padding. If the padding is the token that ends an answer,
    that is one too early, so a new head is trained with another padding token; an existing head keeps its own.
    """
    disable_progress_bar()
    verbosity = logging.get_verbosity()
    # That a causal model lacks this head and has another is expected here, and no warning.
    logging.set_verbosity_error()
    try:
        with wrap_load_errors(source, "reward model"), torch.random.fork_rng():
            has_head = _is_classifier(AutoConfig.from_pretrained(source))
            tokenizer = AutoTokenizer.from_pretrained(source)
            torch.manual_seed(seed)
            model = AutoModelForSequenceClassification.from_pretrained(
                source, num_labels=1, dtype=torch.float32, use_safetensors=True
            )
    finally:
        logging.set_verbosity(verbosity)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if not has_head:
        # Pad with a token that ends neither turns nor texts.
        ends = {chat_template.Template(tokenizer).end_of_turn, tokenizer.eos_token_id}
        if tokenizer.pad_token_id in ends:
            candidates = (tokenizer.unk_token_id, tokenizer.bos_token_id, *range(len(tokenizer)))
            padding = next(index for index in candidates if index is not None and index not in ends)
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(padding)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return model.to(pick_device("auto")), tokenizer


def _architecture(config: Any) -> str:
    return (getattr(config, "architectures", None) or ["none"])[0]


def _is_classifier(config: Any) -> bool:
    """Return True if a folder's weights have the head of a sequence classifier."""
    return _architecture(config).endswith("ForSequenceClassification")


# Training.


class RewardProgress(BaseModel):
    """`progress.json`: the loss of every finished step, and the accuracy on held-out pairs before the first."""

    losses: list[float | None]
    before: float | None


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
        self.scorer = RewardModel(*load_classifier(source, settings.seed), settings.tokens)
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
                f"reward-model: {PATIENCE} steps in a row met a loss or gradient that is not finite; nothing was "
                "written. Lower --learning-rate."
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
        try:
            progress = RewardProgress.model_validate(read_json(folder / PROGRESS, LINE), strict=True)
        except (OSError, ValueError) as error:
            raise EngineError(
                f"{folder / PROGRESS} is damaged ({first_line(error)}); expected the losses of a reward model that "
                "is not complete. Remove the folder and call it again."
            ) from None
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
            f"{pair.where or 'pairs: a pair'}: a prompt and an answer have {length} tokens; expected at most "
            f"{encoder.context}, the model's context. Shorten it or leave it out."
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
            f"--validate: got {fraction} of {len(prompts)} prompt, which would leave nothing to learn from; expected "
            "two prompts or more, as no prompt is both learned from and held out. Add pairs or set --validate 0."
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
    scorer.centre([prompt for prompt, _ in sampled], [text for _, text in sampled])
