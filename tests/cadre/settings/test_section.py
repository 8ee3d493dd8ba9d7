"""Sections reject truth values for numbers, which pydantic would take for 0 and 1."""

import pytest
from pydantic import JsonValue, ValidationError, create_model

from cadre.settings import LearnerConfig
from cadre.settings.section import Section, apply_changes, is_bool_for_number

FIELDS = {
    "number": (float, 0.0),
    "numbers": (dict[str, int | tuple[int, ...]], {}),
    "either": (bool | int, 0),
    "anything": (dict[str, JsonValue], {}),
    "switch": (bool, False),
}
Mixed = create_model("Mixed", __base__=Section, **FIELDS)


@pytest.mark.parametrize("wrong", [{"number": True}, {"numbers": {"a": False}}, {"numbers": {"a": [1, True]}}])
def test_a_truth_value_is_no_number(wrong: dict) -> None:
    with pytest.raises(ValidationError, match="expected a number, which true and false"):
        Mixed.model_validate(wrong)


@pytest.mark.parametrize("right", [{"either": True}, {"anything": {"a": [True]}}, {"switch": True}, {"number": 1}])
def test_a_truth_value_is_taken_where_one_may_stand(right: dict) -> None:
    assert Mixed.model_validate(right).model_dump(mode="json", exclude_unset=True) == right


def test_a_setting_that_may_be_anything_takes_all() -> None:
    assert not is_bool_for_number(JsonValue, True)
    assert is_bool_for_number(int | None, True)


def test_a_change_replaces_the_other_way_to_say_the_same() -> None:
    """Mistake: a policy's own number of minibatches counts for nothing beside the experiment's minibatch size."""
    sized, counted = LearnerConfig(minibatch_size=8), LearnerConfig(minibatches=4)
    assert apply_changes(sized, LearnerConfig(minibatches=2)).steps_per_pass(32) == 2
    assert apply_changes(counted, LearnerConfig(minibatch_size=16)).steps_per_pass(32) == 2
    assert apply_changes(counted, LearnerConfig(minibatch_size=16)).minibatches == 1
    assert apply_changes(sized, LearnerConfig(learning_rate=0.5)).steps_per_pass(32) == 4
