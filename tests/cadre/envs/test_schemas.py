"""Validators of JSON schemas: what patterns demand, and how long they may take."""

import pytest

from cadre.envs.schemas import make_validator

SLOW = "^(a|aa)+$"
LONG = "a" * 60 + "!"


@pytest.mark.parametrize(
    ("schema", "value", "is_valid"),
    [
        ({"properties": {"a": {"pattern": "^x"}}}, {"a": "xy"}, True),
        ({"properties": {"a": {"pattern": "^x"}}}, {"a": "yx"}, False),
        ({"pattern": r"^\p{L}+$"}, "7", True),  # none of Python's
        ({"patternProperties": {"^n_": {"type": "integer"}}}, {"n_a": 1, "b": "x"}, True),
        ({"patternProperties": {"^n_": {"type": "integer"}}}, {"n_a": "1"}, False),
        ({"patternProperties": {"^n_": {}}, "additionalProperties": False}, {"n_a": 1}, True),
        ({"patternProperties": {"^n_": {}}, "additionalProperties": False}, {"n_a": 1, "b": 1}, False),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, {"a": "x", "b": 1}, True),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, {"a": "x", "b": "1"}, False),
        ({"unevaluatedProperties": False}, {"a": 1}, False),
        ({"patternProperties": {"(": {}}, "additionalProperties": False}, {"(": 1}, False),
        ({"pattern": "^[[x]$"}, "[", True),
        ({"pattern": "^[[x]$"}, "y", False),
    ],
)
@pytest.mark.filterwarnings("error")  # as `re` warns of `[[`
def test_patterns_demand_what_the_standard_says(schema: dict, value: object, is_valid: bool) -> None:
    assert make_validator(schema).is_valid(value) == is_valid


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": SLOW}, LONG),
        ({"patternProperties": {SLOW: {}}}, {LONG: 1}),
        ({"patternProperties": {SLOW: {}}, "additionalProperties": False}, {LONG: 1}),
        ({"patternProperties": {SLOW: {}}, "unevaluatedProperties": False}, {LONG: 1}),
    ],
)
def test_a_pattern_that_matches_for_ages_is_given_up(
    schema: dict, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cadre.envs.schemas.PATTERN_S", 0.02)
    with pytest.raises(TimeoutError):
        make_validator(schema).is_valid(value)
