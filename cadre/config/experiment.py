"""The configuration of one experiment, and the record that it resolves to.

One YAML file is one experiment: a pydantic model per stage, unknown keys are refused with the nearest known name.
`load(recipe, overrides)` reads a file, applies `key=value` pairs, and raises `ConfigError` with one paragraph that says
what is wrong and how to fix it. `Experiment` is what `cadre.config.resolve` makes of it, and all that later stages
take. Nothing here imports torch or loads a model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, JsonValue, ValidationError

from cadre.advantages.batch import Plan
from cadre.advantages.groups import needs_signatures
from cadre.advantages.returns import required_ablation, trained_parts
from cadre.algorithms import ALGORITHMS, Algorithm
from cadre.algorithms.schedules import learning_policies
from cadre.config.recipes import apply_adapter_settings, read_recipe, resolve_from_folder
from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, nearest, reject_name
from cadre.rollout.episodes import Failure
from cadre.rollout.grow import Rollout
from cadre.settings import (
    ClusterConfig,
    CreditConfig,
    EpisodesConfig,
    EvaluateConfig,
    KlConfig,
    LearnerConfig,
    LossConfig,
    PolicyConfig,
    SamplingConfig,
    SandboxConfig,
    Section,
    TeacherConfig,
    TeamConfig,
    TrackersConfig,
    TrainConfig,
    VllmConfig,
)
from cadre.settings.engines import SAMPLED_APART
from cadre.settings.run import CurriculumConfig
from cadre.settings.section import PLAIN_TYPES, SetKeysOnly, quoting_advice
from cadre.settings.trust import is_only_reading
from cadre.settings.yaml_file import apply_overrides, dump_yaml, expand_short_form
from cadre.team import Team
from cadre.types import Sampling, Task

# The policy that is only the teacher (`teacher.model`).
TEACHER = "teacher"


class Config(Section):
    """One experiment as the user wrote it."""

    env: str = Field(description="a bundled environment's name, file.py:Class, or a list of several")
    settings: dict[str, JsonValue] = Field(default_factory=dict, description="keyword arguments of the environment")
    team: TeamConfig = Field(description="who plays")
    algorithm: Annotated[
        Algorithm,
        Field(discriminator="name"),
        BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value),
    ] = Field(description="how the team learns, by name")
    credit: CreditConfig = Field(CreditConfig(), description="which samples an update learns from, and how much")
    loss: Annotated[LossConfig, SetKeysOnly] = Field(LossConfig(), description="changes to the algorithm's loss")
    teacher: TeacherConfig | None = Field(
        None, description="model whose log-probabilities are learned from; unset: none"
    )
    kl: KlConfig = Field(KlConfig(), description="what policies are kept close to")
    sampling: SamplingConfig = Field(SamplingConfig(), description="how completions are drawn")
    vllm: Annotated[VllmConfig, SAMPLED_APART] = Field(VllmConfig(), description="how vLLM is run, where it samples")
    learner: LearnerConfig = Field(LearnerConfig(), description="how weights are changed")
    train: TrainConfig = Field(TrainConfig(), description="the loop")
    episodes: EpisodesConfig = Field(EpisodesConfig(), description="failures of episodes")
    evaluate: EvaluateConfig = Field(EvaluateConfig(), description="held-out tasks")
    curriculum: CurriculumConfig | None = Field(None, description="training by levels; unset: none")
    trackers: TrackersConfig = Field(TrackersConfig(), description="where metrics are drawn")
    cluster: ClusterConfig | None = Field(None, description="Ray actors; unset: all in this process")
    sandbox: SandboxConfig = Field(SandboxConfig(), description="how programs that a model wrote are confined")


def load(recipe: str, overrides: Sequence[str] = ()) -> Config:
    """Return the configuration of a recipe or a YAML file, with `key.sub=value` pairs applied (values are YAML). Raises
    ConfigError if there is no such file, or if its content is invalid."""
    return parse(apply_overrides(read_recipe(recipe), overrides))


def parse(raw: Mapping[str, Any], env: type[Env] | None = None) -> Config:
    """Return a validated configuration. Raises ConfigError, one paragraph about the first thing that is wrong. `env` is
    the class that `raw` names, if it need not be searched for."""
    try:
        located = resolve_from_folder(raw, Path.cwd())
        config = Config.model_validate(_fill_in_roles(apply_adapter_settings(located), env))
    except ValidationError as error:
        raise ConfigError(explain_error(error)) from None
    return config


def _fill_in_roles(raw: Mapping[str, Any], env: type[Env] | None) -> Mapping[str, Any]:
    """Let a team of one policy and no roles play every role of the environment with it: `team: seed`."""
    team, name, settings = raw.get("team"), raw.get("env"), raw.get("settings")
    if isinstance(team, str):
        team = expand_short_form(("team",), team)
    if not isinstance(team, dict) or "roles" in team or not isinstance(name, str) or is_only_reading():
        return raw
    policies = team.get("policies")
    if not isinstance(policies, dict) or len(policies) != 1:
        return raw
    algorithm = raw.get("algorithm")
    kind = ALGORITHMS.get(str(algorithm.get("name") if isinstance(algorithm, dict) else algorithm))
    spec = EnvSpec(env or name, settings if isinstance(settings, dict) else {}, central=bool(kind and kind.central))
    return {**raw, "team": {**team, "roles": dict.fromkeys(spec.roles, *policies)}}


def dump(config: Config) -> str:
    """Return the configuration as YAML, every default written out but those of sections that change another section."""
    return dump_yaml(config.model_dump(mode="json"))


@dataclass(frozen=True)
class Experiment:
    """A valid configuration, resolved once: all that later stages take. Made by `cadre.config.resolve`.

    config      the recipe as the user wrote it
    env_spec    makes episodes to learn from and has the training split
    held_out    makes episodes of held-out tasks and has the test split; differs by `evaluate.settings` alone
    plan        how trees grow, how samples get advantages, and how these become a gradient
    policies    every policy, also those that are only a critic, or the teacher
    models      by policy whose weights are on this machine: the folder or the hub name of its model
    heads       by policy that is a critic: its value heads
    learners    by policy that is trained: the experiment's learner settings, merged with the policy's
    samplers    by policy: the experiment's sampling settings, merged with the policy's
    sampling    by role: the part of these that says what is drawn
    colocated   vLLM and the learner take turns in the memory of one GPU
    """

    config: Config
    env_spec: EnvSpec
    held_out: EnvSpec
    plan: Plan
    policies: Mapping[str, PolicyConfig]
    models: Mapping[str, str]
    heads: Mapping[str, tuple[str, ...]]
    learners: Mapping[str, LearnerConfig]
    samplers: Mapping[str, SamplingConfig]
    sampling: Mapping[str, Sampling]
    colocated: bool

    @property
    def roles(self) -> Mapping[str, str]:
        """The policy of each role."""
        return self.config.team.roles

    @property
    def trained_roles(self) -> dict[str, str]:
        """The policy of each role that is trained."""
        return {role: name for role, name in self.roles.items() if name in self.learners}

    @property
    def schedule(self) -> str:
        """The schedule by which policies learn: that of `train`, or the algorithm's own."""
        return self.config.train.schedule or self.plan.schedule

    def frozen_at(self, step: int) -> frozenset[str]:
        """Return the trained policies that the schedule leaves as they are at a step."""
        policies = list(dict.fromkeys(self.trained_roles.values()))
        return frozenset(policies) - learning_policies(self.schedule, self.config.train.schedule_period, step, policies)

    @property
    def vllm_policies(self) -> list[str]:
        """The policies with weights on this machine that vLLM samples; the torch engine samples the others."""
        playing = self.playing & set(self.models)
        return [name for name, sampler in self.samplers.items() if name in playing and sampler.engine == "vllm"]

    @property
    def playing(self) -> set[str]:
        """The policies of the team, of which some judge only, and the members of the pool of opponents."""
        return {*self.config.team.policies, *self.config.team.members} & set(self.policies)

    @cached_property
    def training_tasks(self) -> Sequence[Task]:
        """The training split, read once."""
        return self.env_spec.tasks("train")

    @cached_property
    def levels(self) -> Sequence[Experiment]:
        """The experiment at each level of its curriculum; without one, itself."""
        if (curriculum := self.config.curriculum) is None:
            return [self]
        make = partial(EnvSpec, self.env_spec.declared, central=self.env_spec.central, prompts=self.env_spec.prompts)
        specs = [make({**self.config.settings, **changes}) for changes in curriculum.levels]
        return [replace(self, env_spec=spec) for spec in specs]

    @cached_property
    def held_out_tasks(self) -> Sequence[Task]:
        """The test split, read once."""
        return self.held_out.tasks("test")

    @cached_property
    def hub_models(self) -> Mapping[str, str]:
        """The hub name of each policy whose model is of the hub, or its folder in the cache if the hub does not answer.
        Looked up once. Raises EngineError for a model that cannot be had."""
        names = {name: model for name, model in self.models.items() if not Path(model).is_dir()}
        if not names:
            return {}
        # Imported here, so that a local model needs no hub library.
        from cadre.engines.model_folder import find_hub_model

        return {name: find_hub_model(model) for name, model in names.items()}

    @cached_property
    def engines(self) -> list[list[str]]:
        """The policies of each engine: adapters and frozen policies of one base at one precision, quantization
        and device share one."""
        engines: dict[tuple[str, str], list[str]] = {}
        for name, model in self.models.items():
            policy = self.policies[name]
            shared = f"{policy.dtype} {policy.quantization} on {policy.device}" if policy.shares_base else name
            engines.setdefault((model, shared), []).append(name)
        return list(engines.values())

    def ranks(self, names: Sequence[str]) -> int:
        """Return how many processes train the policies of one engine; 0 if none of them is trained."""
        return max((self.learners[name].ranks for name in names if name in self.learners), default=0)

    def rollout(self, team: Team, failed: Callable[[Failure], None] = lambda failure: None) -> Rollout:
        """Return how the team grows the trees of a training; `failed` is called with every episode that fails."""
        plan = self.plan
        rollout = Rollout(self.env_spec.make, team, plan.shape, plan.credit.alpha, self.config.episodes, failed)
        if plan.critic is not None or plan.preference is not None:
            return rollout
        needs: dict[str, Any] = {"ablation": required_ablation(plan.credit), "signs": needs_signatures(plan.credit)}
        return replace(rollout, **needs, parts=sorted(trained_parts(plan.credit)))

    def evaluation(self, team: Team, failed: Callable[[Failure], None] = lambda failure: None) -> Rollout:
        """Return the same for held-out tasks."""
        return replace(self.rollout(team, failed), make=self.held_out.make, ablation="none", signs=False, parts=())


