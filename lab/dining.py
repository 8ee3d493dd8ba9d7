"""A published benchmark of coordination: DPBench's dining philosophers, before and after training.

    python -m lab.dining rules                                  random play, and a rule by seat that never deadlocks
    python -m lab.dining learn [--model DIR] [--seeds 0 1 2] [--levels L0 L1] [--steps 40] [--write]

The benchmark is the package as it is (`pip install dpbench`, 0.2.1): its `Benchmark.run`, five philosophers who act at
once without messages, 30 rounds; deadlock rate, throughput (meals a round) and fairness are its own. Training plays the
package's table for a few rounds (`Table`), with one policy for all seats (L0) or one a seat (L1): adapters of the model
in DIR, or without one whole models of a quarter of a million parameters, which have read the benchmark's prompts with
actions drawn at random as answers.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from dpbench import Benchmark
from dpbench.agents import philosopher as prompts
from dpbench.core.environment import create_initial_state, get_observation, step
from dpbench.core.types import AgentDecision, TableState

import cadre
from bench.common import record
from cadre import random_keys
from cadre.concurrency import run_coroutine
from cadre.env import Env, Split
from cadre.types import Message, Observation, Request, Reward, Task
from lab.taught import teach
from lab.trainings import console

SYSTEM = "You are {philosopher_name}, one of {num_philosophers} at a round table. You eat once you hold both forks."
DECISION = (
    "You hold {holding_status}. Left fork: {left_fork_status}. Right fork: {right_fork_status}.\n"
    "End with ACTION: and GRAB_LEFT, GRAB_RIGHT, RELEASE or WAIT."
)
SEATS = tuple(f"P{seat}" for seat in range(5))
SIZE = {"episodes": 20, "max_timesteps": 30, "seed": 0}
OTHER_SIZES = (3, 4, 6, 7)
ACTIONS = ("GRAB_LEFT", "GRAB_RIGHT", "RELEASE", "WAIT")
FIGURES = {"deadlock": "deadlock_rate", "throughput": "avg_throughput", "fairness": "avg_fairness"}
POOL = 32
Model = Callable[[str, str], str]


class Table(Env):
    """The package's table of five, with a reward: a meal is worth 1 to the team, a deadlock -2. Who is one free fork
    away from a meal has 0.5 as long as that is so, a potential, so that taking and putting down earns nothing."""

    roles = SEATS

    def __init__(self, task: Task, rounds: int = 8) -> None:
        super().__init__(task)
        self.table: TableState = create_initial_state(len(SEATS))
        self.rounds, self.deadlock = rounds, False

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return [Task(f"{split}-{number}", {}) for number in range(1_000)]

    def observe(self) -> dict[str, Observation]:
        if self.deadlock or self.table.timestep == self.rounds:
            return {}
        observations = {}
        for seat, name in enumerate(SEATS):
            seen = get_observation(self.table, seat)
            system = prompts._build_system_prompt(SYSTEM, name, len(SEATS))
            user = prompts._build_observation_prompt(seen, DECISION, False)
            observations[name] = Observation(name, (Message("system", system), Message("user", user)))
        return observations

    def close_to_eating(self, seat: int) -> float:
        """The potential of a seat: one fork in the hand and the other one free."""
        seen = get_observation(self.table, seat)
        free = seen.right_fork_available if seen.holding_left else seen.left_fork_available
        return 0.5 * (seen.holding_left != seen.holding_right and free)

    async def step(self, actions: dict[str, str]) -> Reward:
        before = [self.close_to_eating(seat) for seat in range(len(SEATS))]
        decisions = [AgentDecision(seat, prompts.parse_action(actions[name])) for seat, name in enumerate(SEATS)]
        result = step(self.table, decisions)
        self.table, self.deadlock = result.new_state, result.deadlock
        gained = {name: self.close_to_eating(seat) - before[seat] for seat, name in enumerate(SEATS)}
        meals, deadlock = float(result.meals_this_step), float(result.deadlock)
        return Reward(meals - 2.0 * deadlock, gained, {"meals": meals, "deadlock": deadlock})

    @property
    def success(self) -> bool:
        return not self.deadlock and sum(one.meals_eaten for one in self.table.philosophers) >= self.rounds / 3


def seat_of(system: str) -> int:
    """The seat of the philosopher whom a system prompt names."""
    return int(re.findall(r"P(\d+)", system)[0])


def random_play(system: str, user: str) -> str:
    return f"ACTION: {random.choice(ACTIONS)}"


def by_parity(system: str, user: str) -> str:
    """Even seats take the left fork first, odd seats the right one; nobody puts a fork down."""
    sides = ("left", "right") if seat_of(system) % 2 == 0 else ("right", "left")
    side = next((side for side in sides if f"{side} fork" not in user.partition(".")[0]), "")
    free = f"{side.capitalize()} fork: AVAILABLE" in user
    return f"ACTION: GRAB_{side.upper()}" if side and free else "ACTION: WAIT"


class Sampled:
    """A team as the package's model: an answer is drawn from POOL completions of the same prompt, as few prompts differ
    and the package asks for one answer at a time."""

    def __init__(self, loaded: Any) -> None:
        self.team, self.drawn = loaded.team, dict[tuple[str, str], list[str]]()

    def __call__(self, system: str, user: str) -> str:
        if (system, user) not in self.drawn:
            role = SEATS[seat_of(system) % len(SEATS)]
            prompt = (Message("system", system), Message("user", user))
            policy, key = self.team.assignment[role], random_keys.key(system, user)
            request = Request(role, policy, prompt, POOL, self.team.sampling[role], key)
            samples = run_coroutine(self.team.samplers[policy].sample(request))
            self.drawn[system, user] = [sample.text for sample in samples]
        return random.choice(self.drawn[system, user])


def measure(model: Model, philosophers: int = len(SEATS)) -> dict[str, float]:
    """The benchmark's own figures."""
    random.seed(0)
    result = Benchmark.run(model, SYSTEM, DECISION, philosophers=philosophers, **SIZE)
    return {name: float(result[key]) for name, key in FIGURES.items()}


