"""Values on the command line: YAML of which nothing is left out, and prompts as they are written."""

import math
import time

import pytest

from cadre.errors import ConfigError
from cadre.settings.yaml_file import apply_overrides, dump_yaml, parse_yaml


@pytest.mark.parametrize("text", ["Use markdown # headings", "You: be nice", "# Rules", '"Yes" or "no"', "3", "[a"])
def test_a_prompt_is_taken_as_it_is(text: str) -> None:
    assert apply_overrides({}, [f"team.prompts.tool={text}"]) == {"team": {"prompts": {"tool": text}}}


def test_a_mapping_is_laid_over_a_section_and_stands_for_names() -> None:
    """Other settings of the recipe stay, also below a section; names are replaced as a whole."""
    raw = {
        "settings": {"turns": 2, "size": 8},
        "evaluate": {"tasks": 9, "settings": {"size": 10}},
        "algorithm": {"name": "at_grpo", "k": 4, "alpha": 0.5},
        "team": {"policies": {"a": "seed"}, "roles": {"tool": "a", "planner": "a"}},
    }
    apply_overrides(raw, ["evaluate={every: 5, settings: {blocked: 0.2}}", "algorithm={k: 2}", "train={steps: 3}"])
    assert raw["evaluate"] == {"tasks": 9, "every": 5, "settings": {"size": 10, "blocked": 0.2}}
    assert raw["algorithm"] == {"name": "at_grpo", "k": 2, "alpha": 0.5}
    assert raw["train"] == {"steps": 3}
    apply_overrides(raw, ["settings={rounds: 6}", "evaluate.settings={rounds: 2}", "team.roles={tool: a}"])
    assert raw["settings"] == {"rounds": 6}
    assert raw["evaluate"]["settings"] == {"rounds": 2}
    assert raw["team"]["roles"] == {"tool": "a"}
    apply_overrides(
        raw, ["algorithm={name: grpo}", "algorithm.k={tool: 3}", "team={policies: {b: seed}, roles: {tool: b}}"]
    )
    assert raw["algorithm"] == {"name": "grpo", "k": {"tool": 3}}
    assert raw["team"] == {"policies": {"b": "seed"}, "roles": {"tool": "b"}}


@pytest.mark.parametrize("text", ["a # b", "#b", "{a: 1} # b", "'a#b' # b", "[a, # b\n c]"])
def test_a_comment_in_a_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="for a comment"):
        apply_overrides({}, [f"name={text}"])


@pytest.mark.parametrize(
    ("text", "value"),
    [("a#b", "a#b"), ("'a # b'", "a # b"), ('["# b", c#]', ["# b", "c#"]), ("|\n  a # b", "a # b"), ("", None)],
)
def test_what_is_no_comment_is_taken(text: str, value: object) -> None:
    assert apply_overrides({}, [f"name={text}"]) == {"name": value}


LAUGHS = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))])
LISTS = "a: &a [" + "1, " * 20_000 + "]\nb: [" + "*a, " * 20_000 + "]"
# A tag that asks for merges is none of YAML 1.2.
MERGES = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{!!merge <<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9))]
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &a [*a]", "stand for more than 50,000 values"),
        ("&a {b: [*a]}", "stand for more than 50,000 values"),
        ("a: &a {x: {y: *a}}", "stand for more than 50,000 values"),
        (LAUGHS, "stand for more than 50,000 values"),
        (LISTS, "stand for more than 50,000 values"),
        (MERGES, "could not determine a constructor"),
        ("a: [" + "1, " * 60_000 + "]", "holds more than 50,000 values"),
        ("[" * 50_000, "nested too deeply"),
        ("\n".join(" " * i + "a:" for i in range(300)), "nested too deeply"),
        ("a: " + "9" * 5_000, "more than 1,000 digits"),
        ("a: 0x" + "f" * 5_000, "more than 1,000 digits"),
    ],
    ids=lambda text: text[:12],
)
def test_what_has_no_end_is_refused(text: str, why: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match=why):
        parse_yaml(text)
    assert time.process_time() - began < 20


def test_aliases_that_end_are_taken() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a, y: 2}") == {
        "a": {"x": 1},
        "b": [{"x": 1}, {"x": 1}],
        "c": {"<<": {"x": 1}, "y": 2},
    }


CORE = [
    ("0o17", 15),
    ("0x1F", 31),
    ("0100", 100),
    ("007", 7),
    ("08", 8),
    ("+12", 12),
    ("1e-5", 1e-5),
    ("1E5", 1e5),
    (".5", 0.5),
    ("1.", 1.0),
    ("-.INF", -math.inf),
    ("~", None),
    ("NULL", None),
    ("", None),
    ("TRUE", True),
    ("false", False),
    *((word, word) for word in ("on", "off", "yes", "No", "y", "N", "tRue", "1:30", "12:30:45", "2024-01-01", "1_000")),
    *(
        (word, word)
        for word in ("0b1", "-0o7", "0o8", "=", "nan", "inf", "1.2.3", "1e", "2001-12-14t21:59:43.10-05:00")
    ),
]


@pytest.mark.parametrize(("text", "value"), CORE)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    """Mistake: PyYAML's own, of YAML 1.1, for which `1:30` is 90, `0100` is 64, and `no` is false."""
    read = apply_overrides({}, [f"name={text}"])["name"]
    assert read == value
    assert type(read) is type(value)
    assert parse_yaml(f"name: {text}") == {"name": value}


@pytest.mark.parametrize("value", [*(text for text, _ in CORE), "<<", "- a", "#", "é", 1e22, 1e-5, 15, True, None])
def test_what_is_written_is_read_back(value: object) -> None:
    read = parse_yaml(dump_yaml({"name": value}))["name"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{a: 1, 'a': 2}", "'a' stands twice"),
        ("{1: a, 0x1: b}", "'0x1' stands twice"),
        ("names: !!set {wandb}", "could not determine a constructor"),
        ("names: !!pairs [a: b]", "could not determine a constructor"),
        ("{b: &b {x: 1}, c: {<<: *b, <<: *b}}", "'<<' stands twice"),
    ],
)
def test_what_means_two_things_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_yaml(text)
