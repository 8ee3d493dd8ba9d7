"""A YAML file as nested dictionaries, and `key=value` pairs set in them. What the keys mean is said elsewhere."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cadre.errors import ConfigError
from cadre.file_limits import MIB, read_bytes

# No recipe is near any of these. PyYAML reads 20,000 values a second, so that the most takes it a few seconds.
MOST_BYTES = MIB
MOST_VALUES = 50_000
MOST_LEVELS = 100
# Messages write numbers out, which Python refuses for those of more than 4,300 digits in base 10.
MOST_DIGITS = 1_000

Raw = dict[str, Any]
# The one policy of a team that is written as the name of its model.
ONLY_POLICY = "shared"


# The scalars of YAML 1.2's core schema (yaml.org/spec/1.2.2, section 10.3.2), by the characters that they begin with.
SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}
TAG = "tag:yaml.org,2002:"


class Loader(yaml.SafeLoader):
    """Reads scalars as YAML 1.2 does: `on`, `no`, `1:30` and dates are texts, `0o17` and `0100` are 15 and 100.

    Refuses a key that stands twice in one mapping, of which plain YAML takes the last without a word, and what has no
    end: a value that contains itself, aliases that stand for millions of values, and levels without number.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._values = self._levels = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._values, self._levels = self._values + 1, self._levels + 1
        if self._values > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values")
        if self._levels > MOST_LEVELS:
            raise ValueError(f"it is nested too deeply, in more than {MOST_LEVELS} levels")
        node: yaml.Node | None = super().compose_node(parent, index)
        self._levels -= 1
        return node

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _check_expansion(node)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[type, Any]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                value = "<<" if key.tag == f"{TAG}merge" else self.construct_object(key)
                if (type(value), value) in seen:
                    how = "; write <<: [*one, *other]" if value == "<<" else ""
                    raise yaml.composer.ComposerError(None, None, f"{key.value!r} stands twice{how}", key.start_mark)
                seen.add((type(value), value))
        return node

    def construct_number(self, node: yaml.ScalarNode) -> int:
        """An integer in decimal, octal (0o) or hexadecimal (0x) digits."""
        digits = self.construct_scalar(node)
        if len(digits) > MOST_DIGITS:
            raise ValueError(f"a whole number of more than {MOST_DIGITS:,} digits at line {node.start_mark.line + 1}")
        return int(digits, {"0o": 8, "0x": 16}.get(digits[:2], 10))

    def construct_truth(self, node: yaml.ScalarNode) -> bool:
        """`true` or `false`."""
        word = self.construct_scalar(node).lower()
        if word not in ("true", "false"):
            raise yaml.constructor.ConstructorError(None, None, f"{word!r} is no truth value", node.start_mark)
        return bool(word == "true")


class Dumper(yaml.SafeDumper):
    """Writes texts in quotes that YAML 1.1 or 1.2 would read as something else."""


Loader.yaml_implicit_resolvers = {}
for _name, (_form, _first) in SCALARS.items():
    Loader.add_implicit_resolver(TAG + _name, re.compile(rf"(?:{_form})\Z"), _first)
    Dumper.add_implicit_resolver(TAG + _name, re.compile(rf"(?:{_form})\Z"), _first)
Loader.add_constructor(f"{TAG}int", Loader.construct_number)
Loader.add_constructor(f"{TAG}bool", Loader.construct_truth)


def _check_expansion(root: yaml.Node) -> None:
    """Raise ValueError where the values that a node stands for, aliases written out, are too many or without end."""
    counts: dict[int, int] = {}  # by the id of a node, 0 while those in it are counted
    waiting = [root]
    while waiting:
        node = waiting[-1]
        inner = _inner_nodes(node)
        if id(node) not in counts:
            counts[id(node)] = 0
            for one in inner:
                if counts.get(id(one)) == 0:
                    mark = one.start_mark
                    raise ValueError(f"the value at line {mark.line + 1}, column {mark.column + 1} contains itself")
            waiting += [one for one in inner if id(one) not in counts]
            continue
        waiting.pop()
        if counts[id(node)] == 0:
            counts[id(node)] = 1 + sum(counts[id(one)] for one in inner)
            if counts[id(node)] > MOST_VALUES:
                raise ValueError(f"it stands for more than {MOST_VALUES:,} values once its aliases are written out")


def _inner_nodes(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [one for pair in node.value for one in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def parse_yaml(text: str) -> Any:
    """What the YAML says. Raises ValueError, whose message is one line, where it is none."""
    try:
        return yaml.load(text, Loader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).replace(' in "<unicode string>",', " at").split())) from None


def dump_yaml(value: Any, **options: Any) -> str:
    """The value as YAML that `parse_yaml` reads back."""
    written: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, **options)
    return written


