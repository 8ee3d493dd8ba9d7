"""Read a YAML file as nested dictionaries, and set `key=value` overrides in them. The keys have no meaning here."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from cadre.errors import ConfigError
from cadre.file_limits import MIB, read_bytes

# No recipe is near any of these. PyYAML reads 20,000 values a second, so that the largest file takes a few seconds.
MAX_BYTES = MIB
MAX_VALUES = 50_000
MAX_LEVELS = 100
# Messages write numbers out, and Python refuses to write more than 4,300 decimal digits.
MAX_DIGITS = 1_000

Raw = dict[str, Any]
# Name of the policy where `team:` is no more than the name of a model.
ONLY_POLICY = "shared"

# Scalars of YAML 1.2's core schema (yaml.org/spec/1.2.2, section 10.3.2): the pattern, and the first characters it has.
SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
TAG = "tag:yaml.org,2002:"


class RecipeLoader(yaml.SafeLoader):
    """Load YAML with the scalars of version 1.2: `on`, `no`, `1:30` and dates are texts; `0o17` is 15, `0100` is 100.

    Raises ValueError for more values than MAX_VALUES, and a YAMLError for a repeated key, of which plain YAML silently
    takes the last.
    """

    values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.values += 1
        if self.values > MAX_VALUES:
            raise ValueError(f"it holds more than {MAX_VALUES:,} values")
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Leave `<<` as it is: YAML 1.2 merges nothing, and merges of merges could stand for millions of keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        names = set()
        for key, _ in node.value:
            name = self.construct_object(key)
            if name in names:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
            names.add(name)
        return mapping

    def construct_number(self, node: yaml.ScalarNode) -> int:
        """Return the integer that is written in decimal, octal (0o) or hexadecimal (0x) digits."""
        digits = self.construct_scalar(node)
        if len(digits) > MAX_DIGITS:
            raise ValueError(f"a whole number of more than {MAX_DIGITS:,} digits at line {node.start_mark.line + 1}")
        return int(digits, {"0o": 8, "0x": 16}.get(digits[:2], 10))


class RecipeDumper(yaml.SafeDumper):
    """Dump YAML with quotes around texts that YAML 1.1 or 1.2 would read as something else."""


# No sets, dates or pairs by an explicit tag: what looks for names in a configuration knows mappings and lists alone.
RecipeLoader.yaml_constructors = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(TAG) in ("map", "seq", "str", "null", "bool", "float")
}
RecipeLoader.yaml_implicit_resolvers = {}
for _name, (_form, _first) in SCALARS.items():
    RecipeLoader.add_implicit_resolver(TAG + _name, re.compile(rf"(?:{_form})\Z"), _first)
    RecipeDumper.add_implicit_resolver(TAG + _name, re.compile(rf"(?:{_form})\Z"), _first)
RecipeLoader.add_constructor(f"{TAG}int", RecipeLoader.construct_number)


def _check_size(value: Any) -> None:
    """Raise ValueError for a value that contains itself, or stands for too many once its aliases are written out."""
    waiting, count = [(value, 0)], 0
    while waiting:
        inner, level = waiting.pop()
        count += 1
        if isinstance(inner, Mapping):
            waiting += [(child, level + 1) for child in (*inner.keys(), *inner.values())]
        elif isinstance(inner, list):
            waiting += [(child, level + 1) for child in inner]
        if count + len(waiting) > MAX_VALUES or level > MAX_LEVELS:
            raise ValueError(f"its aliases stand for more than {MAX_VALUES:,} values, or it is nested too deeply")


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raises ValueError with a message of one line if the text is not YAML."""
    return copy.deepcopy(_parse(text))


# A recipe and its bases are read several times on the way to an experiment, and a copy takes a tenth of the parse.
@lru_cache(maxsize=64)
def _parse(text: str) -> Any:
    try:
        value = yaml.load(text, RecipeLoader)
        _check_size(value)
        return value
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).replace(' in "<unicode string>",', " at").split())) from None


def dump_yaml(value: Any, **options: Any) -> str:
    """Return the value as YAML that `parse_yaml` reads back."""
    text: str = yaml.dump(value, Dumper=RecipeDumper, sort_keys=False, **options)
    return text


def read_yaml(path: Path) -> Raw:
    """Return the sections of a YAML file. Raises ConfigError if it cannot be read or is no mapping."""
    try:
        raw = parse_yaml(read_bytes(path, MAX_BYTES).decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start}); expected YAML in UTF-8. Save it so.") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid YAML ({error}). Fix the file.") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a YAML file. Fix the path.") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: got {type(raw).__name__} at the top; expected sections such as env: and team:.")
    return raw


