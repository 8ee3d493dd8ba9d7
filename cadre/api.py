"""Cadre from Python: `cadre.train`, `cadre.evaluate` and `cadre.load` are what the commands of those names are.

Every section of a configuration is a keyword argument, as in a YAML file (docs/settings.md): `algorithm="grpo"`,
`learner={"learning_rate": 1e-3}`. `env` may be the class itself, and `steps` is short for `train={"steps": ...}`. Every
function may be called beside a running event loop (in a notebook, say): it then works in a thread of its own, and
blocks like any other function; `await asyncio.to_thread(cadre.train, ...)` keeps that loop free."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from cadre.concurrency import configure_threads
from cadre.config.engines import check_hub_models
from cadre.config.experiment import parse
from cadre.config.recipes import merge_with_base, read_recipe
from cadre.config.resolve import Target, find_target, resolve
from cadre.env import Env
from cadre.envs.spec import name_of
from cadre.errors import ConfigError, RunError
from cadre.evaluation.evaluate import Report
from cadre.evaluation.loaded_team import LoadedTeam, open_team
from cadre.runs.folder import Run, create_in_free_folder
from cadre.runs.resume import check_resumable
from cadre.settings.yaml_file import Raw, flatten, merge_sections
from cadre.training.loop import run_training

Section = Mapping[str, Any]


def train(
    recipe: str | Path | Section | None = None,
    *,
    run: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    trust: bool = False,
    **sections: Any,
) -> LoadedTeam:
    """Train a team; return it with its trained weights and its run.

        trained = cadre.train(env=MyEnv, team="seed", algorithm="at_grpo", steps=20)
        trained.folder, trained.metrics()[-1], trained.evaluate(tasks=100).success

    recipe    a bundled recipe, a YAML file or a dictionary, which the sections change; none: the sections are all
    run       the folder to write, which must be new; by default runs/NAME-001 or the next free number
    resume    resume the run in `run`, as it was configured; `steps` and what is evaluated or kept may change
    quiet     print nothing
    trust     with `resume`: run code that the run's folder brings with it

    Ctrl-C ends it early and saves it; `resume` continues it. Raises ConfigError before any model loads if something
    cannot work, RunError if `run` would be overwritten, DivergedError if the loss is not finite.
    """
    configure_threads()
    env, typed = _env_class(sections), _typed_keys(sections)
    if resume:
        new_run = _open_resumed(recipe, run, sections, trust)
        experiment = resolve(new_run.config, env, typed)
    else:
        raw = _merge_sections(recipe, sections)
        experiment = resolve(parse(raw, env), env, typed)
        check_hub_models(experiment)
        folder = Path(run).expanduser() if run else None
        new_run = create_in_free_folder(folder, _run_name(recipe, raw), lambda new: Run.create(new, experiment.config))
    console = Console(soft_wrap=True, emoji=False, quiet=quiet)
    console.print(f"run {new_run.folder}", markup=False, highlight=False)
    team, _ = run_training(experiment, new_run, console, resume)
    return LoadedTeam(experiment, team, new_run)


def evaluate(
    target: str | Path | Section | None = None,
    *,
    tasks: int = 200,
    first: int = 0,
    untrained: bool = False,
    trust: bool = False,
    **sections: Any,
) -> Report:
    """Play held-out tasks once each at temperature 0, with a run, a recipe or a model, as the sections change them.

        cadre.evaluate("runs/plan-path-001", tasks=500).success
        cadre.evaluate("Qwen/Qwen3-1.7B", env="maths", settings={"source": "hub", "test": "aime24"})

    target      the folder of a run, a bundled recipe, a YAML file, a dictionary, the folder of a model or its hub name,
                which then plays every role of `env`; none: the sections are all
    tasks       how many of the test split, from the task `first` on
    untrained   the models of a run as they were before training
    trust       run code that a run's folder brings with it

    The training split is never read. `cadre.load` keeps a team for more than one evaluation. Raises ConfigError before
    any model loads if something cannot work.
    """
    configure_threads()
    loaded = open_team(_find_target(target, sections, trust), untrained)
    try:
        return loaded.evaluate(tasks, first)
    finally:
        loaded.close()


def load(
    target: str | Path | Section | None = None,
    *,
    untrained: bool = False,
    trust: bool = False,
    **sections: Any,
) -> LoadedTeam:
    """Load the team of a run with its latest weights, or that of a recipe or a model; arguments as for `evaluate`.

        trained = cadre.load("runs/plan-path-001")
        trained.evaluate(tasks=100), trained.play(3), trained.metrics(), trained.trees()

    If a run was trained on a class that is in no file (it was defined in a notebook), give it: `env=MyEnv`. Raises
    RunError if the run has no checkpoint.
    """
    configure_threads()
    return open_team(_find_target(target, sections, trust), untrained)


def _find_target(target: str | Path | Section | None, sections: Section, trust: bool) -> Target:
    env = _env_class(sections)
    if isinstance(target, str | Path):
        return find_target(str(target), changes=_section_changes(sections), env=env, trust=trust)
    return Target(parse(_merge_sections(target, sections), env), env, typed=_typed_keys(sections))


def _merge_sections(recipe: str | Path | Section | None, sections: Section) -> Raw:
    """Return the configuration of a recipe with the sections merged in."""
    if isinstance(recipe, str | Path):
        raw = copy.deepcopy(read_recipe(str(recipe)))
    else:
        raw = merge_with_base(copy.deepcopy(dict(recipe or {})), Path())
    merge_sections(raw, _section_changes(sections))
    return raw


def _section_changes(sections: Section) -> Raw:
    """Return the sections as a YAML file has them."""
    changes: Raw = dict(sections)
    if (steps := changes.pop("steps", None)) is not None:
        changes["train"] = {**changes.get("train", {}), "steps": steps}
    if (env := _env_class(sections)) is not None:
        changes["env"] = name_of(env)
    return changes


def _typed_keys(sections: Section) -> list[str]:
    return [key for key, _ in flatten(_section_changes(sections))]


def _env_class(sections: Section) -> type[Env] | None:
    env = sections.get("env")
    if env is None or isinstance(env, str):
        return None
    if not (isinstance(env, type) and issubclass(env, Env)):
        raise ConfigError(f"env: got {env!r}; expected a subclass of cadre.Env, or its name. Give the class itself.")
    return env


def _run_name(recipe: str | Path | Section | None, raw: Raw) -> str:
    """Return the name of a run without a folder of its own."""
    if isinstance(recipe, str | Path):
        return str(recipe)
    return str(raw["env"]).rpartition(":")[2].lower()


def _open_resumed(recipe: str | Path | Section | None, run: str | Path | None, sections: Section, trust: bool) -> Run:
    """Return the run to resume, with its own configuration, changed by the sections."""
    if run is None or recipe is not None:
        raise RunError(
            f"resume: got {'no run' if run is None else 'a recipe'}; expected the folder of a run, which goes on as it "
            "was configured. Name it as run=..., and nothing else."
        )
    changes = _section_changes(sections)
    changes.pop("env", None)
    config = find_target(str(run), changes=changes, env=_env_class(sections), trust=trust).config
    return check_resumable(Run.open(Path(run).expanduser()), config)
