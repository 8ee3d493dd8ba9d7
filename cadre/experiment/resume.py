"""Going on with a run, and beginning another one from the middle of it: what may change meanwhile, and what may not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from cadre.errors import ConfigError, RunError
from cadre.experiment import checkpoint, jsonl, warm_start
from cadre.experiment.config import Config, flat, parse
from cadre.experiment.paths import located_in, roots_of
from cadre.experiment.recipes import read_recipe
from cadre.experiment.resolve import resolve
from cadre.experiment.run_directory import Run, goes_on, new_run, note_command
from cadre.experiment.target import own_settings
from cadre.experiment.trees import keep
from cadre.settings.section import merged
from cadre.settings.trust import admit, note_begun, note_imports, tell_imports
from cadre.settings.yaml_file import overridden

# Settings that say how long to train, what to keep and where to run, not how what was made so far came about.
FREE = (
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


def reopened(
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
    roots = roots_of(folder)
    root = Path.cwd() if roots is None else roots[1]
    begun_by = changes if _alike(recipe, begun_with, root) else []
    return going_on(run, _wanted(run, recipe, (begun_by, overrides), root, trust), force)


def _alike(recipe: str, begun_with: str, root: Path) -> bool:
    """Whether two names are of one recipe: the same name, or the same file as it was named in `root`."""
    file = Path(recipe).expanduser()
    return recipe == begun_with or (
        file.is_file() and file.resolve() == (root / Path(begun_with).expanduser()).resolve()
    )


def going_on(run: Run, wanted: Config, force: bool = False) -> Run:
    """The run with the configuration that is `wanted`. Raises as `reopened` does, and where its warm start is not at
    its end."""
    if (run.folder / warm_start.HOME).is_dir() and not checkpoint.steps(run.folder / "checkpoints"):
        raise RunError(
            f"--resume: the warm start of {run.folder} is not complete; expected its end, which training begins from. "
            f"Go on with it: {goes_on(run.folder, 'warm-start')}."
        )
    refuse_other_policies("--resume", run.config, wanted)
    changes = changed(run.config, wanted)
    if changes and not force:
        raise RunError(
            f"--resume: {len(changes)} settings differ from those that {run.folder} was made with: "
            f"{'; '.join(changes)}. Expected the same, so that the run goes on as if nothing had happened. "
            "Undo the changes, start a new run, or add --force to go on with them."
        )
    return Run(run.folder, wanted)


def adopt(run: Run) -> None:
    """Make the configuration of a reopened run its own; one that it changes is kept beside it, and so are reports of
    other tasks. For who holds the run's lock: another process may be training in it with what it has."""
    before, reports = Run.open(run.folder).config, run.folder / "evaluations.jsonl"
    if changed(before, run.config):
        shutil.copyfile(run.folder / "config.yaml", _beside(run.folder / "config.yaml"))
    if reports.exists() and not judged_alike(before, run.config):
        reports.rename(_beside(reports))
    if before != run.config:
        run.write_config(run.config)
    note_begun(run.folder, run.folder, run.config.model_dump(mode="json"))


def changed(before: Config, after: Config) -> list[str]:
    """What differs between two configurations of one run and is not `FREE`. Nor is the number of steps where something
    falls over them: the steps so far would have been made by another rate."""
    lines = differences(before, after)
    falling = ", ".join(_schedules(before))
    steps = [f"{line} ({falling} falls over them)" for line in lines if line.startswith("train.steps") and falling]
    return [*steps, *(line for line in lines if not line.startswith(FREE))]


def _schedules(config: Config) -> list[str]:
    """`learner.schedule=cosine` for every schedule that goes by the number of steps."""
    said = flat(config.model_dump(mode="json"))
    ends = ("learner.schedule", "loss.schedule")
    return [f"{name}={value}" for name, value in said if name.endswith(ends) and value != "constant"]


