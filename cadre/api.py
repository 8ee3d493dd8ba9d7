"""Cadre from Python: `cadre.train`, `cadre.evaluate` and `cadre.load` are what the commands of those names are.

Every section of a configuration is a keyword argument, as in a YAML file (docs/settings.md): `algorithm="grpo"`,
`learner={"learning_rate": 1e-3}`. `env` may be the class itself, and `steps` is short for `train={"steps": ...}`. Every
function may be called beside a running event loop (in a notebook, say): it then works in a thread of its own, and
blocks like any other function; `await asyncio.to_thread(cadre.train, ...)` keeps that loop free."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from cadre.concurrency import configure_threads
from cadre.config.engines import check_hub_models
from cadre.config.experiment import Experiment, parse
from cadre.config.recipes import ROWS, merge_with_base, read_recipe
from cadre.config.resolve import Target, find_target, resolve
from cadre.env import Env
from cadre.envs.episode import episode
from cadre.envs.spec import name_of
from cadre.errors import ConfigError, RunError, first_line
from cadre.evaluation.evaluate import Report
from cadre.evaluation.loaded_team import LoadedTeam, open_team
from cadre.file_limits import read_json
from cadre.files import type_adapter, write_text_atomically
from cadre.runs.folder import Run, create_in_free_folder
from cadre.runs.notebook import make_console
from cadre.runs.resume import check_resumable
from cadre.settings.user_code import reference_to, sources_of
from cadre.settings.yaml_file import SHORT_KEYS, Raw, flatten, long_key, merge_sections
from cadre.training.loop import run_training

Section = Mapping[str, Any]
# An environment class, or a team's function (`cadre.episode`).
Player = type[Env] | Callable[..., Any]


class Algorithm(dict[str, Any]):
    """An algorithm as a value, with functions among its settings: `Algorithm("at_grpo", k=4)`, or of one's own choices,
    `Algorithm(shape="greedy", returns=mine, group="node", baseline="mean", scale="none")`."""

    def __init__(self, name: str = "custom", **settings: Any) -> None:
        super().__init__(name=name, **settings)


def train(
    recipe: str | Path | Section | Player | None = None,
    *,
    run: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    trust: bool = False,
    **sections: Any,
) -> LoadedTeam:
    """Train a team; return it with its trained weights and its run.

        trained = cadre.train(model="Qwen/Qwen3-0.6B", tasks=rows, reward=right)  # one agent, a row a task
        trained = cadre.train(essay, model="Qwen/Qwen3-0.6B", tasks=rows, k=4)  # a team's function
        trained = cadre.train(MyEnv, model="seed", algorithm="at_grpo", steps=20)  # an environment class
        trained.folder, trained.metrics()[-1], trained.evaluate(tasks=100).success

    recipe    a team's function or an environment class; a bundled recipe, a file of rows, a YAML file or a dictionary,
              which the sections change; none: the sections are all
    model, k, steps, tasks, held_out, columns, reward   are short for `team`, `algorithm.k`, `train.steps`, and settings
              of the environment; functions and rows may be Python's own objects, here and in every section
    run       the folder to write, which must be new; by default runs/NAME-001 or the next free number
    resume    resume the run in `run`, as it was configured; `steps` and what is evaluated or kept may change
    quiet     print nothing
    trust     with `resume`: run code that the run's folder brings with it

    Ctrl-C ends it early and saves it; `resume` continues it. Raises ConfigError before any model loads if something
    cannot work, RunError if `run` would be overwritten, DivergedError if the loss is not finite.
    """
    return train_on(make_console(quiet), recipe, sections, run, resume, trust)


def train_on(
    console: Console,
    recipe: str | Path | Section | Player | None,
    sections: Section,
    run: str | Path | None = None,
    resume: bool = False,
    trust: bool = False,
) -> LoadedTeam:
    """Train as `train` does, printing on a console that may be that of several trainings."""
    configure_threads()
    env, typed = _env_class(recipe, sections), _typed_keys(sections)
    if resume:
        new_run = _open_resumed(recipe, run, sections, trust)
        experiment = resolve(new_run.config, env, typed)
    else:
        raw = _merge_sections(recipe, sections)
        experiment = resolve(parse(raw, env), env, typed)
        check_hub_models(experiment)
        folder = Path(run).expanduser() if run else None
        name = str(recipe) if isinstance(recipe, str | Path) else experiment.config.env.rpartition(":")[2].lower()
        new_run = create_in_free_folder(folder, name, lambda new: Run.create(new, experiment.config))
    for warning in _record_objects(new_run):
        console.print(warning, markup=False, highlight=False)
    counts = f"{len(experiment.training_tasks):,} tasks to train on"
    if experiment.config.evaluate.tasks:
        counts += f", {len(experiment.held_out_tasks):,} held out"
    console.print(f"run {new_run.folder}: {counts}", markup=False, highlight=False)
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
    target: str | Path | Section | None = None, *, untrained: bool = False, trust: bool = False, **sections: Any
) -> LoadedTeam:
    """Load the team of a run with its latest weights, or that of a recipe or a model; arguments as for `evaluate`.

        trained = cadre.load("runs/plan-path-001")
        trained.evaluate(tasks=100), trained.play(3), trained.metrics(), trained.trees()

    If a run was trained on a class that is in no file (it was defined in a notebook), give it: `env=MyEnv`. Raises
    RunError if the run has no checkpoint.
    """
    configure_threads()
    return open_team(_find_target(target, sections, trust), untrained)


OBJECTS = "objects.json"


def _record_objects(run: Run) -> list[str]:
    """Write the source of every object that Python code passed to a run; return a warning for each that is another one
    than when the run began."""
    values = [value for _, value in flatten(run.config.model_dump(mode="json"))]
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    sources = sources_of(text for text in texts if isinstance(text, str))
    path = run.folder / OBJECTS
    try:
        recorded = type_adapter(dict[str, str]).validate_python(read_json(path)) if path.is_file() else {}
    except (OSError, ValueError) as error:
        got = f"cannot be read ({first_line(error)})"
        raise RunError(f"{path}: {got}; expected the sources of objects by name. Remove it.") from None
    if sources.keys() - recorded.keys():
        write_text_atomically(path, json.dumps({**sources, **recorded}, indent=1) + "\n")
    return [
        f"warning: {name} is not what it was when the run began ({path}); steps before and after it differ."
        for name, source in sources.items()
        if recorded.get(name, source) != source
    ]


def _find_target(target: str | Path | Section | None, sections: Section, trust: bool) -> Target:
    env = _env_class(None, sections)
    if isinstance(target, str | Path):
        return find_target(str(target), changes=section_changes(sections), env=env, trust=trust)
    return Target(parse(_merge_sections(target, sections), env), env, typed=_typed_keys(sections))


def _merge_sections(recipe: str | Path | Section | Player | None, sections: Section) -> Raw:
    """Return the configuration of a recipe with the sections merged in."""
    if isinstance(recipe, str | Path):
        raw = copy.deepcopy(read_recipe(str(recipe)))
    elif isinstance(recipe, Mapping):
        raw = merge_with_base(copy.deepcopy(dict(recipe)), Path())
    elif recipe is not None:
        raw = {"env": name_of(_player_class(recipe)), "algorithm": "at_grpo"}
    else:
        raw = {} if "env" in sections or "tasks" not in sections else {"env": ROWS, "algorithm": "grpo"}
    merge_sections(raw, section_changes(sections))
    return raw


def section_changes(sections: Section) -> Raw:
    """Return the sections as a YAML file has them, with references in place of Python's own objects. A name may be
    dotted, as on the command line: `learner.learning_rate`."""
    in_parts = [name for name in sections if name in SHORT_KEYS or "." in name]
    changes: Raw = {name: value for name, value in sections.items() if name not in in_parts}
    if (env := _env_class(None, sections)) is not None:
        changes["env"] = name_of(env)
    changes = _with_references(changes, "")
    for name in in_parts:
        *path, key = long_key(name).split(".")
        section: Raw = changes
        for part in path:
            inner = section.get(part)
            section[part] = {"name": inner} if isinstance(inner, str) else dict(inner or {})
            section = section[part]
        section[key] = _with_references(sections[name], name)
    return changes


def resolve_sections(
    recipe: str | Path | Section | Player | None, sections: Section, resolved: Callable[..., Experiment] = resolve
) -> Experiment:
    """Return what `train` would train, or another call. Raises ConfigError for what cannot work."""
    env = _env_class(recipe, sections)
    return resolved(parse(_merge_sections(recipe, sections), env), env, _typed_keys(sections))


def _with_references(value: Any, name: str) -> Any:
    """Return a setting as a configuration has it: a function or rows by reference, tuples as lists."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, type) and issubclass(value, Env):  # of a mixture
        return name_of(value)
    is_rows = name in ("tasks", "held_out") and not isinstance(value, str | Path | int | float)
    if is_rows or (callable(value) and not isinstance(value, type)):
        return reference_to(value, name)
    if isinstance(value, Mapping):
        return {key: _with_references(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_references(inner, name) for inner in value]
    return str(value) if isinstance(value, Path) else value


def _typed_keys(sections: Section) -> list[str]:
    return [key for key, _ in flatten(section_changes(sections))]


def _env_class(recipe: Any, sections: Section) -> type[Env] | None:
    """Return the class of the environment that is given as an object."""
    env = sections.get("env", recipe)
    return None if env is None or isinstance(env, str | Path | Mapping | list) else _player_class(env)


def _player_class(player: Any) -> type[Env]:
    if isinstance(player, type) and issubclass(player, Env):
        return player
    if not callable(player) or isinstance(player, type):
        expected = "expected a subclass of cadre.Env, a team's function, or a name"
        raise ConfigError(f"env: got {player!r:.200}; {expected}. Give the class itself.")
    return episode(player)


def _open_resumed(recipe: Any, run: str | Path | None, sections: Section, trust: bool) -> Run:
    """Return the run to resume, with its own configuration, changed by the sections."""
    if run is None or isinstance(recipe, str | Path | Mapping):
        got = "no run" if run is None else "a recipe"
        raise RunError(f"resume: got {got}; expected the folder of a run. Name it as run=..., and nothing else.")
    changes = section_changes(sections)
    changes.pop("env", None)
    config = find_target(str(run), changes=changes, env=_env_class(recipe, sections), trust=trust).config
    return check_resumable(Run.open(Path(run).expanduser()), config)
