"""Settings that have no effect under others: one table of declarations, and one check that refuses them.

A setting that depends on others has a `Condition` here: its path, when it is read, and why it is not otherwise. What a
user gives in vain is refused, as a run would differ from what its recipe says. A setting is given if the recipe, its
base or an override has it with another value than the default: a run folder's recipe has all defaults written out. In
a section of changes to another one (`loss`, a policy's `sampling` and `learner`) every key that is written counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cadre.algorithms.custom import DISCOUNTED_RETURNS, OPTIONS, shape_options
from cadre.engines.factory import SAMPLERS, TORCH, SamplerKind
from cadre.errors import ConfigError
from cadre.rollout.shapes import SHAPES
from cadre.settings.engines import LearnerConfig
from cadre.settings.models import VISION_MODELS, read_model_type
from cadre.settings.section import Section, SetKeysOnly, apply_changes
from cadre.settings.yaml_file import parse_overrides

if TYPE_CHECKING:
    from cadre.config.experiment import Config, Experiment

FactsT = TypeVar("FactsT")


@dataclass(frozen=True)
class Setting:
    """A setting that the user gave: its path and value, the section that holds it, and the names that stand for the
    stars of a pattern."""

    path: str
    value: Any
    section: Any
    names: tuple[str, ...]


@dataclass(frozen=True)
class Condition(Generic[FactsT]):
    """The condition under which a setting is read; `FactsT` is the configuration or the experiment that decides it.

    path       of the setting, with `*` for any name or key: "team.policies.*.dtype"
    is_read    True if the given setting has an effect
    reason     why it has none: a clause that may refer to `{section}`, `{facts}`, `{names}` and `{value}`
    remedy     what to do
    expected   the value in its place
    algorithm  the only algorithm that the condition is about; "" for all
    """

    path: str
    is_read: Callable[[Setting, FactsT], bool]
    reason: str
    remedy: str = "Remove it."
    expected: str = "it unset"
    algorithm: str = ""


# ---- The check


def check_all_read(config: Config, facts: FactsT, conditions: Sequence[Condition[FactsT]]) -> None:
    """Raise ConfigError for the first setting of the configuration that is given and not read."""
    for condition in conditions:
        for setting in unread_settings(config, facts, condition):
            raise ConfigError(explain(condition, setting, facts))


def check_overrides_read(overrides: Sequence[str], config: Config) -> None:
    """Raise ConfigError for the first `key=value` pair of a training that another setting turns off.

    A recipe or a run may have such a setting: it counts again once the other one changes.
    """
    for key, path in overridden_settings(overrides):
        for condition in OVERRIDE_CONDITIONS:
            if path != condition.path:
                continue
            section, name = path.split(".")
            holder = getattr(config, section)
            setting = Setting(path, getattr(holder, name), holder, ())
            if setting.value and not condition.is_read(setting, config):
                raise ConfigError(explain(condition, setting, config, key))


def overridden_settings(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (key as it is written, setting) of every `key=value` pair.

    A policy's own change counts as the experiment's setting; a section that is set whole counts by its keys too.
    """
    for pair in overrides:
        key = pair.partition("=")[0]
        section = parse_overrides([pair])[key] if key in ("evaluate", "train", "trackers") else None
        for name in section if isinstance(section, dict) else ():
            yield f"{key}.{name}", f"{key}.{name}"
        parts = key.split(".")
        yield key, ".".join(parts[3:] if parts[:2] == ["team", "policies"] else parts)


def unread_settings(config: Config, facts: FactsT, condition: Condition[FactsT]) -> Iterator[Setting]:
    """Yield the settings that are given, that the condition is about, and that are not read."""
    if condition.algorithm in ("", config.algorithm.name):
        for setting in given_settings(config, condition.path):
            if not condition.is_read(setting, facts):
                yield setting


def explain(condition: Condition[FactsT], setting: Setting, facts: FactsT, key: str = "") -> str:
    """Return the error message about a setting without effect; `key` is how the user wrote it."""
    texts = {"section": setting.section, "facts": facts, "names": setting.names, "value": setting.value}
    reason, remedy = condition.reason.format(**texts), condition.remedy.format(**texts)
    return (
        f"{key or setting.path}: got {_format_value(setting.value)}, which has no effect: {reason}; expected "
        f"{condition.expected}. {remedy}"
    )