# ---- What pydantic found wrong, in one paragraph: what, got, expected, what to do

# Our settings, and their names in TRL, verl, OpenRLHF and transformers. They need not have the same units or defaults.
FOREIGN_NAMES: Mapping[str, str] = {
    "algorithm.k": "num_generations group_size rollout_n n n_samples_per_prompt",
    "evaluate.every": "eval_steps test_freq",
    "kl.reference": "ref_model",
    "learner.epochs": "num_iterations ppo_epochs max_epochs",
    "learner.learning_rate": "lr actor_learning_rate",
    "learner.max_grad_norm": "grad_clip max_norm",
    "learner.minibatch_size": "ppo_mini_batch_size mini_batch_size",
    "learner.schedule": "lr_scheduler lr_scheduler_type",
    "learner.tokens_per_microbatch": "per_device_train_batch_size micro_train_batch_size ppo_micro_batch_size_per_gpu "
    "micro_batch_size gradient_accumulation_steps",
    "learner.warmup_steps": "warmup_ratio lr_warmup_steps",
    "loss.aggregate": "loss_type loss_agg_mode",
    "loss.clip_high": "epsilon_high clip_ratio_high eps_clip_high",
    "loss.clip_low": "epsilon clip_ratio clip_ratio_low eps_clip eps_clip_low cliprange",
    "loss.entropy": "entropy_coeff entropy_coef entropy_loss_coef",
    "loss.kl": "beta kl_coef kl_loss_coef init_kl_coef",
    "loss.ratio": "importance_sampling_level",
    "sampling.max_tokens": "max_tokens max_completion_length max_response_length max_new_tokens generate_max_len",
    "settings.reward": "reward_funcs reward_fn custom_reward_function",
    "team": "model model_name model_name_or_path pretrain",
    "trackers.names": "report_to logger",
    "train.checkpoint_every": "save_steps save_freq",
    "train.steps": "max_steps total_training_steps num_train_epochs total_epochs num_episodes",
    "train.tasks_per_step": "train_batch_size rollout_batch_size batch_size",
    "vllm.context": "max_model_len vllm_max_model_length",
}
OUR_NAMES = {name: setting for setting, names in FOREIGN_NAMES.items() for name in names.split()}
# Pydantic's own record of an error.
Details = Mapping[str, Any]


