"""Forms of tool calls: how models write them, and how calls and thinking are read out of answers.

What the forms have in common is a payload, in one of five notations, between marks:

    json      {"name": "f", "arguments": {...}}, or a list of such   Hermes, Qwen, Llama 3, Mistral, Phi, Granite
    named     f, a mark, {...}                                       Mistral since 2025, DeepSeek, Kimi
    tagged    f, then a mark before and after every argument         Qwen3-Coder, GLM, MiniMax
    python    [f(x=1), g(y="a")]                                     Llama 3.2 and 4, OLMo
    escape    call:f{x:<escape>a<escape>,y:1}                        FunctionGemma; Gemma 4 with the mark <|"|>

`find_form` returns the form of FORMS in which a chat template writes calls; gpt-oss writes channels instead
(`read_channels`). A form that is in no line of FORMS can be declared by the tokenizer (`response_template` of
transformers).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cadre.errors import first_line

# Name and arguments of a call; the arguments are not checked.
Call = tuple[str, Any]
# The JSON schema of the arguments by tool.
Schemas = Mapping[str, Mapping[str, Any]]

NAME_KEYS, ARGUMENT_KEYS = ("name", "tool_name"), ("arguments", "parameters")
# What else the JSON of a call may have.
BESIDE_CALL = ("id", "type", "index", "call_id", "tool_call_id")
PYTHON_TAG = "<|python_tag|>"
SPACE = r"\s*"
ID = "\0"  # stands for the id of a call within a mark
MAX_SCHEMA_DEPTH = 8
THINK_OPEN = re.compile(r"^\s*(?:<think>|<thinking>|<seed:think>|\[THINK\]|<\|START_THINKING\|>)")
THINK_OPEN_AT_END = re.compile(f"{THINK_OPEN.pattern.removeprefix('^')}$")
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

    middle          between name and arguments (named), or name and first argument (tagged)
    key_open, key_close, value_close    around the names and values of arguments (tagged)
    newline         whether values stand on lines of their own (tagged)
    string_mark     before and after a string (escape)

    Whitespace in a mark and around it is any whitespace, or none.
    """

    notation: str
    opening: str
    closings: tuple[str, ...] = ()
    outer: str = ""
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
        return "\n".join((*parts, self.string_mark))

    @property
    def is_bare(self) -> bool:
        """True if no mark stands before a call."""
        return self.opening in ("", PYTHON_TAG)

    def read(self, text: str, schemas: Schemas) -> tuple[list[Call], str]:
        """Return the calls and the text beside them. Raises ValueError with the reason if something looks like a call
        and cannot be read."""
        if self.is_bare:
            return self._read_bare(text, schemas)
        opening, calls, texts, position = _flexible(self.opening), list[Call](), list[str](), 0
        outer = rf"{_flexible(self.outer).pattern}\s*$" if self.outer else r"(?!)"
        while match := opening.search(text, position):
            try:
                payload, end = READERS[self.notation](self, text, match.end(), schemas)
            except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
                raise ValueError(first_line(error)) from None
            # The mark before all calls stands before the first of them and is no text.
            texts.append(re.sub(outer, "", text[position : match.start()]))
            calls += payload
            position = self._after_closing(text, end, opening)
            if position < 0:
                raise ValueError("its end is missing")
        texts.append(text[position:])
        return calls, "".join(texts).strip()

    def _read_bare(self, text: str, schemas: Schemas) -> tuple[list[Call], str]:
        """Read an answer that is calls and nothing else: without a mark nothing tells a call from a quotation."""
        leading, tag, rest = text.partition(PYTHON_TAG)
        leading, rest = (leading.strip(), rest.strip()) if tag else ("", text.strip())
        if not rest.startswith(("{", "[")) and not (self.notation == "python" and re.match(r"[\w.]+\(", rest)):
            return [], text
        calls, position = list[Call](), 0
        try:
            while position < len(rest):
                payload, end = READERS[self.notation](self, rest, position, schemas)
                calls += payload
                separator = re.compile(r"[\s;,]*").match(rest, end)
                position = separator.end() if separator else end
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            if not any(f'"{name}"' in rest or f"{name}(" in rest for name in schemas):
                return [], text
            raise ValueError(first_line(error)) from None
        return ([], text) if any(name == "None" for name, _ in calls) else (calls, leading)

    def _after_closing(self, text: str, position: int, opening: re.Pattern[str]) -> int:
        """Return the position after the closing mark; -1 if one is missing."""
        for mark in sorted(self.closings, key=len, reverse=True):
            if match := _flexible(mark).match(text, position):
                return match.end()
        # Notations with brackets show that a call at the end is whole. Tagged arguments may be cut off between two.
        is_whole_at_end = self.notation != "tagged" and not text[position:].strip()
        return -1 if self.closings and not is_whole_at_end and not opening.match(text, position) else position

    # One reader a notation: each returns the calls of a payload and its end, or raises ValueError or SyntaxError.

    def _json(self, text: str, position: int, schemas: Schemas) -> tuple[list[Call], int]:
        value, end = _decode(text, position)
        calls = list[Call]()
        for entry in value if isinstance(value, list) else [value]:
            if not isinstance(entry, dict):
                raise ValueError("no object")
            inner = entry["function"] if isinstance(entry.get("function"), dict) else entry
            name = next((inner[key] for key in NAME_KEYS if key in inner), None)
            arguments: Any = next((inner[key] for key in ARGUMENT_KEYS if key in inner), {})
            unknown = [key for key in inner if key not in (*NAME_KEYS, *ARGUMENT_KEYS, *BESIDE_CALL)]
            if unknown and not any(key in inner for key in ARGUMENT_KEYS):
                raise ValueError(f"{unknown[0]} stands outside of arguments")
            calls.append((str(name), json.loads(arguments) if isinstance(arguments, str) else arguments))
        return calls, end

    def _named(self, text: str, position: int, schemas: Schemas) -> tuple[list[Call], int]:
        middle = _flexible(self.middle).search(text, position)
        if middle is None:
            raise ValueError("no arguments")
        arguments, end = _decode(text, middle.end())
        # Kimi numbers the calls of a conversation in their names.
        return [(re.sub(r":\d+$", "", text[position : middle.start()].strip()), arguments)], end

    def _tagged(self, text: str, position: int, schemas: Schemas) -> tuple[list[Call], int]:
        name_pattern = rf"(.*?){_flexible(self.middle).pattern}" if self.middle else r"\s*([\w.\-:/]+)"
        named = re.compile(name_pattern, re.DOTALL).match(text, position)
        if named is None:
            raise ValueError("no end of the name")
        name, position = named[1].strip(), named.end()
        schema = schemas.get(name, {})
        arguments: dict[str, Any] = {}
        properties = schema.get("properties")
        # A value ends where what follows its mark can follow an argument, as a value may hold the mark itself.
        following = [_flexible(mark).pattern for mark in (self.key_open, *self.closings)]
        value_end = re.compile(f"{_exact(self.value_close)}(?={'|'.join([*following, SPACE + '$'])})")
        key_open, key_close = _flexible(self.key_open), re.compile(_exact(self.key_close))
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
        closings = [match.start() for mark in self.closings if (match := _flexible(mark).search(text, position))]
        end = min(closings, default=len(text))
        calls = []
        for statement in ast.parse(text[position:end].strip(), mode="exec").body:
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

