"""One YAML file is one experiment. A pydantic model a stage; unknown keys are refused with the nearest known name.

`load(recipe, overrides)` reads a file, applies `key=value` pairs, and raises `ConfigError` with one paragraph that
says what was wrong and how to mend it. Nothing here imports torch or loads a model.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from cadre.algorithms import ALGORITHMS, ActorCritic, Algorithm
from cadre.errors import ConfigError
from cadre.sections import (
    CreditConfig,
    EvaluateConfig,
    LearnerConfig,
    LossConfig,
    PolicyConfig,
    SamplingConfig,
    SandboxConfig,
    Section,
    TeamConfig,
    TrainConfig,
)


def _plain_algorithm(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Config(Section):
    """One experiment."""

    env: str = Field(description="a bundled environment's name, or file.py:Class")
    settings: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the environment")
    team: TeamConfig
    algorithm: Annotated[Algorithm, Field(discriminator="name"), BeforeValidator(_plain_algorithm)]
    credit: CreditConfig = CreditConfig()
    loss: LossConfig = LossConfig()
    sampling: SamplingConfig = SamplingConfig()
    learner: LearnerConfig = LearnerConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    sandbox: SandboxConfig = SandboxConfig()

    def sampling_of(self, policy: str) -> SamplingConfig:
        """The experiment's sampling with the policy's own changes."""
        return SamplingConfig.model_validate({**self.sampling.model_dump(), **self.team.policies[policy].sampling})

    def learner_of(self, policy: str) -> LearnerConfig:
        """The experiment's learner with the policy's own changes."""
        return self.learner_for(self.team.policies[policy])

    def learner_for(self, policy: PolicyConfig) -> LearnerConfig:
        """The experiment's learner with the changes of a policy that need not be the team's, such as a critic's."""
        return LearnerConfig.model_validate({**self.learner.model_dump(), **policy.learner})


RECIPES = Path(__file__).parent / "recipes"


def recipes() -> dict[str, Path]:
    """The bundled recipes by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}


def load(recipe: str, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a bundled recipe or a YAML file, with `key.sub=value` pairs applied (values are YAML)."""
    raw = _read(find_recipe(recipe))
    for pair in overrides:
        _override(raw, pair)
    return parse(raw)


def find_recipe(recipe: str) -> Path:
    """The file of a recipe: a bundled name or a path."""
    known = recipes()
    path = known.get(recipe, Path(recipe))
    if not path.is_file():
        raise ConfigError(
            f"recipe: got {recipe!r}, which is neither a bundled recipe nor a file; expected one of {', '.join(known)} "
            f"or the path of a YAML file.{nearest(recipe, known)}"
        )
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML ({' '.join(str(error).split())}). Mend the file.") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: got {type(raw).__name__} at the top; expected sections such as env: and team:.")
    return raw


def _override(raw: dict[str, Any], pair: str) -> None:
    """Set one dotted key in place. A short form on the way (`algorithm: at_grpo`) is written out first."""
    key, equals, text = pair.partition("=")
    if not equals or not key:
        raise ConfigError(f"override: got {pair!r}; expected key=value, such as train.steps=20.")
    *parents, last = key.split(".")
    section = raw
    for depth, parent in enumerate(parents):
        if section.get(parent) is None:
            section[parent] = {}
        inner = section[parent]
        if isinstance(inner, str):
            inner = section[parent] = {"name" if parents[: depth + 1] == ["algorithm"] else "model": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"override: {pair!r} goes below {'.'.join(parents[: depth + 1])}, which is {inner!r}.")
        section = inner
    section[last] = yaml.safe_load(text)


