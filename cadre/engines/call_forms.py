"""Forms of tool calls: learned from what a chat template writes, and used to read calls out of answers.

Templates write calls in many ways. What they have in common is a payload, in one of five notations, between marks:

    json      {"name": "f", "arguments": {...}}, or a list of such   Hermes, Qwen, Llama 3, Mistral, Phi, Granite
    named     f, a mark, {...}                                       Mistral since 2025, DeepSeek, Kimi
    tagged    f, then a mark before and after every argument         Qwen3-Coder, GLM, MiniMax
    python    [f(x=1), g(y="a")]                                     Llama 3.2 and 4, OLMo
    escape    call:f{x:<escape>a<escape>,y:1}                        FunctionGemma; Gemma 4 with the mark <|"|>

`learn` finds notation and marks in a rendering of known calls; gpt-oss writes channels instead (`read_channels`).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cadre.errors import first_line

# Name and arguments of a call; the arguments are not checked.
Call = tuple[str, Any]
# The JSON schema of the arguments by tool.
Schemas = Mapping[str, Mapping[str, Any]]

PROBES: tuple[Call, Call] = (
    ("qzxfirst", {"qzxkey": "qzxpaper", "qzxnumber": 31415}),
    ("qzxsecond", {"qzxkey": "qzxstone", "qzxnumber": 27182}),
)
NAME_KEYS, ARGUMENT_KEYS = ("name", "tool_name"), ("arguments", "parameters")
PYTHON_TAG = "<|python_tag|>"
SPACE = r"\s*"
ID = "\0"  # stands for the id of a call within a mark
MAX_SCHEMA_DEPTH = 8
# What else the JSON of a call may have.
BESIDE_CALL = ("id", "type", "index", "call_id", "tool_call_id")
THINK_OPEN = re.compile(r"^\s*(?:<think>|<thinking>|<seed:think>|\[THINK\]|<\|START_THINKING\|>)")
THINK_CLOSE = re.compile(r"</think>|</thinking>|</seed:think>|\[/THINK\]|<\|END_THINKING\|>")
CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
# Names of the field in which templates take the thinking of a message.
THINKING_FIELDS = ("reasoning_content", "reasoning", "thinking")
# Marks of thinking that are tokens of some models; others write the first pair.
THINKING_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
)


@dataclass(frozen=True)
class CallForm:
    """One way to write calls. `opening` stands before each, `outer` once before all, `closings` may stand after one.

    name_keys       keys of a JSON object that may hold the name (json)
    argument_keys   keys that may hold the arguments (json)
    wrapper         key of the object that holds both, "" for none (json)
    middle          between name and arguments (named), or name and first argument (tagged)
    key_open, key_close, value_close    around the names and values of arguments (tagged)
    newline         whether values stand on lines of their own (tagged)
    string_mark     before and after a string (escape)
    """

    notation: str
    opening: str
    outer: str = ""
    closings: tuple[str, ...] = ()
    name_keys: tuple[str, ...] = NAME_KEYS
    argument_keys: tuple[str, ...] = ARGUMENT_KEYS
    wrapper: str = ""
    middle: str = ""
    key_open: str = ""
    key_close: str = ""
    value_close: str = ""
    newline: bool = False
    string_mark: str = ""

    @property
    def marks(self) -> str:
        """The text of all marks, one a line."""
        parts = (self.outer, self.opening, *self.closings, self.middle, self.key_open, self.key_close, self.value_close)
        parts = (*parts, self.string_mark)
        return "\n".join(parts)

    def read(self, text: str, schemas: Schemas) -> tuple[list[Call], str] | None:
        """Return the calls and the text beside them; None if something looks like a call and cannot be read."""
        try:
            return self.read_strictly(text, schemas)
        except ValueError:
            return ([], text) if self.is_bare else None

    @property
    def is_bare(self) -> bool:
        """True if no mark stands before a call."""
        return _squeeze(self.opening) in ("", PYTHON_TAG)

    def read_strictly(self, text: str, schemas: Schemas) -> tuple[list[Call], str]:
        """Return the calls and the text beside them. Raises ValueError with the reason if something looks like a call
        and cannot be read."""
        if self.is_bare:
            return self._read_bare(text, schemas)
        opening, calls, texts, position = _flexible(self.opening), list[Call](), list[str](), 0
        outer = rf"{_flexible(self.outer).pattern}\s*$" if _squeeze(self.outer) else ""
        while match := opening.search(text, position):
            try:
                payload, end = READERS[self.notation](self, text, match.end(), schemas)
            except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
                raise ValueError(first_line(error)) from None
            between = text[position : match.start()]
            # The mark before all calls stands before the first of them and is no text.
            texts.append(re.sub(outer, "", between) if outer else between)
            calls += payload
            position = self._after_closing(text, end, opening)
            if position < 0:
                raise ValueError("its end is missing")
        texts.append(text[position:])
        return calls, "".join(texts).strip()

    def _read_bare(self, text: str, schemas: Schemas) -> tuple[list[Call], str]:
        """Read an answer that is calls and nothing else: without a mark nothing tells a call from a quotation."""
        rest, calls = text.strip().removeprefix(PYTHON_TAG).strip(), list[Call]()
        leading = text.partition(PYTHON_TAG)[0].strip() if PYTHON_TAG in text else ""
        if leading:
            rest = text.partition(PYTHON_TAG)[2].strip()
        if not rest.startswith(("{", "[")) and not (self.notation == "python" and re.match(r"[\w.]+\(", rest)):
            return [], text
        position = 0
        try:
            while position < len(rest):
                payload, end = READERS[self.notation](self, rest, position, schemas)
                calls += payload
                position = self._after_closing(rest, end, None)
                separator = re.compile(r"[\s;,]*").match(rest, position)
                position = separator.end() if separator else position
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            if not any(f'"{name}"' in rest or f"{name}(" in rest for name in schemas):
                return [], text
            raise ValueError(first_line(error)) from None
        return calls, leading

    def _after_closing(self, text: str, position: int, opening: re.Pattern[str] | None) -> int:
        """Return the position after the closing mark; -1 if one is missing."""
        marks = [mark for mark in sorted(self.closings, key=len, reverse=True) if _squeeze(mark)]
        for mark in marks:
            if match := _flexible(mark).match(text, position):
                return match.end()
        # Notations with brackets show that a call at the end is whole. Tagged arguments may be cut off between two.
        is_whole_at_end = self.notation != "tagged" and not text[position:].strip()
        if marks and not is_whole_at_end and opening is not None and not opening.match(text, position):
            return -1
        return position

    # One reader a notation: each returns the calls of a payload and its end, or raises ValueError or SyntaxError.

    def _json(self, text: str, position: int, schemas: Schemas) -> tuple[list[Call], int]:
        value, end = _decode(text, position)
        calls = list[Call]()
        for entry in value if isinstance(value, list) else [value]:
            inner = entry.get(self.wrapper, entry) if self.wrapper and isinstance(entry, dict) else entry
            if not isinstance(inner, dict):
                raise ValueError("no object")
            name = next((inner[key] for key in self.name_keys if key in inner), None)
            arguments: Any = next((inner[key] for key in self.argument_keys if key in inner), {})
            others = [key for key in inner if key not in (*self.name_keys, *self.argument_keys, *BESIDE_CALL)]
            if others and not any(key in inner for key in self.argument_keys):
                raise ValueError(f"{others[0]} stands outside of {self.argument_keys[0]}")
            calls.append((str(name), json.loads(arguments) if isinstance(arguments, str) else arguments))
        return calls, end

    def _named(self, text: str, position: int, schemas: Schemas) -> tuple[list[Call], int]:
        brace = text.find("{", position)
        middle = _flexible(self.middle).search(text, position) if _squeeze(self.middle) else None
        if (_squeeze(self.middle) and middle is None) or brace < 0:
            raise ValueError("no arguments")
        name_end, start = (middle.start(), middle.end()) if middle else (brace, brace)
        arguments, end = _decode(text, start)
        return [(re.sub(r":\d+$", "", text[position:name_end].strip()), arguments)], end

    def _tagged(self, text: str, position: int, schemas: Schemas) -> tuple[list[Call], int]:
        if _squeeze(self.middle):
            end_mark = _flexible(self.middle).search(text, position)
            name_end, start = (end_mark.start(), end_mark.end()) if end_mark else (-1, -1)
        else:
            bare = re.compile(r"\s*[\w.\-:/]+").match(text, position)
            name_end, start = (bare.end(), bare.end()) if bare else (-1, -1)
        if name_end < 0:
            raise ValueError("no end of the name")
        name, position = text[position:name_end].strip(), start
        schema = schemas.get(name, {})
        arguments: dict[str, Any] = {}
        properties = schema.get("properties")
        # A value ends where what follows its mark can follow an argument, as a value may hold the mark itself.
        following = [_flexible(mark).pattern for mark in (self.key_open, *self.closings) if _squeeze(mark)]
        value_end = re.compile(f"{_exact(self.value_close)}(?={'|'.join([*following, SPACE + '$'])})")
        key_open, key_close = _flexible(self.key_open), re.compile(_exact(self.key_close.rstrip()))
        while opened := key_open.match(text, position):
            closed = key_close.search(text, opened.end())
            ended = value_end.search(text, closed.end()) if closed else None
            if closed is None or ended is None:
                raise ValueError("an argument without an end")
            raw = text[closed.end() : ended.start()]
            if self.newline:
                raw = raw.removeprefix("\n").removesuffix("\n")
            key = text[opened.end() : closed.start()].strip()
            arguments[key] = _typed(raw, properties.get(key) if isinstance(properties, Mapping) else None, schema)
            position = ended.end()
        return [(name, arguments)], position

    def _python(self, text: str, position: int, schemas: Schemas) -> tuple[list[Call], int]:
        end = len(text)
        for mark in self.closings:
            if _squeeze(mark) and (closing := _flexible(mark).search(text, position)):
                end = min(end, closing.start())
        tree = ast.parse(text[position:end].strip(), mode="exec")
        calls = []
        for statement in tree.body:
            if not isinstance(statement, ast.Expr):
                raise ValueError("no call")
            value = statement.value
            calls += [_python_call(node, schemas) for node in (value.elts if isinstance(value, ast.List) else [value])]
        return calls, end

    def _escape(self, text: str, position: int, schemas: Schemas) -> tuple[list[Call], int]:
        name = re.compile(r"\s*([\w.\-]+)\s*(?=\{)").match(text, position)
        if name is None:
            raise ValueError("no name")
        value, end = _escaped(text, name.end(), self.string_mark)
        return [(name[1], value)], end


READERS: dict[str, Callable[[CallForm, str, int, Schemas], tuple[list[Call], int]]] = {
    "json": CallForm._json,
    "named": CallForm._named,
    "tagged": CallForm._tagged,
    "python": CallForm._python,
    "escape": CallForm._escape,
}

HERMES = CallForm("json", "<tool_call>", closings=("</tool_call>",))


def learn(single: str, double: str | None, ids: Sequence[str] = ()) -> CallForm | None:
    """Return the form of a rendering of the first probe, and of both in `double` if given; None for an unknown form.

    `ids` are those of the calls, which may stand within the marks.
    """
    for id_ in ids:
        if not any(name in id_ for name, _ in PROBES):
            single, double = single.replace(id_, ID), None if double is None else double.replace(id_, ID)
    renderings = [(single, list(PROBES[:1])), *([(double, list(PROBES))] if double is not None else [])]
    for candidate in _candidates(single, double):
        results = (candidate.read(text, PROBE_SCHEMAS) for text, _ in renderings)
        if all(
            result is not None and result[0] == calls for result, (_, calls) in zip(results, renderings, strict=True)
        ):
            return candidate
    return None


PROBE_SCHEMAS: Schemas = {
    name: {"type": "object", "properties": {"qzxkey": {"type": "string"}, "qzxnumber": {"type": "integer"}}}
    for name, _ in PROBES
}


def _candidates(single: str, double: str | None) -> Iterator[CallForm]:
    (name, arguments), _ = PROBES
    for position in (bracket.start() for bracket in re.finditer(r"[{\[]", single)):
        try:
            value, end = _decode(single, position)
        except (ValueError, RecursionError):
            continue
        if keys := _keys_of(value, name, arguments):
            yield from _with_marks("json", single, position, end, double, **keys)
            break
        if value == arguments and name in single[:position]:
            start = single.rindex(name, 0, position)
            middle = re.sub(r"^:\d+", "", single[start + len(name) : position])  # the number of the call, in Kimi's ids
            yield from _with_marks("named", single, start, end, double, middle=middle)
    if (start := single.find(f"{name}(")) >= 0:
        start = start - 1 if single[start - 1 : start] == "[" else start
        end = single.index(")", start) + 1
        end += single[end : end + 1] == "]"
        yield from _with_marks("python", single, start, end, double)
    pairs = ",".join(
        f"{key}:{value}" if isinstance(value, int) else rf"{key}:(\S+?){value}\1" for key, value in arguments.items()
    )
    if escaped := re.search(rf"{name}\s*\{{{pairs}\}}", single):
        yield from _with_marks("escape", single, escaped.start(), escaped.end(), double, string_mark=escaped[1])
    if tagged := _tagged_marks(single):
        start, end, marks = tagged
        yield from _with_marks("tagged", single, start, end, double, **marks)


def _tagged_marks(single: str) -> tuple[int, int, dict[str, Any]] | None:
    """Return start and end of name and arguments and the marks around them, if arguments stand one by one."""
    (name, arguments), _ = PROBES
    spans, position = [], 0
    for word in (name, *(str(part) for item in arguments.items() for part in item)):
        position = single.find(word, position)
        if position < 0:
            return None
        spans.append((position, position + len(word)))
        position += len(word)
    before_key, between, before_next = (single[spans[n][1] : spans[n + 1][0]] for n in (0, 1, 2))
    key_open = _common_end(before_key, before_next)
    value_close = before_next.removesuffix(key_open)
    newline = between.endswith("\n") and value_close.startswith("\n")
    if not _squeeze(key_open) or not _squeeze(between) or not _squeeze(value_close):
        return None
    end = spans[-1][1] + len(value_close.rstrip())
    marks = {
        "middle": before_key.removesuffix(key_open) or "\n",
        "key_open": key_open,
        "key_close": between,
        "value_close": value_close.strip() if newline else value_close.rstrip(),
        "newline": newline,
    }
    return spans[0][0], end, marks


def _with_marks(
    notation: str, single: str, start: int, end: int, double: str | None, **more: Any
) -> Iterator[CallForm]:
    """Yield forms with the marks around the payload from `start` to `end`.

    With two calls the marks of each are told from the one before all.
    """
    prefix, suffix = single[:start], single[end:]
    if notation == "json" and double is not None and (between := _between(double, prefix, end - start)):
        opening = _common_end(prefix.rstrip(), between.rstrip())
        outer, closing = prefix.rstrip().removesuffix(opening), between.rstrip().removesuffix(opening)
        yield CallForm(notation, opening, outer, (suffix, closing), **more)
    elif double is not None and notation != "python":
        payload = single[start:end]
        second = double.find(PROBES[1][0], double.find(PROBES[0][0]))
        first_end = double.find(payload) + len(payload)
        if double.find(payload) >= 0 and second > first_end:
            between = double[first_end:second]
            opening = _common_end(prefix.rstrip(), between.rstrip())
            outer, closing = prefix.rstrip().removesuffix(opening), between.rstrip().removesuffix(opening)
            if _squeeze(opening):
                yield CallForm(notation, opening, outer, (suffix, closing), **more)
    yield CallForm(notation, prefix.strip(), "", (suffix.strip(),), **more)


def _between(double: str, prefix: str, length: int) -> str:
    """Return the text between two JSON payloads, the first of them after `prefix`; "" if both are in one."""
    start = len(prefix)
    if not double.startswith(prefix):
        return ""
    try:
        _, end = _decode(double, start)
        second = re.compile(r"[{\[]").search(double, end)
    except (ValueError, RecursionError):
        return ""
    return double[end : second.start()] if second else ""


def _keys_of(value: Any, name: str, arguments: Any) -> dict[str, Any]:
    """Return the keys under which a JSON value has the name and the arguments; {} without them."""
    entry = value[0] if isinstance(value, list) and value else value
    if not isinstance(entry, dict):
        return {}
    for wrapper, inner in [("", entry), *entry.items()]:
        if not isinstance(inner, dict):
            continue
        name_keys = tuple(key for key, item in inner.items() if item == name)
        argument_keys = tuple(key for key, item in inner.items() if item == arguments or _is_json_of(item, arguments))
        if name_keys and argument_keys:
            keys = {"name_keys": (*name_keys, *NAME_KEYS), "argument_keys": (*argument_keys, *ARGUMENT_KEYS)}
            return {**keys, "wrapper": wrapper}
    return {}


def _is_json_of(text: Any, value: Any) -> bool:
    try:
        return isinstance(text, str) and bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False


def _decode(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value at a position, leading whitespace skipped, and its end."""
    start = position + len(text[position:]) - len(text[position:].lstrip())
    return json.JSONDecoder(strict=False).raw_decode(text, start)


