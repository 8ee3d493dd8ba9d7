"""Resume a run, or fork one from one of its checkpoints: what may change, what may not, and what was lost.

A power cut, a full disk or an edit by hand may have removed log lines that the checkpoint relies on. They are not made
again, so the run prints which they are before it continues.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, groupby
from pathlib import Path

from cadre.config.experiment import Config, Experiment, parse
from cadre.config.recipes import find_roots, read_recipe, resolve_from_folder
from cadre.config.resolve import resolve, user_settings
from cadre.config.trusted_runs import check_trusted, record_begun_run
from cadre.engines.model_folder import fingerprint_weights
from cadre.env import Split, read_tasks
from cadre.errors import ConfigError, RunError
from cadre.evaluation.evaluate import hash_tasks
from cadre.files import copy_plain, path_exists, require_no_link
from cadre.runs import jsonl, kept_trees
from cadre.runs.folder import EVALUATIONS, METRICS, Run, resume_command
from cadre.runs.records import AnnotationLine, EvaluationLine, LeftOutLine, StepLine, StepMetrics, VocabularyLine
from cadre.settings import PolicyConfig
from cadre.settings.section import apply_changes
from cadre.settings.yaml_file import apply_overrides, flatten, typed_keys
from cadre.training.checkpoint import (
    OPPONENTS,
    WARM_START,
    WARM_START_SETTINGS,
    TrainingState,
    checkpoint_name,
    checkpoint_steps,
    latest_checkpoint,
)

log = logging.getLogger(__name__)
# Settings of how long to train, what to keep and where to run: they do not change the steps made so far.
CHANGEABLE_SETTINGS = (
    "train.steps",
    "train.max_tokens",
    "train.stop_at_success",
    "train.patience",
    "train.on_step",
    "train.checkpoint_",
    "train.checkpoints_",
    "train.trees_",
    "episodes.retries",
    "episodes.step_seconds",
    "episodes.seconds",
    "episodes.failed_fraction",
    "evaluate.",
    "trackers.",
    "cluster",
)
UNSET = "unset"


def open_to_resume(
    folder: Path, recipe: str = "", overrides: Sequence[str] = (), force: bool = False, trust: bool = False
) -> Run:
    """Return the run in `folder` with the configuration to resume it with; nothing is written before `adopt_config`.

    That is the recipe with the overrides that the run was started with, or another YAML that is named, and the new
    `overrides`. The files that it imports are named on stderr. Raises RunError that lists the differences from the
    run's configuration that are not `CHANGEABLE_SETTINGS`, unless forced, and ConfigError for code that the folder
    brings with it and that the user does not `trust`.
    """
    run = Run.open(folder)
    recipe_before, overrides_before = run.command()
    roots = find_roots(folder)
    root = Path.cwd() if roots is None else roots[1]
    # One recipe has two names if both are the same file, the earlier one as it was named in `root`.
    file = Path(recipe).expanduser()
    is_same_recipe = recipe == recipe_before or (
        file.is_file() and file.resolve() == (root / Path(recipe_before).expanduser()).resolve()
    )
    applied = overrides_before if is_same_recipe else []
    return check_resumable(run, _config_to_resume(run, recipe, (applied, overrides), root, trust), force)


def check_resumable(run: Run, config: Config, force: bool = False) -> Run:
    """Return the run with `config`. Raises as `open_to_resume` does, and if its warm start is not complete."""
    if (run.folder / WARM_START).is_dir() and not checkpoint_steps(run.folder / "checkpoints"):
        remedy = f"Go on with it: {resume_command(run.folder, 'warm-start')}."
        raise RunError(f"--resume: the warm start of {run.folder} is not complete; expected its end. {remedy}")
    check_same_policies("--resume", run.config, config)
    changes = forbidden_changes(run.config, config)
    if changes and not force:
        raise RunError(
            f"--resume: {len(changes)} settings differ from those that {run.folder} was made with: "
            f"{'; '.join(changes)}. Expected the same. Undo the changes, start a new run, or add --force."
        )
    return Run(run.folder, config)


def adopt_config(run: Run, has_other_tasks: bool = False) -> None:
    """Make the configuration of a reopened run its own. A changed one is kept beside it, and so are reports of other
    held-out tasks: by the settings, or if it `has_other_tasks` under the same ones. The caller holds the run's lock:
    another process may be training in it."""
    old, reports = Run.open(run.folder).config, run.folder / "evaluations.jsonl"
    if forbidden_changes(old, run.config):
        shutil.copyfile(run.folder / "config.yaml", _numbered_copy(run.folder / "config.yaml"))
    if reports.exists() and (has_other_tasks or not is_evaluated_alike(old, run.config)):
        reports.rename(_numbered_copy(reports))
    if old != run.config:
        run.write_config(run.config)
    record_begun_run(run.folder, run.folder, run.config.model_dump(mode="json"))


def forbidden_changes(old: Config, new: Config) -> list[str]:
    """Return the differences between two configurations of one run that are not `CHANGEABLE_SETTINGS`. The number of
    steps is not changeable if a schedule falls over it: the steps so far would have had another rate."""
    lines = list_differences(old, new)
    settings = flatten(old.model_dump(mode="json"))
    ends = ("learner.schedule", "loss.schedule")
    falling = ", ".join(f"{name}={value}" for name, value in settings if name.endswith(ends) and value != "constant")
    # One line per setting; those of the number of steps come first.
    steps = [f"{line} ({falling} falls over them)" for line in lines if line.startswith("train.steps") and falling]
    return [*steps, *(line for line in lines if not line.startswith(CHANGEABLE_SETTINGS))]


def _config_to_resume(
    run: Run, recipe: str, changes: tuple[Sequence[str], Sequence[str]], root: Path, trust: bool
) -> Config:
    """Return the configuration to resume with: the recipe of that name, or the run's own if none is named, with the
    overrides that it was started with in `root`, and with new ones."""
    overrides_before, overrides = changes
    raw = apply_overrides(read_recipe(recipe or str(run.folder / "config.yaml")), overrides_before)
    raw = apply_overrides(resolve_from_folder(raw, root) if overrides_before else raw, overrides)
    # The overrides that the run was started with come from the folder, so they are not the user's own.
    check_trusted(run.folder, raw, trust, user_settings(read_recipe(recipe) if recipe else {}, overrides))
    return parse(raw)


def is_evaluated_alike(old: Config, new: Config) -> bool:
    """Return True if two configurations play the same held-out tasks in the same way, so that their reports can be
    compared, and the best checkpoint is chosen among them."""

    def evaluation_settings(config: Config) -> list[object]:
        # How often it is evaluated does not change a report, and neither do settings of sampling at a temperature.
        tasks = config.evaluate.model_copy(update={"every": 0})
        greedy = {}
        for name, policy in config.team.policies.items():  # a judge too, which plays no role
            sampling = apply_changes(config.sampling, policy.sampling)
            model = (policy.model, policy.url, policy.dtype, policy.quantization, policy.enable_thinking)
            greedy[name] = [*model, sampling.max_tokens, sampling.stop]
        team = config.team
        return [config.env, config.settings, tasks, config.algorithm.central, team.prompts, team.roles, greedy]

    return evaluation_settings(old) == evaluation_settings(new)


def _numbered_copy(path: Path) -> Path:
    """Return the first of `config-1.yaml`, `config-2.yaml` ... that does not exist."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in count(1))
    return next(free for free in numbered if not free.exists())


