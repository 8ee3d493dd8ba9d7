"""The metadata of an export: its ends of turn, settings that transformers would not save, the name of its base."""

import json

import pytest
from transformers import AutoModelForCausalLM

from cadre.engines import model_folder
from cadre.engines.torch import TorchEngine
from cadre.settings import LoraConfig, PolicyConfig
from tests.cadre.engines import tiny

EOS, IM_END = 257, 259  # the tokenizer's end, and that of the template's turns


def generation(folder):
    return json.loads((folder / "generation_config.json").read_text())


@pytest.mark.parametrize("lora", [False, True])
def test_an_export_ends_where_turns_ended_in_training(learner, team, tmp_path, lora):
    """A base model's own config names its end of text alone; its chat template ends turns with another token."""
    built_team = team({"p": 4}) if lora else learner()
    assert built_team.engine.loaded.model.generation_config.eos_token_id == EOS
    built_team.export("p", tmp_path, merge=lora)
    assert generation(tmp_path)["eos_token_id"] == [EOS, IM_END]
    assert AutoModelForCausalLM.from_pretrained(tmp_path).generation_config.eos_token_id == [EOS, IM_END]
    assert built_team.engine.loaded.model.generation_config.eos_token_id == EOS


def test_a_single_end_is_a_number(learner, tmp_path):
    folder = tiny.build(tmp_path / "model", template=tiny.CHATML.replace("<|im_end|>", "<eos>"))
    learner(folder).export("p", tmp_path / "out")
    assert generation(tmp_path / "out")["eos_token_id"] == EOS


def test_settings_that_transformers_loads_and_does_not_save_are_saved_as_they_came(learner, tmp_path):
    """Several published models have a temperature and no do_sample, of which `save_pretrained` makes an error."""
    folder = tiny.build(tmp_path / "model")
    (folder / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.9, "eos_token_id": 257}')
    torch_learner = learner(folder)
    torch_learner.save(tmp_path / "saved")
    saved = generation(tmp_path / "saved" / "p")
    assert (saved["do_sample"], saved["temperature"], saved["eos_token_id"]) == (False, 0.9, [EOS, IM_END])
    torch_learner.load(tmp_path / "saved")


def test_an_adapter_names_its_base_on_the_hub_where_that_was_read_from_the_cache(folders, tmp_path, monkeypatch):
    """Mistake: without a connection the base is a folder of this machine's cache, which no other machine has."""
    monkeypatch.setattr(model_folder, "find_hub_model", lambda name: str(folders["llama"]))
    policy = PolicyConfig(model="owner/tiny", device="cpu", lora=LoraConfig(rank=2))
    torch_engine = TorchEngine("owner/tiny", {"p": policy}, 0)
    torch_engine.export("p", tmp_path)
    torch_engine.close()
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == "owner/tiny"


def test_an_adapter_names_the_folder_of_a_base_that_has_one(team, folders, tmp_path):
    team({"p": 4}).export("p", tmp_path)
    described = json.loads((tmp_path / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == str(folders["llama"])
