"""What is checked of a model's folder when it is loaded: that its tokens, its weights and torch itself fit together.

Each of these goes wrong later without it: in the middle of a run, or not in any way that shows.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from cadre.engines.chat_template import Template
from cadre.errors import EngineError
from cadre.types import Message


def check_torch_defaults() -> None:
    """Raise EngineError where somebody has changed what torch makes tensors of."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    if dtype != torch.float32 or device.type != "cpu":
        changed = f"set_default_dtype({dtype})" if dtype != torch.float32 else f"set_default_device({str(device)!r})"
        raise EngineError(
            f"torch makes tensors of {dtype} on {device} unless told otherwise, as something in this process, such as "
            f"the environment's file, has called torch.{changed}; expected torch.float32 on cpu, as log-probabilities "
            "would differ with it. Remove the call, and name dtype and device where tensors are made."
        )


def check_padding(source: str, config: Any) -> None:
    """Raise EngineError where the padding token has no embedding. None is needed: padding is never attended to."""
    text = config.get_text_config()
    padding, rows = getattr(text, "pad_token_id", None), getattr(text, "vocab_size", None)
    if isinstance(padding, int) and isinstance(rows, int) and padding >= rows:
        raise EngineError(
            f"config.json of {source!r} says pad_token_id: {padding}, and vocab_size is {rows}; expected an id below "
            "that, or none, which is enough here. Remove pad_token_id, or set it to a token of the model."
        )


def check_weights(source: str, model: Any, unexpected: Iterable[str]) -> None:
    """Raise EngineError where the file has weights that the configuration leaves out; warn of those of other parts."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or getattr(head, "weight", None) is None or getattr(embedding, "weight", None) is None:
        raise EngineError(
            f"The model {source!r}, of type {model.config.model_type!r}, shows no embeddings or no vocabulary "
            "projection (get_input_embeddings, get_output_embeddings); expected a causal language model with both. "
            "Choose another model."
        )
    tied = bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
    if tied and head.weight.shape == embedding.weight.shape and head.weight is not embedding.weight:
        raise EngineError(
            f"config.json of {source!r} says tie_word_embeddings: true, but the weights have a vocabulary projection "
            "that differs from the embeddings; expected one tensor for both. Set tie_word_embeddings to false in "
            "config.json if the projection belongs to the model, or remove it from the weights."
        )
    if head.weight.shape[0] > embedding.weight.shape[0]:
        raise EngineError(
            f"The model {source!r} gives logits for {head.weight.shape[0]} tokens and has embeddings for "
            f"{embedding.weight.shape[0]}: it could sample tokens that it cannot read. Expected no more logits than "
            "embeddings. Choose another model, or mend its weights."
        )
    unused = sorted(unexpected)
    used = {_numberless(name) for name in model.state_dict()}
    if cut := [name for name in unused if _numberless(name) in used]:
        raise EngineError(
            f"config.json of {source!r} describes a smaller model than its weights: {len(cut)} weights would be left "
            f"out ({cut[0]}). Expected weights and configuration of one model. Fix num_hidden_layers and its like in "
            "config.json, or download the model again."
        )
    if unused:
        warnings.warn(
            f"The model {source!r} is run without {len(unused)} weights of its file that its type has no use for "
            f"({unused[0]}). Expect another model than its file holds if they are more than a head of another task.",
            stacklevel=2,
        )


def check_tokens(
    source: str, model: Any, tokenizer: Any, templates: Mapping[Any, Template], stops: tuple[int, ...]
) -> None:
    """Raise EngineError where a conversation is written in tokens that the model has no embedding for; warn of other
    tokens of that kind, and of ends of turn that it can never sample."""
    rows: int = model.get_input_embeddings().weight.shape[0]
    vocabulary = tokenizer.get_vocab()
    beyond = {index: token for token, index in vocabulary.items() if index >= rows}
    written = {tokenizer.bos_token_id} - {None}
    for template in templates.values() if beyond else ():
        first = (Message("user", "x"),)
        # A template for single turns may refuse an earlier one, and a tokenizer without an unknown token raises a plain
        # Exception for words that it lacks: such a conversation is not one that the model can have.
        for conversation in (first, (*first, Message("assistant", "y"), *first)):
            with contextlib.suppress(Exception):
                written |= set(template.prompt_ids(conversation, None, stops))
    if needed := sorted(index for index in written if index >= rows):
        raise EngineError(
            f"The tokenizer of {source!r} does not fit its model: {beyond.get(needed[0])!r} has id "
            f"{needed[0]}, and the embeddings have {rows} rows. Expected ids below "
            "that for all that a conversation is written in. Take the model's own "
            "tokenizer, or add the tokens to the model with resize_token_embeddings, train them, and save both."
        )
    if never := sorted(stop for stop in stops if stop >= rows):
        warnings.warn(
            f"No answer of {source!r} can end with the end of turn of id {never[0]}, as the embeddings have {rows} "
            "rows. Expect answers that go on to sampling.max_tokens, or name another token in generation_config.json.",
            stacklevel=2,
        )
    if beyond:
        warnings.warn(
            f"The tokenizer of {source!r} has {len(beyond)} tokens that the model has no embedding for, of {rows}, "
            f"such as {next(iter(beyond.values()))!r}. Conversations that hold one are refused.",
            stacklevel=2,
        )


def _numberless(name: str) -> str:
    return re.sub(r"\.\d+\.", ".#.", name)
