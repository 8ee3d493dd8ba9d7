"""The training loop: sample trees, compute advantages, update every policy; log; evaluate and save when due.

`run_training` sets a training up and tears it down, `train_loop` is the loop, and the functions below it are its
stages.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import fmean
from typing import Any

from rich.console import Console

from cadre import random_keys
from cadre.advantages.batch import build_batch, is_useful
from cadre.advantages.groups import AdvantageGroup
from cadre.concurrency import run_coroutine
from cadre.config.checks import find_training_warnings
from cadre.config.engines import build_team, host_environments, measured_sampling_memory
from cadre.config.experiment import Experiment, load
from cadre.env import GeneratedTasks
from cadre.errors import ContractError, RunError
from cadre.evaluation.evaluate import evaluate, exact_field
from cadre.learn.token_notes import TokenNotes
from cadre.plugins import configure_sandbox, program_sandbox
from cadre.rollout import episodes, walk
from cadre.rollout.episodes import Replacements, SampledTrees, replacement_tasks
from cadre.rollout.failures import is_complete
from cadre.rollout.shapes import success_label
from cadre.runs.folder import FailureLog, Run, RunLock
from cadre.runs.kept_trees import StepRecord, Vocabulary
from cadre.runs.progress import Progress, StatusWriter
from cadre.runs.resume import (
    adopt_config,
    changed_splits,
    check_same_bases,
    check_same_tasks,
    describe_missing_logs,
    fingerprint_bases,
    forbidden_changes,
    repair_logs,
    task_digests,
)
from cadre.settings.run import CurriculumConfig
from cadre.settings.trust import only_reading
from cadre.settings.user_code import frozen_files, load_function
from cadre.team import Metrics, SamplingActivity, Team, closed_on_failure
from cadre.training import metrics
from cadre.training.asynchronous import SampledStep, StalenessLimit, StepQueue
from cadre.training.checkpoint import (
    Checkpointer,
    TrainingState,
    checkpoint_steps,
    find_start,
    restore_latest,
    score_of_report,
)
from cadre.training.interrupt import Interrupt
from cadre.training.metrics import GpuMeter, make_gpu_meter
from cadre.training.opponents import OpponentPool
from cadre.types import Task, Tree

PATIENCE = 5  # steps
FRACTION_SUFFIX = "/zero_variance_groups"
# What is warned of if it held of a role in each of the last steps.
WARNINGS = {
    "absent": "{role} has not acted in {patience} steps, and a role that never acts is not trained. Let observe() "
    "return a prompt for it, or take it out of the roles of the environment.",
    "zero variance": "{role} learned nothing in the last {patience} steps: in each of its groups all returns were "
    "equal, or it was dropped for equal rewards (credit.without_std). Look at its completions (cadre play RUN --step "
    "N). If its reward comes at a later step, take an algorithm that credits that (algorithm=grpo_by_role); if all "
    "completions are equal, raise sampling.temperature or algorithm.k; if the tasks are always or never solved, change "
    "them.",
    "one sign": "all advantages of {role} were {sign} in the last {patience} steps, whatever it wrote: it is compared "
    "with roles that are rewarded differently. Compare each role with itself (algorithm=grpo_by_role), or reward all "
    "roles alike.",
}


class RoleMonitor:
    """Warns of roles from which nothing is learned, once per role and start. Owned by a loop.

    These are trained roles that were never sampled, roles all of whose groups had zero variance, and trained roles that
    are compared with others and whose advantages all had one sign. Under a teacher any group is learned from.
    """

    def __init__(self, trained: Iterable[str], has_teacher: bool = False, patience: int = PATIENCE) -> None:
        self._trained, self._has_teacher, self._patience = list(trained), has_teacher, patience
        self._absent = self._trained
        self._consecutive: Counter[tuple[str, str]] = Counter()
        self._warned: set[tuple[str, str]] = set()

    def warnings(self, step_metrics: Mapping[str, float], groups: Iterable[AdvantageGroup]) -> list[str]:
        """Return the warnings that are due after a step with these metrics and groups."""
        self._absent = [role for role in self._absent if f"{role}/tokens" not in step_metrics]
        faults = {("absent", role): True for role in self._absent}
        signs: dict[str, set[str]] = defaultdict(set)
        if not self._has_teacher:
            for name, fraction in step_metrics.items():
                if name.endswith(FRACTION_SUFFIX) and (role := name.removesuffix(FRACTION_SUFFIX)) != "rollout":
                    faults["zero variance", role] = fraction == 1.0
            for group in groups:
                if len({scored.sample.role for scored in group.samples}) > 1:
                    for scored in group.samples:
                        for advantage in filter(None, scored.advantages):
                            signs[scored.sample.role].add("positive" if advantage > 0.0 else "negative")
                        if scored.sample.role in self._trained:
                            faults["one sign", scored.sample.role] = len(signs[scored.sample.role]) == 1

        lines = []
        for fault, holds in faults.items():
            kind, role = fault
            self._consecutive[fault] = self._consecutive[fault] + 1 if holds else 0
            if self._consecutive[fault] >= self._patience and fault not in self._warned:
                self._warned.add(fault)
                text = WARNINGS[kind].format(role=role, patience=self._patience, sign=" and ".join(signs[role]))
                lines.append(f"warning: {text}")
        return lines


@dataclass(frozen=True)
class Training:
    """The objects that take part in a training, from its first step to its last."""

    experiment: Experiment
    run: Run
    team: Team
    progress: Progress
    notes: TokenNotes = field(default_factory=lambda: TokenNotes(0))
    pool: OpponentPool | None = None
    curriculum: dict[str, float] = field(default_factory=dict)

    @cached_property
    def held_out(self) -> Sequence[Task]:
        """The tasks of every evaluation."""
        settings = self.experiment.config.evaluate
        return self.experiment.held_out_tasks[settings.first : settings.first + settings.tasks]

    @cached_property
    def monitor(self) -> RoleMonitor:
        """Warns of roles from which nothing is learned."""
        return RoleMonitor(self.experiment.trained_roles, self.experiment.plan.teacher is not None)

    @cached_property
    def gpu(self) -> GpuMeter | None:
        """Computes the metrics that a run on GPUs has beside the others."""
        return make_gpu_meter(self.experiment)

    @cached_property
    def failed(self) -> FailureLog:
        """Called with every episode that fails."""
        return FailureLog(self.run.folder, self.progress.say)


def run_training(
    experiment: Experiment, run: Run, console: Console, resume: bool = False, force: bool = False
) -> tuple[Team, int]:
    """Train in `run`, with `resume` from its latest checkpoint; return the team and the number of updates made in all.
    A team that could not be trained to the end is closed. Raises RunError where another process trains in the run, and
    where the tasks or the models of a resumed run have changed, unless forced."""

    def tell(paragraphs: Iterable[str]) -> None:
        for paragraph in paragraphs:
            console.print(paragraph, markup=False, highlight=False)

    with RunLock(run.folder), closing(run):
        if resume and not force:
            check_same_tasks(experiment, run)
            check_same_bases(experiment, run)
        if resume:
            tell(repair_logs(run))
            adopt_config(run, has_other_tasks=force and "test" in changed_splits(experiment, run))
        configure_sandbox(experiment.config.sandbox.level, experiment.config.sandbox.cgroup)
        os.environ["CADRE_RUN"] = run.folder.name  # what the run starts carries its name, such as containers
        tell(find_training_warnings(experiment))
        if not resume:
            # One that cannot start raises before models load; a resumed run plots its past steps first.
            _ = run.trackers

        # Load the models.
        notes = TokenNotes(experiment.config.train.trees_kept)
        memory, start = run.sampling_memory() if resume else {}, find_start(experiment, run)
        tell(f"vLLM samples {name}. Its first start on a machine takes minutes." for name in experiment.vllm_policies)
        team = build_team(experiment, train=True, notes=notes, memory=memory, start=start)
        with closed_on_failure() as failed, frozen_files():
            failed.callback(team.close)
            run.vocabulary = make_vocabulary(experiment)
            confinement = program_sandbox()
            run.record_environment(
                sandbox=confinement.record() if confinement else {},
                tasks=task_digests(experiment),
                sampling_memory=measured_sampling_memory(team),
                engines={name: sampler.engine for name, sampler in experiment.samplers.items()},
                bases=fingerprint_bases(experiment.models),
            )
            state = TrainingState()
            if resume:
                state = restore_state(run, team)
                tell(describe_missing_logs(run, state))

            # Train. Environments step in other processes if the cluster has some for them.
            experiment = host_environments(experiment)
            goal, spent = experiment.config.train, run.total("rollout/tokens")
            interrupt = Interrupt(breaks_calls=not goal.max_staleness)  # a step that is sampled ahead is kept
            label = success_label(experiment.plan.shape, experiment.env_spec.roles)
            names = list(filter(None, experiment.env_spec.members))
            if label != "success":
                tell([f"{label}: success in training, where each decision selects the best completion"])
            with (
                closing(experiment.env_spec),
                Progress(console, goal.steps, state.step, goal.max_tokens, spent, label, names) as progress,
                interrupt.on_signals(),
            ):
                progress.activity = SamplingActivity(team.samplers.values())
                pool = OpponentPool.restored(experiment, run.folder, state)
                watched = replace(team, activity=progress.activity)
                training = Training(experiment, run, watched, progress, notes, pool, state.curriculum)
                updates = run_coroutine(train_loop(training, state, interrupt), interrupt)
    return team, updates


def make_vocabulary(experiment: Experiment) -> Vocabulary:
    """Return the vocabulary that spells the tokens of every policy whose model is on this machine."""
    from cadre.engines.text.model import TokenSpeller

    trusted = {name: policy.trust_remote_code for name, policy in experiment.policies.items()}
    return Vocabulary({name: TokenSpeller(source, trusted[name]) for name, source in experiment.models.items()})


def restore_state(run: Run, team: Team) -> TrainingState:
    """Return the state of the latest checkpoint, or the initial state where none was written yet. Log lines after that
    step are removed. Steps that were sampled under other settings are dropped and sampled again. Raises RunError where
    there are logged steps and no checkpoint."""
    folder = run.folder / "checkpoints"
    if not checkpoint_steps(folder):
        # A fork begins with a checkpoint, and one is written before the first step.
        if run.forked_at() is not None or any(True for _ in run.steps_logged()):
            raise RunError(
                f"--resume: {run.folder} has made steps and holds no checkpoint; expected those in {folder}, which may "
                "have been left where the run was copied from. Restore them, or train anew in another folder."
            )
        run.rewind(0)
        return TrainingState()
    latest, state = restore_latest(folder, team)
    run.rewind(state.step)
    with only_reading():
        config_before = load(str(latest / "config.yaml")) if state.sampled_steps else run.config
    # Only settings that change samples are forbidden, so other changes keep what is sampled already.
    if forbidden_changes(config_before, run.config):
        return replace(state, sampled_steps=())
    return state


async def train_loop(training: Training, start: TrainingState, interrupt: Interrupt) -> int:
    """Train from `start` to the end that `find_end` or `train.on_step` gives; return the number of updates made in all.

    Raises ContractError at the end if every episode since the first step failed: nothing was learned.

    Sampling runs ahead of learning as far as `train.max_staleness` allows. After an interrupt, a step that is being
    sampled is dropped if it can be sampled again, a step that is learning is finished, and the state is saved.
    """
    goal, interval = training.experiment.config.train, training.experiment.config.evaluate.every
    limit = StalenessLimit(goal.max_staleness, goal.steps)
    queue = StepQueue(partial(sample_step, training), training.team, limit, start.sampled_steps)
    checkpointer = Checkpointer(training.run, training.team, start, queue, interrupt)
    status, tokens = StatusWriter(checkpointer, queue), training.run.total("rollout/tokens")
    has_complete_episode = start.step > 0  # the trees of a resumed run's earlier steps are not at hand
    async with status.writing(), checkpointer.save_on_exit():
        await queue.sync_weights()
        if training.pool is not None:
            await training.pool.load(training.team, start.step)
        if is_due(start.step, interval) or start.step == 0:
            await interrupt.stoppable(evaluate_step(training, start.step, queue))
        checkpointer.save()
        training.run.ended = find_end(training.run, checkpointer.state.step, tokens)
        while not interrupt.requested and not training.run.ended:
            # Sample: one tree per task, all at once.
            if training.gpu is not None:
                training.gpu.reset_peak()
            began = time.monotonic()
            sampled = await interrupt.stoppable(queue.next_step(checkpointer.state.step))
            if sampled is None:
                break

            # Learn: groups or a critic give advantages, and advantages become one update per policy.
            with checkpointer.updating():
                waited: Metrics = {"time/wait_s": time.monotonic() - began}
                if training.gpu is not None:
                    waited["gpu/sampling_peak_gb"] = training.gpu.peak_gb()
                    training.gpu.reset_peak()
                status.metrics = learned = await learn_step(training, checkpointer.state, sampled, queue, waited)
                if training.pool is not None and is_due(checkpointer.state.step + 1, training.pool.config.every):
                    await training.pool.admit(training.team, checkpointer.state.step + 1)
            tokens += learned["rollout/tokens"]
            branches = (branch for tree in sampled.sampled.trees for branch in tree.root.branches)
            has_complete_episode = has_complete_episode or any(map(is_complete, branches))

            # Evaluate and save when due, and find out if this was the last step.
            if is_due(checkpointer.state.step, interval):
                await interrupt.stoppable(evaluate_step(training, checkpointer.state.step, queue))
            await checkpointer.save_if_due()
            training.run.ended = find_end(training.run, checkpointer.state.step, tokens)
            if goal.on_step is not None and call_on_step(goal.on_step, checkpointer.state.step, learned):
                training.run.ended = training.run.ended or f"train.on_step ({goal.on_step}) returned True"
        await interrupt.stoppable(evaluate_step(training, checkpointer.state.step, queue))
        if checkpointer.state.step and not (has_complete_episode or interrupt.requested):
            raise ContractError(
                "Every episode of the training failed, so nothing was learned; expected some that end. The first "
                f"failures are in {training.failed.path}: mend what they name, and train again."
            )
    return checkpointer.state.step


def find_end(run: Run, step: int, tokens: float) -> str:
    """Return why the training ends after `step` updates and so many sampled tokens; "" if it goes on."""
    goal = run.train
    if step >= goal.steps:
        return f"train.steps={goal.steps}"
    if 0 < goal.max_tokens <= tokens:
        return f"train.max_tokens={goal.max_tokens}"
    if goal.stop_at_success is None and not goal.patience:
        return ""  # the evaluations are not read after every step for nothing
    reports = run.evaluations()
    successes = [report["success"] for report in reports]
    if goal.stop_at_success is not None and successes and successes[-1] >= goal.stop_at_success:
        return f"train.stop_at_success={goal.stop_at_success:g}: the last evaluation has {successes[-1]:.1%}"
    scores = [score_of_report(report) for report in reports]
    if goal.patience and len(scores) > goal.patience and max(scores[-goal.patience :]) <= max(scores[: -goal.patience]):
        best = reports[scores.index(max(scores))]["step"]
        return f"train.patience={goal.patience}: no evaluation since step {best} was better"
    return ""


def call_on_step(reference: str, step: int, step_metrics: Metrics) -> bool:
    """Call the user's function with a step, counted from 1, and a copy of its metrics; return True if it ends the
    training. Raises ContractError for an error in it, and for any other result than True, False and None."""
    function: Callable[[int, Metrics], Any] = load_function("train.on_step", reference, {})
    result = function(step, dict(step_metrics))
    # An array is equal to nothing that has one truth value.
    if result is not None and (getattr(result, "shape", ()) != () or result not in (True, False)):
        raise ContractError(
            f"train.on_step: {reference} returned {result!r:.80}; expected True to end the training, or nothing. "
            "Return that."
        )
    return bool(result)


def sample_step(training: Training, step: int) -> Awaitable[SampledTrees]:
    """Begin to sample one tree per task of the step, and return the awaitable of all of them; with
    `train.replacements` also trees of other tasks in place of those that have no gradient."""
    levels, level = training.experiment.levels, int(training.curriculum.get("level", 0))
    experiment, goal = levels[min(level, len(levels) - 1)], training.experiment.config.train  # a fork may have fewer
    team = team_of_step(training, step)
    training.failed.begin(step)
    tasks = pick_tasks(experiment.training_tasks, goal.tasks_per_step, step, goal.seed)
    fresh = replacement_tasks(experiment.training_tasks, tasks, step, goal.seed)
    return episodes.sample_step(
        tasks,
        Replacements(fresh, goal.replacements, is_useful(experiment.plan, team)),
        replace(experiment.rollout(team, training.failed), drawings=goal.trees_kept),
        random_keys.key(goal.seed, "train", step),
        partial(training.progress.begin, "sampling"),
    )


def team_of_step(training: Training, step: int) -> Team:
    """Return the team of a step: its policies may exchange their roles, members of a pool may take seats of theirs, and
    some may be frozen by the schedule."""
    interval = training.experiment.config.team.exchange_every
    team = training.team.exchanged(step // interval) if interval else training.team
    seats = team.seats if training.pool is None else partial(training.pool.seats, step)
    return replace(team, frozen=training.experiment.frozen_at(step), seats=seats)


async def learn_step(
    training: Training, state: TrainingState, sampled_step: SampledStep, queue: StepQueue, waited: Metrics
) -> Metrics:
    """Update the policies with what a step sampled, sync the weights, and log the step; return its metrics."""
    plan, began, sampled = training.experiment.plan, time.monotonic(), sampled_step.sampled
    team = team_of_step(training, state.step)
    batch = build_batch(sampled.trees, plan, team, state.baselines)

    # A colocated sampler may fall asleep when the update begins, so its seconds are taken before and after, too.
    samplers = training.team.samplers.values()
    synced, update_began = metrics.sync_seconds(samplers), time.monotonic()
    if not queue.sampling():  # which a display of one phase shows, as it takes longer
        training.progress.begin("learning", 1)
    updates = await team.update(batch.sequences)
    in_update, update_seconds = metrics.sync_seconds(samplers), time.monotonic() - update_began
    staleness = metrics.staleness_metrics(sampled.trees, queue.versions)
    await queue.sync_weights()
    seconds = waited | {"time/sample_s": sampled_step.seconds, "time/learn_s": time.monotonic() - began}
    seconds |= metrics.add_metrics(synced, in_update, metrics.sync_seconds(samplers))
    if training.gpu is not None:
        update_seconds -= in_update.get("time/sleep_s", 0.0)
        seconds["time/update_s"] = update_seconds
        seconds |= training.gpu.sampling_metrics(sampled.trees, sampled_step.seconds)
        trained = [sequence for sequence in batch.sequences if team.trains(sequence.policy)]
        seconds |= training.gpu.learning_metrics(trained, update_seconds)
        seconds["gpu/learning_peak_gb"] = training.gpu.peak_gb()
    trained_roles = training.experiment.trained_roles
    step_metrics = metrics.compute_step_metrics(sampled, batch, updates, plan, trained_roles)
    step_metrics = step_metrics | staleness | seconds
    if training.pool is not None:
        step_metrics |= training.pool.rate(sampled.trees)
    if (curriculum := training.experiment.config.curriculum) is not None:
        step_metrics |= count_solved(state.curriculum, curriculum, sampled.trees)
    if training.experiment.schedule != "together":
        policies = dict.fromkeys(trained_roles.values())
        step_metrics |= {f"{policy}/learned": float(policy not in team.frozen) for policy in policies}

    # Log: the step's kept trees and its metrics, its line and warnings.
    training.run.keep(state.step, StepRecord(sampled, batch, training.notes.drain()), plan.selection)
    training.run.log(state.step, step_metrics)
    training.progress.step(state.step, step_metrics)
    for warning in training.monitor.warnings(step_metrics, batch.groups):
        training.progress.say(warning)
    return step_metrics


def count_solved(state: dict[str, float], config: CurriculumConfig, trees: Sequence[Tree]) -> Metrics:
    """Count the trees of a step in the state of the curriculum, each as the fraction of its episodes that succeeded;
    move by a level if the window is full; return the step's metrics."""
    highest = len(config.levels) - 1
    level, ends = min(int(state.get("level", 0)), highest), [[*walk.episodes(tree.root)] for tree in trees]
    solved = sum(fmean(path[-1][1].success for path in paths) for paths in ends if paths)
    counts = {"tasks": state.get("tasks", 0.0) + len(trees), "solved": state.get("solved", 0.0) + solved}
    rate = counts["solved"] / counts["tasks"] if counts["tasks"] else 0.0
    if counts["tasks"] >= config.window:
        moved = level + (rate >= config.up) - (rate <= config.down)
        counts = {"level": min(max(moved, 0), highest)}
        state.clear()
    state.update(counts)
    return {"curriculum/level": level, "curriculum/success": rate}


