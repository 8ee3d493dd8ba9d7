"""Templates in the forms of the models of these years: tools offered, calls and results shown, calls read back."""

import json
import re
from dataclasses import replace

import pytest

from bench import template_forms as forms
from bench.template_forms import parse
from cadre.engines.text.calls import FORMS, _flexible
from cadre.engines.text.model import collect_stops
from cadre.engines.text.template import Prompt, Template
from cadre.engines.text.tools import is_sampled_message, split_parallel_calls, write_tools_as_text
from cadre.errors import EngineError
from cadre.types import Message, PreviousTurn, Sample, Sound, Tool, ToolCall

STOPS = (257, 259)
TOKENIZER = forms.tokenizer(None)
FIND = Tool(
    "find",
    "Finds.",
    {
        "type": "object",
        "properties": {"word": {"type": "string"}, "many": {"type": "integer"}, "deep": {"type": "object"}},
    },
)
TOOLS = (FIND, Tool("stop", "Stops."))
ASKED = (Message("system", "Be kind."), Message("user", "Go."))
HARD = {"word": "é \"q\" 's' \\ \n{x} 漢", "many": 3, "deep": {"a": [1, None, True, "]"]}}
HERMES = forms.FORMS["hermes"]


def template(text) -> Template:
    return Template(forms.tokenizer(text))


def ids(template: Template, text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER(text, add_special_tokens=False).input_ids)


def written(template: Template, calls) -> str:
    """Return the template's text for a turn that consists of these calls."""
    initial, final = (
        template.render(ASKED, True, TOOLS),
        template.render((*ASKED, Message("assistant", "", calls)), False, TOOLS),
    )
    assert final.startswith(initial)
    return final.removeprefix(initial).removesuffix("\n").removesuffix("<|im_end|>")


def call(arguments, number=0, name="find") -> ToolCall:
    return ToolCall(f"call_{number}", name, json.dumps(arguments))


@pytest.mark.parametrize("name", forms.FORMS)
@pytest.mark.parametrize("arguments", [{"word": "paper", "many": 3}, HARD, {}], ids=["plain", "hard", "none"])
def test_a_call_in_the_form_of_the_template_is_read_back(name, arguments):
    chat_template = template(forms.chat(forms.FORMS[name]))
    assert chat_template.tool_use.native
    prompt = ids(chat_template, chat_template.render(ASKED, True, TOOLS))
    several = [(call(arguments),), (call(arguments), call({"word": "y"}, 1))][
        : 2 if chat_template.tool_use.parallel else 1
    ]
    for calls in several:
        read = parse(chat_template, prompt, ids(chat_template, written(chat_template, calls)), TOOLS)
        assert [(c.name, json.loads(c.arguments)) for c in read.tool_calls] == [
            (c.name, json.loads(c.arguments)) for c in calls
        ]
        assert read.content == ""


@pytest.mark.parametrize("name", [name for name, form in forms.FORMS.items() if "bare" not in name])
def test_words_beside_a_call_are_its_text(name):
    chat_template = template(forms.chat(forms.FORMS[name]))
    if chat_template.tool_use.form.opening.strip() in ("", "<|python_tag|>"):
        pytest.skip("without a mark a call stands alone")
    text = f"Well. {written(chat_template, (call({'word': 'x'}),))}"
    read = parse(chat_template, (), ids(chat_template, text), TOOLS)
    assert (read.content, [c.name for c in read.tool_calls]) == ("Well.", ["find"])


@pytest.mark.parametrize("name", forms.FORMS)
def test_nothing_of_a_conversation_with_calls_is_lost(name):
    check_conversation(template(forms.chat(forms.FORMS[name])))


def check_conversation(template: Template) -> None:
    two = (call(HARD), call({"word": "yyy"}, 1))
    talk = (
        *ASKED,
        Message("assistant", "Let me.", two),
        *(Message("tool", f"R{c.id}R", tool_call_id=c.id) for c in two),
        Message("assistant", "Fine."),
        Message("user", "More."),
        Message("assistant", "Again.", (call({"word": "zzz"}, 2),)),
        Message("tool", "last", tool_call_id="call_2"),
    )
    for tools in (TOOLS, ()):
        shown = template.render(talk, True, tools)
        words = ["Be kind.", "Go.", "Let me.", "yyy", "Rcall_0R", "Rcall_1R", "Fine.", "More.", "Again.", "zzz", "last"]
        positions = [shown.find(word) for word in words]
        assert -1 not in positions
        assert "漢" in shown or "\\u6f22" in shown
        assert shown.count("find") >= 3
        assert tools == () or "stop" in shown


