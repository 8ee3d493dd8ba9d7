"""Settings without effect: an error where the user typed them, a warning where they stand in a recipe.

A setting that depends on others has a `ReadIf` in its annotation. It is given if the recipe, its base or an override
has it with another value than the default, which a run's configuration writes out, and than one that turns it off. In
a section of changes to another one (`loss`, a policy's `sampling` and `learner`) every key that is written counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from cadre.config.experiment import Experiment
from cadre.errors import ConfigError
from cadre.settings import LearnerConfig, LossConfig, SamplingConfig
from cadre.settings.engines import PlacementConfig
from cadre.settings.section import Given, ReadIf, Section, SetKeysOnly, apply_changes


def check_typed_are_read(experiment: Experiment, typed: Collection[str]) -> None:
    """Raise ConfigError for the first setting without effect among those that the user typed, by their dotted keys."""
    for setting, words in ignored_settings(experiment) if typed else ():
        if any(_is_within(key, setting) for key in typed):
            raise ConfigError(f"{setting} has no effect here (it is read if {words}): remove it.")


def ignored_settings(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield (setting, when it would be read) for every setting that is given and has no effect."""
    for given, conditions in _given_settings(Given("", None, experiment.config, "", experiment)):
        places = [replace(given, section=section, policy=policy) for section, policy in _merged(given)]
        for condition in conditions:
            if not any(map(condition.is_read, places)):
                yield given.path, condition.words
                break


def _is_within(key: str, setting: str) -> bool:
    """Return True if a key, in which `*` is any name, is that of the setting or of a part of it."""
    parts = key.split(".")[: setting.count(".") + 1]
    return len(parts) == setting.count(".") + 1 and all(
        part in ("*", name) for part, name in zip(parts, setting.split("."), strict=True)
    )


def _given_settings(within: Given, are_changes: bool = False) -> Iterator[tuple[Given, list[ReadIf]]]:
    """Yield every setting that is given and has conditions, with these, of the section that `within` has."""
    section, prefix = within.section, within.path and f"{within.path}."
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if name not in section.model_fields_set or value is None or value is False:
            continue
        given = replace(within, path=f"{prefix}{name}", value=value)
        has_changes = are_changes or SetKeysOnly in field.metadata
        if isinstance(value, Section) and has_changes:
            is_given = bool(value.model_fields_set)
        else:
            is_given = are_changes or value != field.get_default(call_default_factory=True)
        conditions = [*section.conditions, *(item for item in field.metadata if isinstance(item, ReadIf))]
        if is_given and conditions:
            yield given, conditions
        if isinstance(value, Section):
            yield from _given_settings(replace(given, section=value), has_changes)
        for key, inner in value.items() if isinstance(value, Mapping) else ():
            if isinstance(inner, Section):
                yield from _given_settings(replace(given, path=f"{given.path}.{key}", section=inner, policy=key))


def _merged(given: Given) -> list[tuple[Section, str]]:
    """Return the sections that a setting ends up in, with the policy of each: those of changes once they are merged."""
    section, policy, experiment = given.section, given.policy, given.experiment
    match section:
        case LossConfig():
            return [(experiment.plan.loss, "")]
        case LearnerConfig() if given.path.startswith("algorithm.critic.learner."):
            heads = [head for head in experiment.heads if head in experiment.learners]
            return [(apply_changes(experiment.learners[head], section), head) for head in heads]
        case LearnerConfig() | SamplingConfig():
            kind = "learner" if isinstance(section, LearnerConfig) else "sampling"
            merged = experiment.learners if kind == "learner" else experiment.samplers
            if given.path.startswith("algorithm.critic.policy."):
                policies = [*experiment.heads]
            elif policy:
                policies = [policy]
            else:  # what policies have not changed
                policies = [
                    one for one in merged if given.name not in getattr(experiment.policies[one], kind).model_fields_set
                ]
            return [(merged[one], one) for one in policies if one in merged]
        case PlacementConfig() if policy:
            return [(apply_changes(experiment.cluster, section), policy)]
    return [(section, policy)]
