"""How a chat template writes tool calls, learned from what it writes, and calls read out of answers of that form.

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
from dataclasses import dataclass
from typing import Any

# Name and arguments of a call, of which the latter may be anything that stood there.
Call = tuple[str, Any]
# By tool the JSON schema of its arguments.
Schemas = Mapping[str, Mapping[str, Any]]

PROBES: tuple[Call, Call] = (
    ("qzxfirst", {"qzxkey": "qzxpaper", "qzxnumber": 31415}),
    ("qzxsecond", {"qzxkey": "qzxstone", "qzxnumber": 27182}),
)
NAME_KEYS, ARGUMENT_KEYS = ("name", "tool_name"), ("arguments", "parameters")
PYTHON_TAG = "<|python_tag|>"
SPACE = r"\s*"
ID = "\0"  # stands for the id of a call within a mark
THINK_OPEN = re.compile(r"^\s*(?:<think>|<thinking>|<seed:think>|\[THINK\]|<\|START_THINKING\|>)")
THINK_CLOSE = re.compile(r"</think>|</thinking>|</seed:think>|\[/THINK\]|<\|END_THINKING\|>")
CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"


@dataclass(frozen=True)
class CallForm:
    """One way to write calls. `opening` stands before each, `outer` once before all, `closings` may stand after one.

    name_key       where in a JSON object the name is; with `wrapper` within that key of it
    argument_key   and the arguments
    middle         between name and arguments (named), or name and first argument (tagged)
    key_open, key_close, value_close    around the names and values of arguments (tagged)
    string_mark    before and after a string (escape)
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
        """All that is written around payloads, in one text."""
        parts = (self.outer, self.opening, *self.closings, self.middle, self.key_open, self.key_close, self.value_close)
        parts = (*parts, self.string_mark)
        return "\n".join(parts)

    def read(self, text: str, schemas: Schemas) -> tuple[list[Call], str] | None:
        """Return the calls and the text beside them; None where something looks like a call and cannot be read."""
        if _squeeze(self.opening) in ("", PYTHON_TAG):
            return self._read_bare(text, schemas)
        opening, calls, beside, place = _flexible(self.opening), list[Call](), list[str](), 0
        while found := opening.search(text, place):
            try:
                read, end = self._payload(text, found.end(), schemas)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                return None
            beside.append(self._without_outer(text[place : found.start()]))
            calls += read
            place = self._after_closing(text, end, opening)
            if place < 0:
                return None
        beside.append(text[place:])
        return calls, "".join(beside).strip()

    def _read_bare(self, text: str, schemas: Schemas) -> tuple[list[Call], str] | None:
        """Read an answer that is calls and nothing else, as without a mark nothing tells a call from a quotation."""
        rest, calls = text.strip().removeprefix(PYTHON_TAG).strip(), list[Call]()
        before = text.partition(PYTHON_TAG)[0].strip() if PYTHON_TAG in text else ""
        if before:
            rest = text.partition(PYTHON_TAG)[2].strip()
        if not rest.startswith(("{", "[")) and not (self.notation == "python" and re.match(r"[\w.]+\(", rest)):
            return [], text
        place = 0
        try:
            while place < len(rest):
                read, end = self._payload(rest, place, schemas)
                calls += read
                place = self._after_closing(rest, end, None)
                skipped = re.compile(r"[\s;,]*").match(rest, place)
                place = skipped.end() if skipped else place
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return [], text
        return calls, before

    def _without_outer(self, text: str) -> str:
        outer = _squeeze(self.outer)
        return re.sub(rf"{_flexible(self.outer).pattern}\s*$", "", text) if outer else text

    def _after_closing(self, text: str, place: int, opening: re.Pattern[str] | None) -> int:
        """Return where the text goes on after a closing mark, -1 where another one was due."""
        marks = [mark for mark in sorted(self.closings, key=len, reverse=True) if _squeeze(mark)]
        for mark in marks:
            if found := _flexible(mark).match(text, place):
                return found.end()
        at_end = not text[place:].strip()
        if marks and not at_end and opening is not None and not opening.match(text, place):
            return -1
        return place

    def _payload(self, text: str, place: int, schemas: Schemas) -> tuple[list[Call], int]:
        """Return the calls of one payload and where it ends. Raises ValueError or SyntaxError."""
        return READERS[self.notation](self, text, place, schemas)

    def _json(self, text: str, place: int, schemas: Schemas) -> tuple[list[Call], int]:
        value, end = _decode(text, place)
        entries = value if isinstance(value, list) else [value]
        return [self._entry(entry) for entry in entries], end

    def _entry(self, entry: Any) -> Call:
        inner = entry.get(self.wrapper, entry) if self.wrapper and isinstance(entry, dict) else entry
        if not isinstance(inner, dict):
            raise ValueError("no object")
        name = next((inner[key] for key in self.name_keys if key in inner), None)
        arguments: Any = next((inner[key] for key in self.argument_keys if key in inner), {})
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        return str(name), arguments

    def _named(self, text: str, place: int, schemas: Schemas) -> tuple[list[Call], int]:
        brace = text.find("{", place)
        middle = _flexible(self.middle).search(text, place) if _squeeze(self.middle) else None
        if (_squeeze(self.middle) and middle is None) or brace < 0:
            raise ValueError("no arguments")
        until, after = (middle.start(), middle.end()) if middle else (brace, brace)
        arguments, end = _decode(text, after)
        return [(re.sub(r":\d+$", "", text[place:until].strip()), arguments)], end

    def _tagged(self, text: str, place: int, schemas: Schemas) -> tuple[list[Call], int]:
        if _squeeze(self.middle):
            name_end = _flexible(self.middle).search(text, place)
            until, after = (name_end.start(), name_end.end()) if name_end else (-1, -1)
        else:
            bare = re.compile(r"\s*[\w.\-:/]+").match(text, place)
            until, after = (bare.end(), bare.end()) if bare else (-1, -1)
        if until < 0:
            raise ValueError("no end of the name")
        name, place = text[place:until].strip(), after
        schema = schemas.get(name, {})
        arguments: dict[str, Any] = {}
        properties = schema.get("properties")
        # A value ends where what follows its mark can follow an argument, as a value may hold the mark itself.
        following = [_flexible(mark).pattern for mark in (self.key_open, *self.closings) if _squeeze(mark)]
        value_end = re.compile(f"{_exact(self.value_close)}(?={'|'.join([*following, SPACE + '$'])})")
        key_open, key_close = _flexible(self.key_open), re.compile(_exact(self.key_close.rstrip()))
        while opened := key_open.match(text, place):
            closed = key_close.search(text, opened.end())
            ended = value_end.search(text, closed.end()) if closed else None
            if closed is None or ended is None:
                raise ValueError("an argument without an end")
            raw = text[closed.end() : ended.start()]
            if self.newline:
                raw = raw.removeprefix("\n").removesuffix("\n")
            key = text[opened.end() : closed.start()].strip()
            arguments[key] = _typed(raw, properties.get(key) if isinstance(properties, Mapping) else None)
            place = ended.end()
        return [(name, arguments)], place

    def _python(self, text: str, place: int, schemas: Schemas) -> tuple[list[Call], int]:
        end = len(text)
        for mark in self.closings:
            if _squeeze(mark) and (found := _flexible(mark).search(text, place)):
                end = min(end, found.start())
        tree = ast.parse(text[place:end].strip(), mode="exec")
        calls = []
        for statement in tree.body:
            if not isinstance(statement, ast.Expr):
                raise ValueError("no call")
            value = statement.value
            calls += [_python_call(node, schemas) for node in (value.elts if isinstance(value, ast.List) else [value])]
        return calls, end

    def _escape(self, text: str, place: int, schemas: Schemas) -> tuple[list[Call], int]:
        found = re.compile(r"\s*([\w.\-]+)\s*(?=\{)").match(text, place)
        if found is None:
            raise ValueError("no name")
        value, end = _escaped(text, found.end(), self.string_mark)
        return [(found[1], value)], end


