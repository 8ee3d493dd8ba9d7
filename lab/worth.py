"""The gain from a second agent, in four situations with a difficulty each: `make worth`.

    python -m lab.worth [relay channel verifier jobs] [--seeds 0 1 2] [--runs runs/worth]

Everybody is trained from the same untrained model of some thousand weights with the same number of sampled tokens,
at the learning rate that is best for its side of the situation on tasks that are not reported. Every training is a line
of RUNS/points.jsonl, and those that are there are not done again. Once all of a situation are there it appends
`worth.SITUATION.gain` to results/worth.jsonl, and puts them into results/worth.json, of which docs/worth.md is filled.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import cadre
from bench.common import RESULTS, ROOT, commit, record, validate_commit
from cadre.env import Env
from lab import worth_tasks
from lab.trainings import console

COMMAND = "make worth"
RATES = (1e-3, 3e-3)
# Of the weights before training. With the usual 0.02 tokens are hardly told apart, and no team finds a language.
SPREAD = 0.2
# Tasks of the test split that are reported, and those that rates are chosen on, by a seed of its own.
REPORTED, CHOOSING, CHOOSER = (0, 500), (3000, 500), 100


@dataclass(frozen=True)
class Side:
    """A team: policies by role, the width and the inner width of their model, further settings, the tasks per step, and
    whether its policies are LoRAs on one frozen model."""

    roles: dict[str, str]
    width: tuple[int, int] = (32, 64)
    settings: dict[str, Any] = field(default_factory=dict)
    tasks: int = 16
    lora: dict[str, int] | None = None


TEAM = Side({"first": "one", "second": "two"})
SHARED = Side({"first": "both", "second": "both"})
# The lone agent samples 8 tokens a task where a team samples 8 + 8 * 4.
ALONE = Side({"second": "alone"}, settings={"single_agent": True}, tasks=80)
# Adapters of a rank that is half of the width, for what they adapt is an untrained model.
ADAPTED = replace(TEAM, lora={"rank": 16, "alpha": 16})
SIDES = {"team": TEAM, "lora": ADAPTED, "shared": SHARED, "alone": ALONE}
# Two of 2,992 weights together against one of 5,984.
BUDGET = {
    "team": Side({"first": "one", "second": "two"}, width=(16, 32)),
    "alone": Side({"first": "both", "second": "both"}, width=(20, 64)),
}


@dataclass(frozen=True)
class Situation:
    """A task, its difficulty setting, the difficulty at which rates are chosen, the sides that are compared, and the
    number of steps that each of them trains, all with the same number of tokens."""

    task: type[Env]
    dial: str
    values: tuple[float, ...]
    tuned_at: float
    sides: dict[str, Side]
    k: Any
    steps: int


TURNS = {"first": 8, "second": 4}
# Steps of 640 tokens, or of 256 in `jobs`.
TOKENS = 51_200
SITUATIONS = {
    "relay": Situation(worth_tasks.Relay, "known_fraction", (0.0, 0.8, 1.0), 0.8, SIDES, TURNS, 80),
    "channel": Situation(worth_tasks.Channel, "width", (1, 2, 4), 4, SIDES, TURNS, 80),
    "verifier": Situation(worth_tasks.Verifier, "same", (0.0, 0.5, 1.0), 0.0, SIDES, TURNS, 80),
    "jobs": Situation(worth_tasks.Jobs, "differ_fraction", (0.0, 0.35, 0.7, 1.0), 1.0, BUDGET, 8, 200),
}


@dataclass(frozen=True)
class Point:
    """One training."""

    situation: str
    side: str
    dial: float
    rate: float
    seed: int


def speaker(folder: Path, width: int, inner: int) -> Path:
    """An untrained Llama over ten digits, an end and a pad, unless it is there."""
    folder = folder / f"speaker-{width}-{inner}-{SPREAD}"
    if folder.exists():
        return folder
    core = Tokenizer(models.WordLevel({token: n for n, token in enumerate(["<pad>", "<end>", *"0123456789"])}, "<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("[0-9]"), "removed", invert=True)
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
    torch.manual_seed(0)
    shape = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None, "initializer_range": SPREAD}
    LlamaForCausalLM(LlamaConfig(vocab_size=12, max_position_embeddings=16, **ends, **shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def experiment(point: Point, runs: Path) -> dict[str, Any]:
    """The configuration of a training."""
    situation = SITUATIONS[point.situation]
    side = situation.sides[point.side]
    first, count = CHOOSING if point.seed == CHOOSER else REPORTED
    model = str(speaker(runs / "models", *side.width))
    k = {role: situation.k[role] for role in side.roles} if isinstance(situation.k, dict) else situation.k
    k = 8 if side is ALONE else k
    policy = model if side.lora is None else {"model": model, "lora": side.lora}
    return {
        "env": f"{worth_tasks.__file__}:{situation.task.__name__}",
        "settings": {situation.dial: point.dial, **side.settings},
        "team": {"policies": dict.fromkeys(side.roles.values(), policy), "roles": side.roles},
        "algorithm": {"name": "magrpo", "k": k},
        "loss": {"entropy": 0.04, "schedule": "linear"},
        "sampling": {"max_tokens": 1},
        "learner": {"learning_rate": point.rate},
        "train": {
            "steps": situation.steps,
            "tasks_per_step": side.tasks,
            "seed": point.seed,
            "trees_kept": 0,
            "checkpoint_minutes": 0.0,
        },
        "evaluate": {"tasks": count, "first": first},
    }


class Points:
    """The measurements, stored in a file between calls."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.file = runs, runs / "points.jsonl"
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.done = {Point(**line["point"]): line for line in map(json.loads, lines)}

    def success(self, point: Point) -> float:
        """Return the success of a training on its held-out tasks; train now unless it is stored."""
        if point not in self.done:
            folder = self.runs / "now"
            shutil.rmtree(folder, ignore_errors=True)
            measured = commit()
            validate_commit(measured)
            trained = cadre.train(experiment(point, self.runs), run=folder, quiet=True)
            line = {"point": asdict(point), "success": trained.evaluations()[-1]["success"], "commit": measured}
            spent = sum(step["rollout/tokens"] for step in trained.metrics())
            trained.close()
            if spent != TOKENS:
                raise SystemExit(f"{point}: {spent} tokens were sampled; all sides have {TOKENS}")
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as out:
                out.write(json.dumps(line) + "\n")
            self.done[point] = line
            console.print(f"{point.situation} {point.side} {point.dial} {point.rate} {point.seed}: {line['success']}")
        return float(self.done[point]["success"])

    def best_rate(self, name: str, side: str) -> float:
        """The rate that does best where rates are chosen, on tasks that are not reported."""
        dial = SITUATIONS[name].tuned_at
        return max(RATES, key=lambda rate: self.success(Point(name, side, dial, rate, CHOOSER)))


