"""The engine as a whole: what it refuses, what it saves, and the model in the package."""

import asyncio
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cadre.engines.torch import TorchEngine
from cadre.errors import EngineError
from cadre.sections import LossConfig, PolicyConfig
from tests.engines import tiny
from tests.engines.test_learner import rollouts, weights
from tests.engines.tiny import request, sample


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_saved_training_goes_on_to_the_bit(engine, tmp_path, architecture):
    settings = {"learning_rate": 1e-2, "minibatches": 2, "warmup_steps": 3, "schedule": "cosine"}
    straight = engine(architecture, **settings)
    for _ in range(4):
        straight.update(rollouts(straight))
    first = engine(architecture, **settings)
    for _ in range(2):
        first.update(rollouts(first))
    first.save(tmp_path)
    second = engine(architecture, **settings)
    second.load(tmp_path)
    for _ in range(2):
        second.update(rollouts(second))
    assert all(torch.equal(weights(straight)[name], value) for name, value in weights(second).items())
    assert sample(second, request("x"))[0][0].version == 8


def test_saved_policies_load_without_cadre(engine, tmp_path):
    mine = engine(learning_rate=1e-2)
    mine.update(rollouts(mine))
    mine.save(tmp_path)
    assert not list(tmp_path.rglob("*.bin"))
    assert not list(tmp_path.rglob("*.pt"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "p")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "p")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], add_generation_prompt=True)["input_ids"]
    ((drawn,),) = sample(mine, request("x", temperature=0.0))
    assert tuple(ids) == drawn.prompt_ids
    with torch.no_grad():
        assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == drawn.token_ids[0]


def test_frozen_policies_play_and_are_not_trained(folders, tmp_path):
    policy = PolicyConfig(model=str(folders["llama"]), frozen=True)
    mine = TorchEngine(folders["llama"], {"judge": policy}, {}, LossConfig(), 1, 0, "cpu")
    drawn = asyncio.run(mine.sample(request("x", 2, policy="judge")))
    assert len(drawn) == 2
    assert mine.policies == ()
    mine.save(tmp_path)
    assert not list(tmp_path.iterdir())
    mine.close()


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_a_missing_model_is_named(name):
    with pytest.raises(EngineError, match=r"was not found.*Check the path"):
        tiny.engine(name)


def test_a_folder_without_weights_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(EngineError, match=r"has no \*\.safetensors"):
        tiny.engine(tmp_path)


def test_a_prompt_that_does_not_fit_names_role_and_counts(engine):
    mine = engine()
    with pytest.raises(EngineError, match=r"'r'.*522 tokens.*512"):
        sample(mine, request("x" * 503))


def test_a_completion_is_cut_at_the_end_of_the_context(engine):
    mine = engine()
    ((drawn,),) = sample(mine, request("x" * 480, max_tokens=100))
    assert len(drawn.prompt_ids) + len(drawn.token_ids) <= 512
    assert drawn.finish == "length" or len(drawn.token_ids) < 6


def test_a_policy_that_is_not_held_is_named(engine):
    with pytest.raises(EngineError, match=r"'other'.*holds p"):
        sample(engine(), request("x", policy="other"))


def test_layers_of_an_unknown_kind_are_refused(tmp_path):
    folder = tiny.build(tmp_path / "odd", "qwen3")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"full_attention"', '"chunked_attention"'))
    with pytest.raises(EngineError, match="chunked_attention"):
        tiny.engine(folder)


def test_code_that_ships_with_a_checkpoint_does_not_run(tmp_path):
    folder = tiny.build(tmp_path / "model")
    ran = tmp_path / "ran"
    (folder / "evil.py").write_text(
        f"import pathlib\npathlib.Path({str(ran)!r}).touch()\n"
        "from transformers import LlamaConfig\nclass Evil(LlamaConfig):\n    model_type = 'evil'\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match="trust_remote_code"):
        tiny.engine(folder)
    assert not ran.exists()