def _wanted(run: Run, recipe: str, changes: tuple[Sequence[str], Sequence[str]], root: Path, trust: bool) -> Config:
    """What to go on with: the recipe of that name, or the run's own configuration where none is named, with the changes
    that it was begun with in `root`, and with new ones."""
    begun_by, overrides = changes
    raw = overridden(read_recipe(recipe or str(run.folder / "config.yaml")), begun_by)
    raw = overridden(located_in(raw, root) if begun_by else raw, overrides)
    # The changes that the run was begun with are the folder's word, not the user's.
    files = admit(run.folder, raw, trust, own_settings(read_recipe(recipe) if recipe else {}, overrides))
    note_imports([] if recipe else files)  # the user's own recipe names what the user knows
    return parse(raw)


def judged_alike(before: Config, after: Config) -> bool:
    """Whether two configurations play the same held-out tasks in the same way, so that their reports can be compared: a
    run's beginning and its best checkpoint are not judged by those of other tasks or of another way to play them."""
    return _judged(before) == _judged(after)


def _judged(config: Config) -> list[object]:
    """The tasks that are held out, and how they are played at temperature 0, role by role."""
    tasks = config.evaluate.model_copy(update={"every": 0})
    players = {role: _player(config, name) for role, name in config.team.roles.items()}
    return [config.env, config.settings, tasks, config.algorithm.central, config.team.prompts, players]


def _player(config: Config, name: str) -> list[object]:
    """What of a policy shows in what it says at temperature 0, but for its weights."""
    policy = config.team.policies[name]
    sampling = merged(config.sampling, policy.sampling)
    asked = [policy.model, policy.url, policy.dtype, policy.enable_thinking]
    return [name, *asked, sampling.max_tokens, sampling.stop]


def _beside(path: Path) -> Path:
    """The first of `config-1.yaml`, `config-2.yaml` ... that there is not."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in count(1))
    return next(free for free in numbered if not free.exists())


def differences(old: Config, new: Config) -> list[str]:
    """`algorithm.k: 4 -> 8` for every setting that differs, in order."""
    before, after = dict(flat(old.model_dump(mode="json"))), dict(flat(new.model_dump(mode="json")))
    return [
        f"{name}: {before.get(name, UNSET)} -> {after.get(name, UNSET)}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name, UNSET) != after.get(name, UNSET)
    ]


def fork(folder: Path, step: int, into: Path, overrides: Sequence[str] = (), trust: bool = False) -> Run:
    """A new run in `into` that begins where `folder` stood after `step` updates, with any settings changed.

    The old run is only read. Raises RunError where it has no whole checkpoint of that step, ConfigError where what the
    settings come to cannot be trained, or where they name code that the old run's folder brings with it and that the
    user does not `trust`.
    """
    source = Run.open(folder)
    kept = checkpoint.steps(folder / "checkpoints")
    if step not in kept:
        raise RunError(
            f"fork: {folder} holds no checkpoint of step {step}; expected one of "
            f"{', '.join(map(str, kept)) or 'none that it has'}. Keep more with train.checkpoint_every=N."
        )
    saved = checkpoint.latest(folder / "checkpoints", at_most=step)
    if saved.name != checkpoint.name_of(step):
        raise RunError(f"fork: the checkpoint of step {step} in {folder} is damaged; expected a whole one.")
    config = _wanted(source, "", ((), overrides), folder, trust)
    refuse_other_policies("fork", source.config, config)
    resolve(config)
    recipe, before = source.command()
    with new_run(into) as built:
        again = ["cadre", "fork", str(folder), "--at", str(step), "--run", str(into), *overrides]
        note_command(built, again)
        run = Run.fill(built, config, recipe, [*before, *overrides], step, into)
        _copy(source, run, saved, step)
    tell_imports()
    return Run(into, config)


def _copy(source: Run, run: Run, saved: Path, step: int) -> None:
    """What a run was up to a step."""
    alike = judged_alike(source.config, run.config)
    for name in ("metrics.jsonl", "evaluations.jsonl") if alike else ("metrics.jsonl",):
        for record in jsonl.records(source.folder / name):
            if record["step"] < step or (name == "evaluations.jsonl" and record["step"] == step):
                jsonl.append(run.folder / name, record)
    keep.copy(source.folder, run.folder, step)
    shutil.copytree(saved, run.folder / "checkpoints" / saved.name)


def refuse_other_policies(where: str, before: Config, after: Config) -> None:
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