READERS: dict[str, Callable[[CallForm, str, int, Schemas], tuple[list[Call], int]]] = {
    "json": CallForm._json,
    "named": CallForm._named,
    "tagged": CallForm._tagged,
    "python": CallForm._python,
    "escape": CallForm._escape,
}

HERMES = CallForm("json", "<tool_call>", closings=("</tool_call>",))


def learn(single: str, double: str | None, ids: Sequence[str] = ()) -> CallForm | None:
    """Return the form in which the first probe, and where `double` is given both, are written as calls; None for a form
    that is not known here. `ids` are those of the calls."""
    for id_ in ids:
        if not any(name in id_ for name, _ in PROBES):
            single, double = single.replace(id_, ID), None if double is None else double.replace(id_, ID)
    for candidate in _candidates(single, double):
        if _reads(candidate, single, PROBES[:1]) and (double is None or _reads(candidate, double, PROBES)):
            return candidate
    return None


def _reads(form: CallForm, text: str, calls: Sequence[Call]) -> bool:
    read = form.read(text, PROBE_SCHEMAS)
    return read is not None and read[0] == list(calls)


PROBE_SCHEMAS: Schemas = {
    name: {"type": "object", "properties": {"qzxkey": {"type": "string"}, "qzxnumber": {"type": "integer"}}}
    for name, _ in PROBES
}


