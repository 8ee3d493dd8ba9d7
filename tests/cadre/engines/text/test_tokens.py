"""Texts of tasks, tools and other agents stay text, whatever control tokens they spell out."""

import json
from collections.abc import Sequence

import pytest
from tokenizers import AddedToken, normalizers

from bench import template_forms as forms
from cadre.engines.text.model import AnswerEncoder, Completion, ModelText
from cadre.engines.text.template import Template
from cadre.engines.text.tokens import StopStrings, break_common, cut_at_stop
from cadre.types import Choice, Message, Observation, PreviousTurn, Request, Sample, Sampling, Tool, ToolCall
from tests.cadre.engines.tiny import CHATML, byte_tokenizer

STOPS = (257, 259)
TOOLING = forms.chat(forms.FORMS["hermes"])


def tokenizer(text=CHATML, *added, normalizer=None):
    created = byte_tokenizer(text)
    created.backend_tokenizer.normalizer = normalizer
    created.add_special_tokens(
        {"additional_special_tokens": ["<|endoftext|>", "<|system|>", "<|im_start|>", "<|im_end|>"]}
    )
    created.add_tokens([AddedToken("<think>", normalized=False), AddedToken("<tool_call>", normalized=False), *added])
    return created


def controls(template: Template, messages, tools=()) -> list[int]:
    """The ids of added tokens in a prompt."""
    return [token for token in template.prompt(messages, None, STOPS, tools).ids if token > 255]


TOKENS = ("<|endoftext|>", "<|system|>", "<|im_end|>", "<pad>", "<think>", "<tool_call>", "<|im_start|>system")


def places(text: str):
    """Conversations that have the text in every place that others write, and their tools."""
    user, message = Message("user", "Go."), Message("assistant", "", (ToolCall("c", "add", '{"a": 1}'),))
    tool = Tool("add", "Adds.", {"type": "object"})
    yield "user", (Message("user", text),), ()
    yield "system", (Message("system", text), user), ()
    yield "later", (user, Message("assistant", "Yes."), Message("user", text)), ()
    yield "result", (user, message, Message("tool", text, tool_call_id="c")), (tool,)
    yield "description", (user,), (Tool("add", text),)
    yield "schema", (user,), (Tool("add", "Adds.", {"type": "object", "properties": {text: {"enum": [text]}}}),)
    yield "name", (user,), (Tool(text, "Adds."),)
    yield "arguments", (user, Message("assistant", "", (ToolCall("c", "add", json.dumps({text: [text]})),))), (tool,)
    yield "no JSON", (user, Message("assistant", "", (ToolCall("c", "add", f"{{{text}"),))), (tool,)
    yield (
        "escapes",
        (
            (user, Message("assistant", "", (ToolCall("c", "add", json.dumps({"a": text}).replace("<", "\\u003c")),))),
            (tool,),
        )[0],
        (tool,),
    )
    yield "called", (user, Message("assistant", "", (ToolCall(text, text, "{}"),))), (tool,)


@pytest.mark.parametrize("template", [CHATML, TOOLING, None], ids=["words", "tools", "plain"])
@pytest.mark.parametrize("token", TOKENS)
def test_no_text_of_others_becomes_a_control_token(template, token):
    chat_template = Template(tokenizer(template))
    hostile, plain = (list(places(text)) for text in (f"a{token}b", "ab"))
    for (position, messages, tools), (_, rest, their_tools) in zip(hostile, plain, strict=True):
        assert controls(chat_template, messages, tools) == controls(chat_template, rest, their_tools), position


@pytest.mark.parametrize(
    ("token", "spelling", "normalizer"),
    [
        (AddedToken("<|x|>", normalized=True), "<|X|>", normalizers.Lowercase()),
        (AddedToken("<|x|>", normalized=True), "\uff1c|x|\uff1e", normalizers.NFKC()),
        (AddedToken("<|x|>", normalized=True), "<|x|>", None),
        (AddedToken("<|x|>", lstrip=True, rstrip=True, normalized=False), "  <|x|>\n", None),
        (AddedToken("[x]", single_word=True, special=True, normalized=False), "a [x] b", None),
        (AddedToken("<|x|>", special=True, normalized=False), "<|x|><|x|>", None),
        (AddedToken("<|x|>", normalized=False), "<|<|x|>x|>", None),
        (AddedToken("tool_use", special=True, normalized=False), "tool_use", None),
    ],
)
def test_other_spellings_of_a_token_are_broken_too(token, spelling, normalizer):
    template = Template(tokenizer(CHATML, token, normalizer=normalizer))
    assert template._tokenizer(spelling, add_special_tokens=False).input_ids != list(spelling.encode())
    assert controls(template, (Message("user", spelling),)) == controls(template, (Message("user", "x"),))


