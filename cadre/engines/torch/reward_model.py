"""A trained reward model: a causal model with a head of one number, which scores answers beside engines.

The scored sequence is the conversation with the answer as the chat template renders it; the head is read at its last
token that is no padding, as in TRL's RewardTrainer. A score is the head's number less `reward_mean` of the folder's
configuration, 0 if it has none (InstructGPT, arXiv 2203.02155, section 3.5). A model is a plain Hugging Face folder
(AutoModelForSequenceClassification with one label, safetensors); docs/reward_models.md trains one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from cadre.engines.model_folder import context_length, wrap_load_errors
from cadre.engines.text.model import AnswerEncoder
from cadre.engines.torch.compute import ComputeThread
from cadre.engines.torch.model import locate, pick_device
from cadre.errors import EngineError
from cadre.types import Message

TOKENS = 4_096  # padded tokens of one forward
MEAN = "reward_mean"  # in the configuration of a folder

Item = TypeVar("Item")


class RewardModel:
    """A reward model with its tokenizer; lives with its owner. `tokens` bounds the padded size of a forward. Answers
    are scored in `thread`; None for that of the caller."""

    def __init__(self, model: Any, tokenizer: Any, tokens: int = TOKENS, thread: ComputeThread | None = None) -> None:
        self._thread = thread
        self.model, self.tokenizer, self.tokens = model.eval(), tokenizer, tokens
        self._encoder = AnswerEncoder(tokenizer, context_length(model.config))
        self.pad = model.config.get_text_config().pad_token_id
        self.mean = float(getattr(model.config, MEAN, 0.0))

    @classmethod
    def load(cls, folder: Path) -> RewardModel:
        """Load a trained reward model. Raises EngineError if the folder holds another kind of model."""
        source = locate(folder)
        with wrap_load_errors(source, "reward model"):
            config = AutoConfig.from_pretrained(source)
        if config.num_labels != 1 or not (config.architectures or [""])[0].endswith("ForSequenceClassification"):
            raise EngineError(
                f"The reward model {source!r} is a {', '.join(config.architectures or ['none'])} with "
                f"{config.num_labels} labels; expected a sequence classifier with one "
                "(docs/reward_models.md)."
            )
        thread = ComputeThread(pick_device("auto"))
        return cls(*thread.work(load_classifier, source), thread=thread)

    def score(self, prompts: Sequence[Sequence[Message]], completions: Sequence[str]) -> list[float]:
        """Return the score of each completion as the answer to its prompt, less the model's mean.

        Equal answers to one prompt are scored once: padded with others they would differ by rounding, which is no
        reason to prefer one, and scores about 0 do not show how large the numbers were that were rounded.
        """
        encoded = list(map(self.encode, prompts, completions))
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
        """Return the head's output for B sequences, padded on the right: float32 [B]."""
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


def load_classifier(source: str) -> tuple[Any, Any]:
    """Return model and tokenizer."""
    disable_progress_bar()
    with wrap_load_errors(source, "reward model"):
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForSequenceClassification.from_pretrained(
            source, num_labels=1, dtype=torch.float32, use_safetensors=True
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return model.to(pick_device("auto")), tokenizer
