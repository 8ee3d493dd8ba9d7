"""Chat templates probed whole: `python bench/templates.py [MODEL ...] [--write]`.

A template counts if a conversation with two tools is in its prompt with their offer, a call, its arguments, a result
and a later turn, and if the call that it writes is read back with name and arguments. Probed are the forms in which
models of these years write calls (bench/template_forms.py) and the templates of the named models.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from transformers import AutoTokenizer

import template_forms as forms
from cadre.engines.chat_template import Template
from cadre.types import Message, Tool, ToolCall
from common import record

ARGUMENTS = {"word": 'é "q" 漢', "many": 3}
SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}, "many": {"type": "integer"}}}
TOOLS = (Tool("find", "Finds.", SCHEMA), Tool("stop", "Stops."))
QUESTION = (Message("system", "Be kind."), Message("user", "Go."))
CALL = Message("assistant", "", (ToolCall("call_0", "find", json.dumps(ARGUMENTS)),))
LATER = (
    Message("tool", "qzxfound", tool_call_id="call_0"),
    Message("assistant", "qzxdone"),
    Message("user", "qzxnext"),
)


def is_whole(template: Template) -> bool:
    """Return True if all of the conversation is in the prompt, and the call is read back out of it."""
    use = template.tool_use
    prompt = template.render((*QUESTION, CALL, *LATER), True, TOOLS)
    has_all = all(word in prompt for word in ("find", "stop", "漢", "qzxfound", "qzxdone", "qzxnext"))
    written = template._write_last_turn([*QUESTION, CALL], TOOLS, use)
    token_ids = template._tokenizer(written, add_special_tokens=False).input_ids
    read = template.parse_answer((), token_ids, TOOLS).tool_calls
    return use.complete and has_all and [(c.name, json.loads(c.arguments)) for c in read] == [("find", ARGUMENTS)]


def templates(models: list[str]) -> Iterator[tuple[str, Template]]:
    """Yield the templates with their names."""
    for name, text in forms.FORMS.items():
        yield name, Template(forms.tokenizer(forms.chat(text)))
    for model in models:
        yield model.rstrip("/").rpartition("/")[2], Template(AutoTokenizer.from_pretrained(model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="folders or hub names")
    parser.add_argument("--write", action="store_true", help="append to results/programs.jsonl")
    options = parser.parse_args()
    whole = []
    for name, template in templates(options.models):
        whole.append(is_whole(template))
        print(f"{'whole' if whole[-1] else 'NOT  '}  {name}")
    names = " ".join(model.rstrip("/").rpartition("/")[2] for model in options.models)
    print(f"templates.probed: {sum(whole)} of {len(whole)}")
    if options.write:
        command = f"python bench/templates.py {names} --write".replace("  ", " ")
        record("programs", "templates.probed", [sum(whole)], f"of {len(whole)} templates", command, n=len(whole))


if __name__ == "__main__":
    main()
