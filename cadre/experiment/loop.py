"""The loop. Sample trees, give credit, update every policy; log; evaluate and save when due."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from cadre import random_keys
from cadre.advantages.batch import build_batch, useful
from cadre.experiment import evaluate, exact, metrics
from cadre.experiment.ahead import SamplingAhead, Span
from cadre.experiment.checkpoint import State
from cadre.experiment.experiment import Experiment
from cadre.experiment.failures import FailureLog
from cadre.experiment.in_flight import StepSample
from cadre.experiment.interrupt import Interrupt
from cadre.experiment.keeper import Keeper
from cadre.experiment.progress import Progress
from cadre.experiment.run_directory import Run
from cadre.experiment.status import Status
from cadre.experiment.std_watch import StdWatch
from cadre.experiment.trees.keep import StepRecord
from cadre.learn.token_notes import TokenNotes
from cadre.rollout import dynamic_sampling
from cadre.rollout.dynamic_sampling import Replacements, Sampled, replacement_tasks
from cadre.team import Metrics, Team
from cadre.types import Task


@dataclass(frozen=True)
class Training:
    """Who and what takes part in a training, from its first step to its last."""

    experiment: Experiment
    run: Run
    team: Team
    progress: Progress
    watch: StdWatch = field(default_factory=StdWatch)
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


async def train(training: Training, start: State, interrupt: Interrupt) -> int:
    """Train from where `start` stands to `train.steps` or `train.max_tokens`; returns the updates made in all.

    Sampling runs ahead of learning as far as `train.max_staleness` lets it. When `interrupt` is asked, a step that is
    still sampling is dropped where it can be sampled again, one that is learning is finished, and either way the state
    is saved.
    """
    goal, every = training.experiment.config.train, training.experiment.config.evaluate.every
    span = Span(goal.max_staleness, goal.steps)
    ahead = SamplingAhead(partial(sample, training), training.team, span, start.in_flight)
    keeper, tokens = Keeper(training.run, training.team, start, ahead, interrupt), training.run.total("rollout/tokens")
    status = Status(keeper, ahead)
    async with status.kept(), keeper.to_the_end():
        await ahead.hand_over()
        if due(start.step, every) or start.step == 0:
            await interrupt.stoppable(evaluate_now(training, start.step, ahead))
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
                status.last = learned = await learn(training, keeper.state, step_sample, ahead, waited)
            tokens += learned["rollout/tokens"]

            # Evaluate and save when due.
            if due(keeper.state.step, every):
                await interrupt.stoppable(evaluate_now(training, keeper.state.step, ahead))
            await keeper.save_where_due()
        await interrupt.stoppable(evaluate_now(training, keeper.state.step, ahead))
    return keeper.state.step


async def sample(training: Training, step: int) -> Sampled:
    """A tree from every task of the step; where the experiment asks for it, others in place of those that teach
    nothing."""
    experiment, team = training.experiment, played_by(training, step)
    goal, plan = experiment.config.train, experiment.plan
    training.failed.begin(step)
    tasks = pick(training.tasks, goal.tasks_per_step, step, goal.seed)
    fresh = replacement_tasks(training.tasks, tasks, step, goal.seed)
    return await dynamic_sampling.sample(
        tasks,
        Replacements(fresh, goal.replacements, useful(plan, team)),
        replace(experiment.rollout(team, training.failed), drawn=goal.trees_kept),
        random_keys.key(goal.seed, "train", step),
        partial(training.progress.sampling, step),
    )


def played_by(training: Training, step: int) -> Team:
    """Who plays which role in a step: as configured, but where the policies exchange their roles."""
    every = training.experiment.config.team.exchange_every
    return training.team.exchanged(step // every) if every else training.team


async def learn(
    training: Training, state: State, step_sample: StepSample, ahead: SamplingAhead, waited: Metrics
) -> Metrics:
    """Learn from what a step sampled, hand the weights over, and log it; the step's metrics."""
    plan, began, sampled = training.experiment.plan, time.monotonic(), step_sample.sampled
    batch = build_batch(sampled.trees, plan, training.team, state.baselines)
    updates = await training.team.update(batch.data)
    staleness = metrics.of_staleness(sampled.trees, ahead.versions)
    await ahead.hand_over()
    seconds = waited | {"time/sample_s": step_sample.seconds, "time/learn_s": time.monotonic() - began}
    of_step = metrics.of_step(sampled, batch, updates, plan.credit.alpha, training.experiment.trained_roles)
    step_metrics = of_step | staleness | seconds
    log(training, state.step, step_metrics, StepRecord(sampled, batch, training.notes.drain()))
    return step_metrics


def log(training: Training, step: int, step_metrics: Metrics, record: StepRecord) -> None:
    """What is kept of the step, its metrics, and what they warn of."""
    run, progress = training.run, training.progress
    run.keep(step, record, training.experiment.plan.selection)
    run.log(step, step_metrics)
    progress.step(step, step_metrics)
    for paragraph in training.watch.warnings(step_metrics):
        progress.console.print(paragraph, markup=False, highlight=False)


async def evaluate_now(training: Training, step: int, ahead: SamplingAhead) -> None:
    """`evaluate.tasks` of the test split, greedily, into the run, where it does not hold the report of `step` yet; with
    the newest weights."""
    experiment, run = training.experiment, training.run
    if not experiment.config.evaluate.tasks or any(report["step"] == step for report in run.evaluations()):
        return
    await ahead.settle()
    ticking = training.progress.evaluating(step, len(training.held_out))
    training.failed.begin(step)
    rollout = experiment.evaluation(training.team, training.failed)
    report, _ = await evaluate.evaluate(rollout, training.held_out, 0, ticking)
    run.log_evaluation(step, report.as_dict() | exact.as_field(training.team, experiment.held_out))
    training.progress.evaluated(step, report)


def pick(tasks: Sequence[Task], count: int, step: int, seed: int) -> list[Task]:
    """The tasks of a step: epochs of the training split, each shuffled by its own key."""
    return [tasks[place] for place in random_keys.in_epochs(len(tasks), count, step, seed, "order")]


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
