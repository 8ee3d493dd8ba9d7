"""Tiny models that are taught prompts and answers before they are trained by reward."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

import cadre
from cadre_tasks.models.make_seed import Row, byte_level, encode, pretrain, tiny_llama
from cadre_tasks.models.make_world import batches

# A number of one or two digits is a token with the space before it.
PIECES = r" ?\w+|\s|[^\w\s]+"


def example(line: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast) -> Row:
    """Return token ids and labels of a line; only its answer has labels, not what an agent said before."""
    ids, _ = encode(line.get("before", []), tokenizer)
    more, labels = encode([("user", line["prompt"]), ("assistant", line["answer"])], tokenizer)
    return ids + more, [-100] * len(ids) + labels


def teach(
    lines: Sequence[Mapping[str, Any]],
    folder: Path,
    steps: int,
    vocabulary: int = 400,
    easier: Sequence[Mapping[str, Any]] = (),
    spread: float = 0.02,
) -> None:
    """Write a Llama of a quarter of a million parameters, with a tokenizer of its own, pre-trained on lines with a
    `prompt` and an `answer`, and in a conversation with the messages `before`. Equal lines give equal weights on one
    machine.

    vocabulary  most tokens of the tokenizer
    easier      lines that it is trained on before, for as many steps
    spread      standard deviation of the initial weights. With 0.02 attention is nearly uniform at first, and a look-up
                of one word by another was not learned in 2,000 steps; with 0.08 it was (docs/LOG.md)
    """
    torch.manual_seed(0)
    texts = (line[part] for line in [*lines, *easier] for part in ("prompt", "answer"))
    tokenizer = byte_level(PIECES, texts, vocabulary)
    model = tiny_llama(tokenizer, len(tokenizer), hidden=64, mlp=176, layers=4, context=512, spread=spread)
    for stage in filter(None, (easier, lines)):
        print(f"{model.num_parameters():,} parameters, {len(stage):,} prompts with answers", flush=True)
        rows = [example(line, tokenizer) for line in stage]
        pretrain(model, batches(rows, 32, random.Random(0)), steps, 3e-3)
    for part in (model, tokenizer):
        part.save_pretrained(folder)


def train_once(experiment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Train in a folder that is removed afterwards, without output, and return the evaluations, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        run = cadre.train(experiment, run=Path(folder) / "run", quiet=True)
        evaluations = run.evaluations()
        run.close()
    return evaluations
