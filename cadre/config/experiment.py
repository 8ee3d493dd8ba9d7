"""The configuration of one experiment, and the record that it resolves to.

One YAML file is one experiment: a pydantic model a stage, unknown keys are refused with the nearest known name.
`load(recipe, overrides)` reads a file, applies `key=value` pairs, and raises `ConfigError` with one paragraph that says
what is wrong and how to fix it. `Experiment` is what `cadre.config.resolve` makes of it, and all that later stages
take. Nothing here imports torch or loads a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, JsonValue, ValidationError

from cadre.advantages.batch import Plan
from cadre.algorithms import ALGORITHMS, Algorithm
from cadre.config.adapters import apply_adapter_settings
from cadre.config.paths import resolve_from_cwd
from cadre.config.recipes import read_recipe
from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, nearest
from cadre.rollout.episodes import Failure
from cadre.rollout.grow import Rollout
from cadre.settings import (
    ClusterConfig,
    CreditConfig,
    EpisodesConfig,
    EvaluateConfig,
    LearnerConfig,
    LossConfig,
    PolicyConfig,
    SamplingConfig,
    SandboxConfig,
    Section,
    TeamConfig,
    TrackersConfig,
    TrainConfig,
    VllmConfig,
)
from cadre.settings.section import AsWritten, merged, quoting
from cadre.settings.yaml_file import dump_yaml, long_form, overridden
from cadre.team import Team
from cadre.types import Sampling


def _algorithm_section(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Config(Section):
    """One experiment as the user wrote it; `cadre.config.resolve` says what it comes to."""

    env: str = Field(description="a bundled environment's name, or file.py:Class")
    settings: dict[str, JsonValue] = Field(default_factory=dict, description="keyword arguments of the environment")
    team: TeamConfig = Field(description="who plays")
    algorithm: Annotated[Algorithm, Field(discriminator="name"), BeforeValidator(_algorithm_section)] = Field(
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
        return Config.model_validate(_fill_in_roles(apply_adapter_settings(resolve_from_cwd(raw)), env))
    except ValidationError as error:
        raise ConfigError(Explainer(Config, ALGORITHMS).paragraph(error)) from None


def _fill_in_roles(raw: Mapping[str, Any], env: type[Env] | None) -> Mapping[str, Any]:
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


def flatten(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`("algorithm.k", 4)` for every setting of a configuration that was dumped, in order."""
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# What is known about an error: pydantic's own record of it.
Details = Mapping[str, Any]


class Explainer:
    """Knows the sections of an experiment, and those that `tagged` names by what stands in their `name`."""

    def __init__(self, model: type[BaseModel], tagged: Mapping[str, type[Section]]) -> None:
        self.model, self.tagged = model, tagged

    def paragraph(self, error: ValidationError) -> str:
        """The first thing that is wrong, and how many more there are."""
        first = error.errors()[0]
        more = f" ({error.error_count() - 1} more after it.)" if error.error_count() > 1 else ""
        explain = EXPLANATIONS.get(first["type"], Explainer._wrong_value)
        return explain(self, first, [str(part) for part in first["loc"]]) + more

    def _unknown(self, error: Details, location: Sequence[str]) -> str:
        known = self._fields_at(location[:-1])
        return (
            f"{self._key(location)}: unknown option; expected one of {', '.join(known)}. Remove or rename it."
            f"{nearest(location[-1], known)}"
        )

    def _missing(self, error: Details, location: Sequence[str]) -> str:
        return f"{self._key(location)}: missing; expected {self._describe(location)}. Add it to the YAML."

    def _unknown_tag(self, error: Details, location: Sequence[str]) -> str:
        got = error["input"].get("name") if isinstance(error["input"], dict) else error["input"]
        hint = nearest(str(got), self.tagged)
        return f"{self._key(location)}: got {got!r}; expected one of {', '.join(self.tagged)}.{hint}"

    def _refused(self, error: Details, location: Sequence[str]) -> str:
        parts = [self._key(location), error["ctx"]["key"]]
        return f"{'.'.join(filter(None, parts))}: {error['msg']}"

    def _wrong_value(self, error: Details, location: Sequence[str]) -> str:
        expected = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        advice = quoting(error["input"], expected)
        mended = "" if advice == "Fix the value." else f" {advice}"
        if location[-1] == "[key]":  # a name that the user gave
            key = self._key(location[:-2])
            return f"{key}: got the name {error['input']!r}, which is no text; expected {expected}.{mended}"
        about = self._describe(location)
        return f"{self._key(location)}: got {error['input']!r}; expected {expected}. It is: {about}.{mended}"

    def _key(self, location: Sequence[str]) -> str:
        """The dotted key as the user writes it, without the tag that says which algorithm it is."""
        return ".".join(part for index, part in enumerate(location) if not self._is_tag(location, index))

    def _is_tag(self, location: Sequence[str], index: int) -> bool:
        return index == 1 and location[0] == "algorithm" and location[1] in self.tagged

    def _fields_at(self, location: Sequence[str]) -> list[str]:
        """The names that the section at `location` knows."""
        section = self._section_at(location)
        return list(section.model_fields) if section is not None else []

    def _describe(self, location: Sequence[str]) -> str:
        section = self._section_at(location[:-1])
        field = section.model_fields.get(location[-1]) if section is not None else None
        return (field.description if field is not None else None) or f"a value for {location[-1]}"

    def _section_at(self, location: Sequence[str]) -> type[BaseModel] | None:
        section: type[BaseModel] | None = self.model
        parts = iter(enumerate(location))
        for index, part in parts:
            if self._is_tag(location, index):
                section = self.tagged[part]
                continue
            if section is None or part not in section.model_fields:
                return None
            annotation = section.model_fields[part].annotation
            section = _section_in(annotation)
            if get_origin(annotation) is dict:
                next(parts, None)  # a name that the user gave, such as that of a policy
        return section