def _candidates(single: str, double: str | None) -> Iterator[CallForm]:
    (name, arguments), _ = PROBES
    for place in (found.start() for found in re.finditer(r"[{\[]", single)):
        try:
            value, end = _decode(single, place)
        except (ValueError, RecursionError):
            continue
        if keys := _keys_of(value, name, arguments):
            yield from _with_marks("json", single, place, end, double, **keys)
            break
        if value == arguments and name in single[:place]:
            start = single.rindex(name, 0, place)
            middle = re.sub(r"^:\d+", "", single[start + len(name) : place])  # the number of the call, in Kimi's ids
            yield from _with_marks("named", single, start, end, double, middle=middle)
    if (start := single.find(f"{name}(")) >= 0:
        start = start - 1 if single[start - 1 : start] == "[" else start
        end = single.index(")", start) + 1
        end += single[end : end + 1] == "]"
        yield from _with_marks("python", single, start, end, double)
    pairs = ",".join(
        f"{key}:{value}" if isinstance(value, int) else rf"{key}:(\S+?){value}\1" for key, value in arguments.items()
    )
    if found := re.search(rf"{name}\s*\{{{pairs}\}}", single):
        yield from _with_marks("escape", single, found.start(), found.end(), double, string_mark=found[1])
    if tagged := _tagged_marks(single):
        start, end, marks = tagged
        yield from _with_marks("tagged", single, start, end, double, **marks)


def _tagged_marks(single: str) -> tuple[int, int, dict[str, Any]] | None:
    """Return where name and arguments lie and the marks around them, for calls whose arguments stand one by one."""
    (name, arguments), _ = PROBES
    places, place = [], 0
    for word in (name, *(str(part) for item in arguments.items() for part in item)):
        place = single.find(word, place)
        if place < 0:
            return None
        places.append((place, place + len(word)))
        place += len(word)
    before_key, between, before_next = (single[places[n][1] : places[n + 1][0]] for n in (0, 1, 2))
    key_open = _common_end(before_key, before_next)
    value_close = before_next.removesuffix(key_open)
    newline = between.endswith("\n") and value_close.startswith("\n")
    if not _squeeze(key_open) or not _squeeze(between) or not _squeeze(value_close):
        return None
    end = places[-1][1] + len(value_close.rstrip())
    marks = {
        "middle": before_key.removesuffix(key_open) or "\n",
        "key_open": key_open,
        "key_close": between,
        "value_close": value_close.strip() if newline else value_close.rstrip(),
        "newline": newline,
    }
    return places[0][0], end, marks