BAR = "\uff5c"  # in the tokens of DeepSeek
DEEPSEEK, SEPARATOR = f"<{BAR}tool▁call▁begin{BAR}>", f"<{BAR}tool▁sep{BAR}>"
DEEPSEEK_ENDS = (f"<{BAR}tool▁call▁end{BAR}> <{BAR}tool▁calls▁end{BAR}>", f"<{BAR}tool▁call▁end{BAR}>")
CODE_ENDS = tuple(f"``` {end}" for end in DEEPSEEK_ENDS)
DEEPSEEK_OUTER = f"<{BAR}tool▁calls▁begin{BAR}>"
KIMI_ENDS = ("<|tool_call_end|> <|tool_calls_section_end|>", "<|tool_call_end|>")
KIMI: dict[str, Any] = {"outer": "<|tool_calls_section_begin|>", "middle": "<|tool_call_argument_begin|>"}
PARAMETERS: dict[str, Any] = {"key_open": "<parameter=", "key_close": ">", "value_close": "</parameter>"}
GLM: dict[str, Any] = {"key_open": "<arg_key>", "key_close": "</arg_key> <arg_value>", "value_close": "</arg_value>"}
MINIMAX: dict[str, Any] = {"key_open": '<parameter name="', "key_close": '">', "value_close": "</parameter>"}
MINIMAX_ENDS = ("</invoke> </minimax:tool_call>", "</invoke>")
HERMES = CallForm("json", "<tool_call>", ("</tool_call>",))
# With the models that write them. The forms without a mark before calls come last.
FORMS = (
    HERMES,  # Hermes, Qwen 2.5 and 3, Granite 4
    # Qwen3-Coder and Qwen 3.5; Seed-OSS
    CallForm("tagged", "<tool_call> <function=", ("</function> </tool_call>",), "", ">", newline=True, **PARAMETERS),
    CallForm("tagged", "<seed:tool_call> <function=", ("</function> </seed:tool_call>",), "", ">", **PARAMETERS),
    CallForm("tagged", "<tool_call>", ("</tool_call>",), **GLM),  # GLM 4.5
    CallForm("tagged", '<invoke name="', MINIMAX_ENDS, "<minimax:tool_call>", '">', **MINIMAX),  # MiniMax M2
    CallForm("json", "[TOOL_CALLS]"),  # Mistral until 2024, and since
    CallForm("named", "[TOOL_CALLS]", middle="[ARGS]"),
    CallForm("named", "[TOOL_CALLS]", middle=f"[CALL_ID]{ID}[ARGS]"),
    # DeepSeek V3 and R1, and V3.1
    CallForm("named", f"{DEEPSEEK}function{SEPARATOR}", CODE_ENDS, DEEPSEEK_OUTER, "```json"),
    CallForm("named", DEEPSEEK, DEEPSEEK_ENDS, DEEPSEEK_OUTER, SEPARATOR),
    CallForm("named", "<|tool_call_begin|>functions.", KIMI_ENDS, **KIMI),  # Kimi K2
    CallForm("named", "<function=", ("</function>",), middle=">"),  # Llama 3.1 with tools of one's own
    CallForm("json", "<|tool_call|>", ("<|/tool_call|>",)),  # Phi 4, Granite 3
    CallForm("json", "<|tool_call|>"),
    CallForm("json", "Action: ```json", ("```",)),  # Command R, and R7B
    CallForm("json", "<|START_ACTION|>", ("<|END_ACTION|>",)),
    CallForm("json", "<TOOLCALL>", ("</TOOLCALL>",)),  # Nemotron
    CallForm("json", "<tool_calls>", ("</tool_calls>",)),  # Hunyuan, Jamba
    CallForm("json", "<|action_start|> <|plugin|>", ("<|action_end|>",)),  # InternLM
    CallForm("json", "<call>", ("</call>",)),
    CallForm("python", "<|python_start|>", ("<|python_end|>",)),  # Llama 4
    CallForm("python", "<|tool_call_start|>", ("<|tool_call_end|>",)),  # LFM2
    CallForm("python", "<function_calls>", ("</function_calls>",)),  # OLMo 3
    CallForm("escape", "<start_function_call>call:", ("<end_function_call>",), string_mark="<escape>"),  # FunctionGemma
    # Gemma 4, which ends turns of calls by opening their results
    CallForm("escape", "<|tool_call>call:", ("<tool_call|> <|tool_response>", "<tool_call|>"), string_mark='<|"|>'),
    CallForm("json", PYTHON_TAG),  # Llama 3
    CallForm("json", ""),
    CallForm("python", ""),  # Llama 3.2
)