def teach_random_play(folder: Path) -> None:
    """Write a tiny model that answers the benchmark's prompts at random."""
    chosen, lines = random.Random(0), []
    states = product(("nothing", "left fork", "right fork"), ("AVAILABLE", "TAKEN"), ("AVAILABLE", "TAKEN"))
    for size, (holding, left, right) in product((5, *OTHER_SIZES), states):
        user = DECISION.format(holding_status=holding, left_fork_status=left, right_fork_status=right)
        for seat in range(size):
            system = SYSTEM.format(philosopher_name=f"P{seat}", num_philosophers=size)
            answers = (f"ACTION: {chosen.choice(ACTIONS)}" for _ in range(4))
            lines += [{"before": [("system", system)], "prompt": user, "answer": answer} for answer in answers]
    teach(lines, folder, 300)


def learn(policy: Any, level: str, seed: int, steps: int, rate: float) -> Iterator[tuple[str, dict[str, float]]]:
    """The figures of one training, by what they are of."""
    policies = {"all": policy} if level == "L0" else dict.fromkeys(SEATS, policy)
    roles = {seat: "all" if level == "L0" else seat for seat in SEATS}
    shared: dict[str, Any] = {
        "team": {"policies": policies, "roles": roles},
        "algorithm": {"name": "at_grpo", "k": 8},
        "sampling": {"max_tokens": 16, "temperature": 1.0},
    }
    with tempfile.TemporaryDirectory() as folder:
        loaded = cadre.load(env=Table, **shared)
        yield "before", measure(Sampled(loaded))
        loaded.close()
        loaded = cadre.train(
            Table,
            steps=steps,
            run=Path(folder) / "run",
            train={"seed": seed, "tasks_per_step": 2, "trees_kept": 0},
            learner={"learning_rate": rate},
            evaluate={"tasks": 0},
            **shared,
        )
        played = Sampled(loaded)
        yield "after", measure(played)
        for size in OTHER_SIZES:
            yield f"other_sizes.{size}", measure(played, size)
        loaded.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("rules", "learn"))
    parser.add_argument("--model", default="")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--levels", nargs="+", default=["L0", "L1"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    found: dict[str, list[float]] = {}

    def note(of: str, figures: dict[str, float]) -> None:
        console.print(f"{of}: {', '.join(f'{name} {value:.3f}' for name, value in figures.items())}", highlight=False)
        for name, value in figures.items():
            found.setdefault(f"dpbench.{name}.{of}", []).append(value)

    if chosen.part == "rules":
        for rule, size in product((random_play, by_parity), (len(SEATS), *OTHER_SIZES)):
            note(f"{rule.__name__}.{size}", measure(rule, size))
    else:
        with tempfile.TemporaryDirectory() as folder:
            if not chosen.model:
                teach_random_play(Path(folder))
            policy = {"model": chosen.model, "lora": {"rank": 8, "alpha": 16}} if chosen.model else folder
            for level, seed in product(chosen.levels, chosen.seeds):
                for of, figures in learn(policy, level, seed, chosen.steps, chosen.rate):
                    note(f"{level}.{of}", figures)
    if chosen.write:
        command = f"python -m lab.dining {chosen.part}{' --model DIR' if chosen.model else ''} --write"
        for name, values in found.items():
            record("dpbench", name, [median(values), min(values), max(values)], "", command, len(values), chosen.seeds)


if __name__ == "__main__":
    main()
