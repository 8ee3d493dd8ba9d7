"""Resume a run, or fork one from one of its checkpoints: what may change, what may not, and what was lost.

A power cut, a full disk or an edit by hand may have removed log lines that the checkpoint relies on. They are not made
again, so the run prints which they are before it continues.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cadre.config.experiment import Config, Experiment, flatten, parse
from cadre.config.paths import find_roots, resolve_from_folder
from cadre.config.recipes import read_recipe
from cadre.config.resolve import resolve, user_settings
from cadre.env import GeneratedTasks, Split
from cadre.errors import ConfigError, RunError
from cadre.files import path_exists, require_no_link
from cadre.runs import jsonl
from cadre.runs.annotations import ANNOTATIONS, LEFT_OUT, annotation_files
from cadre.runs.folder import EVALUATIONS, METRICS, Run, build_run_folder, resume_command, write_command_note
from cadre.runs.kept_trees import INDEX, TREES, VOCABULARY, copy_steps, read_entries, rebuild_index
from cadre.runs.records import (
    AnnotationLine,
    EvaluationLine,
    IndexLine,
    LeftOutLine,
    StepLine,
    StepMetrics,
    TreeLineHead,
    VocabularyLine,
)
from cadre.settings.section import merged
from cadre.settings.trust import admit, note_begun, note_imports, tell_imports
from cadre.settings.yaml_file import overridden
from cadre.training.checkpoint import TrainingState, checkpoint_name, checkpoint_steps, latest_checkpoint
from cadre.training.warm_start import WARM_START
from cadre.types import Task

# Settings that say how long to train, what to keep and where to run, not how what was made so far came about.
CHANGEABLE_SETTINGS = (
    "train.steps",
    "train.max_tokens",
    "train.checkpoint_",
    "train.checkpoints_",
    "train.trees_",
    "episodes.retries",
    "episodes.step_seconds",
    "episodes.seconds",
    "episodes.failed_share",
    "evaluate.",
    "trackers.",
    "cluster",
)


UNSET = "unset"


def open_to_resume(
    folder: Path, recipe: str = "", overrides: Sequence[str] = (), force: bool = False, trust: bool = False
) -> Run:
    """The run in `folder` with the configuration to go on with; nothing is written before `adopt`.

    That is the recipe with the changes that the run was begun with, or another YAML that is named, and the new
    `overrides`. The files that it imports are named on stderr. Raises RunError that lists what differs from the
    configuration of the run and is not `FREE`, unless forced, and ConfigError for code that the folder brings with it
    and that the user does not `trust`.
    """
    run = Run.open(folder)
    begun_with, changes = run.command()
    roots = find_roots(folder)
    root = Path.cwd() if roots is None else roots[1]
    begun_by = changes if _is_same_recipe(recipe, begun_with, root) else []
    return check_resumable(run, _config_to_resume(run, recipe, (begun_by, overrides), root, trust), force)


def _is_same_recipe(recipe: str, begun_with: str, root: Path) -> bool:
    """Whether two names are of one recipe: the same name, or the same file as it was named in `root`."""
    file = Path(recipe).expanduser()
    return recipe == begun_with or (
        file.is_file() and file.resolve() == (root / Path(begun_with).expanduser()).resolve()
    )


def check_resumable(run: Run, wanted: Config, force: bool = False) -> Run:
    """The run with the configuration that is `wanted`. Raises as `reopened` does, and where its warm start is not at
    its end."""
    if (run.folder / WARM_START).is_dir() and not checkpoint_steps(run.folder / "checkpoints"):
        raise RunError(
            f"--resume: the warm start of {run.folder} is not complete; expected its end, which training begins from. "
            f"Go on with it: {resume_command(run.folder, 'warm-start')}."
        )
    check_same_policies("--resume", run.config, wanted)
    changes = forbidden_changes(run.config, wanted)
    if changes and not force:
        raise RunError(
            f"--resume: {len(changes)} settings differ from those that {run.folder} was made with: "
            f"{'; '.join(changes)}. Expected the same, so that the run goes on as if nothing had happened. "
            "Undo the changes, start a new run, or add --force to go on with them."
        )
    return Run(run.folder, wanted)


def adopt_config(run: Run) -> None:
    """Make the configuration of a reopened run its own; one that it changes is kept beside it, and so are reports of
    other tasks. For who holds the run's lock: another process may be training in it with what it has."""
    before, reports = Run.open(run.folder).config, run.folder / "evaluations.jsonl"
    if forbidden_changes(before, run.config):
        shutil.copyfile(run.folder / "config.yaml", _numbered_copy(run.folder / "config.yaml"))
    if reports.exists() and not is_evaluated_alike(before, run.config):
        reports.rename(_numbered_copy(reports))
    if before != run.config:
        run.write_config(run.config)
    note_begun(run.folder, run.folder, run.config.model_dump(mode="json"))


