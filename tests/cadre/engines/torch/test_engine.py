"""The engine as a whole: what it refuses, what it saves, and the model in the package."""

import asyncio
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.errors import EngineError
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import request, sample, update
from tests.helpers.learners import rollouts, weights
from tests.helpers.slow import few_of
from tests.helpers.templates import THINKING


@pytest.mark.parametrize("architecture", few_of(["llama", "gemma3"], ["gemma3"]))
def test_saved_training_goes_on_to_the_bit(learner, tmp_path, architecture):
    settings = {"learning_rate": 1e-2, "minibatches": 2, "warmup_steps": 3, "schedule": "cosine"}
    straight = learner(architecture, **settings)
    for _ in range(4):
        update(straight, rollouts(straight))
    first = learner(architecture, **settings)
    for _ in range(2):
        update(first, rollouts(first))
    first.save(tmp_path)
    second = learner(architecture, **settings)
    second.load(tmp_path)
    for _ in range(2):
        update(second, rollouts(second))
    assert all(torch.equal(weights(straight)[name], value) for name, value in weights(second).items())
    assert sample(second, request("x"))[0][0].version == 4


def test_saved_policies_load_without_cadre(learner, tmp_path):
    torch_learner = learner(learning_rate=1e-2)
    update(torch_learner, rollouts(torch_learner))
    torch_learner.save(tmp_path)
    assert not list(tmp_path.rglob("*.bin"))
    assert not list(tmp_path.rglob("*.pt"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "p")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "p")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], add_generation_prompt=True)["input_ids"]
    ((completion,),) = sample(torch_learner, request("x", temperature=0.0))
    assert tuple(ids) == completion.prompt_ids
    with torch.no_grad():
        assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == completion.token_ids[0]


def test_frozen_policies_play_and_are_not_trained(folders):
    policy = tiny.policy(folders["llama"], frozen=True)
    torch_engine = TorchEngine(folders["llama"], {"judge": policy}, 0)
    samples = asyncio.run(torch_engine.sample(request("x", 2, policy="judge")))
    assert len(samples) == 2
    assert TorchLearner(torch_engine, TrainingSettings({})).policies == ()
    torch_engine.close()


def test_policies_of_one_base_think_each_as_told(tmp_path):
    folder = tiny.build(tmp_path / "model", template=THINKING)
    policies = {
        name: tiny.policy(folder, frozen=True, enable_thinking=on) for name, on in (("on", True), ("off", None))
    }
    torch_engine = TorchEngine(folder, policies, 0)
    thoughtless = torch_engine.tokenizer("<think></think>", add_special_tokens=False).input_ids
    for name, ids in (("on", []), ("off", thoughtless)):
        (completion,) = asyncio.run(torch_engine.sample(request("x", policy=name)))
        assert list(completion.prompt_ids)[-len(thoughtless) :][: len(ids)] == ids
        assert torch_engine.encode(name, request("x").messages) == completion.prompt_ids
    torch_engine.close()


def test_a_device_that_is_not_there_is_refused(folders):
    with pytest.raises(EngineError, match=r"got 'cuda:99', and this machine has .*; expected one of them, or auto"):
        TorchEngine(folders["llama"], {"p": tiny.policy(folders["llama"], device="cuda:99")}, 0)


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
    torch_engine = engine()
    with pytest.raises(EngineError, match=r"'r'.*522 tokens.*512"):
        sample(torch_engine, request("x" * 503))


def test_a_completion_is_cut_at_the_end_of_the_context(engine):
    torch_engine = engine()
    ((completion,),) = sample(torch_engine, request("x" * 480, max_tokens=100))
    assert len(completion.prompt_ids) + len(completion.token_ids) <= 512
    assert completion.finish == "length" or len(completion.token_ids) < 6


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
