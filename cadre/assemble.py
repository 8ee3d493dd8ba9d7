"""From a configuration to the things it names. Everything that can be refused is refused before a model loads."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pydantic

from cadre import presets, reward_model, shape
from cadre.algorithms import MagrpoCentral, Rlhf
from cadre.central import centralised
from cadre.config import Config, nearest
from cadre.env import Env, Split
from cadre.envs import ENVS
from cadre.errors import ConfigError
from cadre.sections import PolicyConfig
from cadre.shape import Siblings
from cadre.team import Learner, Sampler, Team
from cadre.types import Request, Sample, Sampling, Task

MAX_LEAVES = 10_000
SEED_MODEL = Path(__file__).parent / "models" / "seed"


def env_class(name: str) -> type[Env]:
    """The class behind a bundled name or `file.py:Class`; the user's file is run, as it is the user's own code."""
    target = ENVS.get(name, name)
    source, colon, attribute = target.rpartition(":")
    if not colon:
        raise ConfigError(
            f"env: got {name!r}; expected one of {', '.join(ENVS)} or file.py:Class.{nearest(name, ENVS)}"
        )
    module = _from_file(Path(source), name) if source.endswith(".py") else importlib.import_module(source)
    found = getattr(module, attribute, None)
    if not (isinstance(found, type) and issubclass(found, Env)):
        known = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Env)]
        raise ConfigError(
            f"env: {source} has no environment {attribute!r}; expected a subclass of cadre.env.Env, and it has "
            f"{', '.join(known) or 'none'}.{nearest(attribute, known)}"
        )
    return found


def _from_file(path: Path, name: str) -> Any:
    if not path.is_file():
        raise ConfigError(f"env: got {name!r}, but there is no file {path}; expected file.py:Class. Mend the path.")
    module_name = f"cadre_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 - whatever the user's file raises is the user's to see, in one paragraph
        frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
        line = next((frame.lineno for frame in reversed(frames) if Path(frame.filename) == path.resolve()), None)
        at = f" at line {line or getattr(error, 'lineno', None) or '?'}"
        raise ConfigError(f"env: {path} failed to load{at}: {type(error).__name__}: {error}. Mend the file.") from None
    return module


class Game:
    """An environment class with its settings, checked: makes episodes and knows the splits.

    `central` plays it with the one role `team`, which writes the parts of all roles.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], central: bool = False) -> None:
        self.env_class = env_class(name)
        self.settings = _checked_settings(self.env_class, settings)
        if central:
            self.env_class = centralised(self.env_class)

    def make(self, task: Task) -> Env:
        """A fresh episode of the task."""
        return self.env_class(task, **self.settings)

    def tasks(self, split: Split) -> Any:
        return self.env_class.tasks(split, **self.settings)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.env_class.roles_of(**self.settings)


