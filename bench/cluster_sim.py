"""A discrete-event simulation of samplers and a learner: how busy they are by staleness and by how cards are split.

    python bench/cluster_sim.py [table | check] [--steps 20] [--write]

Work is measured, not assumed: the lengths of every completion of every round come from a training, and what a round and
an update cost is fitted to how long they took there. Both parts first train Plan-Path with one sampler and one learner
as Ray actors, sampling one update ahead, so that both are at work at once as in what is simulated.

table   busy shares of samplers and learner for staleness 0, 1, 2, 4 and every split of eight equal processes
check   the same training with sampling two updates ahead, for real: how far its busy shares are from the simulated ones
        (`sim.error_pct`, the larger of the two; `--write` appends it to results/async.jsonl)
"""

from __future__ import annotations

import argparse
import heapq
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.rollout import walk
from cadre.rollout.episodes import SampledTrees
from cadre.runs.folder import Run
from cadre.training import loop
from cadre.training.loop import Training, run_training, sample_step
from cadre.types import Tree
from cadre_ray import ray_actors
from cadre_ray.remote import split_batch
from common import record

console = Console(soft_wrap=True)
# Of a round, the lengths of the siblings of each request.
Round = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Work:
    """One step: the rounds that it is sampled in, and the tokens that are learned from."""

    rounds: Sequence[Round]

    @property
    def tokens(self) -> int:
        return sum(length for one in self.rounds for request in one for length in request)


@dataclass(frozen=True)
class Costs:
    """Seconds: of a round, of a token that a batch decodes one after the other, of a token in it beside others; of an
    update, and of a token in it."""

    round: float
    depth: float
    width: float
    update: float
    token: float

    def sampling(self, requests: Round) -> float:
        """What one sampler takes for its part of a round."""
        lengths = [length for request in requests for length in request]
        return self.round + self.depth * max(lengths) + self.width * sum(lengths)

    def learning(self, work: Work) -> float:
        return self.update + self.token * work.tokens


@dataclass(frozen=True)
class Busy:
    """Shares of the time: that a step was being sampled, that an update was made, and that a sampler was at work."""

    sampling: float
    learning: float
    samplers: float
    seconds: float


class Simulation:
    """Steps on `samplers` samplers and `learners` cards of one learner, of which sampling runs `ahead`."""

    def __init__(self, steps: Sequence[Work], costs: Costs, samplers: int, learners: int, ahead: int) -> None:
        self.steps, self.costs, self.samplers, self.learners, self.ahead = steps, costs, samplers, learners, ahead
        self.now, self.version, self.begun, self.sampled = 0.0, 0, 0, 0
        self.is_sampling = self.is_learning = False
        self.spent = {"sampling": 0.0, "learning": 0.0, "samplers": 0.0}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def run(self) -> Busy:
        """To the last update."""
        self._go_on()
        while self._events:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
            self._go_on()
        shares = {name: seconds / self.now for name, seconds in self.spent.items()}
        return Busy(shares["sampling"], shares["learning"], shares["samplers"] / self.samplers, self.now)

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), happen))

    def _go_on(self) -> None:
        """Begin what may begin: the next step if the rule allows it, the next update if its step is there."""
        if not self.is_sampling and self.begun < min(len(self.steps), self.version + self.ahead + 1):
            self.is_sampling = True
            self._round(self.steps[self.begun], 0)
            self.begun += 1
        if not self.is_learning and self.version < self.sampled:
            self.is_learning = True
            seconds = self.costs.learning(self.steps[self.version]) / self.learners
            self.spent["learning"] += seconds
            self._after(seconds, self._learned)

    def _round(self, work: Work, number: int) -> None:
        if number == len(work.rounds):
            self.is_sampling, self.sampled = False, self.sampled + 1
            return
        each = [self.costs.sampling(part) for part in split_batch(work.rounds[number], self.samplers)]
        self.spent["samplers"] += sum(each)
        self.spent["sampling"] += max(each)
        self._after(max(each), lambda: self._round(work, number + 1))

    def _learned(self) -> None:
        self.is_learning, self.version = False, self.version + 1


def rounds_of(trees: Sequence[Tree]) -> list[Round]:
    """The lengths of what was sampled, by the depth of the decision and by request."""
    rounds: dict[int, dict[tuple[object, ...], list[int]]] = {}
    for one in walk.tree_samples(trees):
        requests = rounds.setdefault(len(one.path), {})
        requests.setdefault((one.tree, one.path, one.role), []).append(len(one.sample.token_ids))
    return [list(rounds[depth].values()) for depth in sorted(rounds)]


