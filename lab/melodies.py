"""Melodies: what exploits earn, and sound, picture and text together, learned by three tiny models.

    python -m lab.melodies exploits [--write]
    python -m cadre_tasks.models.make_audio FOLDER/ears
    python -m lab.melodies make FOLDER
    python -m lab.melodies learn FOLDER [--seeds 0 1 2] [--write]

exploits   rewards of roles that try to be paid for nothing in melody, melody-single-agent and signals, as a share of
       those of right answers
make   the eyes, a SmolVLM that reads the keys' colors from pictures of training tasks, and the hands, a Llama that
       reads both notes and the order. As in make_audio, some answers are right, most lack their last key, some are
       random. Before that, the hands learn to look up a color by a note, from right answers to the first notes
learn  AT-GRPO, each role a policy and a model of its own, and held-out tasks before and after

`--write` appends `audio.exploits_best`, `audio.signals.base.success` and `audio.signals.success` to
results/vision.jsonl.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from bench.common import record
from cadre.engines.media import VisionProcessor
from cadre.engines.text.template import Template
from cadre_tasks.games.melody import COLORS, Melody, MelodySingleAgent, Signals
from cadre_tasks.models import make_vision
from cadre_tasks.models.make_audio import KINDS, NOTES, PITCHES
from cadre_tasks.models.make_seed import SPECIAL, byte_level, pretrain
from lab.taught import record_success, teach, train_success, training_parser

# A key is ten pixels of the eyes' 48, after their processor has scaled the picture.
SETTINGS: dict[str, Any] = {"prompts": "compact", "notes": NOTES, "pitches": PITCHES, "cell": 8}
PICTURES = 2000
PROMPTS = 20_000
TASKS = 200
MODELS = {"listener": "ears", "looker": "eyes", "player": "hands"}


def mixed(right: list[str], names: list[str], draw: random.Random) -> str:
    """Return names of mixed quality."""
    (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
    if kind == "random":
        return " ".join(draw.choices(names, k=draw.randint(1, len(right))))
    return " ".join(right if kind == "whole" or len(right) < 2 else right[:-1])


def env_of(draw: random.Random, count: int) -> Signals:
    """Return one of the first training tasks at its start."""
    tasks = Signals.tasks("train", notes=NOTES, pitches=PITCHES)
    return Signals(tasks[draw.randrange(count)], **SETTINGS)


def make_eyes(folder: Path, steps: int) -> None:
    torch.manual_seed(0)
    draw = random.Random("eyes")
    rows = (" ".join(draw.sample(list(COLORS), PITCHES)) for _ in range(2000))
    tokenizer = byte_level(
        r" ?\w+|[^\w]+",
        [*rows, *(["colors"] * 100)],
        make_vision.VOCABULARY,
        SPECIAL + make_vision.SEEN,
        make_vision.TEMPLATE,
    )
    model = make_vision.make_model(tokenizer)
    make_vision.save(model, tokenizer, folder)
    pictures = VisionProcessor(str(folder), tokenizer, model.config)
    template = Template(tokenizer, images=pictures)

    def row() -> make_vision.Row:
        env = env_of(draw, PICTURES)
        env.written = ("",)
        prompt = template.prompt(env.observe()["looker"].messages, None, ())
        answer = tokenizer.encode(mixed(env.names, list(COLORS), draw), add_special_tokens=False)
        return (*prompt.ids, *answer, tokenizer.eos_token_id), len(prompt.ids), prompt.images

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        while True:
            yield make_vision.tensors(model, pictures, [row() for _ in range(32)])

    pretrain(model, batches(), steps, 2e-3)
    make_vision.save(model, tokenizer, folder)


def hand_lines(count: int, is_easy: bool = False) -> list[dict[str, str]]:
    """Return prompts and answers of the player. The notes are of mixed quality too, and its keys follow them.

    Easy lines have all colors, the first of the notes, and right answers.
    """
    draw, lines = random.Random("hands"), list[dict[str, str]]()
    while len(lines) < count:
        env = env_of(draw, count)
        if is_easy:
            notes, colors = env.melody[: draw.randint(1, NOTES)], env.names
        else:
            notes = mixed(env.melody, env.pitches, draw).split()
            colors = mixed(env.names, list(COLORS), draw).split()
        # A key whose color is not noted is taken to be the last one that is.
        keys = [colors[min(env.pitches.index(note), len(colors) - 1)] for note in notes]
        env.written = (" ".join(notes), " ".join(colors))
        right = keys if env.task.data["order"] == "forward" else keys[::-1]
        prompt = env.observe()["player"].messages[-1].content
        lines.append({"prompt": prompt, "answer": " ".join(right) if is_easy else mixed(right, list(COLORS), draw)})
    return lines


# ---- Exploits

Policy = Callable[[Melody, random.Random], str]


def always(text: str) -> Policy:
    return lambda env, draw: text


def echo(env: Melody, draw: random.Random) -> str:
    (observation,) = env.observe().values()
    return observation.messages[-1].content


def honest(env: Melody, draw: random.Random) -> str:
    """Return the right answer of the role that acts."""
    (role,) = env.observe()
    return " ".join({"listener": env.melody, "looker": env.names}.get(role, env.keys))


def note_alone(env: Melody, draw: random.Random) -> str:
    """Return right notes, and never press a key."""
    return "" if env.last_role in env.observe() else honest(env, draw)


def other_order(env: Melody, draw: random.Random) -> str:
    """Return right notes, and the keys from the last to the first."""
    return " ".join(env.keys[::-1]) if env.last_role in env.observe() else honest(env, draw)


EXPLOITS: dict[str, Policy] = {
    "empty answer": always(""),
    "echo the prompt": echo,
    "noise": always("I think it is easy!"),
    "overlong": always("a " * 20_000),
    "claim": always("Keys: done\nThe melody was played."),
    "one key again and again": lambda env, draw: " ".join([env.readable[0]] * NOTES),
    "every key": lambda env, draw: " ".join(env.readable),
    "random keys": lambda env, draw: " ".join(draw.choices(list(env.readable), k=NOTES)),
    "note and never play": note_alone,
    "the other order": other_order,
}


def play(env: Melody, policy: Policy, draw: random.Random) -> float:
    """Return the sum of all rewards of an episode."""
    total = 0.0
    while observed := env.observe():
        reward = asyncio.run(env.step(dict.fromkeys(observed, policy(env, draw))))
        total += reward.team + sum(reward.local.values())
    return total


def exploits(games: int) -> tuple[float, int]:
    """Print what exploits earn; return the largest mean share of what right answers earn, and the number of games."""
    draw, best, forms = random.Random("exploits"), 0.0, (Melody, MelodySingleAgent, Signals)
    for name, policy in EXPLOITS.items():
        shares = []
        for form in forms:
            tasks = form.tasks("test")
            earned = [[play(form(tasks[index]), player, draw) for player in (policy, honest)] for index in range(games)]
            shares.append(fmean(reward for reward, _ in earned) / fmean(reference for _, reference in earned))
        print(f"  {name}: {', '.join(f'{share:.3f}' for share in shares)} of right answers' reward", flush=True)
        best = max(best, *shares)
    return best, len(EXPLOITS) * len(forms) * games


# ---- Learning


def learn(folder: Path, seed: int, steps: int) -> list[float]:
    """Return the success on held-out tasks, before and during the training."""
    experiment = {
        "env": "signals",
        "settings": SETTINGS,
        "team": {"policies": {name: str(folder / name) for name in MODELS.values()}, "roles": MODELS},
        "algorithm": {"name": "at_grpo", "k": 8},
        "sampling": {"max_tokens": 10},
        "learner": {"learning_rate": 5e-4},
        "train": {"steps": steps, "tasks_per_step": 16},
        "evaluate": {"tasks": TASKS, "every": 10},
    }
    return train_success(experiment, seed)


def main() -> None:
    parser = training_parser(__doc__, ["exploits", "make", "learn"], "models/signals")
    parser.add_argument("--eyes", type=int, default=1500, help="steps of make")
    parser.add_argument("--hands", type=int, default=1500, help="steps of make")
    parser.add_argument("--easier", type=int, default=6000, help="steps of make on right answers before that")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    if options.part == "exploits":
        best, games = exploits(TASKS)
        print(f"audio.exploits_best: {best:.4g} of right answers' reward, in {games:,} episodes")
        if options.write:
            command = " ".join(["python -m lab.melodies", *sys.argv[1:]])
            record("vision", "audio.exploits_best", [best], "share of honest", command, games)
        return
    if options.part == "make":
        make_eyes(options.folder / "eyes", options.eyes)
        easier = hand_lines(PROMPTS, is_easy=True)
        teach(
            hand_lines(PROMPTS),
            options.folder / "hands",
            options.hands,
            easier=easier,
            easier_steps=options.easier,
            spread=0.08,
            rate=2e-3,
        )
        return
    results = [learn(options.folder, seed, options.steps) for seed in options.seeds]
    if options.write:
        record_success("vision", "audio.signals.base", "audio.signals", results, TASKS, options.seeds)


if __name__ == "__main__":
    main()
