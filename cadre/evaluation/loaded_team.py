"""Load a team that plays: that of a run with its trained weights, or that of a recipe or a model as it is.

Nothing here reads the training split (except to count the tasks that a run was trained on), so that a team can be
evaluated where its training data are not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cadre.concurrency import run_coroutine
from cadre.config.engines import add_untrained, build_team, parse_assignment, parse_untrained_roles
from cadre.config.experiment import Experiment, load
from cadre.config.resolve import Target, resolve_environments, resolve_for_evaluation
from cadre.config.warnings import find_warnings
from cadre.data import hub, read
from cadre.data.leaks import find_leaks
from cadre.data.records import RECORDS, Record
from cadre.data.user_file import is_user_file
from cadre.envs.from_data import FromData
from cadre.envs.spec import EnvSpec
from cadre.errors import CadreError, ConfigError, RunError
from cadre.evaluation.evaluate import (
    Repeats,
    Report,
    SampledReport,
    evaluate,
    evaluate_sampled,
    exact_field,
    select_tasks,
)
from cadre.plugins import configure_sandbox
from cadre.rollout.episodes import Failure
from cadre.rollout.grow import Rollout
from cadre.runs.export import to_dataset
from cadre.runs.folder import Run
from cadre.runs.kept_trees import KeptTree, read_all_trees
from cadre.settings.trust import only_reading, tell_imports
from cadre.team import Team, closed_on_failure
from cadre.training.checkpoint import LATEST, CheckpointChoice, load_weights, read_state
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
        report, _ = run_coroutine(evaluate(self._rollout, chosen, seed))
        return report

    def evaluate_sampled(self, repeats: Repeats, tasks: int | Sequence[Task] = 200, first: int = 0) -> SampledReport:
        """Play held-out tasks several times each, for pass@k: `evaluate_sampled(Repeats(8, temperature=0.6))`."""
        chosen = self._chosen(tasks, first)
        report, _ = run_coroutine(evaluate_sampled(self._rollout, chosen, repeats))
        return report

    def play(self, task: int | Task = 0, seed: int = 0) -> Tree:
        """One episode at temperature 0, as a tree with one branch a decision; `task` is one, or a place in the test
        split."""
        chosen = self._chosen(1, task) if isinstance(task, int) else [task]
        playing = evaluate(self._rollout, chosen, seed)
        _, (tree,) = run_coroutine(playing)
        return tree

    def metrics(self) -> list[dict[str, Any]]:
        """What every step of the training was logged with, first to last; see docs/reference.md."""
        return self._trained().metrics()

    def evaluations(self) -> list[dict[str, Any]]:
        """The reports of the evaluations in training, with the `step` after which each was made."""
        return self._trained().evaluations()

    def trees(self) -> list[KeptTree]:
        """The trees that training kept (`train.trees_kept` a step), as JSON; see docs/trees.md."""
        return list(read_all_trees(self.folder))

    def dataset(self) -> Any:
        """The kept trees as a `datasets.Dataset`, a row a sample. Raises ConfigError without that package."""
        return to_dataset(self.folder)

    def assigned(self, text: str) -> LoadedTeam:
        """The same policies in other roles: `tool=planner,planner=tool` swaps two."""
        return replace(self, team=self.team.assigned(parse_assignment(self.experiment.config, text)))

    def beside_untrained(self, roles: str) -> LoadedTeam:
        """The named roles, by comma, played by their models as they were before training."""
        return replace(self, team=add_untrained(self.experiment, self.team, roles))

    def close(self) -> None:
        """Give back the models' memory and threads. May be called more than once."""
        self.team.close()

    @property
    def _rollout(self) -> Rollout:
        return self.experiment.evaluation(self.team)

    def _chosen(self, tasks: int | Sequence[Task], first: int) -> Sequence[Task]:
        if not isinstance(tasks, int):
            return tasks
        return select_tasks(self.experiment.held_out, tasks, first)

    def _trained(self) -> Run:
        if self.run is None:
            raise RunError("run: this team was not trained; expected that of a run. Load one, or train.")
        return self.run


def open_team(target: Target, untrained: bool = False) -> LoadedTeam:
    """Load the models of a target, and the weights of its run's latest checkpoint unless it plays `untrained`."""
    return load_team(resolve_for_evaluation(target.config, target.env), target.run, untrained)


def load_team(
    experiment: Experiment, folder: Path | None, untrained: bool = False, chosen: CheckpointChoice = LATEST
) -> LoadedTeam:
    """Load the models of an experiment, and the weights of a checkpoint of the run in `folder` unless it plays
    `untrained`. What is seldom meant is told on stderr."""
    config = experiment.config
    for paragraph in find_warnings(experiment):
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
            run_coroutine(load_weights(saved, team, experiment.learners))
    return LoadedTeam(experiment, team, run, None if saved is None else read_state(saved).step)