def _python_call(node: ast.AST, schemas: Schemas) -> Call:
    if not isinstance(node, ast.Call) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("no call")
    name = ast.unparse(node.func)
    if not re.fullmatch(r"[\w.]+", name):
        raise ValueError("no name")
    properties = schemas.get(name, {}).get("properties")
    names = list(properties) if isinstance(properties, Mapping) else []
    if len(node.args) > len(names):
        raise ValueError("arguments without names")
    positional = dict(zip(names, map(_python_value, node.args), strict=False))
    return name, {**positional, **{str(keyword.arg): _python_value(keyword.value) for keyword in node.keywords}}


def _python_value(node: ast.AST) -> Any:
    """Return the value of a literal, which may contain JSON's true, false and null."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_python_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_python_value(key) for key in node.keys if key is not None]
        if len(keys) != len(node.values) or not all(isinstance(key, str) for key in keys):
            raise ValueError("no object")
        return dict(zip(keys, map(_python_value, node.values), strict=True))
    value = ...
    with suppress(ValueError):  # whose text has the address of the node
        value = ast.literal_eval(node)  # type: ignore[arg-type]
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError(f"{ast.unparse(node)[:80]} is no JSON value")
    return value


def _typed(raw: str, schema: Any, root: Any) -> Any:
    """Return an unquoted argument as its schema has it: a text if the schema allows one and no other type fits.

    `root` is the schema of all arguments, whose definitions a `$ref` names.
    """
    kinds = _kinds(schema, root)
    if kinds == {"string"}:
        return raw
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = {"true": True, "false": False, "none": None, "null": None}.get(raw.strip().lower(), raw)
    is_text = isinstance(value, str) or _kind(value) not in kinds
    return raw if "string" in kinds and is_text else value


def _kind(value: Any) -> str:
    """Return the JSON schema's type of a value; "number" for what is no whole number."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    names = {int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    # An enumeration of a schema that was made in Python may be a subclass.
    return next((name for kind, name in names.items() if isinstance(value, kind)), "")


