"""Settings without effect: an error where the user typed them, a warning where they stand in a recipe.

A setting that depends on others has a `ReadIf` in its annotation. It is given if the recipe, its base or an override
has it with another value than the default, which a run's configuration writes out, and than one that turns it off. In
a section of changes to another one (`loss`, a policy's `sampling` and `learner`) every key that is written counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

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
    for path, value, section, policy, conditions in _given_settings(experiment.config):
        places = [
            Given(path, value, merged, name, experiment) for merged, name in _merged(path, section, policy, experiment)
        ]
        for condition in conditions:
            if not any(map(condition.is_read, places)):
                yield path, condition.words
                break


def _is_within(key: str, setting: str) -> bool:
    """Return True if a key, in which `*` is any name, is that of the setting or of a part of it."""
    parts = key.split(".")[: setting.count(".") + 1]
    return len(parts) == setting.count(".") + 1 and all(
        part in ("*", name) for part, name in zip(parts, setting.split("."), strict=True)
    )


def _given_settings(
    section: Section, path: str = "", policy: str = "", are_changes: bool = False
) -> Iterator[tuple[str, Any, Section, str, list[ReadIf]]]:
    """Yield path, value, section, policy and conditions of every setting that is given and has conditions."""
    for name, field in type(section).model_fields.items():
        value, inner_path = getattr(section, name), f"{path}{name}"
        if name not in section.model_fields_set or value is None or value is False:
            continue
        has_changes = are_changes or SetKeysOnly in field.metadata
        is_default = value == field.get_default(call_default_factory=True)
        is_given = bool(value.model_fields_set) if has_changes and isinstance(value, Section) else not is_default
        conditions = [*section.conditions, *(one for one in field.metadata if isinstance(one, ReadIf))]
        if conditions and (is_given or (are_changes and not isinstance(value, Section))):
            yield inner_path, value, section, policy, conditions
        if isinstance(value, Section):
            yield from _given_settings(value, f"{inner_path}.", policy, has_changes)
        for key, inner in value.items() if isinstance(value, Mapping) else ():
            if isinstance(inner, Section):
                yield from _given_settings(inner, f"{inner_path}.{key}.", key)


def _merged(path: str, section: Section, policy: str, experiment: Experiment) -> list[tuple[Section, str]]:
    """Return the sections that a setting ends up in, with the policy of each: those of changes once they are merged."""
    name = path.rpartition(".")[2]
    match section:
        case LossConfig():
            return [(experiment.plan.loss, "")]
        case LearnerConfig() if path.startswith("algorithm.critic.learner."):
            heads = [head for head in experiment.heads if head in experiment.learners]
            return [(apply_changes(experiment.learners[head], section), head) for head in heads]
        case LearnerConfig() | SamplingConfig():
            kind = "learner" if isinstance(section, LearnerConfig) else "sampling"
            merged: Mapping[str, Section] = experiment.learners if kind == "learner" else experiment.samplers
            if path.startswith("algorithm.critic.policy."):
                policies = [*experiment.heads]
            else:  # a policy's own changes, or what policies have not changed
                policies = (
                    [policy]
                    if policy
                    else [one for one in merged if name not in getattr(experiment.policies[one], kind).model_fields_set]
                )
            return [(merged[one], one) for one in policies if one in merged]
        case PlacementConfig() if policy and experiment.cluster is not None:
            return [(apply_changes(experiment.cluster, section), policy)]
    return [(section, policy)]