def _with_marks(
    notation: str, single: str, start: int, end: int, double: str | None, **more: Any
) -> Iterator[CallForm]:
    """Yield the form with the marks around the payload at `start` to `end`, told apart by two calls where there are."""
    before, after = single[:start], single[end:]
    if notation == "json" and double is not None and (between := _between(double, before, end - start)):
        opening = _common_end(before.rstrip(), between.rstrip())
        outer, closing = before.rstrip().removesuffix(opening), between.rstrip().removesuffix(opening)
        yield CallForm(notation, opening, outer, (after, closing), **more)
    elif double is not None and notation != "python":
        payload = single[start:end]
        second = double.find(PROBES[1][0], double.find(PROBES[0][0]))
        first_end = double.find(payload) + len(payload)
        if double.find(payload) >= 0 and second > first_end:
            between = double[first_end:second]
            opening = _common_end(before.rstrip(), between.rstrip())
            outer, closing = before.rstrip().removesuffix(opening), between.rstrip().removesuffix(opening)
            if _squeeze(opening):
                yield CallForm(notation, opening, outer, (after, closing), **more)
    yield CallForm(notation, before.strip(), "", (after.strip(),), **more)


def _between(double: str, before: str, length: int) -> str:
    """Return what stands between two JSON payloads, the first of them after `before`; "" where both are in one."""
    start = len(before)
    if not double.startswith(before):
        return ""
    try:
        _, end = _decode(double, start)
        second = re.compile(r"[{\[]").search(double, end)
    except (ValueError, RecursionError):
        return ""
    return double[end : second.start()] if second else ""


def _keys_of(value: Any, name: str, arguments: Any) -> dict[str, Any]:
    """Return under which keys a JSON value has the name and the arguments; {} where it has not."""
    entry = value[0] if isinstance(value, list) and value else value
    if not isinstance(entry, dict):
        return {}
    for wrapper, inner in [("", entry), *entry.items()]:
        if not isinstance(inner, dict):
            continue
        names = tuple(key for key, found in inner.items() if found == name)
        found = tuple(key for key, held in inner.items() if held == arguments or _is_json_of(held, arguments))
        if names and found:
            keys = {"name_keys": (*names, *NAME_KEYS), "argument_keys": (*found, *ARGUMENT_KEYS)}
            return {**keys, "wrapper": wrapper}
    return {}


def _is_json_of(text: Any, value: Any) -> bool:
    try:
        return isinstance(text, str) and bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False


def _decode(text: str, place: int) -> tuple[Any, int]:
    """Return the JSON value at a place, whitespace before it skipped, and where it ends."""
    start = place + len(text[place:]) - len(text[place:].lstrip())
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
    given = dict(zip(names, map(_python_value, node.args), strict=False))
    return name, {**given, **{str(keyword.arg): _python_value(keyword.value) for keyword in node.keywords}}


def _python_value(node: ast.AST) -> Any:
    """Return the value of a literal, in which JSON's true, false and null may stand as well."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_python_value(below) for below in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_python_value(key) for key in node.keys if key is not None]
        if len(keys) != len(node.values) or not all(isinstance(key, str) for key in keys):
            raise ValueError("no object")
        return dict(zip(keys, map(_python_value, node.values), strict=True))
    value = ast.literal_eval(node)  # type: ignore[arg-type]
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("no JSON value")
    return value


def _typed(raw: str, schema: Any) -> Any:
    """Return an argument that was written as it stands: by its schema a string, else the JSON value that it spells."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "string":
        return raw
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return {"true": True, "false": False, "none": None, "null": None}.get(raw.strip().lower(), raw)


