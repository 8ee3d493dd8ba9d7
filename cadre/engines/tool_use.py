"""What a chat template does with tools: probed whole, from the offer to the calls as they are read back.

Templates leave things out without a word: calls, what they returned, the second of two calls, the text beside a call,
the tools themselves where there is no system message. `probe` renders a conversation with each and looks for it. What a
template leaves out is then written another way, in words where there is no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cadre.engines import call_forms
from cadre.engines.call_forms import CallForm
from cadre.engines.tool_calls import to_json
from cadre.types import Message, Tool, ToolCall

Ids = Literal["own", "nine", "indexed"]
WORDS, RESULTS, SYSTEM, PURPOSE = "qzxwords", ("qzxsaid", "qzxtold"), "qzxsystem", "qzxpurpose"
LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class ToolUse:
    """What one template does with tools.

    offers, calls, results    whether it writes these itself; they are put in words where it does not
    form                      how calls are written, None where channels or the tokenizer's own reader tell
    text                      whether it wants arguments as JSON text
    ids                       what ids of calls it takes: any, nine letters (Mistral), `functions.NAME:0` (Kimi)
    parallel                  whether it writes all calls of one message
    beside                    whether it writes the text beside calls
    system                    whether a system message is kept beside tools, or they are written beside one only
    several                   whether it offers all tools, where there are several
    bare                      whether calls are written where no tools are offered
    lost                      what is put in words, for a warning; "" for nothing
    unseen                    what no model of this template sees, for a warning; "" for nothing
    keeps                     whether all of a conversation with tools is in the prompt, be it in words
    """

    offers: bool = True
    calls: bool = True
    results: bool = True
    form: CallForm | None = None
    text: bool = False
    ids: Ids = "own"
    parallel: bool = True
    beside: bool = True
    system: Literal["kept", "needed", "dropped"] = "kept"
    several: bool = True
    bare: bool = True
    lost: str = ""
    unseen: str = ""
    keeps: bool = True

    @property
    def warning(self) -> str:
        """What the template leaves out and what becomes of it; "" where it leaves out nothing."""
        lost = f"leaves out {self.lost}: put in words in every prompt that has some" if self.lost else ""
        unseen = f"leaves out {self.unseen}: say that in the prompts of the task" if self.unseen else ""
        return "; it ".join(filter(None, (lost, unseen)))


IN_WORDS = ToolUse(offers=False, calls=False, results=False, form=call_forms.HERMES)

# Renders (messages, tools, generation) in one way of using tools; None where the template refuses that.
Render = Callable[[Sequence[Message], Sequence[Tool], bool, ToolUse], str | None]
# Returns what follows the opening of the last turn, without its end: (messages, tools, use) -> text.
Completion = Callable[[Sequence[Message], Sequence[Tool], ToolUse], str]

TOOLS = tuple(Tool(name, PURPOSE, call_forms.PROBE_SCHEMAS[name]) for name, _ in call_forms.PROBES)
CALLS = tuple(
    ToolCall(f"qzxid{number}", name, to_json(arguments)) for number, (name, arguments) in enumerate(call_forms.PROBES)
)
ASKED = Message("user", "x")
RETURNED = tuple(Message("tool", text, tool_call_id=call.id) for text, call in zip(RESULTS, CALLS, strict=True))


def id_for(ids: Ids, call: ToolCall, number: int) -> str:
    """Return the id of a call, the `number`-th of its conversation, in the form that a template takes."""
    if ids == "nine" and not (len(call.id) == 9 and call.id.isascii() and call.id.isalnum()):
        digest = int.from_bytes(hashlib.blake2b(call.id.encode(), digest_size=8).digest())
        return "".join(LETTERS[digest // 62**place % 62] for place in range(9))
    return f"functions.{call.name}:{number}" if ids == "indexed" else call.id


def probe(render: Render, completion: Completion, source: str, reads_itself: bool) -> ToolUse:
    """Return how the template that `render` renders uses tools. `source` is its text; `reads_itself` says that the
    tokenizer declares how answers are read."""
    use = _probe(render, completion, source, reads_itself)
    call = Message("assistant", WORDS, CALLS[:1])
    whole = [ASKED, call, RETURNED[0], Message("assistant", "qzxdone"), Message("user", "qzxnext")]
    text = render(whole, TOOLS[:1], True, use) or ""
    words = (CALLS[0].name, WORDS, RESULTS[0], "qzxdone", "qzxnext", str(call_forms.PROBES[0][1]["qzxkey"]))
    return replace(use, keeps=all(word in text for word in words))


def _probe(render: Render, completion: Completion, source: str, reads_itself: bool) -> ToolUse:
    def has(messages: Sequence[Message], use: ToolUse, *words: str, tools: Sequence[Tool] = TOOLS) -> bool:
        text = render(messages, tools, True, use)
        return text is not None and all(word in text for word in words)

    system, (first_name, second_name) = Message("system", SYSTEM), [tool.name for tool in TOOLS]
    native, lost = ToolUse(), list[str]()
    if not has([ASKED], native, first_name):
        native = replace(native, system="needed")
        if not has([ASKED], native, first_name):
            return IN_WORDS
    elif not has([system, ASKED], native, SYSTEM, first_name):
        native = replace(native, system="dropped")
    if not has([ASKED], native, PURPOSE, "qzxkey"):
        native = replace(native, unseen="what tools are for and what they take")
    if not has([ASKED], native, second_name):
        native, lost = replace(native, several=False), ["all tools but one"]

    use = _calling(render, completion, native)
    if use is None:
        if call_forms.HERMES.opening not in source:
            return replace(IN_WORDS, lost="calls of tools")
        # It asks for calls in this form and does not write them itself.
        use, lost = replace(native, calls=False, form=call_forms.HERMES), [*lost, "calls"]
    elif use.form is None and not reads_itself and call_forms.CHANNEL not in source:
        return replace(IN_WORDS, lost="nothing, but writes calls in a form that cannot be read back")
    call = Message("assistant", "", CALLS[:1])
    talk = [ASKED, call, RETURNED[0]]
    later = [*talk, Message("assistant", "qzxdone"), Message("user", "qzxnext")]
    if not (has(talk, use, RESULTS[0]) and has(later, use, RESULTS[0], "qzxnext")):
        use, lost = replace(use, results=False), [*lost, "what calls return"]
        if not has(talk, use, RESULTS[0]):
            return replace(IN_WORDS, lost="what calls return")
    if native.system == "kept" and not has([system, *talk], use, SYSTEM):  # written before the last message alone
        use = replace(use, system="dropped")
    first, second = (str(arguments["qzxkey"]) for _, arguments in call_forms.PROBES)
    if not has(later, use, first):
        return replace(IN_WORDS, lost="earlier calls")
    both = [ASKED, Message("assistant", "", CALLS), *RETURNED]
    if use.calls and not has(both, use, first, second, *RESULTS):
        use = replace(use, parallel=False)
        if not has(both, use, first, second, *RESULTS):
            return replace(IN_WORDS, lost="all but one call")
    beside = [ASKED, Message("assistant", WORDS, CALLS[:1]), RETURNED[0]]
    # gpt-oss takes that text for thinking, which it leaves out once there is a later answer.
    beside_later = [*beside, *later[-2:]]
    if use.calls and not (has(beside, use, WORDS, first) and has(beside_later, use, WORDS, first)):
        use = replace(use, beside=False)
        if not (has(beside, use, WORDS, first) and has(beside_later, use, WORDS, first)):
            return replace(IN_WORDS, lost="the text beside a call")
    bare = has(talk, use, first, RESULTS[0], tools=())
    return replace(use, bare=bare, lost=" and ".join(lost))


def _calling(render: Render, completion: Completion, native: ToolUse) -> ToolUse | None:
    """Return in which way the template writes a call with its name and its arguments, and if possible one that is read
    back; None where it does not write one."""
    name, arguments = call_forms.PROBES[0]
    written = None
    ways: list[tuple[Ids, bool]] = [("own", False), ("own", True), ("nine", False), ("nine", True), ("indexed", False)]
    for ids, text in [*ways, ("indexed", True)]:
        use = replace(native, ids=ids, text=text)
        single = completion([ASKED, Message("assistant", "", CALLS[:1])], TOOLS, use)
        if not all(str(word) in single for word in (name, *arguments, *arguments.values())):
            continue
        double = completion([ASKED, Message("assistant", "", CALLS)], TOOLS, use)
        has_both = all(str(word) in double for word in (name, *call_forms.PROBES[1][1].values()))
        shown = [id_for(ids, call, number) for number, call in enumerate(CALLS)]
        if form := call_forms.learn(single, double if has_both else None, shown):
            return replace(use, form=form)
        written = written or use
    return written