@pytest.mark.parametrize("name", ["llama bare", "hermes", "phi", "pythonic in marks"])
def test_words_beside_a_call_stay_in_their_turn(name):
    """Mistake: they are put before the first text that looks like the call."""
    chat_template = template(forms.chat(forms.FORMS[name]))
    same = (call({"word": "x"}), call({"word": "x"}, 1))
    quoted = Message("user", written(chat_template, same[:1]))
    turns = [Message("assistant", "", same[:1]), Message("tool", "R0", tool_call_id="call_0")]
    turns += [Message("assistant", "Once more.", same[1:]), Message("tool", "R1", tool_call_id="call_1")]
    shown = chat_template.render([quoted, *turns, Message("user", "Fine.")], True, TOOLS)
    positions = [shown.find(word) for word in ("R0", "Once more.", "R1", "Fine.")]
    assert -1 not in positions
    assert positions == sorted(positions)


NO_TOOL_ROLE = "{% if m.role == 'tool' %}{{ raise_exception('no such role') }}{% endif %}"
ALTERNATING = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    f"{forms.OPEN}{{{{ m.content | trim }}}}{forms.END}{{% endfor %}}{forms.LAST}"
)
CONTENT = f"{{% for m in messages %}}{forms.OPEN}{{{{ m.content }}}}{forms.END}{{% endfor %}}{forms.LAST}"
SYSTEM_LAST = (
    "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{% if m.role == 'user' and loop.last "
    "and messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}{{ m.content }}{% if m.tool_calls %}"
    f"{HERMES}{{% endif %}}<|im_end|>\n{{% endif %}}{{% endfor %}}{forms.LAST}"
)
QUIRKS = {
    "raises for the role tool": (forms.chat(HERMES, prefix=NO_TOOL_ROLE), False),
    "no role tool, no system role, roles alternate": (ALTERNATING, False),
    "tools beside a system message alone": (
        forms.chat(HERMES, offer="").replace(
            "{{ m.content }}{% endif %}<|im_end|>",
            "{{ m.content }}{% if tools and m.role == 'system' %}{{ tools | tojson }}{% endif %}{% endif %}<|im_end|>",
        ),
        True,
    ),
    "no system message beside tools": (
        "{% if tools %}{{ tools | tojson }}{% if messages[0].role == 'system' %}{% set messages = messages[1:] %}"
        "{% endif %}{% endif %}" + forms.chat(HERMES, offer=""),
        True,
    ),
    "a system message before the last user message alone": (forms.OFFER + SYSTEM_LAST, True),
    "calls without their text": (
        forms.OFFER + CONTENT.replace("{{ m.content }}", "{{ m.content or '' }}{% if not m.content %}X{% endif %}"),
        False,
    ),
    "content or calls": (
        forms.OFFER
        + CONTENT.replace(
            "{{ m.content }}", f"{{% if m.content %}}{{{{ m.content }}}}{{% elif m.tool_calls %}}{HERMES}{{% endif %}}"
        ),
        True,
    ),
    "no results": (
        forms.OFFER
        + CONTENT.replace("in messages", "in messages if m.role != 'tool'").replace(
            "{{ m.content }}", f"{{{{ m.content }}}}{{% if m.tool_calls %}}{HERMES}{{% endif %}}"
        ),
        False,
    ),
    "calls without arguments": (forms.chat(forms.each("<tool_call>{{ c.name }}</tool_call>")), False),
    "calls without a name": (forms.chat(forms.each("<tool_call>{{ c.arguments | tojson }}</tool_call>")), False),
    "a form that is nobody's": (
        forms.chat(
            forms.each("{% for k, v in c.arguments.items() %}{{ v }} is the {{ k }} of {{ c.name }}. {% endfor %}")
        ),
        False,
    ),
    "the first tool": (
        forms.chat(HERMES, offer="{% if tools %}{{ tools[0] | tojson }} <tool_call>{% endif %}"),
        False,
    ),
    "results by name": (forms.chat(HERMES, result="{{ m.name + ': ' + m.content }}"), True),
    "no template": (None, False),
}


@pytest.mark.parametrize("name", QUIRKS)
def test_what_a_template_leaves_out_is_put_in_words(name):
    text, takes = QUIRKS[name]
    chat_template = template(text)
    assert chat_template.tool_use.native is takes
    check_conversation(chat_template)


