"""A team that plays: that of a run with its trained weights, or that of a recipe or a model as it is.

Nothing here asks for the training split, so that a team can be evaluated where its training data are not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cadre.errors import RunError
from cadre.experiment import checkpoint, evaluate, kept_trees
from cadre.experiment.build import assignment, beside_untrained, build_team
from cadre.experiment.cautions import cautions
from cadre.experiment.chosen_checkpoint import LATEST, Chosen
from cadre.experiment.evaluate import Repeats, held_out_tasks
from cadre.experiment.event_loop import run_to_end
from cadre.experiment.experiment import Experiment
from cadre.experiment.report import Report, SampledReport
from cadre.experiment.resolve import resolve_for_evaluation
from cadre.experiment.run_directory import Run
from cadre.experiment.target import Target
from cadre.experiment.trees import table
from cadre.experiment.trees.format import KeptTree
from cadre.plugins import configure_sandbox
from cadre.rollout.grow import Rollout
from cadre.settings.trust import tell_imports
from cadre.team import Team, closed_on_failure
from cadre.types import Task, Tree


@dataclass(frozen=True)
class LoadedTeam:
    """A team in memory that plays its environment; `run` is what training left behind, None where there was none, and
    `step` the updates after which the weights were saved that play.

    Every method may be called beside a running event loop, and blocks until it is done.
    """

    experiment: Experiment
    team: Team
    run: Run | None = None
    step: int | None = None

    @property
    def folder(self) -> Path:
        """The folder of the run. Raises RunError where there was no training."""
        return self._trained().folder

    def evaluate(self, tasks: int | Sequence[Task] = 200, first: int = 0, seed: int = 0) -> Report:
        """Play held-out tasks once each, at temperature 0.

        tasks   how many of the test split, from the task `first` on; or the tasks themselves
        seed    names the draws of an environment that has some
        """
        chosen = self._chosen(tasks, first)
        report, _ = run_to_end(evaluate.evaluate(self._rollout, chosen, seed))
        return report

    def evaluate_sampled(self, repeats: Repeats, tasks: int | Sequence[Task] = 200, first: int = 0) -> SampledReport:
        """Play held-out tasks several times each, for pass@k: `evaluate_sampled(Repeats(8, temperature=0.6))`."""
        chosen = self._chosen(tasks, first)
        report, _ = run_to_end(evaluate.evaluate_sampled(self._rollout, chosen, repeats))
        return report

    def play(self, task: int | Task = 0, seed: int = 0) -> Tree:
        """One episode at temperature 0, as a tree with one branch a decision; `task` is one, or a place in the test
        split."""
        chosen = self._chosen(1, task) if isinstance(task, int) else [task]
        playing = evaluate.evaluate(self._rollout, chosen, seed)
        _, (tree,) = run_to_end(playing)
        return tree

    def metrics(self) -> list[dict[str, Any]]:
        """What every step of the training was logged with, first to last; see docs/reference.md."""
        return self._trained().metrics()

    def evaluations(self) -> list[dict[str, Any]]:
        """The reports of the evaluations in training, with the `step` after which each was made."""
        return self._trained().evaluations()

    def trees(self) -> list[KeptTree]:
        """The trees that training kept (`train.trees_kept` a step), as JSON; see docs/trees.md."""
        return list(kept_trees.all_of(self.folder))

    def dataset(self) -> Any:
        """The kept trees as a `datasets.Dataset`, a row a sample. Raises ConfigError without that package."""
        return table.as_dataset(self.folder)

    def assigned(self, text: str) -> LoadedTeam:
        """The same policies in other roles: `tool=planner,planner=tool` swaps two."""
        return replace(self, team=self.team.assigned(assignment(self.experiment.config, text)))

    def beside_untrained(self, roles: str) -> LoadedTeam:
        """The named roles, by comma, played by their models as they were before training."""
        return replace(self, team=beside_untrained(self.experiment, self.team, roles))

    def close(self) -> None:
        """Give back the models' memory and threads. May be called more than once."""
        self.team.close()

    @property
    def _rollout(self) -> Rollout:
        return self.experiment.evaluation(self.team)

    def _chosen(self, tasks: int | Sequence[Task], first: int) -> Sequence[Task]:
        if not isinstance(tasks, int):
            return tasks
        return held_out_tasks(self.experiment.held_out, tasks, first)

    def _trained(self) -> Run:
        if self.run is None:
            raise RunError("run: this team was not trained; expected that of a run. Load one, or train.")
        return self.run


def open_team(target: Target, untrained: bool = False) -> LoadedTeam:
    """Load the models of a target, and the weights of its run's latest checkpoint unless it plays `untrained`."""
    return load_team(resolve_for_evaluation(target.config, target.env), target.run, untrained)


def load_team(
    experiment: Experiment, folder: Path | None, untrained: bool = False, chosen: Chosen = LATEST
) -> LoadedTeam:
    """Load the models of an experiment, and the weights of a checkpoint of the run in `folder` unless it plays
    `untrained`. What is seldom meant is told on stderr."""
    config = experiment.config
    for paragraph in cautions(experiment):
        sys.stderr.write(f"{paragraph}\n")
    configure_sandbox(config.sandbox.level, config.sandbox.cgroup)
    run = None if folder is None else Run(folder, config)
    saved = None if run is None or untrained else chosen.find(run.folder)
    if folder is not None:
        tell_imports()
    team = build_team(experiment)
    with closed_on_failure() as failed:
        failed.callback(team.close)
        if saved is not None:
            run_to_end(checkpoint.load_weights(saved, team, experiment.learners))
    return LoadedTeam(experiment, team, run, None if saved is None else checkpoint.read_state(saved).step)