def trained(options: argparse.Namespace, ahead: int) -> tuple[list[Work], list[dict[str, Any]]]:
    """The work and the metrics of a training with a sampler and a learner apart."""
    changes = [f"train.steps={options.steps}", "evaluate.tasks=0", f"train.max_staleness={ahead}", "cluster={}"]
    chosen, real = load("plan-path", changes), sample_step
    work: dict[int, Work] = {}

    async def noted(training: Training, step: int) -> SampledTrees:
        sampled = await real(training, step)
        work[step] = Work(rounds_of(sampled.trees))
        return sampled

    loop.sample_step = noted
    try:
        with tempfile.TemporaryDirectory() as scratch:
            run = Run.create(Path(scratch) / "run", chosen)
            team, _ = run_training(resolve(chosen), run, Console(quiet=True))
            team.close()
            return [work[step] for step in sorted(work)], run.metrics()
    finally:
        loop.sample_step = real


def fitted(work: Sequence[Work], metrics: Sequence[dict[str, Any]]) -> Costs:
    """The costs that explain the seconds of a training best, none of them negative; the first step, in
    which much happens for the first time, is left out."""
    of_rounds = [[len(step.rounds), sum(max(max(r) for r in one) for one in step.rounds), step.tokens] for step in work]
    sampling = non_negative(np.array(of_rounds[1:], float), [line["time/sample_s"] for line in metrics[1:]])
    of_updates = np.array([[1, step.tokens] for step in work[1:]], float)
    learning = non_negative(of_updates, [line["time/learn_s"] for line in metrics[1:]])
    return Costs(*sampling, *learning)


def non_negative(terms: np.ndarray, seconds: Sequence[float]) -> list[float]:
    """Least squares over the terms whose coefficients come out positive; the others are dropped, the worst first."""
    kept = list(range(terms.shape[1]))
    while True:
        found = np.linalg.lstsq(terms[:, kept], np.array(seconds), rcond=None)[0]
        if (found >= 0).all():
            return [float(found[kept.index(i)]) if i in kept else 0.0 for i in range(terms.shape[1])]
        kept.pop(int(found.argmin()))


def shares(metrics: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """How busy sampling and learning really were."""
    seconds = sum(line["time/wait_s"] + line["time/learn_s"] for line in metrics)
    return tuple(sum(line[name] for line in metrics) / seconds for name in ("time/sample_s", "time/learn_s"))


def table(options: argparse.Namespace, work: Sequence[Work], costs: Costs) -> None:
    console.print("| samplers : cards of the learner | " + " | ".join(f"{s} ahead" for s in (0, 1, 2, 4)) + " |")
    console.print("|---|---|---|---|---|")
    for samplers in range(1, 8):
        runs = [Simulation(work * 4, costs, samplers, 8 - samplers, ahead).run() for ahead in (0, 1, 2, 4)]
        cells = [f"{run.samplers:.0%}, {run.learning:.0%}; {run.seconds:.0f} s" for run in runs]
        console.print(f"| {samplers} : {8 - samplers} | " + " | ".join(cells) + " |", highlight=False)


def check(options: argparse.Namespace, work: Sequence[Work], costs: Costs) -> None:
    _, metrics = trained(options, ahead=2)
    real, simulated = shares(metrics), Simulation(work, costs, 1, 1, ahead=2).run()
    pairs = list(zip((simulated.sampling, simulated.learning), real, strict=True))
    error = max(abs(said - was) / was for said, was in pairs) * 100
    told = "; ".join(f"{said:.3f} simulated, {was:.3f} measured" for said, was in pairs)
    console.print(f"sampling, learning: {told}; off by {error:.1f}%", highlight=False)
    if options.write:
        command = f"python bench/cluster_sim.py check --steps {options.steps} --write"
        record("async", "sim.error_pct", [error], "%", command, options.steps, [0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["table", "check"], default="table")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="append to results/async.jsonl")
    options = parser.parse_args()
    torch.set_num_threads(1)
    work, metrics = trained(options, ahead=1)
    costs = fitted(work, metrics)
    console.print(str(costs), highlight=False)
    {"table": table, "check": check}[options.part](options, work, costs)
    ray_actors.close()


if __name__ == "__main__":
    main()
