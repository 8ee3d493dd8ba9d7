"""Quantised bases are refused before anything loads where they cannot work."""

from __future__ import annotations

import pytest

from cadre.config.experiment import Experiment
from cadre.config.recipes import read_recipe
from cadre.config.resolve import parse, resolve
from cadre.errors import ConfigError
from cadre.settings.yaml_file import apply_overrides

SHARED = "team.policies.shared.quantization=4bit"
LORA = "team.policies.shared.lora={}"


def resolved(*overrides: str) -> Experiment:
    return resolve(parse(apply_overrides(read_recipe("plan-path"), list(overrides))))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((SHARED,), "is trained whole, .* Add lora: {}, or remove quantization"),
        ((SHARED, LORA, "sampling.engine=vllm"), "with sampling.engine=vllm, .* expected torch"),
        ((SHARED, LORA, "learner.ranks=2"), "with learner.ranks=2, .* expected 1"),
        (("team.policies.shared.quantization=8bit",), "quantization.*8bit.*4bit"),
    ],
)
def test_where_it_cannot_work_it_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(*overrides)


def test_policies_of_one_base_share_it_only_if_both_are_quantised() -> None:
    team = "team={policies: {a: {model: seed, lora: {}}, b: {model: seed, lora: {}}}, roles: {tool: a, planner: b}}"
    item, both = "team.policies.a.quantization=4bit", "team.policies.b.quantization=4bit"
    assert resolved(team, item).engines == [["a"], ["b"]]
    assert resolved(team, item, both).engines == [["a", "b"]]