def explain_error(error: ValidationError) -> str:
    """Return a paragraph about the first thing that is wrong in a configuration, and how many more there are."""
    # A misspelt name is why another is missing.
    first, alike = _join_alternatives(sorted(error.errors(), key=lambda item: item["type"] != "extra_forbidden"))
    location = [str(part) for part in first["loc"]]
    further = error.error_count() - alike
    more = f" ({further} more after it.)" if further else ""
    match first["type"]:
        case "extra_forbidden":
            section = _section_at(location[:-1])
            names = list(section.model_fields) if section is not None else []
            is_option = len(location) == 3 and _is_tag(location, 1)  # of an algorithm
            algorithms = [name for name, kind in ALGORITHMS.items() if is_option and location[2] in kind.model_fields]
            hint = f" It is an option of {', '.join(algorithms)}." if algorithms else ""
            hint = hint or suggest(location[-1], names, section_settings())
            expected = f"expected one of {', '.join(names)}. Remove or rename it."
            text = reject_name(f"{_key(location)}: unknown option", expected, hint)
        case "missing":
            text = f"{_key(location)}: missing; expected {_description(location)}. Add it to the YAML."
        case "union_tag_invalid" | "union_tag_not_found":
            got = first["input"].get("name") if isinstance(first["input"], dict) else first["input"]
            hint = nearest(str(got), ALGORITHMS)
            text = reject_name(f"{_key(location)}: got {got!r}", f"expected one of {', '.join(ALGORITHMS)}.", hint)
        case "refused":
            parts = [_key(location), first["ctx"]["key"]]
            text = f"{'.'.join(filter(None, parts))}: {first['msg']}"
        case _:
            text = _wrong_value(first, location)
    return text + more