PROBES: tuple[Call, Call] = (
    ("qzxfirst", {"qzxkey": "qzxpaper", "qzxnumber": 31415}),
    ("qzxsecond", {"qzxkey": "qzxstone", "qzxnumber": 27182}),
)
PROBE_SCHEMAS: Schemas = {
    name: {"type": "object", "properties": {"qzxkey": {"type": "string"}, "qzxnumber": {"type": "integer"}}}
    for name, _ in PROBES
}


def find_form(single: str, double: str | None) -> CallForm | None:
    """Return the form of a rendering of the first probe, and of both in `double` if given; None for an unknown form."""
    renderings = [(single, [PROBES[0]]), *([(double, [*PROBES])] if double is not None else [])]

    def is_written(mark: str) -> bool:
        return _flexible(mark).search(single) is not None

    for form in FORMS:
        if not is_written(form.opening) or (form.closings and not any(map(is_written, form.closings))):
            continue
        with suppress(ValueError):
            if all(form.read(text, PROBE_SCHEMAS)[0] == calls for text, calls in renderings):
                return form
    return None


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


def _python_value(node: ast.expr) -> Any:
    """Return the JSON value of a literal, in which JSON's true, false and null are those of Python."""
    names = {"true": "True", "false": "False", "null": "None"}
    for name in ast.walk(node):
        if isinstance(name, ast.Name):
            name.id = names.get(name.id, name.id)
    try:
        return json.loads(json.dumps(ast.literal_eval(ast.unparse(node))))
    except (ValueError, TypeError):  # whose text has the address of the node
        raise ValueError(f"{ast.unparse(node)[:80]} is no JSON value") from None