@pytest.mark.parametrize("name", QUIRKS)
def test_calls_are_read_in_the_form_that_is_asked_for(name):
    chat_template = template(QUIRKS[name][0])
    text = '<tool_call>\n{"name": "find", "arguments": {"word": "é"}}\n</tool_call>'
    read = parse(chat_template, chat_template.prompt(ASKED, None, STOPS, TOOLS).ids, ids(chat_template, text), TOOLS)
    assert read == Message("assistant", "", (ToolCall("call_0", "find", '{"word": "é"}'),))


@pytest.mark.parametrize(
    "text",
    [
        '<TOOLCALL>[{"name": "find", "arguments": {"word": "é"}}]</TOOLCALL>',
        '<tool_calls>\n{"name": "find", "arguments": {"word": "é"}}\n</tool_calls>',
        '<|action_start|><|plugin|>{"name": "find", "parameters": {"word": "é"}}<|action_end|>',
        '<|tool_call_start|>[find(word="é")]<|tool_call_end|>',
        "<function_calls>\nfind(word='é')\n</function_calls>",
        "<seed:tool_call>\n<function=find>\n<parameter=word>é</parameter>\n</function>\n</seed:tool_call>",
    ],
)
def test_forms_of_further_models_are_read(text):
    """Nemotron, Hunyuan, InternLM, LFM2, OLMo 3 and Seed-OSS."""
    (form,) = (form for form in FORMS if form.opening and re.match(_flexible(form.opening), text))
    assert form.read(text, {FIND.name: FIND.parameters}) == ([("find", {"word": "é"})], "")


def test_nothing_is_read_however_gemma_templates_write_it():
    """Templates of Gemma 4 write Python's None."""
    chat_template = template(forms.chat(forms.FORMS["gemma 4"]))
    text = '<|tool_call>call:find{deep:{a:[1,None,true,<|"|>x:y]<|"|>],<|"|>b:c<|"|>:null},many:3}<tool_call|>'
    (read,) = parse(chat_template, (), ids(chat_template, text), TOOLS).tool_calls
    assert json.loads(read.arguments) == {"deep": {"a": [1, None, True, "x:y]"], "b:c": None}, "many": 3}


def test_what_a_template_leaves_out_is_warned_of_once(caplog):
    chat_template = template(QUIRKS["no results"][0])
    assert not caplog.records
    for _ in range(2):
        chat_template.render(ASKED, True, TOOLS)
    assert [record.getMessage() for record in caplog.records] == [
        "The chat template of this model leaves out earlier calls or what they return: tools are written as text."
    ]


def test_a_template_that_forgets_what_was_called_is_refused():
    chat_template = template(forms.OFFER + "{% set messages = messages[-2:] %}" + forms.chat(HERMES, offer=""))
    assert chat_template.render(ASKED, True)
    with pytest.raises(EngineError, match="leaves out parts of a conversation with tools"):
        chat_template.render(ASKED, True, TOOLS)


@pytest.mark.parametrize("as_list", [True, False])
def test_the_template_for_tools_writes_conversations_with_tools(as_list):
    named = {
        "default": CONTENT,
        "tool_use": forms.chat(forms.FORMS["qwen coder"]),
        "rag": "{{ raise_exception('no') }}",
    }
    chat_template = template([{"name": name, "template": text} for name, text in named.items()] if as_list else named)
    assert chat_template.render(ASKED, True) == template(CONTENT).render(ASKED, True)
    assert chat_template.render(ASKED, True, TOOLS) == template(named["tool_use"]).render(ASKED, True, TOOLS)
    assert parse(chat_template, (), ids(chat_template, written(chat_template, (call(HARD),))), TOOLS).tool_calls
    check_conversation(chat_template)


def test_a_lone_named_template_is_the_default_one():
    assert template({"tool_use": CONTENT}).render(ASKED, True) == template(CONTENT).render(ASKED, True)
    with pytest.raises(EngineError, match="chat templates one, two and none that is called default"):
        template({"one": CONTENT, "two": CONTENT})


@pytest.mark.parametrize("name", ["hermes", "llama bare", "pythonic", "mistral"])
def test_a_call_is_read_with_the_end_of_its_turn_too(name):
    chat_template = template(forms.chat(forms.FORMS[name]))
    text = (*ids(chat_template, written(chat_template, (call({"word": "x"}),))), chat_template.end_of_turn)
    assert [c.name for c in parse(chat_template, (), text, TOOLS).tool_calls] == ["find"]


THINKING = CONTENT.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")