def given_settings(
    holder: object, pattern: str, path: str = "", names: tuple[str, ...] = (), are_changes: bool = False
) -> Iterator[Setting]:
    """Yield the settings of a section that match a pattern and that the user gave, in order.

    `are_changes` is True within a section that changes another one.
    """
    first, _, rest = pattern.partition(".")
    if isinstance(holder, Section):
        keys = [key for key in type(holder).model_fields if key in holder.model_fields_set]
    else:
        keys = list(holder) if isinstance(holder, Mapping) else []
    for key in keys if first == "*" else [first] if first in keys else []:
        value, inner_path = (holder[key] if isinstance(holder, Mapping) else getattr(holder, key)), f"{path}{key}"
        inner_names = (*names, key) if first == "*" else names
        field = type(holder).model_fields[key] if isinstance(holder, Section) else None
        if rest:
            has_changes = field is not None and SetKeysOnly in field.metadata
            yield from given_settings(value, rest, f"{inner_path}.", inner_names, are_changes or has_changes)
        elif value is not None and (
            field is None or are_changes or value != field.get_default(call_default_factory=True)
        ):
            yield Setting(inner_path, value, holder, inner_names)


def _format_value(value: object) -> str:
    """Return the value as YAML has it."""
    if isinstance(value, Section):
        value = value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- Conditions of the recipe: what its own sections show

# Settings of a policy that need its weights on this machine.
LOCAL_SETTINGS = ("device", "dtype", "trust_remote_code")
# Settings of a learner that value heads do without: they train in the passes of the policy that they sit on.
POLICY_ONLY = (
    *("epochs", "minibatches", "minibatch_size", "tokens_per_microbatch", "pack"),
    *("gradient_checkpointing", "ranks", "flex_attention", "compile"),
)

RECIPE_CONDITIONS: tuple[Condition[Config], ...] = (
    # The team: an endpoint has the weights, and a frozen policy has no learner.
    *(
        Condition[Any](
            f"team.policies.*.{name}",
            lambda setting, _: setting.section.url is None,
            "it is for a model that is loaded here, and an endpoint serves this one ({section.url})",
            "Remove it, or the url.",
        )
        for name in LOCAL_SETTINGS
    ),
    *(
        Condition[Any](
            f"{policy}.key_variable",
            lambda setting, _: setting.section.url is not None,
            "the model is loaded here, without a url that needs a key",
        )
        for policy in ("team.policies.*", "algorithm.critic.policy")
    ),
    Condition(
        "team.policies.*.lora",
        lambda setting, _: not setting.section.frozen or setting.value.path is not None,
        "frozen: true leaves a new adapter at zero",
        "Remove lora to play the plain model, or frozen to train the adapter.",
    ),
    Condition(
        "team.policies.*.learner.*",
        lambda setting, config: not config.team.policies[setting.names[0]].frozen,
        "{names[0]} has frozen: true and does not learn",
        "Remove it, or frozen to train the policy.",
    ),
    # The cluster.
    *(
        Condition[Any](
            f"{section}.sampler_cards",
            lambda setting, config: (
                not (
                    setting.section.colocated
                    or ("colocated" not in setting.section.model_fields_set and config.cluster.colocated)
                )
            ),
            "under colocated samplers have no cards of their own and share the learner's",
            "Remove it, or colocated.",
        )
        for section in ("cluster", "cluster.policies.*")
    ),
    # Credit and critics.
    Condition(
        "credit.overlong_factor",
        lambda setting, _: setting.section.overlong_buffer > 0,
        "without credit.overlong_buffer no length is penalised",
        "Remove it, or set the buffer to the tokens in which the penalty should grow.",
    ),
    Condition(
        "credit.drop_fraction",
        lambda setting, _: setting.section.drop_groups != "none",
        "without credit.drop_groups no group is left out",
        "Remove it, or set credit.drop_groups=lowest_mean.",
    ),
    Condition(
        "algorithm.critic.policy.sampling.*",
        lambda setting, _: False,
        "a critic samples nothing",
    ),
    *(
        Condition[Any](
            f"algorithm.critic.learner.{name}",
            lambda setting, _: False,
            "value heads are trained in the passes of the policy that they sit on",
            "Set it for that policy, which may be the critic's own (critic.policy.learner), or remove it.",
        )
        for name in POLICY_ONLY
    ),
)

