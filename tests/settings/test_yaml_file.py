"""Values on the command line: YAML of which nothing is left out, and prompts as they are written."""

import pytest

from cadre.errors import ConfigError
from cadre.settings.yaml_file import settings_of


@pytest.mark.parametrize("text", ["Use markdown # headings", "You: be nice", "# Rules", '"Yes" or "no"', "3", "[a"])
def test_a_prompt_is_taken_as_it_is(text: str) -> None:
    assert settings_of([f"team.prompts.tool={text}"]) == {"team": {"prompts": {"tool": text}}}


@pytest.mark.parametrize("text", ["a # b", "#b", "{a: 1} # b", "'a#b' # b", "[a, # b\n c]"])
def test_a_comment_in_a_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="for a comment"):
        settings_of([f"name={text}"])


@pytest.mark.parametrize(
    ("text", "value"),
    [("a#b", "a#b"), ("'a # b'", "a # b"), ('["# b", c#]', ["# b", "c#"]), ("|\n  a # b", "a # b"), ("", None)],
)
def test_what_is_no_comment_is_taken(text: str, value: object) -> None:
    assert settings_of([f"name={text}"]) == {"name": value}