def _kinds(schema: Any, root: Any, depth: int = 0) -> set[str]:
    """Return the types that a JSON schema allows; none if it does not say."""
    if not isinstance(schema, Mapping) or depth > MAX_SCHEMA_DEPTH:
        return set()
    if "type" in schema:
        named = schema["type"]
        kinds = {str(name) for name in (named if isinstance(named, list) else [named])}
    elif "const" in schema or isinstance(schema.get("enum"), list):
        kinds = {_kind(value) for value in ([schema["const"]] if "const" in schema else schema["enum"])}
    elif isinstance(schema.get("$ref"), str):
        kinds = _kinds(_definition(schema["$ref"], root), root, depth + 1)
    else:
        unions = ("anyOf", "oneOf", "allOf")
        parts: list[Any] = next((schema[name] for name in unions if isinstance(schema.get(name), list)), [])
        kinds = {kind for part in parts for kind in _kinds(part, root, depth + 1)}
    return kinds | {"integer"} if "number" in kinds else kinds


def _definition(reference: str, root: Any) -> Any:
    """Return the part of a schema that `#/$defs/Name` names; None if there is none."""
    found = root
    for name in reference.removeprefix("#/").split("/"):
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _escaped(text: str, position: int, mark: str) -> tuple[Any, int]:
    """Return the value at a position in Gemma's notation, with strings between two `mark`s, and its end."""
    if text.startswith(mark, position):
        end = text.index(mark, position + len(mark))
        return text[position + len(mark) : end], end + len(mark)
    if text.startswith(("{", "["), position):
        try:
            return _decode(text, position)  # a template that writes nested values as JSON
        except ValueError:
            pass
    if text.startswith("{", position):
        table: dict[str, Any] = {}
        position += 1
        while not text.startswith("}", position):
            if text.startswith(mark, position):
                key, colon = _escaped(text, position, mark)
                colon = text.index(":", colon)
            else:
                colon = text.index(":", position)
                key = text[position:colon].strip()
            table[key], position = _escaped(text, colon + 1, mark)
            position += text.startswith(",", position)
            if position >= len(text):
                raise ValueError("no end")
        return table, position + 1
    if text.startswith("[", position):
        values = []
        position += 1
        while not text.startswith("]", position):
            value, position = _escaped(text, position, mark)
            values.append(value)
            position += text.startswith(",", position)
            if position >= len(text):
                raise ValueError("no end")
        return values, position + 1
    literal = re.compile(r"[^,}\]]+").match(text, position)
    if literal is None:
        raise ValueError("no value")
    word = literal[0].strip().lower()
    return None if word == "none" else json.loads(word), literal.end()


