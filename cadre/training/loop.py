"""The training loop: sample trees, compute advantages, update every policy; log; evaluate and save when due."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from rich.console import Console

from cadre import random_keys
from cadre.advantages.batch import build_batch, is_useful
from cadre.concurrency import run_coroutine
from cadre.config.engines import Diagnostics, build_team, host_environments, measured_sampling_memory
from cadre.config.experiment import Experiment, load
from cadre.config.warnings import find_training_warnings
from cadre.errors import RunError
from cadre.evaluation.evaluate import evaluate, exact_field
from cadre.learn.token_notes import TokenNotes
from cadre.plugins import configure_sandbox, program_sandbox
from cadre.rollout import episodes
from cadre.rollout.episodes import Replacements, SampledTrees, replacement_tasks
from cadre.runs.folder import FailureLog, Run, RunLock
from cadre.runs.kept_trees import StepRecord, Vocabulary
from cadre.runs.progress import Progress, StatusWriter
from cadre.runs.resume import (
    adopt_config,
    check_same_tasks,
    describe_missing_logs,
    forbidden_changes,
    repair_logs,
    task_digests,
)
from cadre.settings.trust import only_reading, tell_imports
from cadre.settings.user_imports import files_held
from cadre.team import Metrics, Team, closed_on_failure
from cadre.training import metrics
from cadre.training.asynchronous import SampledStep, StalenessLimit, StepQueue
from cadre.training.checkpoint import Checkpointer, TrainingState, checkpoint_steps, restore_latest
from cadre.training.interrupt import Interrupt
from cadre.types import Task


def make_vocabulary(experiment: Experiment) -> Vocabulary:
    """What spells the tokens of every policy whose model is here."""
    from cadre.engines.spelling import Speller

    trusted = {name: policy.trust_remote_code for name, policy in experiment.policies.items()}
    return Vocabulary({name: Speller(source, trusted[name]) for name, source in experiment.models.items()})


PATIENCE = 5


FRACTION_SUFFIX = "/groups_without_std"


class ZeroVarianceMonitor:
    """Counts, by role, the steps in a row in which all samples of each of its groups were worth the same. Owned by a
    loop, so that every role is warned about once a start."""

    def __init__(self, patience: int = PATIENCE) -> None:
        self.patience = patience
        self._in_a_row: Counter[str] = Counter()
        self._warned: set[str] = set()

    def warnings(self, metrics: Mapping[str, float]) -> list[str]:
        """What there is to say after a step with these metrics."""
        for name, share in metrics.items():
            role = name.removesuffix(FRACTION_SUFFIX)
            if role not in (name, "rollout"):
                self._in_a_row[role] = self._in_a_row[role] + 1 if share == 1.0 else 0
        new = [role for role, steps in self._in_a_row.items() if steps >= self.patience and role not in self._warned]
        self._warned.update(new)
        return [self._paragraph(role) for role in new]

    def _paragraph(self, role: str) -> str:
        return (
            f"warning: {role} learned nothing in the last {self.patience} steps, as all its samples were worth the "
            "same as those that they were compared with. Check what the environment pays this role at its own step; "
            "else sample more (algorithm.k, sampling.temperature), or take tasks that it neither always nor never "
            "solves."
        )


@dataclass(frozen=True)
class Training:
    """Who and what takes part in a training, from its first step to its last."""

    experiment: Experiment
    run: Run
    team: Team
    progress: Progress
    watch: ZeroVarianceMonitor = field(default_factory=ZeroVarianceMonitor)
    notes: TokenNotes = field(default_factory=lambda: TokenNotes(0))

    @cached_property
    def tasks(self) -> Sequence[Task]:
        """The training split, the same to the end whatever becomes of its files."""
        return self.experiment.env_spec.tasks("train")

    @cached_property
    def held_out(self) -> Sequence[Task]:
        """The tasks that every evaluation plays."""
        wanted = self.experiment.config.evaluate
        return self.experiment.held_out.tasks("test")[wanted.first : wanted.first + wanted.tasks]

    @cached_property
    def failed(self) -> FailureLog:
        """Told of every episode that fails."""
        return FailureLog(self.run.folder, self.progress.say)


async def train_loop(training: Training, start: TrainingState, interrupt: Interrupt) -> int:
    """Train from where `start` stands to `train.steps` or `train.max_tokens`; returns the updates made in all.

    Sampling runs ahead of learning as far as `train.max_staleness` lets it. When `interrupt` is asked, a step that is
    still sampling is dropped where it can be sampled again, one that is learning is finished, and either way the state
    is saved.
    """
    goal, every = training.experiment.config.train, training.experiment.config.evaluate.every
    span = StalenessLimit(goal.max_staleness, goal.steps)
    ahead = StepQueue(partial(sample_step, training), training.team, span, start.in_flight)
    keeper, tokens = (
        Checkpointer(training.run, training.team, start, ahead, interrupt),
        training.run.total("rollout/tokens"),
    )
    status = StatusWriter(keeper, ahead)
    async with status.kept(), keeper.to_the_end():
        await ahead.hand_over()
        if is_due(start.step, every) or start.step == 0:
            await interrupt.stoppable(evaluate_step(training, start.step, ahead))
        keeper.save()
        while not interrupt.asked and keeper.state.step < goal.steps and not 0 < goal.max_tokens <= tokens:
            # Sample: a tree from every task, all at once.
            began = time.monotonic()
            step_sample = await interrupt.stoppable(ahead.take(keeper.state.step))
            if step_sample is None:
                break

            # Learn: groups or a critic give advantages, advantages become one update a policy.
            with keeper.changing():
                waited = {"time/wait_s": time.monotonic() - began}
                status.last = learned = await learn_step(training, keeper.state, step_sample, ahead, waited)
            tokens += learned["rollout/tokens"]

            # Evaluate and save when due.
            if is_due(keeper.state.step, every):
                await interrupt.stoppable(evaluate_step(training, keeper.state.step, ahead))
            await keeper.save_where_due()
        await interrupt.stoppable(evaluate_step(training, keeper.state.step, ahead))
    return keeper.state.step


async def sample_step(training: Training, step: int) -> SampledTrees:
    """A tree from every task of the step; where the experiment asks for it, others in place of those that teach
    nothing."""
    experiment, team = training.experiment, team_of_step(training, step)
    goal, plan = experiment.config.train, experiment.plan
    training.failed.begin(step)
    tasks = pick_tasks(training.tasks, goal.tasks_per_step, step, goal.seed)
    fresh = replacement_tasks(training.tasks, tasks, step, goal.seed)
    return await episodes.sample_step(
        tasks,
        Replacements(fresh, goal.replacements, is_useful(plan, team)),
        replace(experiment.rollout(team, training.failed), drawn=goal.trees_kept),
        random_keys.key(goal.seed, "train", step),
        partial(training.progress.sampling, step),
    )


def team_of_step(training: Training, step: int) -> Team:
    """Who plays which role in a step: as configured, but where the policies exchange their roles."""
    every = training.experiment.config.team.exchange_every
    return training.team.exchanged(step // every) if every else training.team


async def learn_step(
    training: Training, state: TrainingState, step_sample: SampledStep, ahead: StepQueue, waited: Metrics
) -> Metrics:
    """Learn from what a step sampled, hand the weights over, and log it; the step's metrics."""
    plan, began, sampled = training.experiment.plan, time.monotonic(), step_sample.sampled
    batch = build_batch(sampled.trees, plan, training.team, state.baselines)
    updates = await training.team.update(batch.sequences)
    staleness = metrics.staleness_metrics(sampled.trees, ahead.versions)
    await ahead.hand_over()
    seconds = waited | {"time/sample_s": step_sample.seconds, "time/learn_s": time.monotonic() - began}
    of_step = metrics.compute_step_metrics(
        sampled, batch, updates, plan.credit.alpha, training.experiment.trained_roles
    )
    step_metrics = of_step | staleness | seconds
    log_step(training, state.step, step_metrics, StepRecord(sampled, batch, training.notes.drain()))
    return step_metrics


