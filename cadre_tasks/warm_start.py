"""A supervised warm start: cross-entropy on given answers, before a run that reinforcement learning continues.

    loss = -(1 / tokens) * sum over the tokens of the answers of log pi(token | what came before)

It is the learner's own loss at advantage 1, without ratio, clip or KL, so whatever the learner can train can be warmed:
any map of roles to policies, adapters, several models. Policies without examples stay as they are. Progress is saved in
`warm_start/` of the run, and the final weights become the run's checkpoint of step 0 with a fresh optimizer. Left out:
packing, and mixing with reinforcement learning. The reference of a KL penalty is the model before the warm start, or
the model after it with `kl.reference: start`.

An example is a line of JSON: `{"role": "tool", "prompt": text or messages, "answer": text}`, with `"tools": [...]` in
OpenAI's form if the role is offered some; its calls are text of the answer, in the form of the model.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from cadre import random_keys
from cadre.advantages.batch import Plan
from cadre.cli.terminal import STOPPED, Overrides, Trust, console, print_lines, reject_beside, reject_without
from cadre.concurrency import run_coroutine
from cadre.config.engines import build_team, check_hub_models
from cadre.config.experiment import Config, Experiment, dump
from cadre.config.resolve import resolve, resolve_recipe
from cadre.config.trusted_runs import check_trusted
from cadre.engines.text.tools import to_template_dicts, tool_definitions
from cadre.envs.messages import to_messages
from cadre.errors import ConfigError, DataError, RunError, nearest
from cadre.files import path_exists, read_record, require_no_link
from cadre.plugins import configure_sandbox
from cadre.rollout import shapes, walk
from cadre.rollout.episodes import grow_many
from cadre.rows import read_json_lines
from cadre.runs import jsonl
from cadre.runs.folder import Run, RunLock, check_folder_free, create_in_free_folder, resume_command
from cadre.runs.records import StepMetrics
from cadre.settings import LearnerConfig, LossConfig
from cadre.settings.section import apply_changes
from cadre.team import Metrics, Team
from cadre.training.checkpoint import (
    WARM_START,
    WARM_START_SETTINGS,
    TrainingState,
    checkpoint_steps,
    latest_checkpoint,
    remove_old_checkpoints,
    restore_latest,
    save_checkpoint,
)
from cadre.training.interrupt import Interrupt
from cadre.types import Message, Tool, TrainingSequence, Tree, media_of
from cadre_programs.calls import RequestError
from cadre_programs.protocol import parse_tools

CROSS_ENTROPY = LossConfig(ratio="none", aggregate="token_mean")
EXAMPLES, METRICS = "examples.jsonl", "metrics.jsonl"
SAVE_EVERY = 20  # steps
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WarmStart:
    """The settings: `steps` of `examples` each at a constant `learning_rate`, drawn by `seed`."""

    steps: Annotated[int, Field(ge=1)] = 100
    examples: Annotated[int, Field(ge=1)] = 16
    learning_rate: Annotated[float, Field(gt=0.0, lt=1e31)] = 1e-5
    seed: int = 0


def create_warm_start(
    folder: Path, config: Config, settings: WarmStart, examples: Sequence[Example], command: Sequence[str] = ()
) -> Run:
    """Create a new run that begins with a warm start, all of it or nothing; `run_warm_start` trains it, and
    `open_warm_start` resumes it. `command` is the recipe and its overrides."""
    recipe, *overrides = command or ("",)
    return Run.create(folder, config, recipe, overrides, fill=lambda run: write_warm_start(run, settings, examples))


def write_warm_start(run: Run, settings: WarmStart, examples: Sequence[Example]) -> None:
    """Write the settings and examples of a warm start into a new run, so that it can be resumed."""
    home = run.folder / WARM_START
    home.mkdir()
    (home / EXAMPLES).write_text("".join(f"{example_to_json(example)}\n" for example in examples), encoding="utf-8")
    (home / WARM_START_SETTINGS).write_text(json.dumps(asdict(settings)) + "\n")


def open_warm_start(run: Run) -> WarmStart:
    """Return the settings of a run's warm start. Raises RunError if it has none, or if it is complete."""
    path = run.folder / WARM_START / WARM_START_SETTINGS
    if not path_exists(path):
        raise RunError(
            f"warm-start: {run.folder} has no warm start to go on with; expected one. Begin without --resume."
        )
    if checkpoint_steps(run.folder / "checkpoints"):
        raise RunError(f"warm-start: that of {run.folder} is complete. Go on with: {resume_command(run.folder)}.")
    require_no_link(run.folder / WARM_START / EXAMPLES)
    return read_record(path, WarmStart, run.folder)