def split_thinking(text: str, opened: bool, tokens: Sequence[str] = ()) -> tuple[str, str]:
    """Return (thinking, rest) of an answer; the rest is the unchanged text if there is no thinking.

    Thinking begins the answer, as one block or several; a mark among `tokens` begins it anywhere. A block without an
    end reaches to the end of the text. `opened` means that the prompt opened the thinking already.
    """
    mark = re.compile("|".join([THINK_OPEN.pattern, *map(re.escape, tokens)]))
    thoughts, rest = list[str](), ""
    while opened or mark.search(text):
        opening = THINK_OPEN.match(text) if opened else mark.search(text)
        if opening:
            rest, text = rest + text[: opening.start()], text[opening.end() :]
        closing = THINK_CLOSE.search(text)
        thoughts.append(text[: closing.start()] if closing else text)
        text, opened = text[closing.end() :] if closing else "", False
    if not thoughts:
        return "", text
    return "\n".join(filter(None, (thought.strip() for thought in thoughts))), (rest + text).lstrip()


def ends_in_thinking(prompt: str) -> bool:
    """Return True if a prompt ends with a mark that opens thinking."""
    return bool(re.search(rf"(?:{THINK_OPEN.pattern.removeprefix('^')})$", prompt.rstrip()))


def without_thinking(prompt: str) -> str:
    """Return the prompt without marks that open, and perhaps close, thinking at its end."""
    opened = THINK_OPEN.pattern.removeprefix("^")
    return re.sub(rf"{opened}\s*(?:(?:{THINK_CLOSE.pattern})\s*)?$", "", prompt)


