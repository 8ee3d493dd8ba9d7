"""Makes a tiny model that has read SQL: `python -m cadre_tasks.models.make_sql OUT`.

A Llama of about a million parameters with a tokenizer of its own, pre-trained on the compact prompts of training tasks
without joins. Answers are of mixed quality: now and then the right one, mostly one that lacks its end, or has a word in
another's place. Who decides mostly repeats a draft, whatever came of it. What it lacks is to go on to the end; no
reinforcement learning goes into it. Equal seeds give equal weights on one machine.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerFast

from cadre import random_keys
from cadre.concurrency import run_coroutine
from cadre.env import Split
from cadre.types import Task
from cadre_tasks.models.make_seed import (
    VOCABULARY,
    Row,
    by_length,
    byte_level,
    encode,
    make_model,
    make_parser,
    pretrain,
)
from cadre_tasks.models.transcripts import Transcript
from cadre_tasks.worlds.sql import Sql, SqlOneTurn

PIECES = r" ?\w+|\s|[^\w\s]+"
TRAIN: Split = "train"
SETTINGS: dict[str, Any] = {"joins": 0}
CLAUSE = r" (?=JOIN|WHERE|GROUP|HAVING)"  # where an unfinished answer ends
# How often an answer is right, lacks one or two of its last parts, or has a word exchanged.
KINDS = {"right": 20, "unfinished": 70, "exchanged": 10}
VERSIONS = 3  # of the answers to a task
REPEATS = 0.6  # how often who decides repeats the draft


def mixed(right: str, prompt: str, generator: random.Random) -> str:
    """Return an answer of mixed quality."""
    (kind,) = generator.choices(list(KINDS), list(KINDS.values()))
    if kind == "unfinished":
        ends = [match.start() for match in re.finditer(CLAUSE, right)]
        # Cut off the last clause or the last two.
        return right[: generator.choice(ends[-2:])] if ends else right
    if kind == "exchanged":
        word_match = generator.choice(list(re.finditer(r"\w+", right)))
        # Words of the prompt and of the answer, so that the wrong word is a plausible one.
        other_words = [word for word in re.findall(r"\w+", f"{prompt} {right}") if word != word_match[0]]
        return right[: word_match.start()] + generator.choice(other_words) + right[word_match.end() :]
    return right


def transcripts(count: int, generator: random.Random) -> list[Transcript]:
    """Return prompts and answers of so many training tasks: a draft, the decision after it, and one without a draft."""
    tasks = Sql.tasks(TRAIN, **SETTINGS)
    chosen_tasks = [tasks[index] for index in range(count)]
    return [talk for task in chosen_tasks * VERSIONS for talk in _talks(task, generator)]


def _talks(task: Task, generator: random.Random) -> Iterator[Transcript]:
    settings = dict(SETTINGS, prompts="compact")
    single_env, team_env = SqlOneTurn(task, **settings), Sql(task, **settings)
    right = str(task.data["reference"])
    for env in (single_env, team_env):
        draft = ""
        while prompts := env.observe():
            ((role, observation),) = prompts.items()
            prompt = observation.messages[-1].content
            answer = draft if draft and generator.random() < REPEATS else mixed(right, prompt, generator)
            yield [("user", prompt), ("assistant", answer)]
            # The team's second answer is the decision; the single agent gives only one.
            if draft or env is single_env:
                break
            draft = answer
            run_coroutine(env.step({role: answer}))


def make_tokenizer(talks: list[Transcript]) -> PreTrainedTokenizerFast:
    """Return byte-level BPE in which a frequent word is one token."""
    return byte_level(PIECES, (text for talk in talks for _, text in talk), VOCABULARY)


def batches(rows: list[Row], size: int, generator: random.Random) -> Iterator[dict[str, Any]]:
    """Yield endless right-padded batches, transcripts of similar length together."""
    while True:
        yield from by_length(generator.sample(rows, min(len(rows), size * 16)), size, generator)


def main() -> None:
    parser = make_parser("Make a tiny model that has read SQL.", 600, 64, 2e-3)
    parser.add_argument("--tasks", type=int, default=1000)
    options = parser.parse_args()
    torch.manual_seed(0)
    generator = random_keys.generator("world", "sql")
    talks = transcripts(options.tasks, generator)
    tokenizer = make_tokenizer(talks)
    model = make_model(tokenizer)
    Console().print(f"{model.num_parameters() / 1e6:.2f} million parameters, {len(talks):,} transcripts")
    rows = [encode(talk, tokenizer) for talk in talks]
    pretrain(model, batches(rows, options.batch, generator), options.steps, options.rate)
    for part in (model, tokenizer):
        part.save_pretrained(options.out)


if __name__ == "__main__":
    main()
