"""Load a team that plays: that of a run with its trained weights, or that of a recipe or a model as it is.

Nothing here reads the training split (except to count the tasks that a run was trained on), so that a team can be
evaluated where its training data are not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from cadre.concurrency import run_coroutine
from cadre.config.checks import find_warnings
from cadre.config.engines import add_untrained, build_team, parse_assignment, parse_untrained_roles
from cadre.config.experiment import Experiment, load
from cadre.config.resolve import Target, resolve_environments, resolve_for_evaluation
from cadre.config.trusted_runs import check_trusted
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, RunError
from cadre.evaluation.evaluate import (
    Repeats,
    Report,
    SampledReport,
    evaluate,
    evaluate_sampled,
    exact_field,
    select_tasks,
)
from cadre.notebook_html import shorten, table_html
from cadre.plugins import configure_sandbox, package
from cadre.rollout.episodes import Failure
from cadre.rollout.grow import Rollout
from cadre.runs.export import to_dataset
from cadre.runs.folder import Run
from cadre.runs.kept_trees import KeptTrees, read_all_trees
from cadre.settings.trust import UNTRUSTED_FOLDERS, only_reading
from cadre.team import SamplingActivity, Team, closed_on_failure
from cadre.training.checkpoint import LATEST, CheckpointChoice, load_weights, read_state
from cadre.types import Task, Tree


@dataclass(frozen=True)
class LoadedTeam:
    """A team in memory that plays its environment; `run` is its training run, None without one, and `step` the updates
    after which its weights were saved.

    Every method may be called beside a running event loop, and blocks until it is done.
    """

    experiment: Experiment
    team: Team
    run: Run | None = None
    step: int | None = None

    def __repr__(self) -> str:
        rows = self._summary()
        return shorten(f"LoadedTeam({', '.join(f'{name} {value}' for name, value in rows)})")

    def _repr_html_(self) -> str:
        return table_html([("team", "value"), *self._summary()])

    def _summary(self) -> list[tuple[str, str]]:
        """Return what a notebook shows, by name: the folder, updates, held-out success before and after, reward by
        role in the last step."""
        if self.run is None:
            return [("of", self.experiment.config.env), ("roles", ", ".join(self.experiment.roles))]
        metrics, reports = self.run.metrics(), self.run.evaluations()
        rows = [("run", str(self.folder)), ("updates", str(len(metrics)))]
        for index in dict.fromkeys((0, len(reports) - 1)) if reports else ():
            report = reports[index]
            interval = f"{report['success']:.1%} [{report['low']:.1%}, {report['high']:.1%}]"
            rows.append((f"success after {report['step']}", f"{interval} on {report['tasks']} tasks"))
        return rows + [(f"reward of {role}", f"{value:+.2f}") for role, value in rewards_by_role(metrics[-1:])]

    @property
    def folder(self) -> Path:
        """The folder of the run. Raises RunError if there was no training."""
        return self._require_run().folder

    def evaluate(self, tasks: int | Sequence[Task] = 200, first: int = 0, seed: int = 0) -> Report:
        """Play held-out tasks once each, at temperature 0.

        tasks   how many of the test split, from the task `first` on; or the tasks themselves
        seed    keys the draws of an environment that has some
        """
        report, _ = run_coroutine(evaluate(self._rollout, self._select(tasks, first), seed))
        return report

    def evaluate_sampled(self, repeats: Repeats, tasks: int | Sequence[Task] = 200, first: int = 0) -> SampledReport:
        """Play held-out tasks several times each, for pass@k: `evaluate_sampled(Repeats(8, temperature=0.6))`."""
        report, _ = run_coroutine(evaluate_sampled(self._rollout, self._select(tasks, first), repeats))
        return report

    def play(self, task: int | Task = 0, seed: int = 0) -> Tree:
        """Play one episode at temperature 0; return it as a tree with one branch per decision. `task` is one, or an
        index of the test split."""
        chosen = self._select(1, task) if isinstance(task, int) else [task]
        _, (tree,) = run_coroutine(evaluate(self._rollout, chosen, seed))
        return tree

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of every training step, first to last; see docs/metrics.md."""
        return self._require_run().metrics()

    def evaluations(self) -> list[dict[str, Any]]:
        """Return the reports of the evaluations in training, with the `step` after which each was made."""
        return self._require_run().evaluations()

    def trees(self) -> KeptTrees:
        """Return a list of the trees that training kept (`train.trees_kept` per step), each with its step and number
        (`step`, `number` and `tree`)."""
        return KeptTrees(read_all_trees(self.folder))

    def frame(self) -> Any:
        """Return the metrics as a pandas DataFrame, a row per update, by the number of updates done. Raises ConfigError
        without that package."""
        pandas = package("pandas", where="frame:")
        rows = self.metrics()
        index = pandas.Index([row["step"] + 1 for row in rows], name="updates")
        return pandas.DataFrame(rows, index=index).drop(columns="step", errors="ignore")

    def plot(self, path: str | Path | None = None) -> Any:
        """Return a matplotlib figure of the reward by role and the held-out success with its interval over the updates
        done, and write it to `path`. Raises ConfigError without that package."""
        return import_module("cadre").plot([self], path)

    def dataset(self) -> Any:
        """Return the kept trees as a `datasets.Dataset`, a row per sample. Raises ConfigError without that package."""
        return to_dataset(self.folder)

    def assigned(self, text: str) -> LoadedTeam:
        """Return the same policies in other roles: `tool=planner,planner=tool` swaps two."""
        return replace(self, team=self.team.assigned(parse_assignment(self.experiment, text)))

    def close(self) -> None:
        """Free the models' memory and threads. May be called more than once."""
        self.team.close()

    @property
    def _rollout(self) -> Rollout:
        return self.experiment.evaluation(self.team)

    def _select(self, tasks: int | Sequence[Task], first: int) -> Sequence[Task]:
        return select_tasks(self.experiment.held_out_tasks, tasks, first) if isinstance(tasks, int) else tasks

    def _require_run(self) -> Run:
        if self.run is None:
            raise RunError("run: this team was not trained; expected that of a run. Load one, or train.")
        return self.run