def _typed(raw: str, schema: Any, root: Any) -> Any:
    """Return an unquoted argument as its schema has it: a text if the schema allows one and no other type fits. `root`
    is the schema of all arguments, whose definitions a `$ref` names."""
    kinds = _kinds(schema, root)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = {"true": True, "false": False, "none": None, "null": None}.get(raw.strip().lower(), raw)
    is_text = isinstance(value, str) or _kind(value) not in kinds
    return raw if "string" in kinds and is_text else value


def _kind(value: Any) -> str:
    """Return the JSON schema's type of a value; "number" for what is no whole number."""
    kinds = (type(None), "null"), (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")
    # An enumeration of a schema that was made in Python may be a subclass.
    return next((name for kind, name in (*kinds, (list, "array"), (dict, "object")) if isinstance(value, kind)), "")


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
        node = root  # what `#/$defs/Name` names
        for name in schema["$ref"].removeprefix("#/").split("/"):
            node = node.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
        kinds = _kinds(node, root, depth + 1)
    else:
        unions = ("anyOf", "oneOf", "allOf")
        parts: list[Any] = next((schema[name] for name in unions if isinstance(schema.get(name), list)), [])
        kinds = {kind for part in parts for kind in _kinds(part, root, depth + 1)}
    return kinds | {"integer"} if "number" in kinds else kinds


def _escaped(text: str, position: int, mark: str) -> tuple[Any, int]:
    """Return the object at a position in Gemma's notation, with strings between two `mark`s, and its end. It is
    rewritten as JSON, token by token. Templates write nested values as JSON already."""
    quoted = re.escape(mark)
    token = re.compile(
        rf'{quoted}(?P<text>.*?){quoted}|(?P<json>"(?:[^"\\]|\\.)*")|(?P<bracket>[{{}}\[\]])'
        r'|(?P<key>[^\s,:{}\[\]"]+(?=:))|(?P<word>[^\s,:{}\[\]"]+)|.',
        re.DOTALL,
    )
    parts, depth = list[str](), 0
    for match in token.finditer(text, position):
        kind, part = match.lastgroup, match[0]
        if kind in ("text", "key"):
            part = json.dumps(match[kind])
        elif kind == "word":
            part = {"none": "null"}.get(part.lower(), part.lower())
        elif kind == "bracket":
            depth += 1 if part in "{[" else -1
        parts.append(part)
        if depth == 0:
            return json.loads("".join(parts), strict=False), match.end()
    raise ValueError("no end")


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


def without_thinking(prompt: str) -> str:
    """Return the prompt without marks that open, and perhaps close, thinking at its end."""
    opened = THINK_OPEN.pattern.removeprefix("^")
    return re.sub(rf"{opened}\s*(?:(?:{THINK_CLOSE.pattern})\s*)?$", "", prompt)


@dataclass(frozen=True)
class Channels:
    """An answer of gpt-oss: the text of its channels `final` and `commentary`, that of `analysis`, and its calls, whose
    arguments are None if they are no JSON."""

    content: str
    thinking: str
    calls: tuple[Call, ...]


def read_channels(text: str) -> Channels | None:
    """Return the channels of an answer in the harmony format; None without any."""
    if MESSAGE not in text and not text.lstrip().startswith(CHANNEL):
        return None
    content, thinking, calls = list[str](), list[str](), list[Call]()
    for part in text.split(START):
        header, mark, body = part.partition(MESSAGE)
        if not mark:
            continue
        body = re.split(r"<\|(?:end|call|return)\|>", body)[0]
        recipient = re.search(r"\bto=([^\s<]+)", header)
        channel = re.search(r"<\|channel\|>\s*(\w+)", header)
        if recipient and recipient[1] not in ("assistant", "all", "user"):
            arguments = None
            with suppress(ValueError, RecursionError):
                arguments = json.loads(body, strict=False)
            calls.append((recipient[1].removeprefix("functions."), arguments))
        elif channel and channel[1] == "analysis":
            thinking.append(body)
        else:
            content.append(body)
    return Channels("\n".join(content), "\n".join(thinking), tuple(calls))


def _flexible(mark: str) -> re.Pattern[str]:
    """Return a pattern for a mark with any whitespace within and around it."""
    return re.compile(f"{SPACE}{_exact(mark)}{SPACE}")


def _exact(mark: str) -> str:
    """Return a pattern for a mark with any whitespace within it; ID stands for any id."""
    return SPACE.join(re.escape(word).replace(re.escape(ID), r"[^\s<\[{]*") for word in mark.split())