def run_warm_start(
    experiment: Experiment,
    run: Run,
    settings: WarmStart,
    data: Sequence[TrainingSequence],
    tell: Callable[[int, Metrics], None],
) -> int:
    """Train the policies on encoded examples, from the last save if there is one; return the number of steps made in
    all.

    At the end the run has a checkpoint of step 0, from which `cadre train --resume` continues. `tell` is called with
    every step and its metrics. Raises DivergedError as training does.
    """
    # No critics, and one optimizer step per update.
    changes = LearnerConfig(
        learning_rate=settings.learning_rate,
        schedule="constant",
        final_rate_fraction=0.0,
        warmup_steps=0,
        epochs=1,
        minibatches=1,
        minibatch_size=None,
    )
    names = set(experiment.roles.values())
    learners = {name: apply_changes(learner, changes) for name, learner in experiment.learners.items() if name in names}
    plan = replace(Plan(experiment.plan.shape, experiment.plan.credit), loss=CROSS_ENTROPY)
    models = {name: model for name, model in experiment.models.items() if name in names}
    supervised = replace(experiment, plan=plan, learners=learners, models=models, heads={})
    with RunLock(run.folder):
        team = build_team(supervised, train=True)
        interrupt = Interrupt()
        with interrupt.on_signals():
            steps = run_coroutine(
                _train_steps(team, run.folder / WARM_START, settings, data, (interrupt, tell)), interrupt
            )
        team.close()
        if steps == settings.steps:
            _write_first_checkpoint(experiment, run)
    return steps


def encode_examples(experiment: Experiment, examples: Sequence[Example]) -> list[TrainingSequence]:
    """Return the examples as training sequences of the policies that play their roles. Raises DataError for one that is
    longer than its model's context, or whose answer contains a token that ends turns; no model is loaded."""
    from cadre.engines.text.model import AnswerEncoder

    encoders: dict[str, AnswerEncoder] = {}
    sequences = []
    for number, example in enumerate(examples, start=1):
        name = experiment.trained_roles[example.role]
        if name not in encoders:
            policy = experiment.policies[name]
            encoders[name] = AnswerEncoder.of(
                experiment.models[name],
                policy.enable_thinking,
                policy.trust_remote_code,
                None if policy.lora is None else policy.lora.path,
            )
        where = f"{example.where or f'warm-start: example {number}'}, of {example.role},"
        if token := encoders[name].turn_token(example.answer):
            raise DataError(
                f"{where} has {token!r} in its answer, which begins or ends turns; expected what is "
                f"said in one turn of {experiment.models[name]}, whose end is added. Take it out."
            )
        prompt, answer = encoders[name].encode(example.prompt, example.answer, example.tools)
        context, length = encoders[name].context, len(prompt) + len(answer)
        if context is not None and length > context:
            raise DataError(
                f"{where} has {length} tokens, {len(prompt)} in its prompt; expected at most {context}, the context of "
                f"{experiment.models[name]}. Shorten it or leave it out."
            )
        sequences.append(make_sequence(name, example.role, prompt, answer))
    return sequences


