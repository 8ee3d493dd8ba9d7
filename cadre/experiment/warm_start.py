"""A supervised warm start: plain cross-entropy on given answers, then a run that reinforcement learning goes on with.

    loss = -(1 / tokens) * sum over the tokens of the answers of log pi(token | what came before)

It is the learner's own loss at advantage 1, without ratio, clip or KL, so whatever the learner can train can be warmed:
any map of roles to policies, adapters, several models. Policies that no example is about stay as they were. Progress is
saved in `warm_start/` of the run, and its end becomes the run's checkpoint of step 0 with a fresh optimiser. What it
leaves out: packing, mixing with reinforcement learning, and a reference model other than the models before it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cadre import random_keys
from cadre.advantages.plan import Plan
from cadre.errors import DataError, RunError
from cadre.experiment import checkpoint, jsonl
from cadre.experiment.bases import Watched
from cadre.experiment.build import build_team
from cadre.experiment.checkpoint import State
from cadre.experiment.config import Config, dump
from cadre.experiment.event_loop import run_to_end
from cadre.experiment.examples import Example, line_of
from cadre.experiment.experiment import Experiment
from cadre.experiment.interrupt import Interrupt
from cadre.experiment.lock import RunLock
from cadre.experiment.records import StepMetrics, WarmStartSettings, exists, read_record, refuse_link
from cadre.experiment.run_directory import Run, goes_on, new_run
from cadre.settings import LearnerConfig, LossConfig
from cadre.settings.section import merged
from cadre.team import Metrics, Team
from cadre.types import TrainingSequence

CROSS_ENTROPY = LossConfig(ratio="none", aggregate="token_mean")
HOME, SETTINGS, EXAMPLES, METRICS = "warm_start", "settings.json", "examples.jsonl", "metrics.jsonl"
SAVE_EVERY = 20  # steps
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WarmStart:
    """How long and how fast: `steps` of `examples` each at a constant `learning_rate`, drawn by `seed`."""

    steps: int = 100
    examples: int = 16
    learning_rate: float = 1e-5
    seed: int = 0


def create(
    folder: Path, config: Config, settings: WarmStart, examples: Sequence[Example], command: Sequence[str] = ()
) -> Run:
    """A new run that begins with a warm start, which `start` makes and `reopened` goes on with: whole or not at all.

    `command` is the recipe, and the changes to it.
    """
    recipe, *overrides = command or ("",)
    with new_run(folder) as built:
        prepare(Run.fill(built, config, recipe, overrides, None, folder), settings, examples)
    return Run(folder, config)


def prepare(run: Run, settings: WarmStart, examples: Sequence[Example]) -> None:
    """Write what a warm start is about into a new run, so that it can be gone on with."""
    home = run.folder / HOME
    home.mkdir()
    (home / EXAMPLES).write_text("".join(f"{line_of(example)}\n" for example in examples), encoding="utf-8")
    (home / SETTINGS).write_text(json.dumps(asdict(settings)) + "\n")


def reopened(run: Run) -> WarmStart:
    """The settings of a run's warm start. Raises RunError where it has none, or is trained already."""
    path = run.folder / HOME / SETTINGS
    if not exists(path):
        raise RunError(
            f"warm-start: {run.folder} has no warm start to go on with; expected one. Begin without --resume."
        )
    if checkpoint.steps(run.folder / "checkpoints"):
        raise RunError(
            f"warm-start: that of {run.folder} is complete; expected one that was stopped. "
            f"Go on with: {goes_on(run.folder)}."
        )
    refuse_link(run.folder / HOME / EXAMPLES)
    return WarmStart(**read_record(path, WarmStartSettings, run.folder).model_dump())


def start(
    experiment: Experiment,
    run: Run,
    settings: WarmStart,
    data: Sequence[TrainingSequence],
    tell: Callable[[int, Metrics], None],
) -> int:
    """Warm the policies on encoded examples, from the last save on where there is one; the steps made in all.

    At the end the run has a checkpoint of step 0, from which `cadre train --resume` goes on. `tell` is called with
    every step and its metrics. Raises DivergedError as training does.
    """
    with RunLock(run.folder):
        watched = Watched(run.folder / "diverged")
        team = build_team(supervised(experiment, settings), train=True, watched=watched)
        interrupt = Interrupt()
        with interrupt.on_signals():
            done = run_to_end(_steps(team, run.folder / HOME, settings, data, (interrupt, tell)), interrupt)
        team.close()
        if done == settings.steps:
            _hand_over(experiment, run)
    return done