def log_step(training: Training, step: int, step_metrics: Metrics, record: StepRecord) -> None:
    """What is kept of the step, its metrics, and what they warn of."""
    run, progress = training.run, training.progress
    run.keep(step, record, training.experiment.plan.selection)
    run.log(step, step_metrics)
    progress.step(step, step_metrics)
    for paragraph in training.watch.warnings(step_metrics):
        progress.console.print(paragraph, markup=False, highlight=False)


async def evaluate_step(training: Training, step: int, ahead: StepQueue) -> None:
    """`evaluate.tasks` of the test split, greedily, into the run, where it does not hold the report of `step` yet; with
    the newest weights."""
    experiment, run = training.experiment, training.run
    if not experiment.config.evaluate.tasks or any(report["step"] == step for report in run.evaluations()):
        return
    await ahead.settle()
    ticking = training.progress.evaluating(step, len(training.held_out))
    training.failed.begin(step)
    rollout = experiment.evaluation(training.team, training.failed)
    report, _ = await evaluate(rollout, training.held_out, 0, ticking)
    run.log_evaluation(step, report.as_dict() | exact_field(training.team, experiment.held_out))
    training.progress.evaluated(step, report)


def pick_tasks(tasks: Sequence[Task], count: int, step: int, seed: int) -> list[Task]:
    """The tasks of a step: epochs of the training split, each shuffled by its own key."""
    return [tasks[place] for place in random_keys.in_epochs(len(tasks), count, step, seed, "order")]