# ---- Conditions of the experiment, to play and to train


def _samples_separately(setting: Setting, experiment: Experiment) -> bool:
    """Return True if a sampler with weights of its own draws for a policy that gets this setting of sampling."""
    name = setting.path.rpartition(".")[2]
    own = {policy for policy, kind in experiment.separately_sampled.items() if name in kind.unused}
    inherits = {policy for policy in own if name not in experiment.policies[policy].sampling.model_fields_set}
    return bool(own & set(setting.names) if setting.names else inherits)


def _needs_sampler(kind: SamplerKind | None) -> Callable[[Setting, Experiment], bool]:
    """Return the condition that this sampler, or any with weights of its own, draws for a policy.

    A recipe that says `engine: auto` suits several machines, so that settings of a sampler wait in it.
    """

    def is_read(setting: Setting, experiment: Experiment) -> bool:
        kinds = experiment.separately_sampled.values()
        return experiment.suits_any_engine or (bool(kinds) if kind is None else kind in kinds)

    return is_read


def _needs_turns(kind: SamplerKind) -> Callable[[Setting, Experiment], bool]:
    """Return the condition that this sampler, if it draws for a policy, takes turns with the learner."""
    return lambda setting, experiment: experiment.colocated or kind not in experiment.separately_sampled.values()


def _sampler_conditions() -> Iterator[Condition[Experiment]]:
    """Yield the conditions that samplers declare: of their own sections, and of the settings that they do without."""
    titles = " or ".join(kind.title for kind in SAMPLERS.values())
    yield Condition(
        "train.deterministic",
        _needs_sampler(None),
        f"{titles} draws for nobody, and batches of the torch engine follow from the work always",
        f"Remove it, or set sampling.engine={next(iter(SAMPLERS))}.",
    )
    for name, kind in SAMPLERS.items():
        yield Condition(
            f"{kind.section}.*",
            _needs_sampler(kind),
            f"{kind.title} draws for nobody",
            f"Set sampling.engine={name} beside it, or remove the section.",
        )
        for setting in kind.colocated_settings:
            yield Condition(
                f"{kind.section}.{setting}",
                _needs_turns(kind),
                f"without {kind.section}.colocated the sampler never sleeps",
                f"Remove it, or set {kind.section}.colocated=true.",
            )
        for setting, reason in kind.unused.items():
            for section in ("sampling", "team.policies.*.sampling"):
                yield Condition(
                    f"{section}.{setting}",
                    lambda setting, experiment: not setting.value or not _samples_separately(setting, experiment),
                    f"{kind.title} draws, {reason}",
                    f"Remove it, or set sampling.engine={TORCH} beside it.",
                )


def _loss_condition(option: str, is_read: Callable[[Any], bool], reason: str, remedy: str) -> Condition[Experiment]:
    """Return the condition of an option of the loss, given the loss that the algorithm and the user make together."""
    return Condition(
        f"loss.{option}",
        lambda setting, experiment: is_read(experiment.plan.loss),
        f"a loss with {reason} ignores it",
        f"Remove it, or set {remedy}.",
    )


def _shape_option_condition(option: str) -> Condition[Experiment]:
    owners = [shape for shape in SHAPES if option in shape_options(shape)]
    return Condition(
        f"algorithm.{option}",
        lambda setting, experiment: option in shape_options(setting.section.shape),
        f"shape {{section.shape}} ignores it, only {' and '.join(owners)} takes it",
        f"Remove it, or set algorithm.shape={owners[0]}.",
        algorithm="custom",
    )