async def evaluate_step(training: Training, step: int, queue: StepQueue) -> None:
    """Evaluate the newest weights on `evaluate.tasks` held-out tasks, unless the run has the report of `step`
    already."""
    experiment, run = training.experiment, training.run
    if not experiment.config.evaluate.tasks or any(report["step"] == step for report in run.evaluations()):
        return
    await queue.drain()  # an evaluation is of the newest weights, so nothing may be sampled with older ones
    tick = training.progress.begin("evaluating", len(training.held_out))
    training.failed.begin(step)
    rollout = experiment.evaluation(training.team, training.failed)
    report, _ = await evaluate(rollout, training.held_out, 0, tick)
    run.log_evaluation(step, report.as_dict() | exact_field(training.team, experiment.held_out))
    training.progress.evaluated(step, report)


def pick_tasks(tasks: Sequence[Task], count: int, step: int, seed: int) -> list[Task]:
    """Return the tasks of a step: epochs of the training split, each shuffled by its own key."""
    period = tasks.period if isinstance(tasks, GeneratedTasks) else 1
    return [tasks[index] for index in random_keys.in_epochs(len(tasks), count, step, seed, "order", period)]


def is_due(step: int, interval: int) -> bool:
    """Return True at every step that the interval divides; 0 is never."""
    return interval > 0 and step % interval == 0
