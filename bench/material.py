"""Inputs of every side of the speed benchmark: the same weights, a tokenizer that never stops, the same prompts.

The token that ends a turn has an id beyond the model's vocabulary, so no side can draw it: all completions have exactly
the length asked for, without a processor that forbids a token on some sides only.
"""

from __future__ import annotations

import os
import random
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

# Else every folder brings a warning that its end token is out of reach, which is what it is for.
set_verbosity_error()
disable_progress_bar()

NEVER = "<|never|>"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
WORDS = 2048


def small_model(folder: Path) -> Path:
    """A Llama of 3 million parameters with random weights, and a tokenizer of one token a word; always the same."""
    core = Tokenizer(models.WordLevel({"<|pad|>": 0} | {f"w{number}": number for number in range(1, WORDS)}))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<|pad|>", eos_token=NEVER)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    endless(folder, config, tokenizer, pad=0)
    return folder


def endless_copy(source: Path, folder: Path) -> Path:
    """The model of a folder, its weights linked and its tokenizer changed so that it never stops."""
    folder.mkdir(parents=True, exist_ok=True)
    for weights in [*source.glob("*.safetensors"), *source.glob("*.safetensors.index.json")]:
        link = folder / weights.name
        if not link.exists():
            os.symlink(weights.resolve(), link)
    config, tokenizer = AutoConfig.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    fillers = config.vocab_size - len(tokenizer)
    tokenizer.add_tokens([f"<|filler{number}|>" for number in range(fillers)], special_tokens=True)
    tokenizer.add_special_tokens({"eos_token": NEVER})
    pad = tokenizer.pad_token_id
    endless(folder, config, tokenizer, tokenizer.bos_token_id if pad is None else pad)
    return folder


def endless(folder: Path, config: Any, tokenizer: Any, pad: int) -> None:
    """Save a tokenizer and configurations whose end is out of the model's reach. Raises ValueError where it is not."""
    end = tokenizer.eos_token_id
    if end < config.vocab_size:
        raise ValueError(f"The end token must lie beyond the model's {config.vocab_size} ids, but it has id {end}.")
    tokenizer.chat_template = TEMPLATE
    config.eos_token_id, config.pad_token_id = end, pad
    config.save_pretrained(folder)
    GenerationConfig(eos_token_id=end, pad_token_id=pad).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prompts(folder: Path, count: int, length: int) -> list[str]:
    """`count` texts of random words, each of exactly `length` tokens of the folder's tokenizer; always the same."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    draw, words = random.Random(f"{count} {length}"), single_tokens(tokenizer)
    texts = [" " + " ".join(draw.choices(words, k=length)) for _ in range(count)]
    for text, ids in zip(texts, tokenizer(texts, add_special_tokens=False).input_ids, strict=True):
        if len(ids) != length or len(tokenizer(text).input_ids) != length:
            raise ValueError(
                f"A prompt of {length} words has {len(ids)} tokens; expected one token a word and no other."
            )
    return texts


def single_tokens(tokenizer: Any, limit: int = 1000) -> list[str]:
    """The first words of the vocabulary that are one token each after a space."""
    special = set(tokenizer.all_special_ids)
    candidates = (tokenizer.decode([index]).strip() for index in range(len(tokenizer)) if index not in special)
    plain = (word for word in candidates if word.isascii() and word.isalnum())
    single = (word for word in plain if len(tokenizer(f" {word}", add_special_tokens=False).input_ids) == 1)
    return list(dict.fromkeys(islice(single, limit)))