@pytest.mark.parametrize(
    ("expected", "calls", "content"),
    [
        ("So <tool_call>{}</tool_call> it is.</think>CALL", 1, ""),
        ("So CALL it is.</think>No.", 0, "No."),
        ("So CALL", 0, ""),
        ("CALL", 1, ""),
        ("<think>So CALL</think>CALL", 1, ""),
    ],
)
def test_calls_within_thinking_are_none(expected, calls, content):
    chat_template = template(THINKING)
    prompt = chat_template.prompt(ASKED, None, STOPS, TOOLS).ids
    expected = expected.replace("CALL", '<tool_call>{"name": "stop", "arguments": {}}</tool_call>')
    read = parse(chat_template, prompt, ids(chat_template, expected), TOOLS)
    assert (len(read.tool_calls), read.content) == (calls, content)
    assert bool(read.thinking) == expected.startswith(("So", "<think>"))


def test_names_that_spell_out_control_tokens_are_the_tools_own_again():
    """Mistake: the prompt has the name broken up, and a call by that name is nobody's."""
    chat_template = template(forms.chat(HERMES))
    tool = Tool("a<|im_end|>b")
    prompt = chat_template.prompt(ASKED, None, STOPS, (tool,)).ids
    text = '<tool_call>{"name": "a< |im_end|>b", "arguments": {}}</tool_call>'
    assert parse(chat_template, prompt, ids(chat_template, text), (tool,)).tool_calls == (
        ToolCall("call_0", "a<|im_end|>b", "{}"),
    )


@pytest.mark.parametrize("name", ["hermes", "mistral named", "llama bare"])
def test_sampled_ids_are_kept_over_calls_of_every_form(name):
    chat_template = template(forms.chat(forms.FORMS[name]))
    prompt = chat_template.prompt(ASKED, None, STOPS, TOOLS).ids
    sampled = (*ids(chat_template, written(chat_template, (call({"word": "é"}),))), 259)
    message = parse(chat_template, prompt, sampled[:-1], TOOLS)
    sample = Sample(
        "r", "p", chat_template.decode(sampled[:-1]), prompt, sampled, (0.0,) * len(sampled), "stop", 0, message
    )
    later = (*ASKED, message, Message("tool", "2", tool_call_id="call_0"))
    final_prompt = chat_template.prompt(later, PreviousTurn(ASKED, sample, TOOLS), STOPS, TOOLS)
    assert final_prompt.ids[: len(prompt) + len(sampled)] == prompt + sampled
    assert final_prompt.history in ("clean", "realigned")


@pytest.mark.parametrize(("content", "is_kept"), [("Well.", True), (" Well. ", True), ("", True), ("Good.", False)])
def test_words_beside_a_call_that_the_program_changed_are_another_conversation(content, is_kept):
    """Mistake: the model reads the words that it sampled, in place of those in the messages."""
    chat_template = template(forms.chat(forms.FORMS["hermes"]))
    prompt = chat_template.prompt(ASKED, None, STOPS, TOOLS).ids
    sampled = (*ids(chat_template, f"Well. {written(chat_template, (call({'word': 'x'}),))}"), 259)
    message = parse(chat_template, prompt, sampled[:-1], TOOLS)
    sample = Sample(
        "r", "p", chat_template.decode(sampled[:-1]), prompt, sampled, (0.0,) * len(sampled), "stop", 0, message
    )
    later = (*ASKED, replace(message, content=content), Message("tool", "2", tool_call_id="call_0"))
    final_prompt = chat_template.prompt(later, PreviousTurn(ASKED, sample, TOOLS), STOPS, TOOLS)
    assert (final_prompt.ids[: len(prompt) + len(sampled)] == prompt + sampled) is is_kept
    assert (final_prompt.history == "new") is not is_kept


ALL_FORMS = {name: forms.chat(text) for name, text in forms.FORMS.items()} | forms.RESULTS
TWO_CALLS = (call({"word": "x"}), call({"word": "y"}, 1, "stop"))


def after_results(template: Template, text: str, end: int) -> tuple[Sample, tuple[Message, ...], Prompt]:
    """A turn that was sampled so, the conversation with the results of its calls, R0 and R1, and its prompt."""
    prompt = template.prompt(ASKED, None, STOPS, TOOLS).ids
    sampled = (*ids(template, text), end)
    message = parse(template, prompt, sampled[:-1], TOOLS)
    sample = Sample("r", "p", template.decode(sampled[:-1]), prompt, sampled, (0.0,) * len(sampled), "stop", 0, message)
    results = [Message("tool", f"R{n}", tool_call_id=tool_call.id) for n, tool_call in enumerate(message.tool_calls)]
    later = (*ASKED, message, *results)
    stops = collect_stops(None, template._tokenizer, template)
    return sample, later, template.prompt(later, PreviousTurn(ASKED, sample, TOOLS), stops, TOOLS)