def flatten(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield `("algorithm.k", 4)` for every setting of a dumped configuration, in order."""
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# ---- Overrides: `key=value` on the command line

# What commands and calls take in short.
SHORT_KEYS = {
    "model": "team",
    "k": "algorithm.k",
    "steps": "train.steps",
    "tasks": "settings.tasks",
    "reward": "settings.reward",
    "held_out": "settings.held_out",
    "columns": "settings.columns",
}


def long_key(key: str) -> str:
    """Return the dotted key of a setting that may be given in short: `k` is `algorithm.k`."""
    first, dot, rest = key.partition(".")
    return f"{SHORT_KEYS.get(first, first)}{dot}{rest}"


def parse_settings(pairs: Sequence[str]) -> Raw:
    """Return `key=value` pairs of an environment's settings as a dictionary."""
    settings: Raw = apply_overrides({"settings": {}}, [f"settings.{pair}" for pair in pairs])["settings"]
    return settings


def typed_keys(pairs: Sequence[str]) -> list[str]:
    """Return the dotted keys that valid `key=value` pairs set, those within a value that is a mapping too."""
    keys: list[str] = []
    for key, _, text in (pair.partition("=") for pair in pairs):
        key = long_key(key)
        # A prompt is a plain text, which need not be YAML.
        value = {} if key.startswith("team.prompts.") else parse_yaml(text)
        keys += [inner for inner, _ in flatten({key: value})]
    return keys


def apply_overrides(raw: Raw, pairs: Sequence[str]) -> Raw:
    """Set dotted `key=value` pairs in place, one after the other, and return `raw` itself.

    `*` stands for every name at its level: `team.policies.*.dtype=bfloat16`. The value is YAML, except for a role's
    prompt, which is a plain text: `team.prompts.tool=You: be nice`. A short form on the way (`algorithm: at_grpo`) is
    expanded first. A mapping for a section is merged into it (`merge_sections`); one for anything else replaces it
    (`team.roles`, `algorithm.k`, and `settings`, which may be another environment's). Raises ConfigError.
    """
    for pair in pairs:
        _apply_override(raw, pair)
    return raw


def _apply_override(raw: Raw, pair: str) -> None:
    key, equals, text = pair.partition("=")
    if not equals or not key:
        raise ConfigError(f"override: got {pair!r}; expected key=value, such as train.steps=20.")
    keys = long_key(key).split(".")
    value: Any = text
    if keys[:-1] != ["team", "prompts"]:
        try:
            value = parse_yaml(text)
        except ValueError as error:
            raise ConfigError(f"override: got {pair!r}, whose value is not valid YAML ({error}). Fix it.") from None
        if "#" in text and _has_comment(text, value):
            got = f"got {pair!r}, of which YAML takes what follows # for a comment"
            raise ConfigError(f"override: {got}; expected a value that counts whole. Put quotes around the text in it.")
    _set_key(raw, (), keys, value)


def _has_comment(text: str, value: Any) -> bool:
    """Return True if the value would be another, or none, were each # an ordinary letter."""
    try:
        return str(value).replace("#", "é") != str(parse_yaml(text.replace("#", "é")))
    except ValueError:
        return True


def _set_key(section: Raw, path: tuple[str, ...], keys: Sequence[str], value: Any) -> None:
    """Set `keys`, the outermost first, in the section at `path`."""
    first, *rest = keys
    for name in _expand_star(section, path, first):
        if rest:
            _set_key(_descend(section, (*path, name)), (*path, name), rest, value)
        elif isinstance(value, Mapping) and not path and name != "settings":
            merge_sections(section, {name: value})
        else:
            section[name] = copy.deepcopy(value)


def merge_sections(section: Raw, changes: Mapping[str, Any], path: tuple[str, ...] = ()) -> None:
    """Set `changes` in place, section by section; `*` stands for every name at its level.

    A section that identifies itself (an algorithm's name, a policy's model, a team's policies and roles) is replaced;
    any other keeps the keys that `changes` does not name. `path` is that of `section` in the whole.
    """
    for key, value in changes.items():
        for name in _expand_star(section, path, key):
            inner_path = (*path, name)
            if isinstance(value, Mapping) and section.get(name) is not None and not _is_complete(inner_path, value):
                merge_sections(_descend(section, inner_path), value, inner_path)
            else:
                section[name] = copy.deepcopy(value)


def _is_complete(path: tuple[str, ...], value: Mapping[str, Any]) -> bool:
    """Return True if a section identifies itself, so that it replaces the one at `path`."""
    if path == ("team",):
        return {"policies", "roles"} <= value.keys()
    return any(name in value for name in expand_short_form(path, ""))


def _expand_star(section: Raw, path: tuple[str, ...], name: str) -> list[str]:
    """Return the names that `name` stands for: all of the section for `*`."""
    if name != "*":
        return [name]
    if not section:
        where = ".".join(path) or "the top"
        raise ConfigError(f"override: got * below {where}, where nothing is named; expected a name there.")
    return list(section)


def _descend(section: Raw, path: tuple[str, ...]) -> Raw:
    """Return the section at the last name of `path`, created if there is none and expanded if it is a short form."""
    name = path[-1]
    if section.get(name) is None:
        section[name] = {}
    if isinstance(section[name], str) and (expanded := expand_short_form(path, section[name])):
        section[name] = expanded
    if not isinstance(section[name], dict):
        raise ConfigError(f"override: {'.'.join(path)} is {section[name]!r}, and has nothing below it.")
    inner: Raw = section[name]
    return inner


def expand_short_form(path: tuple[str, ...], word: str) -> Raw:
    """Return the section that one word stands for, such as `algorithm: at_grpo`, or {} if it has no short form."""
    if path == ("algorithm",):
        return {"name": word}
    if path == ("team",):
        return {"policies": {ONLY_POLICY: word}}
    is_policy = len(path) == 3 and path[:2] == ("team", "policies")
    return {"model": word} if is_policy or path == ("algorithm", "critic", "policy") else {}