def list_differences(old: Config, new: Config) -> list[str]:
    """Return `algorithm.k: 4 -> 8` for every setting that differs, in order."""
    old_values, new_values = dict(flatten(old.model_dump(mode="json"))), dict(flatten(new.model_dump(mode="json")))
    return [
        f"{name}: {old_values.get(name, UNSET)} -> {new_values.get(name, UNSET)}"
        for name in dict.fromkeys([*old_values, *new_values])
        if old_values.get(name, UNSET) != new_values.get(name, UNSET)
    ]


# ---- Forking


def fork_run(folder: Path, step: int, into: Path, overrides: Sequence[str] = (), trust: bool = False) -> Run:
    """Create a run in `into` that begins where `folder` stood after `step` updates, with any settings changed.

    The old run is only read. Raises RunError if it has no intact checkpoint of that step, and ConfigError if the
    settings cannot be trained, or if they name code that the old run's folder brings with it and that the user does not
    `trust`.
    """
    source = Run.open(folder)
    steps = checkpoint_steps(folder / "checkpoints")
    if step not in steps:
        expected = f"expected one of {', '.join(map(str, steps)) or 'none that it has'}"
        remedy = "Keep more with train.checkpoint_every=N."
        raise RunError(f"fork: {folder} holds no checkpoint of step {step}; {expected}. {remedy}")
    saved = latest_checkpoint(folder / "checkpoints", at_most=step)
    if saved.name != checkpoint_name(step):
        raise RunError(f"fork: the checkpoint of step {step} in {folder} is damaged; expected a whole one.")
    config = _config_to_resume(source, "", ((), overrides), folder, trust)
    check_same_policies("fork", source.config, config)
    experiment = resolve(config, typed=typed_keys(overrides))  # raises for settings that cannot be trained
    for name in changed_bases(source, experiment.models):
        text = "fork: the model of %s in %s has other weights than that which %s was begun with."
        log.warning(text, name, experiment.models[name], folder)
    recipe, overrides_before = source.command()
    overrides = [*overrides_before, *overrides]
    return Run.create(into, config, recipe, overrides, step, lambda fork: _copy_history(source, fork, saved, step))


