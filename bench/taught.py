"""Tiny models that are taught prompts and answers before they are trained by reward."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from cadre_tasks.models.make_seed import encode, make_model, pretrain
from cadre_tasks.models.make_world import batches, make_tokenizer
from cadre_tasks.models.transcripts import Transcript


def teach(lines: Sequence[Mapping[str, str]], folder: Path, steps: int) -> None:
    """Write a Llama of a million parameters, with a tokenizer of its own, pre-trained on lines with a `prompt` and an
    `answer`. Equal lines give equal weights on one machine."""
    torch.manual_seed(0)
    talks: list[Transcript] = [[("user", line["prompt"]), ("assistant", line["answer"])] for line in lines]
    print(f"{len(talks):,} prompts with answers", flush=True)
    tokenizer = make_tokenizer(talks)
    model = make_model(tokenizer)
    rows = [encode(talk, tokenizer) for talk in talks]
    pretrain(model, batches(rows, 64, random.Random(0)), steps, 2e-3)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
