"""First prompts as a model reads them: what its template refuses or leaves out, and what is too long."""

from pathlib import Path

import pytest

from bench import template_forms as forms
from cadre.config.estimate import render_first_prompts
from cadre.errors import EngineError
from cadre.types import Message, Tool
from tests.cadre.engines import tiny

STRICT = (
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant must alternate') }}{% endif %}[{{ message.content }}]{% endfor %}"
)
DEAF = "{% for message in messages if message.role != 'assistant' %}<{{ message.content }}>{% endfor %}"


def model(folder: Path, template: str = tiny.CHATML, context: int = 512) -> str:
    """A model folder with this template."""
    return str(tiny.build(folder, template=template, max_position_embeddings=context))


def test_a_prompt_is_shown_as_the_model_reads_it(tmp_path: Path) -> None:
    shown, faults = render_first_prompts({"planner": (Message("user", "Go."),)}, model(tmp_path), "tiny")
    assert shown["planner"].text == "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
    assert shown["planner"].tokens == 1 + 5 + 3 + 1 + 1 + 1 + 10
    assert faults == []


def test_what_the_template_refuses_is_told_by_role(tmp_path: Path) -> None:
    prompts = {"planner": (Message("user", "a"), Message("user", "b")), "worker": (Message("user", "c"),)}
    shown, faults = render_first_prompts(prompts, model(tmp_path, STRICT), "tiny")
    assert list(shown) == ["worker"]
    (fault,) = faults
    assert fault.startswith("planner: The model's chat template refuses the conversation: user and assistant must")
    assert "Got messages by user, user" in fault


def test_what_the_template_leaves_out_is_told(tmp_path: Path) -> None:
    prompts = {"planner": (Message("user", "a"), Message("assistant", "mine"), Message("user", "b"))}
    (fault,) = render_first_prompts(prompts, model(tmp_path, DEAF), "tiny")[1]
    assert fault.startswith("planner: the template of tiny leaves out the message by assistant that begins 'mine'")


def test_a_prompt_that_fills_the_context_is_told(tmp_path: Path) -> None:
    (fault,) = render_first_prompts({"planner": (Message("user", "Go."),)}, model(tmp_path, context=22), "tiny")[1]
    assert "has 22 tokens; expected fewer than the 22 that tiny reads" in fault


def test_a_folder_without_a_tokenizer_is_one_paragraph(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineError, match="cannot be loaded") as raised:
        render_first_prompts({}, str(tmp_path), "tiny")
    assert "\n" not in str(raised.value)


FORGETFUL = forms.OFFER + "{% set messages = messages[-2:] %}" + forms.chat(forms.FORMS["hermes"], offer="")


def test_a_template_that_forgets_calls_is_told_where_tools_are_offered(tmp_path: Path) -> None:
    prompts, source = {"planner": (Message("user", "Go."),)}, model(tmp_path, FORGETFUL)
    (fault,) = render_first_prompts(prompts, source, "tiny", {"planner": (Tool("find", "Finds."),)})[1]
    assert fault.startswith("planner: The chat template of")
    assert "leaves out parts of a conversation with tools" in fault
    assert render_first_prompts(prompts, source, "tiny")[1] == []


def test_a_first_prompt_is_shown_with_its_tools(tmp_path: Path) -> None:
    prompts, source = {"planner": (Message("user", "Go."),)}, model(tmp_path, forms.chat(forms.FORMS["hermes"]))
    prompt = render_first_prompts(prompts, source, "tiny", {"planner": (Tool("find", "Finds."),)})[0]["planner"]
    assert "Finds." in prompt.text
    assert prompt.tokens > 50