def _copy_history(source: Run, run: Run, saved: Path, step: int) -> None:
    """Copy what a run was up to a step."""
    reports = run.folder / EVALUATIONS
    if not is_evaluated_alike(source.config, run.config):
        reports = _numbered_copy(reports)
    # An evaluation after `step` updates belongs to the fork, metrics of step `step` do not: it is repeated.
    logs = ((METRICS, StepMetrics, run.folder / METRICS, step), (EVALUATIONS, EvaluationLine, reports, step + 1))
    for name, form, file, end in logs:
        for record in jsonl.records(source.folder / name, form):
            if record["step"] < end:
                jsonl.append(file, record)
    kept_trees.copy_steps(source.folder, run.folder, step)
    shutil.copytree(saved, run.folder / "checkpoints" / saved.name)
    # The weights after a warm start are needed if they are the reference; without them the fork still knows of it.
    if path_exists(source.folder / WARM_START / WARM_START_SETTINGS):
        (run.folder / WARM_START).mkdir()
        copy_plain(source.folder / WARM_START / WARM_START_SETTINGS, run.folder / WARM_START / WARM_START_SETTINGS)
        if run.config.kl.reference == "start" and checkpoint_steps(source.folder / WARM_START / "checkpoints"):
            warmed = latest_checkpoint(source.folder / WARM_START / "checkpoints")
            shutil.copytree(warmed, run.folder / WARM_START / "checkpoints" / warmed.name)


def check_same_policies(where: str, old: Config, new: Config) -> None:
    """Raise ConfigError if a trained policy would not be trained further: it is frozen or left out, or has another
    model or adapter, which its weights do not fit."""
    for name, policy in old.team.policies.items():
        if policy.frozen or policy.url:
            continue
        changed = new.team.policies.get(name)
        if changed is None or changed.frozen or changed.lora != policy.lora or not _is_same_model(policy, changed):
            raise ConfigError(
                f"{where}: team.policies.{name}, which this run has trained, is frozen, left out, or has another model "
                "or adapter; expected it as it was. Undo the change. credit.role_weights=0 trains only others."
            )


def _is_same_model(old: PolicyConfig, new: PolicyConfig) -> bool:
    """Return True if two policies may have one model: under one name, in another folder where the former one is gone
    (as on another machine), or in a folder that ends as the name on the hub does. The shapes of its weights are
    compared when a checkpoint is loaded."""
    if old.model == new.model:
        return True
    if old.model.startswith(("/", ".", "~")):
        return not path_exists(Path(old.model).expanduser())
    return old.model.rpartition("/")[1] != "" and Path(new.model).name.lower() == old.model.rpartition("/")[2].lower()


# ---- Tasks and models: files of data and weights may have changed since the run was started

SPLITS: dict[Split, str] = {"train": "training", "test": "held-out"}


def task_digests(experiment: Experiment) -> dict[str, str]:
    """Return, by split, a digest of its tasks' content in order; only of splits that are used, and that are read from
    data rather than generated. Training tasks are those of all levels of a curriculum."""
    splits = {"train": [level.training_tasks for level in experiment.levels]}
    if experiment.config.evaluate.tasks:
        splits["test"] = [experiment.held_out_tasks]
    read = {split: [task for tasks in levels for task in read_tasks(tasks)] for split, levels in splits.items()}
    return {split: hash_tasks(tasks) for split, tasks in read.items() if tasks}


def changed_splits(experiment: Experiment, run: Run) -> list[Split]:
    """Return the splits of `run` that now hold other tasks than those that it was trained or evaluated on."""
    old, new = run.environment().get("tasks", {}), task_digests(experiment)
    is_alike = is_evaluated_alike(Run.open(run.folder).config, experiment.config)
    comparable = [split for split in SPLITS if is_alike or split == "train"]
    return [split for split in comparable if split in old and split in new and old[split] != new[split]]


