"""What `cadre eval` and `cadre play` play: everything that can be refused is refused before a model loads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cadre.errors import ConfigError
from cadre.experiment import exact
from cadre.experiment.build import assignment, untrained_roles
from cadre.experiment.chosen_checkpoint import LATEST, Chosen
from cadre.experiment.evaluate import Repeats, evaluate, evaluate_sampled, held_out_tasks
from cadre.experiment.event_loop import run_to_end
from cadre.experiment.loaded_team import LoadedTeam, load_team
from cadre.experiment.resolve import resolve_for_evaluation
from cadre.experiment.target import Target
from cadre.experiment.trained_on import trained_on
from cadre.rollout.episodes import Failure
from cadre.types import Task, Tree


@dataclass(frozen=True)
class HeldOut:
    """Which held-out tasks are played, and who plays them.

    count      how many of the test split, from the task `first` on; None for all
    assign     other policies for roles, such as tool=planner,planner=tool
    untrained  roles, by comma, that play as before training
    base       whether all of them do
    checkpoint of the run, whose weights the others play with
    """

    count: int | None = 200
    first: int = 0
    assign: str = ""
    untrained: str = ""
    base: bool = False
    checkpoint: Chosen = LATEST


def opened(target: Target, wanted: HeldOut) -> tuple[LoadedTeam, Sequence[Task]]:
    """The team and the tasks. Raises ConfigError or RunError for what cannot be played, before any model loads."""
    experiment = resolve_for_evaluation(target.config, target.env)
    if target.run is None and wanted.checkpoint != LATEST:
        raise ConfigError(
            "--best and --at name a checkpoint of a run; got a recipe or a model, which has none. Name the folder of a "
            "run, or leave them out."
        )
    assignment(target.config, wanted.assign)
    untrained_roles(target.config, wanted.untrained)
    tasks = held_out_tasks(experiment.held_out, wanted.count, wanted.first)
    loaded = load_team(experiment, target.run, wanted.base, wanted.checkpoint).assigned(wanted.assign)
    return loaded.beside_untrained(wanted.untrained) if wanted.untrained else loaded, tasks


def evaluated(
    target: Target,
    wanted: HeldOut,
    repeats: Repeats,
    begin: Callable[[int], Callable[[], None]] = lambda tasks: lambda: None,
) -> tuple[dict[str, Any], list[Tree]]:
    """The report by name, and all that was played: once a task at temperature 0, or as often as `repeats` says. `begin`
    is given the number of tasks, and returns what is called when one has been played."""
    loaded, tasks = opened(target, wanted)
    rollout = loaded.experiment.evaluation(loaded.team, _tell_first())
    beside: dict[str, Any] = exact.as_field(loaded.team, loaded.experiment.held_out)
    if target.run is not None and not wanted.base:
        beside["checkpoint"] = loaded.step
    if not wanted.base:
        beside |= trained_on(target.run, loaded.experiment.held_out, tasks)
    if repeats.temperature == 0.0:
        report, trees = run_to_end(evaluate(rollout, tasks, repeats.seed, begin(len(tasks))))
        budget = {role: sampling.max_tokens for role, sampling in loaded.team.sampling.items()}
        return {**report.as_dict(), "temperature": 0.0, "max_tokens": budget, **beside}, trees
    sampled, trees = run_to_end(evaluate_sampled(rollout, tasks, repeats, begin(len(tasks))))
    return {**sampled.as_dict(), **beside}, trees


def _tell_first() -> Callable[[Failure], None]:
    """Writes the traceback of the first failure to stderr, as there is no folder for it."""
    told: list[Failure] = []

    def tell(failure: Failure) -> None:
        if not told:
            sys.stderr.write(f"The first episode that failed, task {failure.task.id}:\n{failure.traceback}\n")
        told.append(failure)

    return tell