def supervised(experiment: Experiment, settings: WarmStart) -> Experiment:
    """The experiment with the loss and the optimiser of a warm start: no critics, one optimiser step an update."""
    change = LearnerConfig(
        learning_rate=settings.learning_rate, schedule="constant", warmup_steps=0, epochs=1, minibatches=1
    )
    playing = set(experiment.config.team.policies)
    learners = {name: merged(learner, change) for name, learner in experiment.learners.items() if name in playing}
    plan = replace(Plan(experiment.plan.shape, experiment.plan.credit), loss=CROSS_ENTROPY)
    models = {name: model for name, model in experiment.models.items() if name in playing}
    return replace(experiment, plan=plan, learners=learners, models=models, heads={})


def encoded(experiment: Experiment, examples: Sequence[Example]) -> list[TrainingSequence]:
    """The examples as training sequences of the policies that play their roles. Raises DataError for one that is longer
    than its model's context, or whose answer spells out a token that ends turns; no model is loaded."""
    from cadre.engines.answers import AnswerEncoder

    encoders: dict[str, AnswerEncoder] = {}
    data = []
    for number, example in enumerate(examples, start=1):
        name = experiment.trained_roles[example.role]
        if name not in encoders:
            policy = experiment.policies[name]
            encoders[name] = AnswerEncoder.of(experiment.models[name], policy.enable_thinking, policy.trust_remote_code)
        place = f"{example.where or f'warm-start: example {number}'}, of {example.role},"
        if token := encoders[name].turn_token(example.answer):
            raise DataError(
                f"{place} has {token!r} in its answer, which begins or ends turns; expected what is "
                f"said in one turn of {experiment.models[name]}, whose end is added. Take it out."
            )
        prompt, answer = encoders[name].encode(example.prompt, example.answer)
        most, length = encoders[name].context, len(prompt) + len(answer)
        if most is not None and length > most:
            raise DataError(
                f"{place} has {length} tokens, {len(prompt)} in its prompt; expected at most {most}, the context of "
                f"{experiment.models[name]}. Shorten it or leave it out."
            )
        data.append(datum(name, example.role, prompt, answer))
    return data


def datum(policy: str, role: str, prompt: Sequence[int], answer: Sequence[int]) -> TrainingSequence:
    """One sequence whose answer has advantage 1 at every token."""
    mask = (False,) * len(prompt) + (True,) * len(answer)
    zeros = (0.0,) * len(mask)
    return TrainingSequence(policy, role, (*prompt, *answer), mask, zeros, tuple(map(float, mask)), 0)


async def _steps(
    team: Team,
    home: Path,
    settings: WarmStart,
    data: Sequence[TrainingSequence],
    watching: tuple[Interrupt, Callable[[int, Metrics], None]],
) -> int:
    """Make the steps that are left; saved every so many, and where an interrupt asks for the end."""
    interrupt, tell = watching
    folder = home / "checkpoints"
    state = checkpoint.restore(folder, team)[1] if checkpoint.steps(folder) else State()
    for wrong in jsonl.mend(home / METRICS, StepMetrics):
        log.warning("%s: left out %s.", home / METRICS, wrong)
    jsonl.cut(home / METRICS, lambda line: line["step"] >= state.step, StepMetrics)
    while state.step < settings.steps and not interrupt.asked:
        updates = await team.update(picked(data, state.step, settings))
        metrics = {f"{policy}/{name}": value for policy, told in updates.items() for name, value in told.items()}
        jsonl.append(home / METRICS, {"step": state.step, **metrics})
        tell(state.step, metrics)
        state = replace(state, step=state.step + 1)
        if state.step % SAVE_EVERY == 0:
            _save(folder, state, team)
    _save(folder, state, team)  # at the end, and where an interrupt asks for it, however late in a step
    return state.step


def _save(folder: Path, state: State, team: Team) -> None:
    """Save the only checkpoint that is kept, unless it is there."""
    if state.step:
        checkpoint.save(folder, state, team)
        checkpoint.prune(folder, state.step, 1, None)


def picked(data: Sequence[TrainingSequence], step: int, settings: WarmStart) -> list[TrainingSequence]:
    """The examples of a step: epochs, each in an order of its own."""
    places = random_keys.in_epochs(len(data), settings.examples, step, settings.seed, "warm start")
    return [data[place] for place in places]


def _hand_over(experiment: Experiment, run: Run) -> None:
    """Make the warmed weights the run's state before its first step, with the optimiser that it begins with.

    They are handed over as files, since whoever learns may share its weights with nobody.
    """
    team = build_team(experiment, train=True)
    playing = [name for name in experiment.learners if name in experiment.config.team.policies]
    warmed = checkpoint.latest(run.folder / HOME / "checkpoints")
    weights = {name: warmed / name for name in playing}
    checkpoint.save(run.folder / "checkpoints", State(), team, dump(experiment.config), weights)
    team.close()