@dataclass(frozen=True)
class Channels:
    """An answer of gpt-oss: the text of its channels `final` and `commentary`, that of `analysis`, and its calls."""

    content: str
    thinking: str
    calls: tuple[tuple[str, str], ...]


def read_channels(text: str) -> Channels | None:
    """Return the channels of an answer in the harmony format; None without any."""
    if MESSAGE not in text and not text.lstrip().startswith(CHANNEL):
        return None
    content, thinking, calls = list[str](), list[str](), list[tuple[str, str]]()
    for part in text.split(START):
        header, mark, body = part.partition(MESSAGE)
        if not mark:
            continue
        body = re.split(r"<\|(?:end|call|return)\|>", body)[0]
        recipient = re.search(r"\bto=([^\s<]+)", header)
        channel = re.search(r"<\|channel\|>\s*(\w+)", header)
        if recipient and recipient[1] not in ("assistant", "all", "user"):
            calls.append((recipient[1].removeprefix("functions."), body))
        elif channel and channel[1] == "analysis":
            thinking.append(body)
        else:
            content.append(body)
    return Channels("\n".join(content), "\n".join(thinking), tuple(calls))


def _common_end(first: str, second: str) -> str:
    """Return the longest common suffix that begins with a whole mark, not within `tool_call>` or a word."""
    length = 0
    while length < min(len(first), len(second)) and first[-1 - length] == second[-1 - length]:
        length += 1
    common = first[len(first) - length :]
    is_all = length in (len(first), len(second))
    if opened := re.search(r"[<\[]", common):
        head = common[: opened.start()]
        return common if is_all and head.strip() and not re.search(r"[>\]]", head) else common[opened.start() :]
    opening = re.search(r"\s|\b(?=\w)|$", common)
    return common if is_all or opening is None else common[opening.start() :]


def _squeeze(mark: str) -> str:
    return "".join(mark.split())


def _flexible(mark: str) -> re.Pattern[str]:
    """Return a pattern for a mark with any whitespace within and around it."""
    return re.compile(f"{SPACE}{_exact(mark)}{SPACE}" if _squeeze(mark) else SPACE)


def _exact(mark: str) -> str:
    """Return a pattern for a mark with any whitespace within it; ID stands for any id."""
    return SPACE.join(re.escape(word).replace(re.escape(ID), r"[^\s<\[{]*") for word in mark.split())
