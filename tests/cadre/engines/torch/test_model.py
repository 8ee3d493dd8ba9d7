"""Models are loaded one at a time, and checked when they are."""

import json
import shutil
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import families
from cadre.engines.model_folder import check_folder
from cadre.engines.torch import model as model_module
from cadre.errors import EngineError, PromptError
from cadre.settings import PolicyConfig
from cadre.types import Message, TrainingSequence
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import request, sample, update


def test_no_two_models_load_at_the_same_time(speaker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers puts its changes to torch back when it has loaded; the second of two would put back the first's."""
    inside: list[int] = []
    most: list[int] = []
    load = model_module.AutoModelForCausalLM.from_pretrained

    def slowly(*arguments: Any, **options: Any) -> Any:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        model = load(*arguments, **options)
        inside.pop()
        return model

    monkeypatch.setattr(model_module.AutoModelForCausalLM, "from_pretrained", slowly)
    policy = PolicyConfig(model=str(speaker))
    with ThreadPoolExecutor(4) as threads:
        models = list(threads.map(lambda _: model_module.load_weights(str(speaker), policy, torch.float32), range(4)))
    assert most == [1, 1, 1, 1]
    assert {parameter.device.type for model in models for parameter in model.parameters()} == {"cpu"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_quantised_base_is_loaded_in_nf4(speaker: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    load, given = model_module.AutoModelForCausalLM.from_pretrained, dict[str, Any]()

    def capture(*arguments: Any, quantization_config: Any = None, device_map: Any = None, **options: Any) -> Any:
        given.update(config=quantization_config, device_map=device_map, dtype=options["dtype"])
        return load(*arguments, **options)

    monkeypatch.setattr(model_module.AutoModelForCausalLM, "from_pretrained", capture)
    policy = PolicyConfig(model=str(speaker), frozen=True, quantization="4bit")
    model_module.load_weights(str(speaker), policy, dtype, torch.device("cpu"))
    config = given["config"]
    assert (config.load_in_4bit, config.load_in_8bit) == (True, False)
    assert (config.bnb_4bit_quant_type, config.bnb_4bit_use_double_quant) == ("nf4", True)
    assert (config.bnb_4bit_compute_dtype, given["dtype"]) == (dtype, dtype)
    assert given["device_map"] == {"": torch.device("cpu")}
    model_module.load_weights(str(speaker), PolicyConfig(model=str(speaker), frozen=True), dtype, torch.device("cpu"))
    assert (given["config"], given["device_map"]) == (None, None)


@pytest.mark.parametrize("settings", [{}, {"frozen": True, "quantization": "4bit"}])
def test_weights_that_are_quantised_in_their_file_are_not_trained(
    settings: dict[str, Any], speaker: Path, tmp_path: Path
) -> None:
    """Mistake: the settings of the file win over those of the recipe, with a warning of another library at most."""
    folder = changed(Path(shutil.copytree(speaker, tmp_path / "fp8")), quantization_config={"quant_method": "fp8"})
    policy = PolicyConfig(model=str(folder), **settings)
    with pytest.raises(EngineError, match=r"are quantised already \(quantization_config of config\.json: fp8\)"):
        model_module.load_weights(str(folder), policy, torch.float32)
    model_module.check_stored_precision(str(folder), PolicyConfig(model=str(folder), frozen=True))


def changed(folder, name="config.json", **changes):
    """The folder with some settings of one of its files changed; None removes one."""
    path = folder / name
    settings = {**json.loads(path.read_text()), **changes} if path.exists() else changes
    path.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
    return folder


def test_a_conversation_in_tokens_beyond_the_embeddings(tmp_path):
    folder = tiny.build(tmp_path)
    tokenizer = tiny.byte_tokenizer(tiny.CHATML.replace("<|im_start|>", "<|turn|>"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>", "<|turn|>"]})
    tokenizer.save_pretrained(folder)
    engine = tiny.engine(folder)
    with pytest.raises(PromptError, match=r"holds the token '<\|turn\|>' of id 260, .* for 260 tokens") as caught:
        sample(engine, request("go"))
    assert "\n" not in str(caught.value)
    engine.close()


def test_a_token_beyond_the_embeddings_that_few_conversations_need_is_refused_where_one_holds_it(tmp_path):
    folder = tiny.build(tmp_path)
    written = "{% if message.role == 'system' %}<|rules|>{% else %}{{ message.role }}{% endif %}"
    tokenizer = tiny.byte_tokenizer(tiny.CHATML.replace("{{ message.role }}", written))
    tokenizer.add_tokens(["<|rules|>"])
    tokenizer.save_pretrained(folder)
    engine = tiny.engine(folder)
    ((spelt,),) = sample(engine, request("a <|rules|>"))
    assert max(spelt.prompt_ids) < 260  # text that spells a token is text
    asked = replace(request("go"), messages=(Message("system", "Be brief."), Message("user", "go")))
    with pytest.raises(PromptError, match=r"holds the token '<\|rules\|>' of id 260, .* embeddings for 260 tokens"):
        sample(engine, asked)
    engine.close()


def test_tokens_that_the_tokenizer_does_not_have_are_sampled_and_learnt_alike(tmp_path):
    learner = tiny.learner(tiny.build(tmp_path, vocab_size=2000))
    drawn = sample(learner, request("go", 8, max_tokens=20, temperature=3.0))[0]
    assert any(token >= 260 for one in drawn for token in one.token_ids)
    metrics = update(learner, [tiny.datum(one, 1.0, 3.0) for one in drawn])["p"]
    assert metrics["logprob_diff_max"] < 1e-4
    learner.close()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_default_dtype_that_somebody_changed(tmp_path, dtype):
    folder = tiny.build(tmp_path)
    engine = tiny.engine(folder)
    torch.set_default_dtype(dtype)
    try:
        with pytest.raises(EngineError, match=rf"called torch.set_default_dtype\({dtype}\); expected torch.float32"):
            tiny.engine(folder)
        with pytest.raises(EngineError, match="set_default_dtype"):
            sample(engine, request("go"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert sample(engine, request("go"))
    engine.close()


def test_an_update_under_another_default_dtype(tmp_path):
    learner = tiny.learner(tiny.build(tmp_path))
    datum = TrainingSequence("p", "r", (1, 2), (False, True), (0.0, -1.0), (0.0, 1.0), 0)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(EngineError, match="set_default_dtype"):
            update(learner, [datum])
    finally:
        torch.set_default_dtype(torch.float32)
    learner.close()


def test_a_tied_configuration_with_a_projection_of_its_own(tmp_path):
    folder = changed(tiny.build(tmp_path, tie_word_embeddings=False), tie_word_embeddings=True)
    with pytest.raises(EngineError, match="tie_word_embeddings: true, but the weights have a vocabulary projection"):
        tiny.engine(folder)


def test_a_tied_configuration_of_a_class_that_ties_nothing(tmp_path):
    """BigBirdPegasus says that it is tied by default, and has weights of its own for both."""
    line = families.measure("bigbird_pegasus", 12, tmp_path)
    assert line["max_diff"] < 1e-5


def test_an_untied_configuration_without_a_projection(tmp_path):
    folder = changed(tiny.build(tmp_path, tie_word_embeddings=True), tie_word_embeddings=False)
    with pytest.raises(EngineError, match=r"1 are not there \(lm_head.weight\).*tie_word_embeddings"):
        tiny.engine(folder)


def test_a_tied_configuration_with_the_same_tensor_twice_in_the_file(tmp_path):
    folder = tiny.build(tmp_path, tie_word_embeddings=True)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    engine = tiny.engine(folder)
    assert engine.loaded.model.lm_head.weight is engine.loaded.model.model.embed_tokens.weight
    engine.close()


def test_a_configuration_of_fewer_layers_than_the_file_has(tmp_path):
    folder = changed(tiny.build(tmp_path), num_hidden_layers=1, layer_types=None)
    with pytest.raises(EngineError, match=r"describes a smaller model than its weights: 9 weights would be left out"):
        tiny.engine(folder)


def test_weights_of_another_part_are_told_of(tmp_path):
    folder = tiny.build(tmp_path)
    weights = {**load_file(folder / "model.safetensors"), "score.weight": torch.zeros(1, 32)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"run without 1 weights of its file .*\(score.weight\)"):
        tiny.engine(folder).close()


@pytest.mark.parametrize("pad", ["missing", "end", "beyond"])
def test_padding_that_is_missing_or_means_something_else_changes_nothing(tmp_path, pad):
    """Mistake: padding that is attended to, or left out of what is learnt."""
    folder = tiny.build(tmp_path, pad_token_id={"missing": None, "end": 257, "beyond": None}[pad])
    tokenizer = tiny.byte_tokenizer()
    tokenizer.pad_token = {"missing": None, "end": "<eos>", "beyond": "<padding>"}[pad]
    tokenizer.save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner = tiny.learner(folder, pack="padded")
    drawn = [
        one for siblings in sample(learner, request("go", 2), request("a longer prompt", 2, 2)) for one in siblings
    ]
    reference = AutoModelForCausalLM.from_pretrained(folder)
    for one in drawn:
        ids = torch.tensor([one.prompt_ids + one.token_ids])
        with torch.no_grad():
            scores = reference(ids).logits[0].log_softmax(-1)
        start = len(one.prompt_ids)
        wanted = scores[start - 1 : -1].gather(1, ids[0, start:, None]).squeeze(1)
        assert torch.allclose(wanted, torch.tensor(one.logprobs), atol=1e-4)
    assert update(learner, [tiny.datum(one, 1.0) for one in drawn])["p"]["logprob_diff_max"] < 1e-4
    learner.close()


def test_padding_beyond_the_embeddings(tmp_path):
    with pytest.raises(EngineError, match=r"(?i)padding_idx"):
        tiny.engine(changed(tiny.build(tmp_path), pad_token_id=9999))


def test_weights_of_other_sizes(tmp_path):
    with pytest.raises(EngineError, match=r"is \[260, 32\] in the file and would be \[300, 32\] by the configuration"):
        tiny.engine(changed(tiny.build(tmp_path), vocab_size=300))


def test_an_end_of_turn_that_is_no_id(tmp_path):
    folder = changed(tiny.build(tmp_path), "generation_config.json", eos_token_id="<eos>")
    with pytest.raises(EngineError, match=r"invalid literal for int.*<eos>"):
        tiny.engine(folder)


def test_as_many_experts_as_models_have(tmp_path):
    """Mistake: a limit on layers that holds for experts, of which Doge has 16,384 by default."""
    check_folder("m", changed(tiny.build(tmp_path), num_experts=16_384))
    with pytest.raises(EngineError, match=r"num_hidden_layers is 16,384, more than 10,000"):
        check_folder("m", changed(tmp_path, num_experts=None, num_hidden_layers=16_384))
