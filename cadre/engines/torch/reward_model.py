"""Bradley-Terry reward models: a causal model with a head of one number, read after the end of an answer.

The sequence that is scored: the prompt as the chat template renders it with the answer opened, the tokens of the
answer, and the token that ends a turn where the template has one. A score is the head's number less the mean over
answers that it was trained on (InstructGPT, arXiv 2203.02155, section 3.5), which the folder's configuration holds as
`reward_mean`, 0 where it has none. How one is trained: `reward_training`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging
from transformers.utils.logging import disable_progress_bar

from cadre.engines import chat_template
from cadre.engines.answers import AnswerEncoder
from cadre.engines.context import context_of
from cadre.engines.model_folder import reading
from cadre.engines.torch.base.loading import locate, pick_device
from cadre.errors import EngineError
from cadre.types import Message

Item = TypeVar("Item")
# Padded tokens of one forward.
TOKENS = 4_096
MEAN = "reward_mean"  # in the configuration of a folder


class RewardModel:
    """A model with its tokenizer; lives as long as whoever asks it. `tokens` bounds the padded size of a forward."""

    def __init__(self, model: Any, tokenizer: Any, tokens: int = TOKENS) -> None:
        self.model, self.tokenizer, self.tokens = model.eval(), tokenizer, tokens
        self._encoder = AnswerEncoder(tokenizer, context_of(model.config))
        self.pad = model.config.get_text_config().pad_token_id
        self.mean = float(getattr(model.config, MEAN, 0.0))

    @classmethod
    def load(cls, folder: Path) -> RewardModel:
        """What `train` wrote. Raises EngineError where the folder holds another kind of model."""
        source = locate(folder)
        config = AutoConfig.from_pretrained(source)
        if config.num_labels != 1 or not _is_scorer(config):
            raise EngineError(
                f"The reward model {source!r} is a {_kind(config)} with {config.num_labels} labels; expected a "
                "sequence classifier with one. Train one: cadre reward-model PAIRS.jsonl --model MODEL --out DIR."
            )
        return cls(*load_scorer(source, seed=0))

    def centre(self, prompts: Sequence[Sequence[Message]], completions: Sequence[str]) -> None:
        """From now on score so that these answers have mean 0."""
        self.mean += fmean(self.score(prompts, completions))
        setattr(self.model.config, MEAN, self.mean)

    @torch.no_grad()
    def score(self, prompts: Sequence[Sequence[Message]], completions: Sequence[str]) -> list[float]:
        """One number a completion, the answer to the prompt beside it, less the model's mean.

        Equal answers to one prompt are scored once: padded with others they would differ by rounding, which is no
        reason to prefer one, and scores about 0 do not show how large the numbers were that were rounded.
        """
        asked = [self.encode(prompt, answer) for prompt, answer in zip(prompts, completions, strict=True)]
        order = sorted(dict.fromkeys(asked), key=len, reverse=True)
        scores: dict[tuple[int, ...], float] = {}
        for part in parts_of(order, len, self.tokens):
            scores |= dict(zip(part, self.forward(part).tolist(), strict=True))
        return [scores[ids] - self.mean for ids in asked]

    def encode(self, prompt: Sequence[Message], answer: str) -> tuple[int, ...]:
        """The ids of a scored sequence. Raises EngineError where it is longer than the model's context."""
        ids, most = self._encoder.scored(prompt, answer), self._encoder.context
        if most is not None and len(ids) > most:
            raise EngineError(
                f"The reward model's context holds {most} tokens, and a prompt with its answer has {len(ids)}; "
                "expected no more. Shorten the prompts, or take a model with a longer context."
            )
        return ids

    def forward(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        """What the head says of B sequences, padded on the right: float32 [B]. Carries the gradient."""
        unpadded = [torch.tensor(ids) for ids in sequences]
        mask = pad_sequence([torch.ones_like(ids) for ids in unpadded], batch_first=True)
        ids = pad_sequence(unpadded, batch_first=True, padding_value=self.pad)
        device = self.model.device
        logits: Tensor = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
        return logits[:, 0].float()


def parts_of(order: Sequence[Item], size: Callable[[Item], int], tokens: int) -> Iterator[list[Item]]:
    """Runs of an order by falling size whose padded size is at most `tokens`; a larger one stands alone."""
    part: list[Item] = []
    for item in order:
        if part and size(part[0]) * (len(part) + 1) > tokens:
            yield part
            part = []
        part.append(item)
    if part:
        yield part


def load_scorer(source: str, seed: int) -> tuple[Any, Any]:
    """Model and tokenizer; a head that the folder does not have is drawn by `seed`.

    transformers reads the head at the last token that is no padding. Where the padding is what ends an answer, that is
    one too early, so a new head is trained with another padding; a head that there is keeps the one that it knows.
    """
    disable_progress_bar()
    verbosity = logging.get_verbosity()
    # That a causal model has no such head, and has another, is what is meant here and no warning.
    logging.set_verbosity_error()
    try:
        with reading(source, "reward model"), torch.random.fork_rng():
            known = _is_scorer(AutoConfig.from_pretrained(source))
            tokenizer = AutoTokenizer.from_pretrained(source)
            torch.manual_seed(seed)
            model = AutoModelForSequenceClassification.from_pretrained(
                source, num_labels=1, dtype=torch.float32, use_safetensors=True
            )
    finally:
        logging.set_verbosity(verbosity)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if not known:
        _pad_with_no_end(tokenizer)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return model.to(pick_device("auto")), tokenizer


def _kind(config: Any) -> str:
    return (getattr(config, "architectures", None) or ["none"])[0]


def _is_scorer(config: Any) -> bool:
    """Whether a folder's weights have the head of a sequence classifier."""
    return _kind(config).endswith("ForSequenceClassification")


def _pad_with_no_end(tokenizer: Any) -> None:
    """Pad with a token that ends neither turns nor texts."""
    ends = {chat_template.Template(tokenizer).end_of_turn, tokenizer.eos_token_id}
    if tokenizer.pad_token_id in ends:
        others = (tokenizer.unk_token_id, tokenizer.bos_token_id, *range(len(tokenizer)))
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(
            next(other for other in others if other is not None and other not in ends)
        )