def make_sequence(policy: str, role: str, prompt: Sequence[int], answer: Sequence[int]) -> TrainingSequence:
    """Return one sequence whose answer has advantage 1 at every token."""
    mask = (False,) * len(prompt) + (True,) * len(answer)
    zeros = (0.0,) * len(mask)  # log-probabilities, which a loss without a ratio does not read
    return TrainingSequence(policy, role, (*prompt, *answer), mask, zeros, tuple(map(float, mask)), 0)


async def _train_steps(
    team: Team,
    home: Path,
    settings: WarmStart,
    data: Sequence[TrainingSequence],
    control: tuple[Interrupt, Callable[[int, Metrics], None]],
) -> int:
    """Make the remaining steps; save every so many, and after an interrupt."""
    interrupt, tell = control
    folder = home / "checkpoints"
    state = restore_latest(folder, team)[1] if checkpoint_steps(folder) else TrainingState()
    for fault in jsonl.repair(home / METRICS, StepMetrics):
        log.warning("%s: left out %s.", home / METRICS, fault)
    jsonl.truncate(home / METRICS, lambda line: line["step"] >= state.step, StepMetrics)
    while state.step < settings.steps and not interrupt.requested:
        updates = await team.update(pick_examples(data, state.step, settings))
        metrics = {f"{policy}/{name}": value for policy, named in updates.items() for name, value in named.items()}
        jsonl.append(home / METRICS, {"step": state.step, **metrics})
        tell(state.step, metrics)
        state = replace(state, step=state.step + 1)
        if state.step % SAVE_EVERY == 0:
            _save_progress(folder, state, team)
    _save_progress(folder, state, team)  # at the end, and where an interrupt asks for it, however late in a step
    return state.step


def _save_progress(folder: Path, state: TrainingState, team: Team) -> None:
    """Save the only checkpoint that is kept, unless it exists."""
    if state.step:
        save_checkpoint(folder, state, team)
        remove_old_checkpoints(folder, state.step, 1, None)


def pick_examples(data: Sequence[TrainingSequence], step: int, settings: WarmStart) -> list[TrainingSequence]:
    """Return the examples of a step: epochs, each shuffled by its own key."""
    indices = random_keys.in_epochs(len(data), settings.examples, step, settings.seed, "warm start")
    return [data[index] for index in indices]


def _write_first_checkpoint(experiment: Experiment, run: Run) -> None:
    """Make the warmed weights the run's state before its first step, with a fresh optimizer. They are copied as files,
    since a learner may be in another process."""
    # A new team, since the optimizer of the warm start is not the run's.
    team = build_team(experiment, train=True)
    names = [name for name in experiment.learners if name in experiment.roles.values()]
    warmed = latest_checkpoint(run.folder / WARM_START / "checkpoints")
    weights = {name: warmed / name for name in names}
    save_checkpoint(run.folder / "checkpoints", TrainingState(), team, dump(experiment.config), weights)
    team.close()


# ---- Examples

EXAMPLE_FIELDS = ("role", "prompt", "answer")
EXAMPLE_FORM = 'expected {"role": name, "prompt": text or messages, "answer": text}, and "tools": [...] if it has some'


@dataclass(frozen=True)
class Example:
    """A prompt of a role and the answer to imitate: `Example("tool", (Message("user", "2 + 2?"),), "4")`; `tools` are
    offered with the prompt, `where` is the file and line that it was read from."""

    role: str
    prompt: tuple[Message, ...]
    answer: str
    tools: tuple[Tool, ...] = ()
    where: str = field(default="", compare=False)


