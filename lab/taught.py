"""Tiny models that are taught prompts and answers, and their trainings by reward: what the programs of pages share."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

import cadre
from bench.common import record
from cadre_tasks.models.make_seed import Row, batches_of, byte_level, encode, pretrain, tiny_llama

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
    easier_steps: int = 0,
    spread: float = 0.02,
    rate: float = 3e-3,
) -> None:
    """Write a Llama of a quarter of a million parameters, with a tokenizer of its own, pre-trained on lines with a
    `prompt` and an `answer`, and in a conversation with the messages `before`. Equal lines give equal weights on one
    machine.

    vocabulary  most tokens of the tokenizer
    easier      lines that it is trained on before, for as many steps, or for `easier_steps`
    spread      standard deviation of the initial weights. With 0.02 attention is nearly uniform at first, and a look-up
                of one word by another was not learned in 2,000 steps; with 0.08 it was (docs/LOG.md)
    rate        learning rate, reached after a warm-up
    """
    torch.manual_seed(0)
    texts = (line[part] for line in [*lines, *easier] for part in ("prompt", "answer"))
    tokenizer = byte_level(PIECES, texts, vocabulary)
    model = tiny_llama(tokenizer, len(tokenizer), hidden=64, mlp=176, layers=4, context=512, spread=spread)
    for stage, stage_steps in ((easier, easier_steps or steps), (lines, steps)):
        if not stage:
            continue
        print(f"{model.num_parameters():,} parameters, {len(stage):,} prompts with answers", flush=True)
        rows = [example(line, tokenizer) for line in stage]
        pretrain(model, batches_of(rows, 32, random.Random(0)), stage_steps, rate)
    for part in (model, tokenizer):
        part.save_pretrained(folder)


def train_once(experiment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Train in a folder that is removed afterwards, without output, and return the evaluations, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        run = cadre.train(experiment, run=Path(folder) / "run", quiet=True)
        evaluations = run.evaluations()
        run.close()
    return evaluations


def training_parser(description: str | None, parts: Sequence[str], folder: str) -> argparse.ArgumentParser:
    """Return a command line with the part to run, the folder of models, --seeds and --write."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=parts)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(folder), help="of the models")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--write", action="store_true", help="append to results/")
    return parser


def train_success(experiment: Mapping[str, Any], seed: int, title: str = "") -> list[float]:
    """Return the success of every evaluation of a training with this seed, the first before it."""
    seeded = {**experiment, "train": {**experiment["train"], "seed": seed}}
    successes = [report["success"] for report in train_once(seeded)]
    print(f"{title} seed {seed}: {', '.join(f'{success:.1%}' for success in successes)}".lstrip(), flush=True)
    return successes


def record_success(
    file: str, base: str, name: str, curves: Sequence[Sequence[float]], n: int, seeds: list[int]
) -> None:
    """Append the first and the last success of the seeds, `BASE.success` and `NAME.success`, to results/FILE.jsonl."""
    program = Path(sys.argv[0]).stem
    command = " ".join([f"python -m lab.{program}", *sys.argv[1:]])
    for line, values in ((base, [curve[0] for curve in curves]), (name, [curve[-1] for curve in curves])):
        record(file, f"{line}.success", values, "share", command, n, seeds)
