"""A policy that begins from an adapter writes its prompts as the adapter was trained on, by the template beside it."""

import json
import logging

import pytest

from cadre.engines.text.model import AnswerEncoder
from cadre.engines.torch import TorchEngine
from cadre.errors import EngineError
from cadre.settings import LoraConfig
from cadre.types import Message
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import request, sample

OWN = tiny.CHATML.replace("<|im_start|>{{ message.role }}\n", "<|im_start|>{{ message.role | upper }}: ")
OTHER_END = "{% for message in messages %}{{ message.role }} {{ message.content }}<pad>{% endfor %}"


@pytest.fixture
def adapter(team, tmp_path):
    """A folder of an adapter as PEFT's and transformers' `save_pretrained` leave it, with the base's template."""
    team({"p": 4}).export("p", tmp_path / "px")
    return tmp_path / "px"


def engine(folder, adapter):
    lora = LoraConfig(rank=4, alpha=8.0, path=str(adapter))
    policies = {"fresh": tiny.policy(folder, lora=LoraConfig(rank=4)), "begun": tiny.policy(folder, lora=lora)}
    return TorchEngine(folder, policies, 0)


def prompt(created, policy):
    return created.tokenizer.decode(sample(created, request("go", policy=policy))[0][0].prompt_ids)


@pytest.mark.parametrize("position", ["chat_template.jinja", "tokenizer_config.json", "by name"])
def test_the_adapters_own_template_is_used_for_its_policy_alone(folders, adapter, position, caplog):
    if position == "tokenizer_config.json":
        (adapter / "chat_template.jinja").unlink()
        described = json.loads((adapter / position).read_text())
        (adapter / position).write_text(json.dumps({**described, "chat_template": OWN}))
    else:
        (adapter / "chat_template.jinja").write_text(OWN)
    if position == "by name":
        (adapter / "additional_chat_templates").mkdir()
        (adapter / "additional_chat_templates" / "tool_use.jinja").write_text(tiny.CHATML)
    with caplog.at_level(logging.INFO):
        torch_engine = engine(folders["llama"], adapter)
    assert f"by the chat template of the adapter in {adapter}" in caplog.text
    assert prompt(torch_engine, "fresh") == "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    assert prompt(torch_engine, "begun") == "<|im_start|>USER: go<|im_end|>\n<|im_start|>assistant\n"
    torch_engine.close()


def test_the_end_of_its_turns_ends_them(folders, adapter):
    (adapter / "chat_template.jinja").write_text(OTHER_END)
    torch_engine = engine(folders["llama"], adapter)
    assert torch_engine.loaded.stops == (256, 257, 259)
    torch_engine.close()


def test_the_same_template_is_shared(folders, adapter):
    torch_engine = engine(folders["llama"], adapter)
    assert torch_engine.loaded.templates["begun"].render([Message("user", "x")], True) == torch_engine.loaded.templates[
        "fresh"
    ].render([Message("user", "x")], True)
    torch_engine.close()


def test_a_warm_start_writes_examples_so_too(folders, adapter):
    (adapter / "chat_template.jinja").write_text(OWN)
    encoder = AnswerEncoder.of(str(folders["llama"]), adapter=str(adapter))
    ids, _ = encoder.encode((Message("user", "go"),), "yes")
    assert ids == engine_prompt(folders["llama"], adapter)


def engine_prompt(folder, adapter):
    torch_engine = engine(folder, adapter)
    ids = torch_engine.encode("begun", (Message("user", "go"),))
    torch_engine.close()
    return ids


def test_a_template_that_cannot_be_read(folders, adapter):
    (adapter / "chat_template.jinja").unlink()
    (adapter / "tokenizer_config.json").write_text("{")
    with pytest.raises(EngineError, match=r"The tokenizer of .*px. cannot be loaded"):
        engine(folders["llama"], adapter)
