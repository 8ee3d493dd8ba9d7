"""Conversations with tools: what a chat template does with them, and how messages are written so that it keeps all.

A template that supports tools writes them itself. For one that does not they are described in the system message, and a
call is written as Qwen and Hermes models do: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Templates also
drop calls, results or tools silently. `probe_tool_use` renders a conversation with each and looks for it; what is
dropped is then written in another way, as text if there is no other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cadre.engines.text.calls import HERMES, PROBE_SCHEMAS, PROBES, THINKING_FIELDS, CallForm, find_form
from cadre.engines.text.tokens import map_strings
from cadre.types import Message, Sample, Tool, ToolCall

OFFER = (
    "You may call tools. To call one, write a line\n"
    '<tool_call>{"name": "...", "arguments": {...}}</tool_call>\n'
    "and wait for what it returns. The tools:\n"
)
IdFormat = Literal["own", "nine", "indexed"]
LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def to_json(value: Any) -> str:
    """Return the value as JSON with its characters as they are, except that lone surrogates are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def parse_arguments(call: ToolCall) -> Any:
    """Return the arguments of a call as a value, {} for an empty text; as the text that they are if not JSON."""

    def join_surrogates(text: str) -> str:
        # Surrogate pairs become the characters that they are, and half of one U+FFFD.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    if not call.arguments.strip():  # what some clients send for a tool that takes none
        return {}
    try:
        return map_strings(json.loads(call.arguments), join_surrogates)
    except (ValueError, RecursionError):
        return call.arguments


def map_arguments(call: ToolCall, change: Callable[[str], str]) -> str:
    """Return the arguments as JSON with every string in them changed; text that is not JSON is changed whole."""
    arguments = parse_arguments(call)
    return change(arguments) if isinstance(arguments, str) else to_json(map_strings(arguments, change))