def rewards_by_role(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return (role, reward) for each reward of a role in the metrics of some steps."""
    return [
        (name.removesuffix("/reward"), value)
        for line in lines
        for name, value in line.items()
        if name.endswith("/reward") and not name.startswith("parts/") and value is not None
    ]


def open_team(target: Target, untrained: bool = False) -> LoadedTeam:
    """Load the models of a target, and the weights of its run's latest checkpoint unless it plays `untrained`."""
    return load_team(resolve_for_evaluation(target.config, target.env, target.typed), target.run, untrained)


def load_team(
    experiment: Experiment, folder: Path | None, untrained: bool = False, choice: CheckpointChoice = LATEST
) -> LoadedTeam:
    """Load the models of an experiment, and the weights of a checkpoint of the run in `folder` unless it plays
    `untrained`. Warnings are written to stderr."""
    for paragraph in find_warnings(experiment):
        sys.stderr.write(f"{paragraph}\n")
    configure_sandbox(experiment.config.sandbox.level, experiment.config.sandbox.cgroup)
    run = None if folder is None else Run(folder, experiment.config)
    # Found before models load, since a missing checkpoint is an error.
    saved = None if run is None or untrained else choice.find(run.folder)
    team = build_team(experiment)
    with closed_on_failure() as failed:
        failed.callback(team.close)
        if saved is not None:
            run_coroutine(load_weights(saved, team, experiment.learners))
    return LoadedTeam(experiment, team, run, None if saved is None else read_state(saved).step)


# ---- `cadre eval` and `cadre play`


@dataclass(frozen=True)
class EvaluationRequest:
    """The held-out tasks to play, and the policies that play them.

    count      how many of the test split, from the task `first` on; None for all
    assign     other policies for roles, such as tool=planner,planner=tool
    untrained  roles, by comma, that play as before training
    base       all of them do
    checkpoint of the run, whose weights the others play with
    """

    count: int | None = 200
    first: int = 0
    assign: str = ""
    untrained: str = ""
    base: bool = False
    checkpoint: CheckpointChoice = LATEST


def open_evaluation(target: Target, request: EvaluationRequest) -> tuple[LoadedTeam, Sequence[Task]]:
    """Return the team and the tasks. Before any model loads, ConfigError or RunError say what cannot be played."""
    experiment = resolve_for_evaluation(target.config, target.env, target.typed)
    if target.run is None and request.checkpoint != LATEST:
        got = "got a recipe or a model, which has none"
        raise ConfigError(f"--best and --at name a checkpoint of a run; {got}. Name a run, or leave them out.")
    # Parsed here for their errors only: the models are not loaded yet.
    parse_assignment(experiment, request.assign)
    parse_untrained_roles(experiment.roles, request.untrained)
    tasks = select_tasks(experiment.held_out_tasks, request.count, request.first)
    loaded = load_team(experiment, target.run, request.base, request.checkpoint).assigned(request.assign)
    if request.untrained:
        loaded = replace(loaded, team=add_untrained(experiment, loaded.team, request.untrained))
    return loaded, tasks


def run_evaluation(
    target: Target,
    request: EvaluationRequest,
    repeats: Repeats,
    begin: Callable[[int, SamplingActivity], Callable[[], None]] = lambda episodes, activity: lambda: None,
) -> tuple[dict[str, Any], list[Tree]]:
    """Return the report by name, and all trees: each task once at temperature 0, or as often as `repeats` says. `begin`
    is called with the number of episodes and a count of what is sampled, and returns a callback for each finished one.
    The traceback of the first failure is written to stderr, as there is no run folder for it."""
    loaded, tasks = open_evaluation(target, request)
    failures: list[Failure] = []

    def failed(failure: Failure) -> None:
        if not failures:
            sys.stderr.write(f"The first episode that failed, task {failure.task.id}:\n{failure.traceback}\n")
        failures.append(failure)

    activity = SamplingActivity(loaded.team.samplers.values())
    rollout = loaded.experiment.evaluation(replace(loaded.team, activity=activity), failed)
    fields: dict[str, Any] = exact_field(loaded.team, loaded.experiment.held_out)
    if target.run is not None and not request.base:
        fields["checkpoint"] = loaded.step
    if not request.base:
        fields |= count_trained_on(target.run, loaded.experiment.held_out, tasks)
    if repeats.temperature == 0.0:
        report, trees = run_coroutine(evaluate(rollout, tasks, repeats.seed, begin(len(tasks), activity)))
        max_tokens = {role: sampling.max_tokens for role, sampling in loaded.team.sampling.items()}
        return {**report.as_dict(), "temperature": 0.0, "max_tokens": max_tokens, **fields}, trees
    progress = begin(len(tasks) * repeats.samples, activity)
    sampled, trees = run_coroutine(evaluate_sampled(rollout, tasks, repeats, progress))
    return {**sampled.as_dict(), **fields}, trees


# ---- Held-out tasks that the run was trained on


def count_trained_on(run: Path | None, evaluated: EnvSpec, tasks: Sequence[Task]) -> dict[str, int | None]:
    """Return how many of the tasks the run was trained on, by their words as leaks are found; None if its training data
    is not on this machine. Empty if no run was trained, and if the held-out tasks are those that the run itself kept
    apart. Nothing is downloaded for it."""
    if run is None or not evaluated.declared.splits_data:
        return {}
    with only_reading():
        config = load(str(run / "config.yaml"))
    try:
        if run.absolute() in UNTRUSTED_FOLDERS:  # the user may have named another environment
            check_trusted(run, config.model_dump(mode="json"), trust=False)
        spec, kept_apart = resolve_environments(config, config.env)
    except ConfigError:  # its code is not on this machine, or not trusted
        return {"trained_on": None}
    declared, settings = evaluated.declared, evaluated.all_settings
    return {"trained_on": declared.count_trained_on(settings, tasks, spec.declared, kept_apart.all_settings)}
