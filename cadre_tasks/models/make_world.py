"""Makes a tiny model that has read one of the worlds: `python -m cadre_tasks.models.make_world OUT --world sql`.

A Llama of about a million parameters with a tokenizer of its own, pre-trained on the compact prompts of training tasks
with answers of mixed quality: now and then the right one, mostly one that lacks its end, or has a word in another's
place. Who decides mostly repeats a draft, whatever came of it. What it lacks is to go on to the end; no reinforcement
learning goes into it. Equal seeds give equal weights on one machine.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerFast

from cadre import random_keys
from cadre.concurrency import run_coroutine
from cadre.env import Env, Split
from cadre_tasks.models.make_seed import VOCABULARY, Row, by_length, byte_level, encode, make_model, pretrain
from cadre_tasks.models.transcripts import Transcript
from cadre_tasks.worlds.plan import Plan, PlanAlone
from cadre_tasks.worlds.sql import Sql, SqlAlone

PIECES = r" ?\w+|\s|[^\w\s]+"
TRAIN: Split = "train"
# How often an answer is right, lacks one or two of its last parts, or has a word exchanged.
KINDS = {"right": 20, "unfinished": 70, "exchanged": 10}
VERSIONS = 3  # of the answers to a task
REPEATS = 0.6  # how often who decides repeats the draft


@dataclass(frozen=True)
class World:
    """A world to read: its team and its single form, their settings, the right answer, and where answers may end."""

    team: type[Env]
    alone: type[Env]
    settings: dict[str, Any]
    right: Callable[[Any], str]
    clause: str


def _reference(env: Sql) -> str:
    return str(env.task.data["reference"])


def _plan(env: Plan) -> str:
    return "\n".join(env.world.shortest() or ())


WORLDS = {
    "sql": World(Sql, SqlAlone, {"joins": 0}, _reference, r" (?=JOIN|WHERE|GROUP|HAVING)"),
    "pddl": World(Plan, PlanAlone, {"size": 4}, _plan, r"\n"),
}


def mixed(right: str, prompt: str, world: World, generator: random.Random) -> str:
    """An answer of mixed quality."""
    (kind,) = generator.choices(list(KINDS), list(KINDS.values()))
    if kind == "unfinished":
        ends = [found.start() for found in re.finditer(world.clause, right)]
        return right[: generator.choice(ends[-2:])] if ends else right
    if kind == "exchanged":
        place = generator.choice(list(re.finditer(r"\w+", right)))
        others = [word for word in re.findall(r"\w+", f"{prompt} {right}") if word != place[0]]
        return right[: place.start()] + generator.choice(others) + right[place.end() :]
    return right


def transcripts(world: World, count: int, generator: random.Random) -> list[Transcript]:
    """What is asked and answered of so many training tasks: a draft, the decision after it, and one without a draft."""
    tasks = world.team.tasks(TRAIN, **world.settings)
    asked = [tasks[index] for index in range(count)]
    return [talk for task in asked * VERSIONS for talk in _talks(world, task, generator)]


def _talks(world: World, task: Any, generator: random.Random) -> Iterator[Transcript]:
    made = dict(world.settings, prompts="compact")
    alone, team = world.alone(task, **made), world.team(task, **made)
    right = world.right(alone)
    for env in (alone, team):
        draft = ""
        while asked := env.observe():
            ((role, seen),) = asked.items()
            prompt = seen.messages[-1].content
            said = draft if draft and generator.random() < REPEATS else mixed(right, prompt, world, generator)
            yield [("user", prompt), ("assistant", said)]
            if draft or env is alone:
                break
            draft = said
            run_coroutine(env.step({role: said}))


def make_tokenizer(talks: list[Transcript]) -> PreTrainedTokenizerFast:
    """Byte-level BPE in which a frequent word is one token."""
    return byte_level(PIECES, (text for talk in talks for _, text in talk), VOCABULARY)


def batches(rows: list[Row], size: int, generator: random.Random) -> Iterator[dict[str, Any]]:
    """Endless right-padded batches, transcripts of like length together."""
    while True:
        yield from by_length(generator.sample(rows, min(len(rows), size * 16)), size, generator)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a tiny model that has read a world.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--world", choices=list(WORLDS), required=True)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2e-3)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    generator = random_keys.generator("world", chosen.world)
    talks = transcripts(WORLDS[chosen.world], chosen.tasks, generator)
    tokenizer = make_tokenizer(talks)
    model = make_model(tokenizer)
    Console().print(f"{model.num_parameters() / 1e6:.2f} million parameters, {len(talks):,} transcripts")
    rows = [encode(talk, tokenizer) for talk in talks]
    pretrain(model, batches(rows, chosen.batch, generator), chosen.steps, chosen.rate)
    for part in (model, tokenizer):
        part.save_pretrained(chosen.out)


if __name__ == "__main__":
    main()