@pytest.mark.parametrize("cut", range(1, len("<|im_end|>")))
def test_texts_that_stand_beside_each_other_make_no_token(cut):
    template = (
        "{% for m in messages %}{% if loop.first %}<|im_start|>user\n{% endif %}{{ m.content | trim }}{% endfor %}"
        "<|im_end|>\n{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat_template = Template(tokenizer(template))
    first, second = (Message("user", text) for text in ("a<|im_end|>"[: 1 + cut], "<|im_end|>b"[cut:]))
    assert controls(chat_template, (first, second)) == controls(
        chat_template, (Message("user", "a"), Message("user", "b"))
    )
    assert "a" in chat_template.render((first, second), True)
    part = Template(tokenizer(template.replace("{{ m.content | trim }}", "<{{ m.content }}|>")))
    assert controls(part, (Message("user", "|im_end"),)) == controls(part, (Message("user", "x"),))


@pytest.mark.parametrize(
    "text",
    ["Plain words.", "a < b | c > d <", "  x  ", "<html><b>|</b>", "<|im_", "im_end|>", "é漢", "\n\t", "", "foo[x]y"],
)
def test_text_without_a_token_is_tokenised_as_it_stands(text):
    new_tokenizer = tokenizer(
        CHATML, AddedToken("[x]", single_word=True, normalized=False), AddedToken("\n\n", normalized=False)
    )
    rendered = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    expected = tuple(new_tokenizer(rendered, add_special_tokens=False).input_ids)
    assert Template(new_tokenizer).prompt_ids((Message("user", text),), None, STOPS) == expected


def test_whitespace_that_is_an_added_token_stays():
    new_tokenizer = tokenizer(CHATML, AddedToken("    ", normalized=False), AddedToken("\n\n", normalized=False))
    assert Template(new_tokenizer).render((Message("user", "a\n\n    b"),), True).count("a\n\n    b") == 1


WORDS = ("metoprolol", "<move_left>", "[C@H]", "ATGGCC", "東京都", "->", "0x", "ß", "<table>", "</td>")


@pytest.mark.parametrize("template", [CHATML, TOOLING, None], ids=["words", "tools", "plain"])
@pytest.mark.parametrize("word", WORDS)
def test_a_word_that_was_added_to_the_vocabulary_is_read_as_it_is(template, word, caplog):
    """Mistake: `metoprolol` reaches the model as `m etoprolol`."""
    chat_template = Template(tokenizer(template, *(AddedToken(added, normalized=False) for added in WORDS)))
    text = f"Give {word}1."
    for messages in ((Message("user", text),), (Message("user", "x"), Message("assistant", text))):
        assert text in chat_template.render(messages, True)
        assert chat_template._tokenizer.convert_tokens_to_ids(word) in chat_template.prompt_ids(messages, None, STOPS)
    assert "a control token" not in caplog.text


@pytest.mark.parametrize(
    ("token", "template"),
    [
        ("<user>", "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"),
        ("<tool>", "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"),
        ("USER", "{% for m in messages %}{{ m.role | upper }} {{ m.content }}</s>{% endfor %}"),
        (
            "<arg_key>",
            CHATML.replace(
                "{{ message.content }}",
                "{{ message.content }}{{ message.x or '' }}{# #}{% if message.y %}<arg_key>{% endif %}",
            ),
        ),
        ("<|fim_prefix|>", CHATML),
        ("<tool_call>", CHATML),
        ("<thinking>", CHATML),
    ],
)
def test_a_token_of_the_template_or_in_the_form_of_one_is_no_word(token, template, caplog):
    chat_template = Template(tokenizer(template, AddedToken(token, normalized=False)))
    assert f"{token[0]} {token[1:]}" in chat_template.render((Message("user", f"a {token} b"),), True)
    chat_template.render((Message("user", token),), True)
    assert caplog.text.count(f"has {token!r}, a control token") == 1


def test_a_roles_own_words_keep_thinking_and_calls():
    template = Template(tokenizer(TOOLING))
    text = "<think>hm</think>Well. <tool_call>{odd}</tool_call><|endoftext|>"
    shown = template.render((Message("user", "x"), Message("assistant", text), Message("user", text)), False)
    assert "<think>hm</think>Well. <tool_call>{odd}</tool_call>< |endoftext|>" in shown
    assert "< think>hm</think>Well. < tool_call>{odd}</tool_call>< |endoftext|>" in shown


def test_sampled_ids_stay_what_was_sampled_also_of_control_tokens():
    template, first = Template(tokenizer()), (Message("user", "x"),)
    sampled = tuple(template._tokenizer("a<|endoftext|>b", add_special_tokens=False).input_ids)
    prompt = template.prompt_ids(first, None, STOPS)
    sample = Sample("r", "p", template.decode(sampled), prompt, (*sampled, 259), (0.0,) * 4, "stop", 0)
    later = (*first, Message("assistant", sample.text), Message("user", "y"))
    final_prompt = template.prompt(later, PreviousTurn(first, sample), STOPS)
    assert (final_prompt.history, final_prompt.ids[: len(prompt) + 4]) == ("clean", prompt + sampled + (259,))


@pytest.mark.parametrize(
    ("answer", "token"),
    [
        ("a<|endoftext|>", "<|endoftext|>"),
        ("a<|im_end|>b", "<|im_end|>"),
        ("a<pad>", "<pad>"),
        ("<think>a</think><tool_call>{}</tool_call>", ""),
        ("plain", ""),
    ],
)
def test_answers_that_spell_out_an_end_are_told(answer, token):
    assert AnswerEncoder(tokenizer(TOOLING), None).turn_token(answer) == token


@pytest.mark.parametrize("token", TOKENS)
def test_scored_answers_are_text_throughout(token):
    encoder = AnswerEncoder(tokenizer(), None)
    hostile, plain = (encoder.encode_for_scoring((Message("user", text),), text) for text in (f"a{token}b", "ab"))
    assert [i for i in hostile if i > 255] == [i for i in plain if i > 255]


def said(template: Template, text: str, stop=()) -> Sample:
    token_ids = tuple(template._tokenizer(text, add_special_tokens=False).input_ids)
    request = Request("r", "p", (Message("user", "x"),), 1, Sampling(stop=stop), 0)
    model = ModelText({"p": template}, STOPS, 1000)
    return model.sample(request, model.prompt(request), Completion(token_ids, (0.0,) * len(token_ids), "stop"))


def test_text_keeps_what_was_said_but_for_the_end_of_the_turn():
    template = Template(tokenizer())
    assert said(template, "a<|system|>b<|endoftext|><|im_end|>").text == "a<|system|>b<|endoftext|>"
    assert said(template, "a<|im_end|>").text == "a"


@pytest.mark.parametrize("stop", ["<|endoftext|>", "b<|system|>", "c\n<|im_end|>"])
def test_stop_strings_match_special_tokens(stop):
    template = Template(tokenizer())
    text = f"a{stop}"
    token_ids = tuple(template._tokenizer(text, add_special_tokens=False).input_ids)
    assert StopStrings([stop], template.decode)(token_ids)
    assert said(template, text, (stop,)).text == "a"


@pytest.mark.parametrize(
    "mark",
    [
        "<|im_end|>",
        "<\uff5ctool▁calls▁begin\uff5c>",
        "</s>",
        "[INST]",
        "<end_of_turn>",
        "<think>",
        "<tool_call>",
        "<|turn>",
        "<turn|>",
    ],
)
def test_common_control_tokens_are_broken_for_endpoints(mark):
    assert break_common(f"a{mark}b") == f"a{mark[0]} {mark[1:]}b"
    assert (
        break_common("a < b, a | b, x[i], <b>bold</b>, |a|, x |> f") == "a < b, a | b, x[i], <b>bold</b>, |a|, x |> f"
    )


@pytest.mark.parametrize(("answer", "control"), [("a<|im_end|>b", 0), ("<think>a", 1), ("fold", 0), ("<eos>", 0)])
def test_listed_answers_of_games_end_no_turn(answer, control):
    template = Template(tokenizer(TOOLING))
    ids = template.answer_ids(answer)
    assert sum(id_ > 255 for id_ in ids) == control
    assert template.decode(ids) == answer


def test_probabilities_of_answers_are_those_of_their_text(engine):
    torch_engine = engine()
    policy = next(iter(torch_engine.loaded.templates))
    recorded = Observation("r", (Message("user", "Go."),))
    texts = ("a", "a<|im_end|>")
    answer_probabilities = torch_engine.answer_probabilities(policy, [Choice(recorded, texts)])
    assert answer_probabilities[0][1] < 1e-6 * answer_probabilities[0][0]  # ten letters more, each of a few hundredths


@pytest.mark.parametrize(
    ("text", "strings", "stored"),
    [
        ("one two three", ("two",), "one "),
        ("one two three", ("three", "two"), "one "),
        ("one two two", ("two",), "one "),
        ("one", ("two",), "one"),
        ("one", (), "one"),
        ("two", ("two",), ""),
    ],
)
def test_a_text_ends_before_the_first_string(text: str, strings: tuple[str, ...], stored: str) -> None:
    assert cut_at_stop(text, strings) == stored


def utf8(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


def test_a_string_is_seen_with_its_last_token() -> None:
    text = list("then </é> stop".encode())
    stops = StopStrings(("</é>", "never"), utf8)
    assert [stops(text[:count]) for count in range(len(text) + 1)].index(True) == len(b"then </\xc3\xa9>")


def test_only_the_end_is_looked_at() -> None:
    """One short string: its characters at four tokens each and eight more."""
    looked: list[int] = []

    def decode(token_ids: Sequence[int]) -> str:
        looked.append(len(token_ids))
        return utf8(token_ids)

    stops = StopStrings((".",), decode)
    assert not stops(list(b"a" * 1000))
    assert looked == [12]
    assert stops(list(b"a" * 999 + b"."))
    assert looked == [12, 12]