def read_examples(path: Path, roles: Sequence[str]) -> list[Example]:
    """Return the examples of a file, validated; repeated ones count once. Raises DataError that names the first bad
    line."""
    if not path.is_file():
        raise DataError(f"examples: there is no file {path}; expected one JSON object a line. Fix the path.")
    examples = []
    for number, raw in read_json_lines(path):
        where = f"examples: {path}, line {number}"
        if {*raw, "tools"} != {*EXAMPLE_FIELDS, "tools"}:
            raise DataError(f"{where}: got {list(raw)}; {EXAMPLE_FORM}. Fix it.")
        if raw["role"] not in roles:
            raise DataError(
                f"{where}: got the role {raw['role']!r}; expected one that is trained, {', '.join(roles)}. Fix or "
                f"remove the line.{nearest(str(raw['role']), roles)}"
            )
        if not isinstance(raw["answer"], str) or not raw["answer"].strip():
            raise DataError(f"{where}: got the answer {raw['answer']!r}; {EXAMPLE_FORM}. Fix or remove the line.")
        try:
            tools = parse_tools(raw.get("tools"))
        except RequestError as error:
            raise DataError(f"{where}: {error.message} Fix or remove the line.") from None
        prompt = to_messages(raw["prompt"], where, DataError)
        if not any(message.content.strip() for message in prompt):
            raise DataError(f"{where}: got a blank prompt; expected one that says something. Fix or remove the line.")
        examples.append(Example(raw["role"], prompt, raw["answer"], tools, where))
    if not examples:
        raise DataError(f"examples: {path} is empty; {EXAMPLE_FORM} a line. Name another file.")
    unique = remove_repeated(examples)
    if len(unique) < len(examples):
        log.warning("examples: %s repeats %d of its examples; each counts once.", path, len(examples) - len(unique))
    return unique


def example_to_json(example: Example) -> str:
    """Return an example as `read_examples` reads it."""
    messages = to_template_dicts(example.prompt, arguments_as_text=True)
    tools = {"tools": tool_definitions(example.tools)} if example.tools else {}
    return json.dumps({"role": example.role, "prompt": messages, "answer": example.answer, **tools})


def remove_repeated(examples: Iterable[Example]) -> list[Example]:
    """Return the examples, each once."""
    unique: dict[str, Example] = {}
    for example in examples:
        unique.setdefault(example_to_json(example), example)
    return list(unique.values())


def sample_successes(experiment: Experiment, tasks: int, attempts: int = 8) -> tuple[list[Example], int]:
    """Return the untrained team's answers in the episodes that succeed, and the number of episodes: so many training
    tasks, `attempts` times each, sampled as in training. Raises RunError if no episode succeeds."""
    configure_sandbox(experiment.config.sandbox.level, experiment.config.sandbox.cgroup)
    team = build_team(experiment)
    key = random_keys.key(experiment.config.train.seed, "own successes")
    rollout = replace(experiment.rollout(team), shape=shapes.independent(attempts), ablation="none", signs=False)
    trees, _ = run_coroutine(grow_many(experiment.training_tasks[:tasks], rollout, key))
    team.close()
    # Frozen policies are not trained, so their answers are no examples.
    roles = set(experiment.trained_roles)
    examples = remove_repeated(e for tree in trees for e in successful_examples(tree) if e.role in roles)
    episodes = sum(1 for tree in trees for _ in walk.episodes(tree.root))
    if not examples:
        raise RunError(
            f"warm-start: the team won none of {episodes} episodes. Ask for more with --own, or give examples with "
            "--on."
        )
    return examples, episodes


def successful_examples(tree: Tree) -> Iterator[Example]:
    """Yield the answers on the paths that end in success; answers that were cut at max_tokens are left out."""
    for path in walk.episodes(tree.root):
        if not path[-1][1].success:
            continue
        for node, branch in path:
            for role, index in branch.choice.items():
                sample = node.samples[role][index]
                if sample.finish == "stop" and sample.text:
                    observation = node.observations[role]
                    if media_of(observation.messages):
                        raise DataError(
                            f"warm-start --own: got a prompt of {role} with images or sounds, which a file of texts "
                            "cannot hold; expected none. Take an environment without them."
                        )
                    yield Example(role, observation.messages, sample.text, observation.tools)