def forbidden_changes(before: Config, after: Config) -> list[str]:
    """What differs between two configurations of one run and is not `FREE`. Nor is the number of steps where something
    falls over them: the steps so far would have been made by another rate."""
    lines = list_differences(before, after)
    falling = ", ".join(_step_schedules(before))
    steps = [f"{line} ({falling} falls over them)" for line in lines if line.startswith("train.steps") and falling]
    return [*steps, *(line for line in lines if not line.startswith(CHANGEABLE_SETTINGS))]


def _step_schedules(config: Config) -> list[str]:
    """`learner.schedule=cosine` for every schedule that goes by the number of steps."""
    said = flatten(config.model_dump(mode="json"))
    ends = ("learner.schedule", "loss.schedule")
    return [f"{name}={value}" for name, value in said if name.endswith(ends) and value != "constant"]


def _config_to_resume(
    run: Run, recipe: str, changes: tuple[Sequence[str], Sequence[str]], root: Path, trust: bool
) -> Config:
    """What to go on with: the recipe of that name, or the run's own configuration where none is named, with the changes
    that it was begun with in `root`, and with new ones."""
    begun_by, overrides = changes
    raw = overridden(read_recipe(recipe or str(run.folder / "config.yaml")), begun_by)
    raw = overridden(resolve_from_folder(raw, root) if begun_by else raw, overrides)
    # The changes that the run was begun with are the folder's word, not the user's.
    files = admit(run.folder, raw, trust, user_settings(read_recipe(recipe) if recipe else {}, overrides))
    note_imports([] if recipe else files)  # the user's own recipe names what the user knows
    return parse(raw)


def is_evaluated_alike(before: Config, after: Config) -> bool:
    """Whether two configurations play the same held-out tasks in the same way, so that their reports can be compared: a
    run's beginning and its best checkpoint are not judged by those of other tasks or of another way to play them."""
    return _evaluation_settings(before) == _evaluation_settings(after)


def _evaluation_settings(config: Config) -> list[object]:
    """The tasks that are held out, and how they are played at temperature 0, role by role."""
    tasks = config.evaluate.model_copy(update={"every": 0})
    players = {role: _greedy_settings(config, name) for role, name in config.team.roles.items()}
    return [config.env, config.settings, tasks, config.algorithm.central, config.team.prompts, players]


def _greedy_settings(config: Config, name: str) -> list[object]:
    """What of a policy shows in what it says at temperature 0, but for its weights."""
    policy = config.team.policies[name]
    sampling = merged(config.sampling, policy.sampling)
    asked = [policy.model, policy.url, policy.dtype, policy.enable_thinking]
    return [name, *asked, sampling.max_tokens, sampling.stop]


