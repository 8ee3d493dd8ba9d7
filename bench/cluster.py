"""Ray against one process: two learners and two samplers on two cores, undisturbed and with actors killed at random.

    python bench/cluster.py [--kills 10] [--steps 8] [--write]

A model a role on Plan-Path. One process is the reference; then the same run as actors, and as actors of which one,
drawn at random, is killed (SIGKILL) at a random moment, `--kills` times. Appends `ray.vs_single.max_diff` (the
largest difference of any weight) and `ray.kills_survived` (kills after which the weights were the same) to
results/ray.jsonl.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file

from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.rollout.episodes import SampledTrees
from cadre.runs.folder import Run
from cadre.training import loop
from cadre.training.checkpoint import latest_checkpoint
from cadre.training.loop import Training, run_training, sample_step
from cadre_ray import ray_actors
from cadre_ray.ray_actors import SupervisedActor
from cadre_ray.remote import RemoteLearner, SamplerPool
from common import record

SMALL = ("train.tasks_per_step=4", "evaluate.tasks=8", "learner.learning_rate=1e-3", "train.checkpoint_minutes=0")


class Killer:
    """Kills one actor after the other, each at a random moment of the time that a step takes; on its own thread."""

    def __init__(self, kills: int, seed: int) -> None:
        self.left, self.made, self._draw = kills, 0, random.Random(seed)
        self._members: list[SupervisedActor] = []
        self._ended = threading.Event()

    def watch(self, training: Training) -> None:
        """Begin, once the team is there."""
        if not self._members:
            pools = [sampler for sampler in training.team.samplers.values() if isinstance(sampler, SamplerPool)]
            learners = [learner for learner in training.team.learners if isinstance(learner, RemoteLearner)]
            self._members = [member for pool in pools for member in pool.actors] + [one.actor for one in learners]
            threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while self.left and not self._ended.wait(self._draw.uniform(0.0, 6.0)):
            member = self._draw.choice(self._members)
            before = member.deaths
            os.kill(member.call(lambda handle: handle.pid.remote()), signal.SIGKILL)
            self.left, self.made = self.left - 1, self.made + 1
            print(f"kill {self.made}: a {member.kind.__name__}", flush=True)
            while member.deaths == before and not self._ended.is_set():
                time.sleep(0.1)


def trained(folder: Path, options: argparse.Namespace, cluster: str, killer: Killer | None = None) -> Path:
    """The last checkpoint of a run."""
    chosen = load("plan-path-roles", [*SMALL, f"train.steps={options.steps}", f"cluster={cluster}"])
    real = sample_step

    async def watched(training: Training, step: int) -> SampledTrees:
        if killer is not None:
            killer.watch(training)
        return await real(training, step)

    loop.sample_step = watched
    try:
        team, _ = run_training(resolve(chosen), Run.create(folder, chosen), Console(quiet=True))
        team.close()
    finally:
        loop.sample_step = real
        if killer is not None:
            killer.end()
    return latest_checkpoint(folder / "checkpoints")


def largest_difference(one: Path, other: Path) -> float:
    """Of any weight of any policy."""
    largest = 0.0
    for path in sorted(one.glob("*/model.safetensors")):
        first, second = load_file(path), load_file(other / path.relative_to(one))
        largest = max(largest, *(float((first[name] - second[name]).abs().max()) for name in first))
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="append to results/ray.jsonl")
    options = parser.parse_args()
    torch.set_num_threads(1)
    killer = Killer(options.kills, options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        single = trained(Path(scratch) / "single", options, "null")
        whole = trained(Path(scratch) / "whole", options, "{}")
        broken = trained(Path(scratch) / "broken", options, "{}", killer)
        difference = largest_difference(single, whole)
        survived = killer.made if largest_difference(whole, broken) == 0.0 else 0
    ray_actors.close()
    print(f"largest difference {difference}, {survived} of {killer.made} kills survived", flush=True)
    if options.write:
        command = f"python bench/cluster.py --kills {options.kills} --steps {options.steps} --write"
        record("ray", "ray.vs_single.max_diff", [difference], "weight", command, options.steps)
        record("ray", "ray.kills_survived", [survived], "kills", command, killer.made)


if __name__ == "__main__":
    main()