@dataclass(frozen=True)
class EvaluationRequest:
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
    checkpoint: CheckpointChoice = LATEST


def open_evaluation(target: Target, wanted: EvaluationRequest) -> tuple[LoadedTeam, Sequence[Task]]:
    """The team and the tasks. Raises ConfigError or RunError for what cannot be played, before any model loads."""
    experiment = resolve_for_evaluation(target.config, target.env)
    if target.run is None and wanted.checkpoint != LATEST:
        raise ConfigError(
            "--best and --at name a checkpoint of a run; got a recipe or a model, which has none. Name the folder of a "
            "run, or leave them out."
        )
    parse_assignment(target.config, wanted.assign)
    parse_untrained_roles(target.config, wanted.untrained)
    tasks = select_tasks(experiment.held_out, wanted.count, wanted.first)
    loaded = load_team(experiment, target.run, wanted.base, wanted.checkpoint).assigned(wanted.assign)
    return loaded.beside_untrained(wanted.untrained) if wanted.untrained else loaded, tasks


def run_evaluation(
    target: Target,
    wanted: EvaluationRequest,
    repeats: Repeats,
    begin: Callable[[int], Callable[[], None]] = lambda tasks: lambda: None,
) -> tuple[dict[str, Any], list[Tree]]:
    """The report by name, and all that was played: once a task at temperature 0, or as often as `repeats` says. `begin`
    is given the number of tasks, and returns what is called when one has been played."""
    loaded, tasks = open_evaluation(target, wanted)
    rollout = loaded.experiment.evaluation(loaded.team, _report_first_failure())
    beside: dict[str, Any] = exact_field(loaded.team, loaded.experiment.held_out)
    if target.run is not None and not wanted.base:
        beside["checkpoint"] = loaded.step
    if not wanted.base:
        beside |= count_trained_on(target.run, loaded.experiment.held_out, tasks)
    if repeats.temperature == 0.0:
        report, trees = run_coroutine(evaluate(rollout, tasks, repeats.seed, begin(len(tasks))))
        budget = {role: sampling.max_tokens for role, sampling in loaded.team.sampling.items()}
        return {**report.as_dict(), "temperature": 0.0, "max_tokens": budget, **beside}, trees
    sampled, trees = run_coroutine(evaluate_sampled(rollout, tasks, repeats, begin(len(tasks))))
    return {**sampled.as_dict(), **beside}, trees


def _report_first_failure() -> Callable[[Failure], None]:
    """Writes the traceback of the first failure to stderr, as there is no folder for it."""
    told: list[Failure] = []

    def tell(failure: Failure) -> None:
        if not told:
            sys.stderr.write(f"The first episode that failed, task {failure.task.id}:\n{failure.traceback}\n")
        told.append(failure)

    return tell


# Settings that say which items are trained on and which are held out.
DATA_SETTINGS = ("data", "train", "test", "source", "fields", "held_out", "leaks")


def count_trained_on(run: Path | None, evaluated: EnvSpec, tasks: Sequence[Task]) -> dict[str, int | None]:
    """How many of the tasks the run was trained on, by words as leaks are found; None where its training data is not
    here. Nothing where no run was trained, and where the held-out tasks are those that the run itself kept apart.

    Nothing is fetched for it.
    """
    if run is None or not issubclass(evaluated.declared, FromData):
        return {}
    with only_reading():
        config = load(str(run / "config.yaml"))
    try:
        trained, own = resolve_environments(config, config.env)
    except ConfigError:  # its code is not here, or not trusted
        return {"trained_on": None}
    if not issubclass(trained.declared, FromData) or trained.declared.kind != evaluated.declared.kind:
        return {}
    if all(own.all_settings.get(name) == evaluated.all_settings.get(name) for name in DATA_SETTINGS):
        return {}
    try:
        learned = _records(trained, trained.tasks("train")) if _is_local(trained) else None
    except CadreError:
        learned = None
    if learned is None:
        return {"trained_on": None}
    return {"trained_on": len({leak.test for leak in find_leaks(learned, _records(evaluated, tasks))})}


def _is_local(trained: EnvSpec) -> bool:
    """Whether the training data can be read without asking the hub."""
    settings, declared = trained.all_settings, trained.declared
    assert issubclass(declared, FromData)
    name, source = settings["train"] or settings["data"] or declared.sets[0], read.configured_source(settings["source"])
    if is_user_file(name) or not read.is_hub(source):
        return True
    spec = read.find_spec(name)
    return any(hub.cached_files(spec, split, source.partition("@")[2]) for split in spec.splits)


def _records(spec: EnvSpec, tasks: Sequence[Task]) -> list[Record]:
    assert issubclass(spec.declared, FromData)
    return [RECORDS[spec.declared.kind](**task.data) for task in tasks]