def _escaped(text: str, place: int, mark: str) -> tuple[Any, int]:
    """Return the value at a place in the notation of Gemma, whose strings stand between two `mark`s, and where it
    ends."""
    if text.startswith(mark, place):
        end = text.index(mark, place + len(mark))
        return text[place + len(mark) : end], end + len(mark)
    if text.startswith(("{", "["), place):
        try:
            return _decode(text, place)  # a template that writes nested values as JSON
        except ValueError:
            pass
    if text.startswith("{", place):
        table: dict[str, Any] = {}
        place += 1
        while not text.startswith("}", place):
            if text.startswith(mark, place):
                key, colon = _escaped(text, place, mark)
                colon = text.index(":", colon)
            else:
                colon = text.index(":", place)
                key = text[place:colon].strip()
            table[key], place = _escaped(text, colon + 1, mark)
            place += text.startswith(",", place)
            if place >= len(text):
                raise ValueError("no end")
        return table, place + 1
    if text.startswith("[", place):
        values = []
        place += 1
        while not text.startswith("]", place):
            value, place = _escaped(text, place, mark)
            values.append(value)
            place += text.startswith(",", place)
            if place >= len(text):
                raise ValueError("no end")
        return values, place + 1
    found = re.compile(r"[^,}\]]+").match(text, place)
    if found is None:
        raise ValueError("no value")
    word = found[0].strip().lower()
    return None if word == "none" else json.loads(word), found.end()


def split_thinking(text: str, opened: bool) -> tuple[str, str]:
    """Return (thinking, what follows it) of an answer. `opened` says that the prompt opened the thinking already."""
    begun = THINK_OPEN.match(text)
    closed = THINK_CLOSE.search(text)
    if closed and (begun or opened):
        return text[begun.end() if begun else 0 : closed.start()], text[closed.end() :]
    return (text, "") if begun or opened else ("", text)


def ends_in_thinking(prompt: str) -> bool:
    """Whether a prompt ends where thinking is opened."""
    return bool(re.search(rf"(?:{THINK_OPEN.pattern.removeprefix('^')})$", prompt.rstrip()))


def without_thinking(prompt: str) -> str:
    """Return the prompt without thinking that is opened, and perhaps closed, at its end."""
    opened = THINK_OPEN.pattern.removeprefix("^")
    return re.sub(rf"{opened}\s*(?:(?:{THINK_CLOSE.pattern})\s*)?$", "", prompt)


@dataclass(frozen=True)
class Channels:
    """An answer of gpt-oss: the text of its channels `final` and `commentary`, that of `analysis`, and its calls."""

    content: str
    thinking: str
    calls: tuple[tuple[str, str], ...]


def read_channels(text: str) -> Channels | None:
    """Return what an answer says in which channel (harmony format); None where it names none."""
    if MESSAGE not in text:
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
    """Return the longest end that both have, from a whole mark on: not from within `tool_call>` or a word."""
    length = 0
    while length < min(len(first), len(second)) and first[-1 - length] == second[-1 - length]:
        length += 1
    common = first[len(first) - length :]
    whole = length in (len(first), len(second))
    if opened := re.search(r"[<\[]", common):
        before = common[: opened.start()]
        return common if whole and before.strip() and not re.search(r"[>\]]", before) else common[opened.start() :]
    begun = re.search(r"\s|\b(?=\w)|$", common)
    return common if whole or begun is None else common[begun.start() :]


def _squeeze(mark: str) -> str:
    return "".join(mark.split())


def _flexible(mark: str) -> re.Pattern[str]:
    """Return a pattern for a mark in which whitespace may be more or less, around it too."""
    return re.compile(f"{SPACE}{_exact(mark)}{SPACE}" if _squeeze(mark) else SPACE)


def _exact(mark: str) -> str:
    """Return a pattern for a mark without whitespace around it; ID in it may be any id."""
    return SPACE.join(re.escape(word).replace(re.escape(ID), r"[^\s<\[{]*") for word in mark.split())
