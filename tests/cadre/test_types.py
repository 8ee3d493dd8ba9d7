"""Records of one form, however they are made."""

import pytest

from cadre.types import ToolCall


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({}, "{}"), ({"thing": "spoons", "n": [1, None]}, '{"thing": "spoons", "n": [1, null]}'), ('{"a":1}', '{"a":1}')],
)
def test_a_call_takes_arguments_as_a_mapping_or_as_json(arguments: object, text: str) -> None:
    """Mistake: a mapping reaches the chat template, which is blamed for it."""
    assert ToolCall("1", "find", arguments).arguments == text  # type: ignore[arg-type]
