"""A training from its experiment to its end: what the command line and Python both call."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from rich.console import Console

from cadre.errors import RunError
from cadre.experiment import checkpoint, losses
from cadre.experiment.bases import Watched
from cadre.experiment.build import build_team, hosted, sampling_memory, vocabulary
from cadre.experiment.cautions import training_cautions
from cadre.experiment.checkpoint import State
from cadre.experiment.config import load
from cadre.experiment.event_loop import run_to_end
from cadre.experiment.experiment import Experiment
from cadre.experiment.interrupt import Interrupt
from cadre.experiment.lock import RunLock
from cadre.experiment.loop import Training, train
from cadre.experiment.progress import Progress
from cadre.experiment.resume import adopt, changed
from cadre.experiment.run_directory import Run
from cadre.experiment.same_tasks import digests, refuse_others
from cadre.learn.token_notes import TokenNotes
from cadre.plugins import configure_sandbox, program_sandbox
from cadre.settings.trust import only_reading, tell_imports
from cadre.settings.user_imports import files_held
from cadre.team import Team, closed_on_failure


def start(
    experiment: Experiment, run: Run, console: Console, resume: bool = False, force: bool = False
) -> tuple[Team, int]:
    """Train in `run`, from its latest checkpoint if it is to `resume`, with the configuration that it then makes its
    own; the team and the updates made in all. A team that could not be trained to the end is closed.

    Raises RunError where another process trains in the run, and where the tasks of one that is to go on have changed,
    unless forced.
    """
    with RunLock(run.folder), closing(run):
        if resume:
            tell_imports()
        if resume and not force:
            refuse_others(experiment, run)
        if resume:
            for paragraph in losses.mend(run):
                console.print(paragraph, markup=False, highlight=False)
            adopt(run)
        return _locked(experiment, run, console, resume)


def _locked(experiment: Experiment, run: Run, console: Console, resume: bool) -> tuple[Team, int]:
    config = experiment.config
    configure_sandbox(config.sandbox.level, config.sandbox.cgroup)
    for paragraph in training_cautions(experiment):
        console.print(paragraph, markup=False, highlight=False)
    if not resume:
        _ = run.trackers  # one that cannot begin says so before models load; a resumed run draws its steps first
    memory = run.sampling_memory() if resume else {}
    watched = Watched(run.folder / "diverged", TokenNotes(config.train.trees_kept))
    team = build_team(experiment, train=True, watched=watched, memory=memory)
    with closed_on_failure() as failed, files_held():
        failed.callback(team.close)
        done = _trained(experiment, run, team, watched, console, resume)
    return team, done


def _trained(experiment: Experiment, run: Run, team: Team, watched: Watched, console: Console, resume: bool) -> int:
    """The updates made in all once the team has been trained."""
    run.words = vocabulary(experiment)
    confinement = program_sandbox()
    run.record_environment(confinement.record() if confinement else {}, sampling_memory(team), digests(experiment))
    state = _restored(run, team) if resume else State()
    for paragraph in losses.missing(run, state) if resume else ():
        console.print(paragraph, markup=False, highlight=False)
    experiment = hosted(experiment)
    goal, spent, interrupt = experiment.config.train, run.total("rollout/tokens"), Interrupt()
    with (
        closing(experiment.env_spec),
        Progress(console, goal.steps, state.step, goal.max_tokens, spent) as progress,
        interrupt.on_signals(),
    ):
        training = Training(experiment, run, team, progress, notes=watched.notes)
        return run_to_end(train(training, state, interrupt), interrupt)


def _restored(run: Run, team: Team) -> State:
    """The state of the latest checkpoint, or the first where none was written yet; what the run logged after it is
    forgotten. Steps that were sampled under other settings than the run's are sampled anew.

    Raises RunError where there are steps and no checkpoint: one is written before the first, so they are lost.
    """
    folder = run.folder / "checkpoints"
    if not checkpoint.steps(folder):
        if (forked := run.forked_at()) is not None:
            raise RunError(
                f"--resume: {run.folder} is a fork that begins after step {forked}, and holds no checkpoint; expected "
                f"that of step {forked} in {folder}, without which it would begin anew. Restore it, or fork again into "
                "another folder."
            )
        if done := sum(1 for _ in run.steps_logged()):
            raise RunError(
                f"--resume: {run.folder} has logged {done} steps and holds no checkpoint; expected those in {folder}, "
                "which may have been left where the run was copied from. Restore them, or train anew in another folder."
            )
        run.rewind(0)
        return State()
    latest, state = checkpoint.restore(folder, team)
    run.rewind(state.step)
    with only_reading():
        before = load(str(latest / "config.yaml")) if state.in_flight else run.config
    if changed(before, run.config):
        return replace(state, in_flight=())
    return state
