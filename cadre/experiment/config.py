"""One YAML file is one experiment. A pydantic model a stage; unknown keys are refused with the nearest known name.

`load(recipe, overrides)` reads a file, applies `key=value` pairs, and raises `ConfigError` with one paragraph that
says what was wrong and how to fix it. Nothing here imports torch or loads a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, JsonValue, ValidationError

from cadre.algorithms import ALGORITHMS, Algorithm
from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.experiment.adapters import with_adapters
from cadre.experiment.explain import Explainer
from cadre.experiment.paths import located_here
from cadre.experiment.recipes import read_recipe
from cadre.settings import (
    ClusterConfig,
    CreditConfig,
    EpisodesConfig,
    EvaluateConfig,
    LearnerConfig,
    LossConfig,
    SamplingConfig,
    SandboxConfig,
    Section,
    TeamConfig,
    TrackersConfig,
    TrainConfig,
    VllmConfig,
)
from cadre.settings.section import AsWritten
from cadre.settings.yaml_file import dump_yaml, long_form, overridden


def _plain_algorithm(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Config(Section):
    """One experiment as the user wrote it; `cadre.experiment.resolve` says what it comes to."""

    env: str = Field(description="a bundled environment's name, or file.py:Class")
    settings: dict[str, JsonValue] = Field(default_factory=dict, description="keyword arguments of the environment")
    team: TeamConfig = Field(description="who plays")
    algorithm: Annotated[Algorithm, Field(discriminator="name"), BeforeValidator(_plain_algorithm)] = Field(
        description="how the team learns, by name"
    )
    credit: CreditConfig = Field(CreditConfig(), description="which samples an update learns from, and how much")
    loss: Annotated[LossConfig, AsWritten] = Field(LossConfig(), description="changes to the algorithm's loss")
    sampling: SamplingConfig = Field(SamplingConfig(), description="how completions are drawn")
    vllm: VllmConfig = Field(VllmConfig(), description="how vLLM is run, where it samples")
    learner: LearnerConfig = Field(LearnerConfig(), description="how weights are changed")
    train: TrainConfig = Field(TrainConfig(), description="the loop")
    episodes: EpisodesConfig = Field(EpisodesConfig(), description="failures of episodes")
    evaluate: EvaluateConfig = Field(EvaluateConfig(), description="held-out tasks")
    trackers: TrackersConfig = Field(TrackersConfig(), description="where metrics are drawn")
    cluster: ClusterConfig | None = Field(None, description="Ray actors; unset: all in this process")
    sandbox: SandboxConfig = Field(SandboxConfig(), description="how programs that a model wrote are confined")


def load(recipe: str, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a recipe or a YAML file, with `key.sub=value` pairs applied (values are YAML).

    Raises ConfigError where there is no such file, or what it says cannot be.
    """
    return parse(overridden(read_recipe(recipe), overrides))


def parse(raw: Mapping[str, Any], env: type[Env] | None = None) -> Config:
    """A checked configuration. Raises ConfigError, one paragraph about the first thing that is wrong.

    `env` is the class that `raw` names, where it need not be looked for.
    """
    try:
        return Config.model_validate(_with_roles(with_adapters(located_here(raw)), env))
    except ValidationError as error:
        raise ConfigError(Explainer(Config, ALGORITHMS).paragraph(error)) from None


def _with_roles(raw: Mapping[str, Any], env: type[Env] | None) -> Mapping[str, Any]:
    """A team of one policy and no roles plays every role of the environment with it: `team: seed`."""
    team, name, settings = raw.get("team"), raw.get("env"), raw.get("settings")
    if isinstance(team, str):
        team = long_form(("team",), team)
    if not isinstance(team, dict) or "roles" in team or not isinstance(name, str):
        return raw
    policies = team.get("policies")
    if not isinstance(policies, dict) or len(policies) != 1:
        return raw
    algorithm = raw.get("algorithm")
    kind = ALGORITHMS.get(str(algorithm.get("name") if isinstance(algorithm, dict) else algorithm))
    spec = EnvSpec(env or name, settings if isinstance(settings, dict) else {}, central=bool(kind and kind.central))
    return {**raw, "team": {**team, "roles": dict.fromkeys(spec.roles, *policies)}}


def dump(config: Config) -> str:
    """The configuration as YAML, every default written out but those of sections that are changes to another."""
    return dump_yaml(config.model_dump(mode="json"))


def flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`("algorithm.k", 4)` for every setting of a configuration that was dumped, in order."""
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