# Settings of sampling that need an engine on this machine.
ENGINE_SETTINGS = ("engine", "memory", "turns_memory", "graphs")
CONDITIONS: tuple[Condition[Experiment], ...] = (
    # An endpoint has adapters and an engine of its own.
    Condition(
        "team.policies.*.lora",
        lambda setting, _: setting.section.url is None,
        "it is for a model that is loaded here, and an endpoint serves this one ({section.url})",
    ),
    *(
        Condition[Any](
            f"team.policies.*.sampling.{name}",
            lambda setting, experiment: experiment.policies[setting.names[0]].url is None,
            "the endpoint at the url of {names[0]} draws for this policy",
        )
        for name in ENGINE_SETTINGS
    ),
    # Samplers.
    *_sampler_conditions(),
    # The loss.
    *(
        _loss_condition(name, lambda loss: loss.ratio != "none", "ratio {facts.plan.loss.ratio}", "loss.ratio=token")
        for name in ("clip_low", "clip_high")
    ),
    _loss_condition(
        "dual_clip",
        lambda loss: loss.ratio not in ("none", "cispo"),
        "ratio {facts.plan.loss.ratio}",
        "loss.ratio=token",
    ),
    _loss_condition(
        "divisor",
        lambda loss: loss.aggregate not in ("token_mean", "sequence_mean"),
        "aggregate {facts.plan.loss.aggregate}",
        "loss.aggregate=sequence_sum",
    ),
    _loss_condition(
        "entropy_tokens", lambda loss: loss.entropy > 0.0, "entropy {facts.plan.loss.entropy:g}", "loss.entropy too"
    ),
    _loss_condition(
        "schedule",
        lambda loss: loss.entropy > 0.0 or loss.kl > 0.0,
        "entropy {facts.plan.loss.entropy:g} and kl {facts.plan.loss.kl:g}",
        "loss.entropy or loss.kl too",
    ),
    *(
        _loss_condition(
            name,
            lambda loss: loss.correction != "none",
            "correction {facts.plan.loss.correction}",
            "loss.correction=truncate",
        )
        for name in ("correction_level", "correction_high")
    ),
    _loss_condition(
        "correction_low",
        lambda loss: loss.correction not in ("none", "truncate"),
        "correction {facts.plan.loss.correction}",
        "loss.correction=mask",
    ),
    # Algorithms.
    Condition(
        "algorithm.gae_lambda",
        lambda setting, _: setting.section.estimate == "gae",
        "algorithm.estimate={section.estimate} ignores it",
        "Remove it, or set algorithm.estimate=gae.",
    ),
    Condition(
        "algorithm.token_gamma",
        lambda setting, _: setting.section.critic.level == "token",
        "a critic of level {section.critic.level} has one value a decision",
        "Remove it, or set algorithm.critic.level=token.",
    ),
    Condition(
        "algorithm.alpha",
        lambda setting, _: setting.section.reward_model is None,
        "algorithm.reward_model rewards each answer and no team",
        algorithm="rlhf",
    ),
    *(_shape_option_condition(option) for option in OPTIONS),
    Condition(
        "algorithm.lookahead",
        lambda setting, _: not setting.value or setting.section.uses_lookahead,
        "returns {section.returns} ignores the rewards of later decisions",
        "Remove it, or set algorithm.returns=first_paid.",
        algorithm="custom",
    ),
    *(
        Condition[Any](
            f"{comparison}.gamma",
            lambda setting, _: setting.section.returns in DISCOUNTED_RETURNS,
            "returns {section.returns} ignores it",
            f"Remove it, or set {comparison}.returns=reward_to_go.",
            algorithm="custom",
        )
        for comparison in ("algorithm", "algorithm.second")
    ),
)

# ---- Conditions of the experiment in training alone


def _learners_with(setting: Setting, experiment: Experiment) -> list[LearnerConfig]:
    """Return the learners that get the value of this setting, merged with what the others change."""
    name, learners = setting.path.rpartition(".")[2], experiment.learners
    if setting.path.startswith("algorithm.critic.learner."):
        return [apply_changes(learners[policy], setting.section) for policy in experiment.heads if policy in learners]
    affected = [policy for policy in setting.names or learners if policy in learners]
    return [learners[policy] for policy in affected if getattr(learners[policy], name) == setting.value]