@pytest.mark.parametrize("name", ALL_FORMS)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("words", ["", "I look.\n"], ids=["bare", "words"])
def test_results_are_in_the_next_prompt_however_the_call_was_written(name, count, words):
    """Mistake: a template takes results, or the names in them, from the calls, and the turn is rendered without."""
    chat_template = template(ALL_FORMS[name])
    sample, later, final_after_results = after_results(
        chat_template, words + written(chat_template, TWO_CALLS[:count]), 259
    )
    results = [message.content for message in later if message.role == "tool"]
    # Bare JSON is no call after words, nor beside another call.
    assert results or words or not chat_template.tool_use.parallel
    shown = chat_template.decode(final_after_results.ids)
    assert all(shown.count(result) == 1 for result in results)
    if final_after_results.history != "new":
        stored = len(sample.prompt_ids + sample.token_ids)
        assert final_after_results.ids[:stored] == sample.prompt_ids + sample.token_ids
        # What follows is what the template writes after the turn.
        full = chat_template.render(later, True, TOOLS).removesuffix(words.strip())
        assert full.endswith(chat_template.decode(final_after_results.ids[stored:]))


@pytest.mark.parametrize(
    ("name", "follows"),
    [
        ("result in the turn of the call", "<tool_response>R0</tool_response>"),
        ("result after the turn of the call", "\n<|im_start|>tool\nR0<|im_end|>\n<|im_start|>assistant\n"),
        ("result before the words of its turn", "<|tool_response>response:find{R0}<tool_response|>"),
        ("name in the result", "\n<|im_start|>tool find\nR0<|im_end|>\n<|im_start|>assistant\n"),
        (
            "name from the call before",
            "\n<|im_start|>functions.find to=assistant\nR0<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "id in the result",
            "\n<|im_start|>tool\n## Return of functions.find:0\nR0<|im_end|>\n<|im_start|>assistant\n",
        ),
        ("a line after the call", "\n<|im_start|>tool\nR0<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_a_result_is_headed_as_the_template_heads_it_after_words_and_a_call(name, follows):
    chat_template = template(forms.RESULTS[name])
    sample, _, final_after_results = after_results(
        chat_template, "I look.\n" + written(chat_template, TWO_CALLS[:1]), 259
    )
    assert final_after_results.history == "realigned"
    assert chat_template.decode(final_after_results.ids[len(sample.prompt_ids + sample.token_ids) :]) == follows


def test_a_mark_that_ends_a_turn_of_calls_and_opens_results_is_in_the_prompt_once():
    """`<|tool_response>` of Gemma 4 is either sampled or written by the template."""
    chat_template = template(forms.RESULTS["result before the words of its turn"])
    (mark,) = chat_template.call_ends
    text = written(chat_template, TWO_CALLS[:1]).removesuffix("<|tool_response>")
    for end, follows in ((mark, ""), (259, "<|tool_response>")):
        for words in ("", "I look.\n"):
            sample, _, final_after_results = after_results(chat_template, words + text, end)
            appended = chat_template.decode(final_after_results.ids[len(sample.prompt_ids + sample.token_ids) :])
            assert appended == f"{follows}response:find{{R0}}<tool_response|>"


def test_two_calls_that_the_template_writes_in_two_turns_are_rendered_anew():
    """The template has the first result before the second call, so the turn cannot go on as it was sampled."""
    chat_template = template(forms.chat(forms.SINGLE + HERMES))
    text = '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>'
    _, later, final_after_results = after_results(chat_template, f"{text}{text}", 259)
    assert (final_after_results.history, final_after_results.ids) == (
        "new",
        chat_template.prompt_ids(later, None, STOPS, TOOLS),
    )
    assert [part[:2] for part in chat_template.decode(final_after_results.ids).split("<|im_start|>tool\n")[1:]] == [
        "R0",
        "R1",
    ]


CHANNELS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
HARMONY = (
    "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% if '<|channel|>' in m.content %}{{ raise_exception('channels') }}{% endif %}"
    "{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}{% if m.content or m.thinking %}<|start|>assistant"
    "<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>{% endif %}<|start|>assistant to=functions."
    "{{ c.name }}<|channel|>commentary json<|message|>{{ c.arguments | tojson }}<|call|>{% else %}<|start|>assistant"
    "<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}{% elif m.role == 'tool' %}<|start|>functions."
    "{{ m.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>{% else %}"
    "<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


# As the published template has it: what is said beside a call is thinking, and left out before a later answer.
FORGETFUL = (
    "{% set ns = namespace(final=-1) %}{% for m in messages %}{% if m.role == 'assistant' and not m.tool_calls %}"
    "{% set ns.final = loop.index0 %}{% endif %}{% endfor %}"
) + HARMONY.replace("{% if m.content or m.thinking %}", "{% if (m.content or m.thinking) and loop.index0 > ns.final %}")


def harmony(text: str = HARMONY) -> Template:
    tokenizer = forms.tokenizer(text)
    tokenizer.add_special_tokens({"additional_special_tokens": list(CHANNELS)})
    return Template(tokenizer)


def test_text_beside_calls_that_is_taken_for_thinking_is_a_message_of_its_own():
    chat_template = harmony(FORGETFUL)
    assert chat_template.tool_use.complete
    check_conversation(chat_template)
    message = (Message("assistant", "Let me.", (call({}, 0, "stop"),)), Message("tool", "1", tool_call_id="call_0"))
    shown = chat_template.render(
        (*ASKED, *message, Message("assistant", "Yes."), Message("user", "More.")), True, TOOLS
    )
    text = "<|start|>assistant<|channel|>final<|message|>Let me.<|end|>"
    assert f"{text}<|start|>assistant to=functions.stop" in shown


@pytest.mark.parametrize(
    ("expected", "content", "calls"),
    [
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.", "Yes.", []),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.find "
            '<|constrain|>json<|message|>{"word": "é"}<|call|>',
            "",
            [("find", '{"word": "é"}')],
        ),
        (' to=functions.find<|channel|>commentary json<|message|>{"word": "é"}', "", [("find", '{"word": "é"}')]),
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.stop"
            "<|message|>{}",
            "I look.",
            [("stop", "{}")],
        ),
        ("<|channel|>analysis<|message|>Hm.", "", []),
        ("<|channel|>analysis", "", []),
    ],
)
def test_channels_are_told_apart(expected, content, calls):
    chat_template = harmony()
    token_ids = tuple(chat_template._tokenizer(expected, add_special_tokens=False).input_ids)
    read = parse(chat_template, (), token_ids, TOOLS)
    assert (read.content, [(c.name, c.arguments) for c in read.tool_calls]) == (content, calls)
    assert read.thinking == ("Hm." if "Hm." in expected else "")
    assert chat_template.decode(token_ids) == expected
    shown = chat_template.render((*ASKED, Message("assistant", expected), Message("user", "More.")), True)
    assert "< |" not in shown
    assert "Hm." not in shown
    check_conversation(chat_template)


def ends(text, *added) -> set[str]:
    tokenizer = forms.tokenizer(text)
    tokenizer.add_special_tokens({"additional_special_tokens": list(added)})
    return {tokenizer.convert_ids_to_tokens(stop) for stop in collect_stops(None, tokenizer, Template(tokenizer))}


def ending(calls: str) -> str:
    return (
        f"{forms.OFFER}{{% for m in messages %}}{forms.OPEN}{{% if m.tool_calls %}}{calls}{{% else %}}"
        "{{ m.content }}"
        f"{forms.END}{{% endif %}}{{% endfor %}}{forms.LAST}"
    )


USUAL = {"<eos>", "<|im_end|>"}


def test_a_token_that_ends_turns_with_calls_alone_is_a_stop():
    assert ends(HARMONY, *CHANNELS) == {"<eos>", "<|end|>", "<|call|>"}
    kimi = forms.FORMS["kimi"]
    marks = ("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    assert ends(ending(kimi), *marks) == USUAL | {"<|tool_calls_section_end|>"}
    assert ends(ending(HERMES + "<|eom|>\n"), "<|eom|>") == USUAL | {"<|eom|>"}
    builtin = "{% if builtin_tools is defined %}<|eom_id|>{% endif %}"
    assert ends(forms.chat(HERMES) + builtin, "<|eom_id|>") == USUAL | {"<|eom_id|>"}


def test_marks_of_calls_are_no_stops():
    """Mistake: the end of the first of two calls ends the turn."""
    assert ends(ending(HERMES)) == USUAL
    assert ends(forms.chat(HERMES)) == USUAL
    assert ends(ending(forms.FORMS["llama bare"])) == USUAL
    assert ends(forms.chat(HERMES), "<|call|>", "<|eom_id|>") == USUAL


def test_a_turn_that_another_stop_ended_is_followed_by_the_opening_of_the_next():
    """Mistake: where the generation config names what opens a user's turn, that token was left out after others."""
    text = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tokenizer = forms.tokenizer(text)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>"]})
    template, (user, eos) = Template(tokenizer), tokenizer.convert_tokens_to_ids(["<|user|>", "<eos>"])
    prompt = template.prompt_ids(ASKED[1:], None, (eos, user))
    answer = tuple(tokenizer("Yes", add_special_tokens=False).input_ids)
    later = (ASKED[1], Message("assistant", "Yes"), Message("user", "More."))
    for last, opened in ((eos, 1), (user, 0)):
        sample = Sample("r", "p", "Yes", prompt, (*answer, last), (0.0,) * 4, "stop", 0)
        final_prompt_ids = template.prompt_ids(later, PreviousTurn(ASKED[1:], sample), (eos, user))
        assert final_prompt_ids[len(prompt) + 4 :].count(user) == opened


MAGISTRAL = (
    "{% if messages[0].role == 'system' %}[SYSTEM_PROMPT]{{ messages[0].content }}[/SYSTEM_PROMPT]{% endif %}"
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}"
    "[/TOOL_RESULTS]{% elif m.role == 'assistant' %}{{ m.content or '' }}{% for t in m.tool_calls or [] %}[TOOL_CALLS]"
    "{{ t.function.name }}[ARGS]{{ t.function.arguments | tojson }}{% endfor %}{{ eos_token }}{% endif %}{% endfor %}"
)
BRACKETS = ("SYSTEM_PROMPT", "AVAILABLE_TOOLS", "INST", "TOOL_RESULTS", "THINK")


def magistral() -> Template:
    tokenizer = forms.tokenizer(MAGISTRAL)
    marks = [f"[{slash}{name}]" for name in BRACKETS for slash in ("", "/")]
    tokenizer.add_special_tokens({"additional_special_tokens": [*forms.SPECIAL, "<|im_start|>", "<|im_end|>", *marks]})
    return Template(tokenizer)


def test_thinking_of_magistral_is_told_apart_as_other_thinking_is():
    chat_template = magistral()
    created = '[TOOL_CALLS]find[ARGS]{"word": "a"}'

    def read(text: str, tools=TOOLS) -> Message:
        return parse(
            chat_template, (), tuple(chat_template._tokenizer(text, add_special_tokens=False).input_ids), tools
        )

    assert read("[THINK]So.[/THINK]Yes.", ()) == Message("assistant", "Yes.", thinking="So.")
    assert read(f"[THINK]Perhaps {created}[/THINK]No.") == Message("assistant", "No.", thinking=f"Perhaps {created}")
    assert read(f"[THINK]Perhaps {created}").tool_calls == ()
    called = read(f"[THINK]So.[/THINK]Look. {created}")
    assert (called.content, [c.name for c in called.tool_calls]) == ("Look.", ["find"])
    assert called.thinking == "So."
    twice = read("Well. [THINK]So.[/THINK]Yes.[THINK]And", ())
    assert twice == Message("assistant", "Well. Yes.", thinking="So.\nAnd")
    own_message, other_message = (Message(role, "[THINK]So.[/THINK]Yes.") for role in ("assistant", "user"))
    shown = chat_template.render((ASKED[1], own_message, other_message), True)
    assert shown == "[INST]Go.[/INST][THINK]So.[/THINK]Yes.<eos>[INST][ THINK]So.[ /THINK]Yes.[/INST]"
    assert chat_template.extends
    check_conversation(chat_template)


def test_calls_and_results_in_words_keep_sounds_and_images():
    sounds = (Sound("d", 16_000, 1, b""),)
    result = Message("tool", "a beat", tool_call_id="call_0", sounds=sounds)
    message = Message("assistant", "I listen.", (call(HARD), call(HARD, 1)), sounds=sounds)
    called, returned = write_tools_as_text([message, result], ())
    assert returned == Message("user", "<tool_response>a beat</tool_response>", sounds=sounds)
    assert called.sounds == sounds
    first, second = split_parallel_calls([message])
    assert (first, second) == (replace(message, tool_calls=(call(HARD),)), Message("assistant", "", (call(HARD, 1),)))


def test_a_call_that_is_none_is_told_to_the_model():
    """Mistake: the text counts as the answer, and the model never learns what was wrong with it."""
    hermes, bare = template(forms.chat(HERMES)), template(forms.chat(forms.FORMS["llama bare"]))
    pythonic = template(forms.chat(forms.FORMS["pythonic"]))

    def told(template: Template, text: str) -> str:
        return template.parse_answer((), ids(template, text), TOOLS)[1]

    unreadable = told(hermes, '<tool_call>{"name": "find", "arguments": {"word": "x"</tool_call>')
    assert "cannot be read (Expecting ',' delimiter" in unreadable
    assert '"word": "..."' in unreadable
    assert "\n" not in unreadable.removeprefix("The call").partition("; expected")[0]
    assert told(hermes, '<tool_call>{"name": "seek", "arguments": {}}</tool_call>') == (
        "There is no tool seek; expected one of find, stop."
    )
    error_text = told(hermes, '<tool_call>{"name": "find", "word": "x"}</tool_call>')
    assert "cannot be read (word stands outside of arguments)" in error_text
    assert told(hermes, '<tool_call>{"id": "a", "name": "stop"}</tool_call>') == ""
    assert told(hermes, '<tool_call>{"name": "find", "arguments": [1]}</tool_call>').startswith(
        "The arguments of find are no JSON object"
    )
    assert "cannot be read" in told(bare, '{"name": "find", "parameters": {"word": ')
    # The same in every run: Python's own error has the address of the expression in memory.
    assert "cannot be read (x + y is no JSON value)" in told(pythonic, "[find(word=x + y)]")
    assert told(bare, '{"name": "seek", "parameters": {}}').startswith("There is no tool seek")
    assert told(harmony(), "<|channel|>commentary to=functions.seek<|message|>{}<|call|>").startswith(
        "There is no tool"
    )
    for answer in ("42", "[R, stop]", '{"answer": 4}', "I would call find(x)."):
        assert (told(hermes, answer), told(bare, answer)) == ("", "")


@pytest.mark.parametrize("name", forms.FORMS)
def test_a_call_without_arguments_is_one_of_no_arguments(name):
    """Clients write "" for them, which templates do not take for an object."""
    chat_template = template(forms.chat(forms.FORMS[name]))
    empty = ToolCall("call_0", "find", "")
    assert written(chat_template, (empty,)) == written(chat_template, (call({}),))
    sample = Sample("a", "p", "", (), (), (), "stop", 0, Message("assistant", "", (call({}),)))
    assert is_sampled_message(Message("assistant", "", (empty,)), sample)


UNIONS = Tool(
    "set",
    "Sets.",
    {
        "type": "object",
        "properties": {
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "listed": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "one": {"enum": ["1", "2"]},
            "fixed": {"const": "7"},
            "named": {"$ref": "#/$defs/Name"},
            "all": {"allOf": [{"$ref": "#/$defs/Name"}]},
            "table": {"anyOf": [{"type": "object"}, {"type": "string"}]},
            "share": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "free": {},
            "loop": {"$ref": "#/$defs/Loop"},
        },
        "$defs": {"Name": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}},
    },
)


@pytest.mark.parametrize("name", ["qwen coder", "glm", "minimax"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"maybe": "123"}, {"maybe": '"q"'}, {"maybe": '{"a": 1}'}, {"maybe": None}, {"listed": "true"}, {"one": "1"},
        {"either": 12}, {"either": "twelve"}, {"fixed": "7"}, {"named": "42"}, {"all": "42"}, {"table": {"a": [1]}},
        {"table": "[1]"}, {"share": 0.5}, {"share": 2}, {"share": None}, {"free": 3}, {"loop": 3},
    ],
)  # fmt: skip
def test_unquoted_arguments_have_a_type_that_the_schema_allows(name, arguments):
    """A text of digits stays a text where the argument is optional (vllm-project/vllm#37831)."""
    chat_template, calls = template(forms.chat(forms.FORMS[name])), (call(arguments, name="set"),)
    initial = chat_template.render(ASKED, True, [UNIONS])
    answer = chat_template.render((*ASKED, Message("assistant", "", calls)), False, [UNIONS]).removeprefix(initial)
    read = parse(chat_template, (), ids(chat_template, answer.removesuffix("\n").removesuffix("<|im_end|>")), [UNIONS])
    assert [json.loads(c.arguments) for c in read.tool_calls] == [arguments]


@pytest.mark.parametrize("name", forms.FORMS)
def test_a_call_that_is_cut_off_is_not_made_without_its_later_arguments(name):
    """Between two arguments a notation of tags looks whole (ahwurm/localharness#77)."""
    chat_template, arguments = template(forms.chat(forms.FORMS[name])), {"word": "paper", "many": 3}
    answer = written(chat_template, (call(arguments),))
    for end in range(1, len(answer)):
        read = parse(chat_template, (), ids(chat_template, answer[:end]), TOOLS)
        assert [json.loads(c.arguments) for c in read.tool_calls] in ([], [arguments]), answer[:end]