def _join_alternatives(errors: Sequence[Details]) -> tuple[Details, int]:
    """Return the first error, and how many of all are about the same value. A value that may be one of several plain
    types, such as a number or `auto`, has an error for each, at the setting's location and the type's name. They become
    one, at the setting."""
    first, location = errors[0], errors[0]["loc"][:-1]
    section = _section_at([str(part) for part in location[:-1]]) if len(location) > 1 else None
    field = section.model_fields.get(str(location[-1])) if section is not None else None
    alike = [error for error in errors if error["loc"][:-1] == location and error["input"] is first["input"]]
    # Values of a mapping that are wrong in the same way are no alternatives.
    differ = len({error["type"] for error in alike}) == len(alike) > 1
    if field is None or not differ or _section_in(field.annotation) is not None:
        return first, 1
    expected = (PLAIN_TYPES.get(error["type"]) or error["msg"].removeprefix("Input should be ") for error in alike)
    return {**first, "type": "alternatives", "loc": location, "msg": " or ".join(expected)}, len(alike)


def _wrong_value(error: Details, location: Sequence[str]) -> str:
    expected = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    advice = quoting_advice(error["input"], expected)
    advice = "" if advice == "Fix the value." else f" {advice}"
    if error["type"] in PLAIN_TYPES:
        expected = PLAIN_TYPES[error["type"]]
        advice = advice or f" Write {expected}."
    elif error["type"] == "too_short":
        expected = f"{error['ctx']['min_length']} or more"
    if location[-1] == "[key]":  # a name that the user gave
        key = _key(location[:-2])
        return f"{key}: got the name {error['input']!r}, which is no text; expected {expected}.{advice}"
    if not expected.endswith((".", "?")):  # no sentence yet, such as one with the nearest name
        expected = f"{expected} ({_description(location)})."
    return f"{_key(location)}: got {error['input']!r}; expected {expected}{advice}"