def read(path: Path) -> Raw:
    """The sections of a file. Raises ConfigError where it cannot be read, or holds something else."""
    try:
        raw = parse_yaml(read_bytes(path, MOST_BYTES).decode())
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 (byte {error.start}); expected a YAML file in UTF-8. Save it so."
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid YAML ({error}). Fix the file.") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a YAML file. Fix the path.") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: got {type(raw).__name__} at the top; expected sections such as env: and team:.")
    return raw


def overridden(raw: Raw, pairs: Sequence[str]) -> Raw:
    """`raw` itself, with `key=value` pairs set in it one after the other."""
    for pair in pairs:
        override(raw, pair)
    return raw


def settings_of(pairs: Sequence[str]) -> Raw:
    """`key=value` pairs as a dictionary."""
    return overridden({}, pairs)


def override(raw: Raw, pair: str) -> None:
    """Set one dotted key in place; `*` stands for every name there is: `team.policies.*.dtype=bfloat16`.

    The value is YAML, but for a role's prompt, which is taken as it is: `team.prompts.tool=You: be nice`. A short form
    on the way (`algorithm: at_grpo`) is written out first. A mapping for a section is laid over it, as `merge` does;
    one for anything else stands whole (`team.roles`, `algorithm.k`, `settings`, which may be for another environment).
    """
    key, equals, text = pair.partition("=")
    if not equals or not key:
        raise ConfigError(f"override: got {pair!r}; expected key=value, such as train.steps=20.")
    keys = key.split(".")
    _set(raw, (), keys, text if keys[:-1] == ["team", "prompts"] else _value(pair, text))


def _value(pair: str, text: str) -> Any:
    try:
        value, left_out = parse_yaml(text), _comment(text)
    except ValueError as error:
        raise ConfigError(
            f"override: got {pair!r}, whose value is not valid YAML ({error}). Quote or fix it."
        ) from None
    if left_out:
        raise ConfigError(
            f"override: got {pair!r}, of which YAML takes {left_out!r} for a comment; expected a value that counts "
            "whole. Put quotes around the text within the value, or remove that."
        )
    return value


def _comment(text: str) -> str:
    """The comment in a YAML, which is what begins with # outside of all that counts; empty where there is none."""
    outside = list(text)
    for token in yaml.scan(text):
        length = token.end_mark.index - token.start_mark.index
        outside[token.start_mark.index : token.end_mark.index] = " " * length
    place = "".join(outside).find("#")
    return text[place:] if place >= 0 else ""


def _set(section: Raw, above: tuple[str, ...], keys: Sequence[str], value: Any) -> None:
    """Set `keys`, outermost first, in the section whose own keys are `above`."""
    first, *rest = keys
    for name in _names(section, above) if first == "*" else [first]:
        here = (*above, name)
        if rest:
            _set(_below(section, here), here, rest, value)
        elif isinstance(value, Mapping) and not above and name != "settings":
            merge(section, {name: value})
        else:
            section[name] = copy.deepcopy(value)


def _names(section: Raw, above: tuple[str, ...]) -> list[str]:
    if not section:
        where = ".".join(above) or "the top"
        raise ConfigError(
            f"override: got * below {where}, where nothing is named; expected one name or more before it."
        )
    return list(section)


def merge(section: Raw, changes: Mapping[str, Any], above: tuple[str, ...] = ()) -> None:
    """Set in place what `changes` says, section by section; `*` stands for every name there is.

    A section that says what it is (an algorithm's name, a policy's model, a team's policies and roles) stands whole;
    of any other the keys that it does not name stay as they were.
    """
    for key, value in changes.items():
        for name in _names(section, above) if key == "*" else [key]:
            here = (*above, name)
            if isinstance(value, Mapping) and section.get(name) is not None and not _stands_whole(here, value):
                merge(_below(section, here), value, here)
            else:
                section[name] = copy.deepcopy(value)


def _stands_whole(key: tuple[str, ...], value: Mapping[str, Any]) -> bool:
    if key == ("team",):
        return {"policies", "roles"} <= value.keys()
    return any(name in value for name in long_form(key, ""))


def _below(section: Raw, key: tuple[str, ...]) -> Raw:
    """The section at the last part of `key`, made where there is none."""
    name = key[-1]
    if section.get(name) is None:
        section[name] = {}
    if isinstance(section[name], str) and (written_out := long_form(key, section[name])):
        section[name] = written_out
    if not isinstance(section[name], dict):
        raise ConfigError(
            f"override: {'.'.join(key)} is {section[name]!r}, and has nothing below it; expected a section there."
        )
    inner: Raw = section[name]
    return inner


def long_form(key: tuple[str, ...], word: str) -> Raw:
    """What the one word stands for of a section that may be written so; empty where none may."""
    if key == ("algorithm",):
        return {"name": word}
    if key == ("team",):
        return {"policies": {ONLY_POLICY: word}}
    is_policy = len(key) == 3 and key[:2] == ("team", "policies")
    return {"model": word} if is_policy or key == ("algorithm", "critic", "policy") else {}