def _parameters(env: type[Env]) -> dict[str, Any]:
    """The settings of an environment and their types; where its `__init__` hands on **keywords, its parent's too."""
    found: dict[str, Any] = {}
    for kind in env.__mro__:
        if "__init__" not in vars(kind):
            continue
        parameters = list(inspect.signature(vars(kind)["__init__"]).parameters.values())[2:]
        hints = inspect.get_annotations(vars(kind)["__init__"], eval_str=True)
        named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        found = {**{name: hints.get(name, Any) for name in named}, **found}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def _checked_settings(env: type[Env], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings against the signature of `__init__`, names and types."""
    named = _parameters(env)
    for key, value in settings.items():
        if key not in named:
            known = ", ".join(named) or "none"
            raise ConfigError(
                f"settings.{key}: unknown to {env.__name__}; expected one of {known}.{nearest(key, named)}"
            )
        try:
            pydantic.TypeAdapter(named[key]).validate_python(value)
        except pydantic.ValidationError as error:
            expected = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise ConfigError(f"settings.{key}: got {value!r}; expected {expected}. Mend the value.") from None
    return dict(settings)


def check(config: Config) -> tuple[Game, presets.Plan]:
    """The game and the plan of a configuration, after every check that needs no model."""
    game = Game(config.env, config.settings, central=isinstance(config.algorithm, MagrpoCentral))
    _check_roles(config, game)
    game.tasks("train")  # a folder that is not there, or settings that exclude each other, show here
    plan = presets.plan(config)
    _check_siblings(config.algorithm.k, game)
    _check_growth(config, game, plan)
    _check_demands(config, game, plan)
    for name, policy in _policies(config).items():
        if policy.url is None:
            find_model(name, policy)
    return game, plan


def _check_demands(config: Config, game: Game, plan: presets.Plan) -> None:
    """Refuse what the environment does not have, or has too much of, for a critic or a reward model."""
    if plan.critic and plan.critic.config.privileged and game.env_class.privileged is Env.privileged:
        raise ConfigError(
            f"algorithm.critic.privileged: {config.env} shows nothing to critics only; expected an environment with a "
            "privileged() of its own. Remove the option, or write the method."
        )
    if isinstance(config.algorithm, Rlhf) and len(game.roles) > 1:
        raise ConfigError(
            f"algorithm: rlhf trains a single agent, and {config.env} has the roles {', '.join(game.roles)}; expected "
            "one. Use ippo with critic.level=token, or an environment with one role."
        )
    if plan.reward_model is not None and not Path(plan.reward_model).expanduser().is_dir():
        raise ConfigError(
            f"algorithm.reward_model: got {plan.reward_model!r}, which is no folder; expected that of a trained reward "
            "model. Mend the path, or remove it to train on the environment's reward."
        )


def _check_roles(config: Config, game: Game) -> None:
    played = f"{config.env} under {config.algorithm.name}"
    for role in game.roles:
        if role not in config.team.roles:
            raise ConfigError(
                f"team.roles: role {role!r} of {played} has no policy; expected a policy for each of "
                f"{', '.join(game.roles)}. Add `{role}: {next(iter(config.team.policies))}`."
            )
    for role in config.team.roles:
        if role not in game.roles:
            raise ConfigError(
                f"team.roles.{role}: {played} has no such role; expected {', '.join(game.roles)}. "
                f"Remove it.{nearest(role, game.roles)}"
            )


def _check_siblings(k: Siblings, game: Game) -> None:
    """Where siblings are counted by role, every role of the environment and no other has a number."""
    if not isinstance(k, Mapping):
        return
    for role in k:
        if role not in game.roles:
            raise ConfigError(
                f"algorithm.k.{role}: {game.env_class.__name__} has no such role; expected {', '.join(game.roles)}. "
                f"Remove it.{nearest(role, game.roles)}"
            )
    for role in game.roles:
        if role not in k:
            raise ConfigError(
                f"algorithm.k: role {role!r} has no number of siblings; expected one for each of "
                f"{', '.join(game.roles)}. Add `{role}: {next(iter(k.values()))}`."
            )


def _check_growth(config: Config, game: Game, plan: presets.Plan) -> None:
    """Refuse a tree that nobody could sample, or whose joint actions do not fit, found by playing one episode of empty
    answers."""
    k, first = config.algorithm.k, game.roles[0]
    multiplies = shape.leaves(plan.shape, [[first], [first]]) > 2 * plan.shape.count(first, 0, 0)
    if isinstance(k, int) and not multiplies:
        return
    acting = asyncio.run(_decisions(game))
    leaves = shape.leaves(plan.shape, acting)
    if leaves > MAX_LEAVES:
        raise ConfigError(
            f"algorithm: {plan.shape.name} over {len(acting)} decisions of {config.env} needs {leaves:,} leaves "
            f"a task; expected at most {MAX_LEAVES:,}. Lower algorithm.k or the environment's turns, or use greedy."
        )


async def _decisions(game: Game) -> list[list[str]]:
    """The roles that act at each decision of an episode of empty answers."""
    env = game.make(game.tasks("train")[0])
    acting: list[list[str]] = []
    while (asked := env.observe()) and len(acting) < 100:
        acting.append(list(asked))
        await env.step(dict.fromkeys(asked, ""))
    return acting


def _policies(config: Config) -> dict[str, PolicyConfig]:
    """Every policy with weights: those that play, and those that only a critic is."""
    return {**config.team.policies, **presets.critic_policies(config)}


def find_model(name: str, policy: PolicyConfig) -> str:
    """The folder or the hub name of a policy's model; a folder must hold a config.json."""
    model = policy.model
    folder = SEED_MODEL if model == "seed" else Path(model).expanduser()
    looks_local = model.startswith((".", "/", "~")) or model.count("/") != 1
    if (folder / "config.json").is_file():
        return str(folder)
    if model == "seed" or looks_local or folder.exists():
        raise ConfigError(
            f"the model of policy {name}: got {model!r}, but {folder} holds no config.json; expected seed, a "
            "checkpoint folder, or a hub name such as Qwen/Qwen3-1.7B. Mend the path."
        )
    return model


def assignment(config: Config, text: str) -> dict[str, str]:
    """`tool=planner,planner=tool`: for each role the policy to play it, by name or by the role it trained in."""
    changes: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        role, _, name = pair.partition("=")
        policy = config.team.roles.get(name, name)
        if role not in config.team.roles or policy not in config.team.policies:
            known = ", ".join({**config.team.policies, **config.team.roles})
            raise ConfigError(
                f"--assign: got {pair!r}; expected ROLE=POLICY with a role of {', '.join(config.team.roles)} and a "
                f"policy of {known}.{nearest(name, {**config.team.policies, **config.team.roles})}"
            )
        changes[role] = policy
    return changes


def beside_untrained(config: Config, team: Team, roles: str) -> Team:
    """The team with the named roles played by their models as they were before training."""
    names = roles.split(",")
    for role in names:
        if role not in config.team.roles:
            known = config.team.roles
            raise ConfigError(f"--untrained: got {role!r}; expected roles of {', '.join(known)}.{nearest(role, known)}")
    fresh = build_team(config, presets.plan(config))
    renamed = {f"untrained {policy}": Renamed(sampler, policy) for policy, sampler in fresh.samplers.items()}
    changes = {role: f"untrained {team.assignment[role]}" for role in names}
    return replace(team, samplers={**team.samplers, **renamed}).assigned(changes)


@dataclass(frozen=True)
class Renamed:
    """A sampler whose policy goes by another name in this team."""

    sampler: Sampler
    policy: str

    async def sample(self, request: Request) -> list[Sample]:
        return await self.sampler.sample(replace(request, policy=self.policy))


def build_team(config: Config, plan: presets.Plan, diverged: Path | None = None) -> Team:
    """Load the models. Adapters and frozen policies of one base share an engine; a model trained whole has its own.

    `diverged` is the folder for the sequence that made an update non-finite, if one does.
    """
    from cadre.engines.torch import TorchEngine

    samplers: dict[str, Sampler] = {}
    learners: list[Learner] = []
    policies, heads = _policies(config), presets.critic_heads(config)
    for model, names in _by_engine(policies):
        engine = TorchEngine(
            model,
            {name: policies[name] for name in names},
            {name: config.learner_for(policies[name]) for name in names},
            plan.loss,
            config.train.steps,
            config.train.seed,
            heads={name: heads[name] for name in names if name in heads},
            critic=plan.critic.config if plan.critic else None,
        )
        engine.diverged_folder = diverged
        samplers |= dict.fromkeys(names, engine)
        learners.append(engine)
    for name, policy in config.team.policies.items():
        if policy.url is not None:
            from cadre.engines.openai import OpenAISampler

            samplers[name] = OpenAISampler(policy.model, policy.url, policy.key_variable)
    sampling = {role: Sampling(**config.sampling_of(policy).model_dump()) for role, policy in config.team.roles.items()}
    judge = reward_model.load(Path(plan.reward_model).expanduser()) if plan.reward_model else None
    return Team(config.team.roles, samplers, sampling, learners, judge)


def _by_engine(policies: Mapping[str, PolicyConfig]) -> list[tuple[str, list[str]]]:
    """(model, policies) for each engine: adapters and frozen policies of one base together."""
    engines: dict[tuple[str, str], list[str]] = {}
    for name, policy in policies.items():
        if policy.url is not None:
            continue
        model = find_model(name, policy)
        shares_base = policy.lora is not None or policy.frozen
        engines.setdefault((model, policy.dtype if shares_base else name), []).append(name)
    return [(model, names) for (model, _), names in engines.items()]