def settings_of(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` pairs as environment settings."""
    raw: dict[str, Any] = {}
    for pair in pairs:
        _override(raw, pair)
    return raw


def parse(raw: dict[str, Any]) -> Config:
    """A checked configuration. Every section is validated, those inside policies too."""
    config = _validate(Config, raw, "")
    for name in config.team.policies:
        policy = config.team.policies[name]
        for section, model in (("sampling", SamplingConfig), ("learner", LearnerConfig)):
            _validate(model, getattr(policy, section), f"team.policies.{name}.{section}.")
    critic = config.algorithm.critic.policy if isinstance(config.algorithm, ActorCritic) else None
    if critic is not None:
        _validate(LearnerConfig, critic.learner, "algorithm.critic.policy.learner.")
    _check_team(config)
    return config


def _check_team(config: Config) -> None:
    policies = config.team.policies
    for name, policy in policies.items():
        if policy.url is not None and not policy.frozen:
            raise ConfigError(
                f"team.policies.{name}: got a url, and a remote model cannot be trained from here; expected frozen: "
                "true beside it. Add that, or remove the url to train the model in this process."
            )
        if policy.frozen and policy.lora is not None:
            raise ConfigError(
                f"team.policies.{name}: got lora and frozen: true, which would leave the adapter at zero; expected one "
                "of the two. Remove lora to play the plain model."
            )
    for role, chosen in config.team.roles.items():
        if chosen not in policies:
            raise ConfigError(
                f"team.roles.{role}: got policy {chosen!r}; expected one of {', '.join(policies)}. "
                f"Define it under team.policies or name another.{nearest(chosen, policies)}"
            )
    for name in policies:
        if name not in config.team.roles.values():
            raise ConfigError(
                f"team.policies.{name}: no role plays it; expected every policy under team.roles. "
                f"Give it a role ({', '.join(config.team.roles)}) or remove it."
            )
        sampling = config.sampling_of(name)
        if (sampling.top_p < 1.0 or sampling.top_k > 0) and not policies[name].frozen:
            raise ConfigError(
                f"sampling: got top_p={sampling.top_p}, top_k={sampling.top_k} for policy {name}, which is trained; "
                "expected top_p=1 and top_k=0, since the loss uses the full softmax and its ratio would be wrong. "
                "Remove both, or freeze the policy."
            )


def _validate(model: type[Any], raw: Any, prefix: str) -> Any:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(_explain(error, model, prefix)) from None


def _explain(error: ValidationError, model: type[BaseModel], prefix: str) -> str:
    """The first thing that is wrong, in one paragraph."""
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    where = prefix + ".".join(part for part in location if part not in ALGORITHMS or location[0] != "algorithm")
    more = f" ({error.error_count() - 1} more after it.)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        return (
            f"{where}: unknown option; expected one of {', '.join(known)}. Remove or rename it."
            f"{nearest(location[-1], known)}{more}"
        )
    if first["type"] == "missing":
        return f"{where}: missing; expected {_describe(model, location)}. Add it to the YAML.{more}"
    if first["type"].startswith("union_tag"):
        got = first["input"].get("name") if isinstance(first["input"], dict) else first["input"]
        hint = nearest(str(got), ALGORITHMS)
        return f"algorithm: got {got!r}; expected one of {', '.join(ALGORITHMS)}.{hint}{more}"
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{where}: got {first['input']!r}; expected {expected}. It is: {_describe(model, location)}.{more}"


def _fields_at(model: type[BaseModel], location: Sequence[str]) -> list[str]:
    """The names that the section at `location` knows."""
    section = _section_at(model, location)
    return list(section.model_fields) if section is not None else []


def _describe(model: type[BaseModel], location: Sequence[str]) -> str:
    section = _section_at(model, location[:-1])
    field = section.model_fields.get(location[-1]) if section is not None else None
    return (field.description if field is not None else None) or f"a value for {location[-1]}"


def _section_at(model: type[BaseModel], location: Sequence[str]) -> type[BaseModel] | None:
    if location[:1] == ["team"] and len(location) > 2 and location[1] == "policies":
        location, model = list(location[3:]), PolicyConfig
    section: type[BaseModel] | None = model
    for part in location:
        if part in ALGORITHMS:
            section = ALGORITHMS[part]
            continue
        if section is None or part not in section.model_fields:
            return None
        section = _section_class(section.model_fields[part].annotation)
    return section


def _section_class(annotation: Any) -> type[BaseModel] | None:
    """The section behind an annotation such as `LoraConfig | None`; the algorithm's is found by its name."""
    candidates = [annotation, *get_args(annotation)]
    found = [one for one in candidates if isinstance(one, type) and issubclass(one, Section)]
    return found[0] if found else None


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else ""


def dump(config: Config) -> str:
    """The configuration as YAML, every default written out but those of the loss, which the algorithm chooses."""
    written = config.model_dump(mode="json")
    written["loss"] = config.loss.model_dump(mode="json", exclude_unset=True)
    return yaml.safe_dump(written, sort_keys=False)
