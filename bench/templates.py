"""Chat templates probed whole: `python bench/templates.py [MODEL ...] [--write]`.

A template counts if a conversation with two tools is in its prompt with their offer, a call, its arguments, a result
and a later turn, and if the call that it writes is read back with name and arguments. It keeps results if they are in
the prompt of the turn after a sampled call: one as the template writes it, one with words before it, and two calls.
Probed are the forms in which models of these years write calls (bench/template_forms.py), ways of writing results,
and the templates of the named models.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator

from transformers import AutoTokenizer

import template_forms as forms
from cadre.engines.text.model import collect_stops
from cadre.engines.text.template import Template
from cadre.types import Message, PreviousTurn, Sample, Tool, ToolCall
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
    read = forms.parse(template, (), token_ids, TOOLS).tool_calls
    return use.complete and has_all and [(c.name, json.loads(c.arguments)) for c in read] == [("find", ARGUMENTS)]


def keeps_results(template: Template) -> bool:
    """Return True if the results of every sampled call are in the next prompt, headed as the template heads them."""
    use, second = template.tool_use, ToolCall("call_1", "stop", "{}")
    single, two = (
        template._write_last_turn([*QUESTION, Message("assistant", "", calls)], TOOLS, use)
        for calls in (CALL.tool_calls, (*CALL.tool_calls, second))
    )
    # Bare JSON is no call after words, nor beside another call.
    turns = (
        (single, 1),
        (f"I look.\n{single}", 0),
        (two if use.parallel else f"{single}\n{single}", 2 if use.parallel else 0),
    )
    return all(keeps_results_of(template, text, calls) for text, calls in turns)


def keeps_results_of(template: Template, text: str, calls: int) -> bool:
    """Return True if a sampled turn has at least so many calls, and the next prompt what all of them return."""
    tokenizer, prompt = template._tokenizer, template.prompt(QUESTION, None, (), TOOLS).ids
    sampled = tuple(tokenizer(text, add_special_tokens=False).input_ids)
    message, end = forms.parse(template, prompt, sampled, TOOLS), template.end_of_turn or tokenizer.eos_token_id
    ids = (*sampled, end)
    sample = Sample("role", "policy", template.decode(sampled), prompt, ids, (0.0,) * len(ids), "stop", 0, message)
    results = [Message("tool", f"qzxresult{n}", tool_call_id=c.id) for n, c in enumerate(message.tool_calls)]
    later, stops = (*QUESTION, message, *results), collect_stops(None, tokenizer, template)
    shown = template.decode(template.prompt(later, PreviousTurn(QUESTION, sample, TOOLS), stops, TOOLS).ids)
    # The heading of a result is what stands between it and the mark before it, with the tool's name or the call's id.
    headings = [
        [re.split(r"[<>]", text.partition(result.content)[0])[-1] for result in results]
        for text in (shown, template.render(later, True, TOOLS))
    ]
    has_all = len(results) >= calls and all(result.content in shown for result in results)
    return has_all and headings[0] == headings[1]


def templates(models: list[str]) -> Iterator[tuple[str, Template]]:
    """Yield the templates with their names."""
    for name, text in forms.FORMS.items():
        yield name, Template(forms.tokenizer(forms.chat(text)))
    for name, text in forms.RESULTS.items():
        yield name, Template(forms.tokenizer(text))
    for model in models:
        yield model.rstrip("/").rpartition("/")[2], Template(AutoTokenizer.from_pretrained(model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="folders or hub names")
    parser.add_argument("--write", action="store_true", help="append to results/programs.jsonl")
    options = parser.parse_args()
    complete, with_results = [], []
    for name, template in templates(options.models):
        complete.append(is_whole(template))
        with_results.append(keeps_results(template))
        print(
            f"{'whole' if complete[-1] else 'NOT  '}  {'results kept' if with_results[-1] else 'results LOST'}  {name}"
        )
    names = " ".join(model.rstrip("/").rpartition("/")[2] for model in options.models)
    print(f"templates.probed: {sum(complete)} of {len(complete)}")
    print(f"templates.results_kept: {sum(with_results)} of {len(with_results)}")
    if options.write:
        command = f"python bench/templates.py {names} --write".replace("  ", " ")
        for figure, templates_with in (("probed", complete), ("results_kept", with_results)):
            unit = f"of {len(complete)} templates"
            record("programs", f"templates.{figure}", [sum(templates_with)], unit, command, n=len(complete))


if __name__ == "__main__":
    main()