def check_same_tasks(experiment: Experiment, run: Run) -> None:
    """Raise RunError if a split of `run` now holds other tasks than those that it was trained or evaluated on."""
    for split in changed_splits(experiment, run):
        advice = "Put the data back, start a new run, or add --force to go on with these."
        raise RunError(f"--resume: the {SPLITS[split]} tasks are not those that {run.folder} was begun with. {advice}")


def fingerprint_bases(models: Mapping[str, str]) -> dict[str, str]:
    """Return a fingerprint of the weights that each policy's model has in its folder; none for models of the hub."""
    folders = {name: model for name, model in models.items() if Path(model).is_dir()}
    # Policies often share a folder, which is read once.
    digests = {folder: fingerprint_weights(Path(folder)) for folder in set(folders.values())}
    return {name: digests[folder] for name, folder in folders.items() if digests[folder]}


def changed_bases(run: Run, models: Mapping[str, str]) -> list[str]:
    """Return the policies whose models have other weights than those that the run was begun with, as far as known."""
    old, new = run.environment().get("bases", {}), fingerprint_bases(models)
    return [name for name in models if name in old and name in new and old[name] != new[name]]


def check_same_bases(experiment: Experiment, run: Run) -> None:
    """Raise RunError if the model of a policy is another one of the same shape: an adapter, or a frozen policy, would
    go on with weights that it does not belong to."""
    for name in changed_bases(run, experiment.models):
        raise RunError(
            f"--resume: the model of {name} in {experiment.models[name]} has other weights than that which "
            f"{run.folder} was begun with; expected the same. Name it as team.policies.{name}.model, or add --force."
        )


# ---- Damaged and missing logs

MAX_SHOWN = 3  # damaged lines of a file that are told of one by one
LOGS: dict[str, type] = {
    METRICS: StepMetrics,
    EVALUATIONS: EvaluationLine,
    kept_trees.TREES: StepLine,
    kept_trees.LEFT_OUT: LeftOutLine,
    kept_trees.VOCABULARY: VocabularyLine,
    "resumed.jsonl": StepLine,
    "failures.jsonl": StepLine,
}


def repair_logs(run: Run) -> Iterator[str]:
    """Remove damaged lines of every log of a run; yield a paragraph for each file that had some, or that was rebuilt.
    The caller holds the run's lock. Raises RunError if a log or a folder of logs is a link."""
    folder = run.folder
    for name in (kept_trees.ANNOTATIONS, "pictures", "sounds", "checkpoints", OPPONENTS, "tensorboard"):
        require_no_link(folder / name)
    files = {folder / name: model for name, model in LOGS.items()}
    files |= dict.fromkeys(kept_trees.annotation_files(folder), AnnotationLine)
    for path, model in files.items():
        if faults := jsonl.repair(path, model):
            more = f" and {len(faults) - MAX_SHOWN} more" if len(faults) > MAX_SHOWN else ""
            copy = f"the file as it was is kept beside it as {path.name}.damaged"
            yield f"{path} was damaged: {'; '.join(faults[:MAX_SHOWN])}{more}. These lines are left out; {copy}."
    if kept_trees.repair_index(folder):
        yield f"{folder / kept_trees.INDEX} was missing or damaged; it is rebuilt from the trees."


def describe_missing_logs(run: Run, state: TrainingState) -> Iterator[str]:
    """Yield a paragraph for the lines from before the checkpoint that the rest of the training would read and that are
    lost: metrics, and the report of the best evaluation."""
    logged = set(run.steps_logged())
    if lost := [step for step in range(state.step) if step not in logged]:
        spans = [[step for _, step in group] for _, group in groupby(enumerate(lost), lambda pair: pair[1] - pair[0])]
        steps = ", ".join(f"{span[0]} to {span[-1]}" if len(span) > 1 else str(span[0]) for span in spans[:10])
        budget = " What they took of train.max_tokens is not counted." if run.train.max_tokens else ""
        yield (
            f"{run.folder / METRICS} lacks the lines of step {steps}{' ...' if len(spans) > 10 else ''}, before the "
            f"checkpoint of step {state.step}; they are lost, and the run continues without them.{budget}"
        )
    # Reports of other held-out tasks were set aside by `adopt_config`, and are not lost.
    files = run.folder.glob(f"{Path(EVALUATIONS).stem}*.jsonl")
    reports = {report["step"] for file in files for report in jsonl.records(file, EvaluationLine)}
    if state.best_step is not None and state.best_step not in reports:
        yield (
            f"{run.folder / EVALUATIONS} lacks the report after {state.best_step} steps, by the checkpoint of step "
            f"{state.step} the best so far ({state.best:.1%}); it is lost, and the run goes on."
        )