def measured(points: Points, name: str, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the success of every side at every difficulty, a line each."""
    situation = SITUATIONS[name]
    for side in situation.sides:
        rate = points.best_rate(name, side)
        for dial in situation.values:
            values = [points.success(Point(name, side, dial, rate, seed)) for seed in seeds]
            yield {"situation": name, "side": side, "dial": dial, "rate": rate, "success": values}


def gains(lines: Sequence[dict[str, Any]], side: str) -> dict[float, list[float]]:
    """Return the gain of a side over the single agent of each seed, by difficulty."""
    of = {(line["side"], line["dial"]): line["success"] for line in lines}
    return {
        dial: [team - single for team, single in zip(of[side, dial], of["alone", dial], strict=True)]
        for kind, dial in of
        if kind == side
    }


def report(name: str, lines: Sequence[dict[str, Any]], points: Points, seeds: Sequence[int]) -> None:
    """Record the gain at the difficulty that favours the team most."""
    best = max(gains(lines, "team").values(), key=median)
    commits = ", ".join(sorted({line["commit"] for point, line in points.done.items() if point.situation == name}))
    record("worth", f"worth.{name}.gain", best, "share", COMMAND, REPORTED[1], seeds, commits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("situations", nargs="*", help=f"of {', '.join(SITUATIONS)}; all unless named")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "worth")
    chosen = parser.parse_args()
    points, file = Points(chosen.runs.absolute()), RESULTS / "worth.json"
    for name in chosen.situations or SITUATIONS:
        measurements = list(measured(points, name, chosen.seeds))
        report(name, measurements, points, chosen.seeds)
        lines = [line for line in json.loads(file.read_text()) if line["situation"] != name] if file.exists() else []
        file.write_text(json.dumps([*lines, *measurements], indent=0) + "\n")


if __name__ == "__main__":
    main()
