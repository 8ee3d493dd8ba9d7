"""What chat templates keep of a conversation with tools: forms of many model families, and folders of models.

    python bench/templates.py [FOLDER ...] [--write]

Each template renders a conversation with an offer, text beside a call, arguments with characters beyond ASCII, results,
and later turns; each of these has to be in the prompt, with its characters. Then the call that it wrote is read back. A
template that is refused says so before training and counts as handled. `--write` appends `templates.probed`, the number
of templates, and `templates.handled`, the fraction of those that lose nothing silently, to results/templates.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from common import ROOT, record

sys.path.insert(0, str(ROOT))

from cadre.engines.chat_template import Template
from cadre.errors import EngineError
from cadre.types import Message, Tool, ToolCall
from tests.cadre.engines import forms, test_tool_use

FIND = Tool("find", "Finds a wörd.", {"type": "object", "properties": {"word": {"type": "string"}}})
ARGUMENTS = {"word": 'é漢 "q"'}
CALL = ToolCall("call_0", "find", json.dumps(ARGUMENTS))
ASKED = (Message("system", "Be kind."), Message("user", "Go."))
TALK = (
    *ASKED,
    Message("assistant", "Let me.", (CALL,)),
    Message("tool", "fünd it", tool_call_id="call_0"),
    Message("assistant", "Fine."),
    Message("user", "More."),
)
# By part of the conversation the words that have to be in the prompt.
PARTS = {
    "offer": ("find", "wörd"),
    "call": ("é漢",),
    "text beside it": ("Let me.",),
    "result": ("fünd it",),
    "turns": ("Be kind.", "Go.", "Fine.", "More."),
}


def templates(folders: list[Path]) -> Iterator[tuple[str, Any]]:
    """Yield the tokenizers to probe, by name: those of the forms, and those of folders."""
    for name, calls in forms.FORMS.items():
        yield name, forms.tokenizer(forms.chat(calls))
    for name, (template, _) in test_tool_use.QUIRKS.items():
        yield name, forms.tokenizer(template)
    for name, template in (("gpt-oss", test_tool_use.HARMONY), ("gpt-oss forgetful", test_tool_use.FORGETFUL)):
        tokenizer = forms.tokenizer(template)
        tokenizer.add_special_tokens({"additional_special_tokens": list(test_tool_use.CHANNELS)})
        yield name, tokenizer
    yield (
        "several by name",
        forms.tokenizer({"default": test_tool_use.CONTENT, "tool_use": forms.chat(forms.FORMS["glm"])}),
    )
    for folder in folders:
        yield str(folder), AutoTokenizer.from_pretrained(folder)


def find_losses(tokenizer: Any) -> list[str]:
    """Return the parts that are lost without a word; none of a template that is refused."""
    try:
        template = Template(tokenizer)
        shown = template.render(TALK, True, (FIND,))
    except EngineError:
        return []
    lost = [part for part, words in PARTS.items() if not all(word in shown for word in words)]

    # The call as the template writes it, as ids, is read as the call that it was.
    before = template.render(ASKED, True, (FIND,))
    after = template.render((*ASKED, Message("assistant", "", (CALL,))), False, (FIND,))
    written = after.removeprefix(before) if after.startswith(before) else after
    ids = tuple(tokenizer(written.rstrip("\n"), add_special_tokens=False).input_ids)
    ids = ids[:-1] if ids and ids[-1] == template.end_of_turn else ids
    calls = template.parse_answer((), ids, (FIND,)).tool_calls
    if [(call.name, json.loads(call.arguments)) for call in calls] != [("find", ARGUMENTS)]:
        lost.append("reading back")
    return lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    losses = {name: find_losses(tokenizer) for name, tokenizer in templates(options.folders)}
    for name, lost in losses.items():
        print(f"{name}: {'loses ' + ', '.join(lost) if lost else 'keeps all'}")
    handled = sum(not lost for lost in losses.values()) / len(losses)
    print(f"{len(losses)} templates, {handled:.1%} handled")
    if options.write:
        command = "python bench/templates.py FOLDER ..."
        record("templates", "templates.probed", [len(losses)], "templates", command, len(losses))
        record("templates", "templates.handled", [handled], "fraction", command, len(losses))


if __name__ == "__main__":
    main()
