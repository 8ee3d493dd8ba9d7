"""Settings that have no effect under others: how they are declared, and the one check that refuses them.

A setting that depends on others has a `Condition`: its path, when it is read, and why it is not otherwise. What a user
gives in vain is refused, as a run would differ from what its recipe says. A setting is given if the recipe, its base or
an override has it with another value than the default: a run folder's recipe has all defaults written out. In a section
of changes to another one (`loss`, a policy's `sampling` and `learner`) every key that is written counts.

The conditions here are those that the recipe alone decides; `cadre.config.unused` has those that need more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cadre.errors import ConfigError
from cadre.settings.section import Section, SetKeysOnly

# What decides a condition: a configuration (`cadre.config.experiment.Config`), or the experiment that it makes.
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


def check_all_read(config: Any, facts: FactsT, conditions: Sequence[Condition[FactsT]]) -> None:
    """Raise ConfigError for the first setting of the configuration that is given and not read."""
    for condition in conditions:
        if condition.algorithm in ("", config.algorithm.name):
            for setting in given_settings(config, condition.path):
                if not condition.is_read(setting, facts):
                    raise ConfigError(explain(condition, setting, facts))


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
LOCAL_SETTINGS = ("device", "dtype", "quantization", "trust_remote_code")
# Settings of a learner that value heads do without: they train in the passes of the policy that they sit on.
POLICY_ONLY = (
    *("epochs", "minibatches", "minibatch_size", "tokens_per_microbatch", "pack"),
    *("gradient_checkpointing", "ranks", "flex_attention", "compile"),
)

RECIPE_CONDITIONS: tuple[Condition[Any], ...] = (
    # The team: an endpoint has the weights, and a frozen policy has no learner.
    *(
        Condition[Any](
            f"{policy}.{name}",
            lambda setting, _: setting.section.url is None,
            "it is for a model that is loaded here, and an endpoint serves this one ({section.url})",
            "Remove it, or the url.",
        )
        for policy in ("team.policies.*", "teacher.model")
        for name in LOCAL_SETTINGS
    ),
    *(
        Condition[Any](
            f"{policy}.key_variable",
            lambda setting, _: setting.section.url is not None,
            "the model is loaded here, without a url that needs a key",
        )
        for policy in ("team.policies.*", "algorithm.critic.policy", "teacher.model")
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
    # The teacher.
    *(
        Condition[Any](f"teacher.model.{name}.*", lambda setting, _: False, "a teacher neither samples nor learns")
        for name in ("sampling", "learner")
    ),
    Condition(
        "teacher.model.enable_thinking",
        lambda setting, _: False,
        "a teacher reads the tokens of the policy's prompt, or of its conversation with a hint",
    ),
    Condition(
        "teacher.weights",
        lambda setting, _: setting.section.is_self,
        "they are those of a policy that teaches itself, and another teaches here",
        "Remove it, or model and policy.",
    ),
    # The cluster.
    *(
        Condition[Any](
            f"{section}.sampler_gpus",
            lambda setting, config: (
                not (
                    setting.section.colocated
                    or ("colocated" not in setting.section.model_fields_set and config.cluster.colocated)
                )
            ),
            "under colocated samplers have no GPUs of their own and share the learner's",
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