def _section_in(annotation: Any) -> type[Section] | None:
    """The first section in an annotation such as `LoraConfig | None` or `dict[str, PolicyConfig]`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


EXPLANATIONS = {
    "extra_forbidden": Explainer._unknown,
    "missing": Explainer._missing,
    "union_tag_invalid": Explainer._unknown_tag,
    "union_tag_not_found": Explainer._unknown_tag,
    "refused": Explainer._refused,
}


@dataclass(frozen=True)
class Experiment:
    """A configuration, resolved: made by `cadre.config.resolve`, which refuses what cannot be.

    config     what the user wrote
    env_spec   makes episodes to learn from and knows the training split
    held_out   makes episodes of held-out tasks and knows the test split; the same but for `evaluate.settings`
    plan       how trees grow, what samples are worth, and how that becomes a gradient
    policies   every policy, those included that only a critic is
    models     by policy whose weights are here: the folder or the hub name of its model
    heads      by policy that judges: its value heads
    learners   by policy that is trained: the experiment's learner with the policy's changes
    sampling   by role: the experiment's sampling with the changes of the policy that plays it
    """

    config: Config
    env_spec: EnvSpec
    held_out: EnvSpec
    plan: Plan
    policies: Mapping[str, PolicyConfig]
    models: Mapping[str, str]
    heads: Mapping[str, tuple[str, ...]]
    learners: Mapping[str, LearnerConfig]
    sampling: Mapping[str, Sampling]

    @property
    def trained_roles(self) -> dict[str, str]:
        """The policy of each role that is trained."""
        return {role: name for role, name in self.config.team.roles.items() if name in self.learners}

    @property
    def on_vllm(self) -> tuple[str, ...]:
        """The policies with weights here whose completions vLLM draws."""
        drawn = {name: merged(self.config.sampling, policy.sampling) for name, policy in self.policies.items()}
        played = set(self.config.team.roles.values()) & set(self.models)
        return tuple(name for name, sampling in drawn.items() if name in played and sampling.engine == "vllm")

    def rollout(self, team: Team, failed: Callable[[Failure], None] = lambda failure: None) -> Rollout:
        """How the team grows the trees of a training; `failed` is told of every episode that fails."""
        return Rollout(self.env_spec.make, team, self.plan.shape, self.plan.credit.alpha, self.config.episodes, failed)

    def evaluation(self, team: Team, failed: Callable[[Failure], None] = lambda failure: None) -> Rollout:
        """The same for held-out tasks."""
        return replace(self.rollout(team, failed), make=self.held_out.make)


def group_policies(experiment: Experiment) -> list[list[str]]:
    """The policies of each engine: adapters and frozen policies of one base together, at one precision and device."""
    engines: dict[tuple[str, str], list[str]] = {}
    for name, model in experiment.models.items():
        policy = experiment.policies[name]
        alike = f"{policy.dtype} on {policy.device}" if policy.shares_base else name
        engines.setdefault((model, alike), []).append(name)
    return list(engines.values())


def count_ranks(experiment: Experiment, names: Sequence[str]) -> int:
    """How many processes train the policies of one model; 0 where none of them is trained."""
    return max((experiment.learners[name].ranks for name in names if name in experiment.learners), default=0)