# ---- cadre warm-start

# Parameters that a warm start keeps in its run, so that --resume takes none of them.
WARM_START_PARAMETERS = ("recipe", "overrides", "on", "own_tasks", "steps", "per_step", "learning_rate", "seed")


def warm_start(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="a bundled recipe or a YAML file, which is trained afterwards")] = "",
    overrides: Overrides = None,
    on: Annotated[Path | None, typer.Option(help='JSONL of {"role": ..., "prompt": ..., "answer": ...}')] = None,
    own_tasks: Annotated[
        int, typer.Option("--own", min=0, help="or the number of training tasks whose successful episodes are imitated")
    ] = 0,
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps")] = 100,
    per_step: Annotated[int, typer.Option("--examples", min=1, help="examples per step")] = 16,
    learning_rate: Annotated[float, typer.Option(min=1e-12, max=1e30, help="of AdamW, constant")] = 1e-5,
    seed: Annotated[int, typer.Option(help="seed of the order of examples")] = 0,
    folder: Annotated[Path | None, typer.Option("--run", help="where to write; default runs/RECIPE-NNN")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="resume the warm start in --run")] = False,
    trust: Trust = False,
) -> None:
    """Train a team to imitate answers (cross-entropy), as a start for reinforcement learning."""
    if resume:
        if folder is None:
            raise ConfigError("--resume: got no --run; expected the folder to go on with. Add --run DIR.")
        reject_beside(context, "--resume", WARM_START_PARAMETERS)
        run = Run.open(folder)
        settings = open_warm_start(run)
        check_trusted(run.folder, run.config.model_dump(mode="json"), trust)
        experiment = resolve(run.config)
        examples = read_examples(run.folder / WARM_START / EXAMPLES, [*experiment.trained_roles])
        sequences = encode_examples(experiment, examples)
    else:
        reject_without(context, "--resume", ["trust"])
        experiment = resolve_recipe(recipe, overrides or [])
        check_hub_models(experiment)
        if folder is not None:
            check_folder_free(folder)  # before the examples are sampled, which takes long
        examples = _find_examples(experiment, on, own_tasks)
        sequences = encode_examples(experiment, examples)
        settings = WarmStart(steps, per_step, learning_rate, seed)

        def create(new: Path) -> Run:
            return create_warm_start(new, experiment.config, settings, examples, [recipe, *(overrides or [])])

        run = create_in_free_folder(folder, recipe, create)

    interval = max(1, settings.steps // 10)

    def print_losses(step: int, metrics: Metrics) -> None:
        if (step + 1) % interval == 0:
            losses = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items() if name.endswith("/loss"))
            console.print(f"step {step + 1}/{settings.steps}  {losses}", highlight=False)

    steps_done = run_warm_start(experiment, run, settings, sequences, print_losses)
    if steps_done < settings.steps:
        result, command = f"Stopped after {steps_done} of {settings.steps} steps; saved", "warm-start"
    else:
        result, command = "Warm", "train"
    print_lines([f"{result}. Go on with:\n  {resume_command(run.folder, command)}"])
    if steps_done < settings.steps:
        raise typer.Exit(STOPPED)


def _find_examples(experiment: Experiment, on: Path | None, own_tasks: int) -> list[Example]:
    """Return the examples of the file `on`, or those of won episodes among `own_tasks` tasks that are sampled now."""
    if (on is None) == (own_tasks == 0):
        count = "neither" if on is None else "both"
        raise ConfigError(f"warm-start: got {count} of --on FILE and --own TASKS; expected one of them. Say which.")
    if on is not None:
        return read_examples(on, list(experiment.trained_roles))
    examples, episodes = sample_successes(experiment, own_tasks)
    console.print(f"{len(examples)} answers of {episodes} episodes were part of a success", highlight=False)
    return examples