def _numbered_copy(path: Path) -> Path:
    """The first of `config-1.yaml`, `config-2.yaml` ... that there is not."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in count(1))
    return next(free for free in numbered if not free.exists())


def list_differences(old: Config, new: Config) -> list[str]:
    """`algorithm.k: 4 -> 8` for every setting that differs, in order."""
    before, after = dict(flatten(old.model_dump(mode="json"))), dict(flatten(new.model_dump(mode="json")))
    return [
        f"{name}: {before.get(name, UNSET)} -> {after.get(name, UNSET)}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name, UNSET) != after.get(name, UNSET)
    ]


def fork_run(folder: Path, step: int, into: Path, overrides: Sequence[str] = (), trust: bool = False) -> Run:
    """A new run in `into` that begins where `folder` stood after `step` updates, with any settings changed.

    The old run is only read. Raises RunError where it has no whole checkpoint of that step, ConfigError where what the
    settings come to cannot be trained, or where they name code that the old run's folder brings with it and that the
    user does not `trust`.
    """
    source = Run.open(folder)
    kept = checkpoint_steps(folder / "checkpoints")
    if step not in kept:
        raise RunError(
            f"fork: {folder} holds no checkpoint of step {step}; expected one of "
            f"{', '.join(map(str, kept)) or 'none that it has'}. Keep more with train.checkpoint_every=N."
        )
    saved = latest_checkpoint(folder / "checkpoints", at_most=step)
    if saved.name != checkpoint_name(step):
        raise RunError(f"fork: the checkpoint of step {step} in {folder} is damaged; expected a whole one.")
    config = _config_to_resume(source, "", ((), overrides), folder, trust)
    check_same_policies("fork", source.config, config)
    resolve(config)
    recipe, before = source.command()
    with build_run_folder(into) as built:
        again = ["cadre", "fork", str(folder), "--at", str(step), "--run", str(into), *overrides]
        write_command_note(built, again)
        run = Run.fill(built, config, recipe, [*before, *overrides], step, into)
        _copy_history(source, run, saved, step)
    tell_imports()
    return Run(into, config)


def _copy_history(source: Run, run: Run, saved: Path, step: int) -> None:
    """What a run was up to a step."""
    alike = is_evaluated_alike(source.config, run.config)
    logs: dict[str, type[BaseModel]] = {"metrics.jsonl": StepMetrics, "evaluations.jsonl": EvaluationLine}
    for name in logs if alike else ("metrics.jsonl",):
        for record in jsonl.records(source.folder / name, logs[name]):
            if record["step"] < step or (name == "evaluations.jsonl" and record["step"] == step):
                jsonl.append(run.folder / name, record)
    copy_steps(source.folder, run.folder, step)
    shutil.copytree(saved, run.folder / "checkpoints" / saved.name)


def check_same_policies(where: str, before: Config, after: Config) -> None:
    """Raises ConfigError where a policy that was trained would not be gone on with: it is frozen or left out, or has
    another model or adapter, which its weights do not fit."""
    for name, policy in before.team.policies.items():
        if policy.frozen or policy.url:
            continue
        now = after.team.policies.get(name)
        if now is None or now.frozen or (now.model, now.lora) != (policy.model, policy.lora):
            got = "none of that name" if now is None else "it frozen" if now.frozen else "another model or adapter"
            raise ConfigError(
                f"{where}: got {got} for team.policies.{name}, which this run has trained, and whose weights would be "
                "left out; expected it as it was. Undo the change. To train only others from here on, set "
                "credit.role_weights of its roles to 0."
            )


SPLITS: dict[Split, str] = {"train": "training", "test": "held-out"}


def task_digests(experiment: Experiment) -> dict[str, str]:
    """By split, a digest of what its tasks hold, in their order; only of splits that are used, and that are read in
    place of made by rule."""
    used = {"train": experiment.env_spec.tasks("train")}
    if experiment.config.evaluate.tasks:
        used["test"] = experiment.held_out.tasks("test")
    return {split: _digest_tasks(tasks) for split, tasks in used.items() if _is_read_from_data(tasks)}


def check_same_tasks(experiment: Experiment, run: Run) -> None:
    """Raises RunError where a split of `run` now holds other tasks than those that it was trained or judged on."""
    begun, now = run.environment().get("tasks", {}), task_digests(experiment)
    alike = is_evaluated_alike(Run.open(run.folder).config, experiment.config)
    for split, said in SPLITS.items():
        both = split in begun and split in now and (alike or split == "train")
        if both and begun[split] != now[split]:
            raise RunError(
                f"--resume: the {said} tasks are not those that {run.folder} was begun with: what its settings name "
                "holds something else now. Expected the same data, so that the run goes on as if nothing had happened. "
                "Put it back, start a new run, or add --force to go on with it."
            )


def _is_read_from_data(tasks: Sequence[Task]) -> bool:
    return tasks.read if isinstance(tasks, GeneratedTasks) else isinstance(tasks, list | tuple)


def _digest_tasks(tasks: Sequence[Task]) -> str:
    taken = hashlib.sha256()
    for task in tasks:
        taken.update(json.dumps([task.id, _json_value(task.data)]).encode() + b"\n")
    return taken.hexdigest()


def _json_value(value: Any) -> Any:
    """A value as JSON can say it; of objects, whose words may name where they lie, only what they are."""
    if isinstance(value, Mapping):
        return {"of": sorted(([repr(key), _json_value(held)] for key, held in value.items()), key=itemgetter(0))}
    if isinstance(value, list | tuple):
        return [_json_value(held) for held in value]
    if isinstance(value, set | frozenset):
        return {"of": sorted(map(repr, value))}
    if value is None or isinstance(value, str | int | float):
        return value
    return repr(value) if isinstance(value, bytes | complex) else type(value).__qualname__


MAX_SHOWN = 3  # damaged lines of a file that are told of one by one


LOGS: dict[str, type[BaseModel]] = {
    METRICS: StepMetrics,
    EVALUATIONS: EvaluationLine,
    TREES: TreeLineHead,
    LEFT_OUT: LeftOutLine,
    VOCABULARY: VocabularyLine,
    "resumed.jsonl": StepLine,
    "failures.jsonl": StepLine,
}


def repair_logs(run: Run) -> Iterator[str]:
    """Leave out damaged lines of every log of a run; a paragraph for each file that had some, or that was made anew.

    For who holds the run's lock. Raises RunError where a log or a folder of logs is a link.
    """
    folder = run.folder
    for name in (ANNOTATIONS, "pictures", "checkpoints", "tensorboard"):
        require_no_link(folder / name)
    files = {folder / name: model for name, model in LOGS.items()}
    files |= dict.fromkeys(annotation_files(folder), AnnotationLine)
    for path, model in files.items():
        if wrong := jsonl.repair(path, model):
            more = f" and {len(wrong) - MAX_SHOWN} more" if len(wrong) > MAX_SHOWN else ""
            yield (
                f"{path} was damaged: {'; '.join(wrong[:MAX_SHOWN])}{more}. These lines are left out; the file as it "
                f"was is kept beside it as {path.name}.damaged."
            )
    yield from _repair_index(folder)


def _repair_index(folder: Path) -> Iterator[str]:
    """The index of the kept trees, made anew where it does not fit them."""
    if not path_exists(folder / TREES):
        return
    whole = jsonl.complete_length(folder / TREES)
    try:
        known = list(jsonl.records(folder / INDEX, IndexLine))
        fits = bool(known) and known[-1]["offset"] + known[-1]["length"] == whole
        fits = fits and all(line["offset"] == before["offset"] + before["length"] for before, line in pairwise(known))
    except RunError:
        fits = False
    if not fits and whole:
        (folder / INDEX).unlink(missing_ok=True)
        rebuild_index(folder)
        yield f"{folder / INDEX} was missing or damaged; it is made anew from the trees."


def describe_missing_logs(run: Run, state: TrainingState) -> Iterator[str]:
    """A paragraph for each log that lacks what was made before the checkpoint that the run goes on from."""
    before = range(state.step)
    logged = set(run.steps_logged())
    if lost := [step for step in before if step not in logged]:
        budget = " What they took of train.max_tokens is not counted." if run.config.train.max_tokens else ""
        yield _describe_lost(run.folder / METRICS, "the lines", lost, state) + budget
    if run.config.train.trees_kept:
        told = {
            line["step"]
            for line in jsonl.records(run.folder / LEFT_OUT, LeftOutLine)
            if _explains_missing_tree(line["kind"])
        }
        kept = {entry.step for entry in read_entries(run.folder)}
        if lost := [step for step in before if step not in kept | told]:
            yield _describe_lost(run.folder / TREES, "the trees", lost, state)
        credit = run.folder / ANNOTATIONS / "credit.jsonl"
        said = {line["step"] for line in jsonl.records(credit, AnnotationLine)}
        if said and (lost := [step for step in sorted(kept) if step not in said and step in before]):
            yield _describe_lost(credit, "what is said of the trees", lost, state)
    reports = {report["step"] for report in run.evaluations()}
    if state.best_step is not None and state.best_step not in reports:
        yield (
            f"{run.folder / EVALUATIONS} lacks the report after {state.best_step} steps, of which the checkpoint of "
            f"step {state.step} says that it was the best so far ({state.best:.1%}); it is lost, and the run goes on."
        )


def _explains_missing_tree(kind: str) -> bool:
    """Whether a line of what was left out says why a step may have no tree."""
    return kind in ("not kept", "failed")


def _describe_lost(path: Path, what: str, steps: list[int], state: TrainingState) -> str:
    return (
        f"{path} lacks {what} of step {_format_steps(steps)}, which come before the checkpoint of step {state.step}; "
        "they are lost, and the run goes on without them."
    )


def _format_steps(steps: Iterable[int]) -> str:
    """`0 to 2, 5` of the steps 0, 1, 2 and 5."""
    runs = [[step for _, step in group] for _, group in groupby(enumerate(steps), lambda pair: pair[1] - pair[0])]
    spans = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(spans[:10]) + (f" and {len(spans) - 10} spans more" if len(spans) > 10 else "")