def _trains_prefix_trees(setting: Setting, experiment: Experiment) -> bool:
    return not setting.value or all(learner.pack != "padded" for learner in _learners_with(setting, experiment))


def _has_falling_rate(setting: Setting, experiment: Experiment) -> bool:
    learners = _learners_with(setting, experiment)
    return not setting.value or not learners or any(learner.schedule != "constant" for learner in learners)


def _reads_text_alone(setting: Setting, experiment: Experiment) -> bool:
    models = [experiment.models[name] for name in setting.names or experiment.models if name in experiment.models]
    return not models or any(read_model_type(Path(model)) not in VISION_MODELS for model in models)


LEARNERS = ("learner", "team.policies.*.learner", "algorithm.critic.policy.learner", "algorithm.critic.learner")

TRAINING_CONDITIONS: tuple[Condition[Experiment], ...] = (
    *(
        Condition[Any](
            f"{section}.{name}",
            _trains_prefix_trees,
            "it is for prefix trees, and learner.pack is padded",
            "Remove it, or set learner.pack=auto.",
        )
        for section in LEARNERS[:3]
        for name in ("flex_attention", "compile")
    ),
    *(
        Condition[Any](
            f"{section}.final_rate_fraction",
            _has_falling_rate,
            "learner.schedule is constant",
            "Remove it, or set learner.schedule=cosine.",
        )
        for section in LEARNERS
    ),
    *(
        Condition[Any](
            f"{section}.turns_memory",
            lambda setting, experiment: not setting.value or _reads_text_alone(setting, experiment),
            "a model that reads images keeps no keys and values of earlier turns",
        )
        for section in ("sampling", "team.policies.*.sampling")
    ),
    Condition(
        "credit.role_weights.*",
        lambda setting, experiment: (
            setting.names[0] not in experiment.roles or setting.names[0] in experiment.trained_roles
        ),
        "the policy that plays {names[0]} is frozen",
        expected="a role that is trained",
    ),
    *(
        Condition[Any](
            setting,
            lambda setting, experiment: experiment.plan.preference is None,
            "{facts.algorithm.name} learns from pairs and ignores it",
            expected=expected,
        )
        for setting, expected in (
            ("algorithm.kl", "0"),
            ("credit.overlong_buffer", "0"),
            ("credit.without_std", "keep"),
            ("credit.drop_groups", "none"),
        )
    ),
    *(
        Condition[Any](
            setting,
            lambda setting, experiment: experiment.plan.critic is None,
            "{facts.algorithm.name} has advantages from a critic and compares no groups",
            expected=expected,
        )
        for setting, expected in {"credit.without_std": "keep", "credit.drop_groups": "none"}.items()
    ),
    Condition(
        "train.replacements",
        lambda setting, experiment: experiment.plan.selection.without_std == "drop",
        "credit.without_std=keep leaves nothing to replace",
        "Set credit.without_std=drop, or remove train.replacements.",
        expected="0",
    ),
    Condition(
        "algorithm.gamma",
        lambda setting, _: setting.section.step_weight > 0.0,
        "algorithm.step_weight=0 leaves the comparison of steps out, which alone is discounted",
        "Remove it, or raise algorithm.step_weight.",
        algorithm="gigpo",
    ),
)

# ---- Conditions of the configuration on what a command line sets. A recipe or a run may have such a setting: it counts
# again once the other one changes.

OVERRIDE_CONDITIONS: tuple[Condition[Config], ...] = (
    *(
        Condition[Any](
            f"evaluate.{name}",
            lambda setting, _: setting.section.tasks > 0,
            "evaluate.tasks=0 plays no held-out tasks",
            "Remove it, or change evaluate.tasks.",
        )
        for name in ("every", "first")
    ),
    Condition(
        "train.trees_megabytes",
        lambda setting, _: not setting.value or setting.section.trees_kept > 0,
        "train.trees_kept=0 keeps no trees",
        "Remove it, or change train.trees_kept.",
    ),
    Condition(
        "trackers.project",
        lambda setting, _: bool(set(setting.section.names) - {"tensorboard"}),
        "no tracker of trackers.names={section.names} has projects",
        "Remove it, or change trackers.names.",
    ),
)