def suggest(name: str, names: Collection[str], sections: Mapping[str, Collection[str]]) -> str:
    """Return " Did you mean SETTING?" for an unknown `name` in a place that takes `names`, or "". In this order: the
    setting that another library calls so; the setting of that name in another of the `sections` (`train`, or the only
    one that has it); the nearest of `names`."""
    homes = [section for section, keys in sections.items() if name in keys]
    our_name = OUR_NAMES.get(name)
    if our_name is None and homes and ("train" in homes or len(homes) == 1):
        our_name = f"{'train' if 'train' in homes else homes[0]}.{name}"
    if our_name is None:
        return nearest(name, names)
    section, _, leaf = our_name.rpartition(".")
    is_here = leaf in names and set(names) <= set(sections.get(section, ()))
    return f" Did you mean {leaf if is_here else our_name}?"


def section_settings() -> dict[str, frozenset[str]]:
    """Return the names of the settings in each section; those of `algorithm` are of all algorithms."""
    sections = {name: _section_in(field.annotation) for name, field in Config.model_fields.items()}
    settings = {name: frozenset(section.model_fields) for name, section in sections.items() if section is not None}
    return settings | {"algorithm": frozenset(key for kind in ALGORITHMS.values() for key in kind.model_fields)}


def _key(location: Sequence[str]) -> str:
    """Return the dotted key as the user writes it, without the tag of the algorithm."""
    return ".".join(part for index, part in enumerate(location) if not _is_tag(location, index))


def _is_tag(location: Sequence[str], index: int) -> bool:
    return index == 1 and location[0] == "algorithm" and location[1] in ALGORITHMS


def _description(location: Sequence[str]) -> str:
    section = _section_at(location[:-1])
    field = section.model_fields.get(location[-1]) if section is not None else None
    return (field.description if field is not None else None) or f"a value for {location[-1]}"


def _section_at(location: Sequence[str]) -> type[BaseModel] | None:
    section: type[BaseModel] | None = Config
    parts = iter(enumerate(location))
    for index, part in parts:
        if _is_tag(location, index):
            section = ALGORITHMS[part]
            continue
        if section is None or part not in section.model_fields:
            return None
        # A field may hold a section, or several by name, such as policies.
        annotation = section.model_fields[part].annotation
        section = _section_in(annotation)
        if get_origin(annotation) is dict:
            next(parts, None)  # a name that the user gave, such as that of a policy
    return section


def _section_in(annotation: Any) -> type[Section] | None:
    """Return the first section in an annotation such as `LoraConfig | None` or `dict[str, PolicyConfig]`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)