def is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def run_training(
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
            check_same_tasks(experiment, run)
        if resume:
            for paragraph in repair_logs(run):
                console.print(paragraph, markup=False, highlight=False)
            adopt_config(run)
        return _train_locked(experiment, run, console, resume)


def _train_locked(experiment: Experiment, run: Run, console: Console, resume: bool) -> tuple[Team, int]:
    config = experiment.config
    configure_sandbox(config.sandbox.level, config.sandbox.cgroup)
    for paragraph in find_training_warnings(experiment):
        console.print(paragraph, markup=False, highlight=False)
    if not resume:
        _ = run.trackers  # one that cannot begin says so before models load; a resumed run draws its steps first
    memory = run.sampling_memory() if resume else {}
    watched = Diagnostics(run.folder / "diverged", TokenNotes(config.train.trees_kept))
    team = build_team(experiment, train=True, watched=watched, memory=memory)
    with closed_on_failure() as failed, files_held():
        failed.callback(team.close)
        done = _train_team(experiment, run, team, watched, console, resume)
    return team, done


def _train_team(
    experiment: Experiment, run: Run, team: Team, watched: Diagnostics, console: Console, resume: bool
) -> int:
    """The updates made in all once the team has been trained."""
    run.words = make_vocabulary(experiment)
    confinement = program_sandbox()
    run.record_environment(
        confinement.record() if confinement else {}, measured_sampling_memory(team), task_digests(experiment)
    )
    state = _restore_state(run, team) if resume else TrainingState()
    for paragraph in describe_missing_logs(run, state) if resume else ():
        console.print(paragraph, markup=False, highlight=False)
    experiment = host_environments(experiment)
    goal, spent, interrupt = experiment.config.train, run.total("rollout/tokens"), Interrupt()
    with (
        closing(experiment.env_spec),
        Progress(console, goal.steps, state.step, goal.max_tokens, spent) as progress,
        interrupt.on_signals(),
    ):
        training = Training(experiment, run, team, progress, notes=watched.notes)
        return run_coroutine(train_loop(training, state, interrupt), interrupt)


def _restore_state(run: Run, team: Team) -> TrainingState:
    """The state of the latest checkpoint, or the first where none was written yet; what the run logged after it is
    forgotten. Steps that were sampled under other settings than the run's are sampled anew.

    Raises RunError where there are steps and no checkpoint: one is written before the first, so they are lost.
    """
    folder = run.folder / "checkpoints"
    if not checkpoint_steps(folder):
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
        return TrainingState()
    latest, state = restore_latest(folder, team)
    run.rewind(state.step)
    with only_reading():
        before = load(str(latest / "config.yaml")) if state.in_flight else run.config
    if forbidden_changes(before, run.config):
        return replace(state, in_flight=())
    return state