def tool_definitions(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Return the tools as chat templates and endpoints take them."""
    functions = (
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)} for tool in tools
    )
    return [{"type": "function", "function": function} for function in functions]


def format_call_id(ids: IdFormat, call: ToolCall, number: int) -> str:
    """Return the id of a call, the `number`-th of its conversation, in the form that a template takes."""
    if ids == "nine" and not (len(call.id) == 9 and call.id.isascii() and call.id.isalnum()):
        digest = int.from_bytes(hashlib.blake2b(call.id.encode(), digest_size=8).digest())
        return "".join(LETTERS[digest // 62**digit % 62] for digit in range(9))
    return f"functions.{call.name}:{number}" if ids == "indexed" else call.id


def to_template_dicts(
    messages: Iterable[Message], arguments_as_text: bool = False, ids: IdFormat = "own"
) -> list[dict[str, Any]]:
    """Return the messages as chat templates take them.

    Arguments are values, since most templates write them out as JSON, or their JSON with `arguments_as_text`. A
    result has the name of the tool beside its call's id. `ids` is the form of ids that the template takes.
    """
    entries, number, calls_by_id = [], 0, dict[str, tuple[str, str]]()
    for message in messages:
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking:
            entry |= dict.fromkeys(THINKING_FIELDS, message.thinking)
        if message.tool_calls:
            entry["tool_calls"] = []
            for call in message.tool_calls:
                shown_id = format_call_id(ids, call, number)
                calls_by_id[call.id] = (shown_id, call.name)
                number += 1
                arguments = parse_arguments(call)
                if arguments_as_text:
                    arguments = call.arguments if isinstance(arguments, str) else to_json(arguments)
                function = {"name": call.name, "arguments": arguments}
                entry["tool_calls"].append({"type": "function", "id": shown_id, "function": function})
        if message.role == "tool":
            entry["tool_call_id"], name = calls_by_id.get(message.tool_call_id, (message.tool_call_id, ""))
            if name:
                entry["name"] = name
        entries.append(entry)
    return entries


def write_tools_as_text(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """Return the conversation with tools, calls and results as text, for a template without tools. Results become
    messages by the user."""
    written = list[Message]()
    for message in messages:
        if message.role == "tool":
            result = f"<tool_response>{message.content}</tool_response>"
            message = replace(message, role="user", content=result, tool_call_id="")
        elif message.tool_calls:
            values = [{"name": call.name, "arguments": parse_arguments(call)} for call in message.tool_calls]
            calls = [f"<tool_call>{to_json(value)}</tool_call>" for value in values]
            message = replace(message, content="\n".join(filter(None, [message.content, *calls])), tool_calls=())
        written.append(message)
    if not tools:
        return written
    listed = "\n".join(to_json(definition["function"]) for definition in tool_definitions(tools))
    if written and written[0].role == "system":
        return [replace(written[0], content=f"{written[0].content}\n\n{OFFER}{listed}"), *written[1:]]
    return [Message("system", OFFER + listed), *written]


def split_text_from_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with the text beside calls as a message of its own before them."""
    split: list[Message] = []
    for message in messages:
        if message.tool_calls and message.content:
            split.append(replace(message, tool_calls=(), thinking=""))
            message = replace(message, content="", images=(), sounds=())
        split.append(message)
    return split


def mark_calls_with_text(messages: Sequence[Message]) -> tuple[list[Message], list[tuple[Message, Message]]]:
    """Return the conversation without the text beside calls, and (message there, message here) of each that had some.

    The first call of such a message has a name that no prompt contains, by which it is found: others may be equal to
    it, be they earlier ones or quoted by the user.
    """
    written, marked = list[Message](), list[tuple[Message, Message]]()
    for message in messages:
        if message.tool_calls and message.content:
            first, *rest = message.tool_calls
            calls = (replace(first, name=f"qzxmark{len(marked)}x"), *rest)
            marked.append((replace(message, content="", tool_calls=calls), message))
            message = marked[-1][0]
        written.append(message)
    return written, marked


def split_parallel_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with one call a message, each followed by its result if it has one."""
    rest, split = list(messages), list[Message]()
    while rest:
        message = rest.pop(0)
        if len(message.tool_calls) < 2:
            split.append(message)
            continue
        results = []
        while rest and rest[0].role == "tool":
            results.append(rest.pop(0))
        for number, call in enumerate(message.tool_calls):
            first = message if number == 0 else Message("assistant", "")
            answers = [result for result in results if result.tool_call_id == call.id]
            results = [result for result in results if result not in answers]
            split += [replace(first, tool_calls=(call,)), *answers]
        split += results
    return split


def is_sampled_message(message: Message, sample: Sample) -> bool:
    """Return True if a message of a conversation is the sample.

    Calls are compared by name and arguments: programs write arguments out again in their own way, number calls as they
    like, and some drop the text beside a call, but none of them may change it. Most drop the thinking.
    """
    sampled = sample.message or Message("assistant", sample.text)
    if message.thinking not in ("", sampled.thinking):
        return False
    if not sampled.tool_calls:
        plain = replace(message, thinking="")
        return plain in (Message("assistant", sampled.content), Message("assistant", sample.text))
    calls, sampled_calls = (
        [(call.name, parse_arguments(call)) for call in calls] for calls in (message.tool_calls, sampled.tool_calls)
    )
    is_text_kept = message.content.strip() in ("", sampled.content.strip())
    return message.role == "assistant" and calls == sampled_calls and is_text_kept


@dataclass(frozen=True)
class ToolUse:
    """The capabilities of one template with tools.

    native                    whether it writes tools, calls and results itself; they are written as text if not
    form                      how calls are written; None for channels and tokenizers that parse answers themselves
    arguments_as_text         whether it takes arguments as JSON text
    ids                       the ids of calls that it takes: any, nine letters (Mistral), `functions.NAME:0` (Kimi)
    parallel                  whether it writes all calls of one message
    text_with_calls           whether it writes the text beside calls
    system                    whether it keeps a system message with tools, writes tools only with one, or drops it
    without_tools             whether it writes calls if no tools are offered
    dropped                   why tools are written as text although it offers some, for a warning; "" for no reason
    complete                  whether all of a conversation with tools is in the prompt, be it as text
    """

    native: bool = True
    form: CallForm | None = None
    arguments_as_text: bool = False
    ids: IdFormat = "own"
    parallel: bool = True
    text_with_calls: bool = True
    system: Literal["kept", "needed", "dropped"] = "kept"
    without_tools: bool = True
    dropped: str = ""
    complete: bool = True


AS_TEXT = ToolUse(native=False, form=HERMES)

# Renders (messages, tools, generation) in one way of using tools; None if the template rejects that.
Render = Callable[[Sequence[Message], Sequence[Tool], bool, ToolUse], str | None]
# Returns what follows the opening of the last turn, without its end: (messages, tools, use) -> text.
RenderLastTurn = Callable[[Sequence[Message], Sequence[Tool], ToolUse], str]

# The conversation of the probes, whose words appear in no template.
PROBE_TEXT, PROBE_RESULTS, PROBE_SYSTEM, PROBE_PURPOSE = "qzxwords", ("qzxsaid", "qzxtold"), "qzxsystem", "qzxpurpose"
PROBE_TOOLS = tuple(Tool(name, PROBE_PURPOSE, PROBE_SCHEMAS[name]) for name, _ in PROBES)
PROBE_CALLS = tuple(
    ToolCall(f"qzxid{number}", name, to_json(arguments)) for number, (name, arguments) in enumerate(PROBES)
)
QUESTION = Message("user", "x")
RESULT_MESSAGES = tuple(
    Message("tool", text, tool_call_id=call.id) for text, call in zip(PROBE_RESULTS, PROBE_CALLS, strict=True)
)


def probe_tool_use(render: Render, render_last_turn: RenderLastTurn, parses_itself: bool) -> ToolUse:
    """Return how the template that `render` renders uses tools. `parses_itself` means that answers are parsed otherwise
    than in a form of calls."""
    use = _probe(render, render_last_turn, parses_itself)
    call = Message("assistant", PROBE_TEXT, PROBE_CALLS[:1])
    conversation = [QUESTION, call, RESULT_MESSAGES[0], Message("assistant", "qzxdone"), Message("user", "qzxnext")]
    text = render(conversation, PROBE_TOOLS[:1], True, use) or ""
    argument = str(PROBES[0][1]["qzxkey"])
    words = (PROBE_CALLS[0].name, PROBE_TEXT, PROBE_RESULTS[0], "qzxdone", "qzxnext", argument)
    return replace(use, complete=all(word in text for word in words))


def _probe(render: Render, render_last_turn: RenderLastTurn, parses_itself: bool) -> ToolUse:
    def has(messages: Sequence[Message], use: ToolUse, *words: str, tools: Sequence[Tool] = PROBE_TOOLS) -> bool:
        text = render(messages, tools, True, use)
        return text is not None and all(word in text for word in words)

    # The offer: is each tool in the prompt, with its description, and with a system message beside it?
    offer = [*(tool.name for tool in PROBE_TOOLS), PROBE_PURPOSE, "qzxkey"]
    system, use = Message("system", PROBE_SYSTEM), ToolUse()
    if not has([QUESTION], use, *offer):
        use = replace(use, system="needed")
        if not has([QUESTION], use, *offer):
            return AS_TEXT
    elif not has([system, QUESTION], use, PROBE_SYSTEM, *offer):
        use = replace(use, system="dropped")

    # Calls: does it write them, in a form that can be read back?
    forms = _probe_calls(render_last_turn, use)
    if forms is None:
        return replace(AS_TEXT, dropped="leaves out calls of tools")
    if forms.form is None and not parses_itself:
        return replace(AS_TEXT, dropped="writes calls of tools in a form that cannot be read back")

    # Calls and results, at once and after a later turn.
    use, call = forms, Message("assistant", "", PROBE_CALLS[:1])
    called = [QUESTION, call, RESULT_MESSAGES[0]]
    later = [*called, Message("assistant", "qzxdone"), Message("user", "qzxnext")]
    first, second = (str(arguments["qzxkey"]) for _, arguments in PROBES)
    if not (has(called, use, PROBE_RESULTS[0]) and has(later, use, first, PROBE_RESULTS[0], "qzxnext")):
        return replace(AS_TEXT, dropped="leaves out earlier calls or what they return")
    if use.system == "kept" and not has([system, *called], use, PROBE_SYSTEM):
        use = replace(use, system="dropped")  # it is written before the last message alone

    # Parallel calls, text beside a call, calls without an offer.
    both = [QUESTION, Message("assistant", "", PROBE_CALLS), *RESULT_MESSAGES]
    if not has(both, use, first, second, *PROBE_RESULTS):
        use = replace(use, parallel=False)
        if not has(both, use, first, second, *PROBE_RESULTS):
            return replace(AS_TEXT, dropped="leaves out all but one call")
    with_text = [QUESTION, Message("assistant", PROBE_TEXT, PROBE_CALLS[:1]), RESULT_MESSAGES[0]]
    # gpt-oss takes that text for thinking, which it leaves out once there is a later answer.
    conversations = (with_text, [*with_text, *later[-2:]])
    if not all(has(conversation, use, PROBE_TEXT, first) for conversation in conversations):
        use = replace(use, text_with_calls=False)
        if not all(has(conversation, use, PROBE_TEXT, first) for conversation in conversations):
            return replace(AS_TEXT, dropped="leaves out the text beside a call")
    return replace(use, without_tools=has(called, use, first, PROBE_RESULTS[0], tools=()))


def _probe_calls(render_last_turn: RenderLastTurn, native: ToolUse) -> ToolUse | None:
    """Return in which way the template writes a call with its name and its arguments; None if in no way. A way that can
    be read back is preferred over earlier ones that cannot."""
    name, arguments = PROBES[0]
    unreadable = None
    ways: list[tuple[IdFormat, bool]] = [("own", False), ("own", True), ("nine", False), ("nine", True)]
    for ids, arguments_as_text in [*ways, ("indexed", False), ("indexed", True)]:
        use = replace(native, ids=ids, arguments_as_text=arguments_as_text)
        single = render_last_turn([QUESTION, Message("assistant", "", PROBE_CALLS[:1])], PROBE_TOOLS, use)
        if not all(str(word) in single for word in (name, *arguments, *arguments.values())):
            continue
        double = render_last_turn([QUESTION, Message("assistant", "", PROBE_CALLS)], PROBE_TOOLS, use)
        has_both = all(str(word) in double for word in (name, *PROBES[1][1].values()))
        if form := find_form(single, double if has_both else None):
            return replace(use, form=form)
        unreadable = unreadable or use
    return unreadable
