"""Policies that begin from an adapter: what PEFT and `cadre export` write."""

import asyncio
import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from cadre.config.experiment import load
from cadre.config.resolve import find_target, resolve, resolve_for_evaluation
from cadre.engines.torch import TorchEngine
from cadre.errors import ConfigError, EngineError
from cadre.plugins import embedded_models
from tests.cadre.cli.calling import call
from tests.cadre.engines.tiny import request
from tests.helpers.slow import few_of

SEED = str(embedded_models()["seed"])
RECIPE = """env: plan-path
settings: {prompts: compact, turns: 2}
team: {policies: {x: {model: seed}}, roles: {tool: x, planner: x}}
algorithm: {name: grpo, k: 2}
sampling: {max_tokens: 4}
train: {steps: 1, tasks_per_step: 1}
evaluate: {tasks: 0}
trackers: {names: []}
"""


def adapter(folder: Path, **settings: object) -> Path:
    """An adapter that PEFT makes and saves, with weights that matter."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(SEED)
    chosen = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], **settings}
    adapted = get_peft_model(model, PeftConfig(task_type="CAUSAL_LM", **chosen))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    adapted.save_pretrained(folder)
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "toy.yaml").write_text(RECIPE)
    return str(tmp_path / "toy.yaml")


FORMS: list[dict] = [
    {},
    {"use_rslora": True},
    {"target_modules": "all-linear"},
    {"lora_dropout": 0.1},
]
WAYS = ["lora.path", "model"]


@pytest.mark.parametrize(
    ("settings", "written"),
    few_of(
        [(form, way) for form in FORMS for way in WAYS],
        [(form, "lora.path") for form in FORMS] + [({}, way) for way in WAYS[1:]],
    ),
)
def test_what_is_said_is_as_likely_as_peft_says(settings: dict, written: str, tmp_path: Path, recipe: str) -> None:
    folder = adapter(tmp_path / "px", **settings)
    policy = resolve(load(recipe, [f"team.policies.x.{written}={folder}"])).policies["x"]
    assert policy.model == "seed"
    assert policy.lora.rank == 4
    engine = TorchEngine(policy.model, {"x": policy}, seed=0)
    try:
        text = asyncio.run(engine.sample(request("Say 7", 2, 0, "x", max_tokens=6)))
    finally:
        engine.close()
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(SEED), folder).eval()
    for sample in text:
        ids = torch.tensor([[*sample.prompt_ids, *sample.token_ids]])
        with torch.no_grad():
            logprobs = peft(ids).logits[0].log_softmax(-1)
        expected = [logprobs[len(sample.prompt_ids) - 1 + n, token].item() for n, token in enumerate(sample.token_ids)]
        assert sample.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_run_begins_from_an_export_and_goes_on(tmp_path: Path, recipe: str) -> None:
    run, out = tmp_path / "run", tmp_path / "px"
    assert call("train", recipe, "team.policies.x.lora={rank: 2}", "--run", str(run)).code == 0
    assert call("export", str(run), "x", str(out)).code == 0
    more = tmp_path / "more"
    assert call("train", recipe, f"team.policies.x.model={out}", "--run", str(more)).code == 0
    written = load(str(more / "config.yaml")).team.policies["x"]
    assert (written.model, written.lora.path, written.lora.rank) == ("seed", str(out), 2)
    assert call("train", "--resume", "--run", str(more), "train.steps=2").code == 0
    assert call("export", str(more), "x", str(tmp_path / "again")).code == 0
    assert (tmp_path / "again" / "adapter_model.safetensors").is_file()


def test_an_adapter_plays_by_itself(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "px")
    result = find_target(str(folder), ["env=plan-path", "settings.prompts=compact"])
    (policy,) = resolve_for_evaluation(result.config).policies.values()
    assert (policy.model, policy.lora.path) == ("seed", str(folder))
    frozen = find_target(str(folder), ["env=plan-path", "team.policies.*.frozen=true"])
    assert resolve_for_evaluation(frozen.config).policies


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"use_dora": True}, "use_dora=True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias='all'"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"use_bdlora": {"nblocks": 2}}, "use_bdlora"),
        ({"kasa_config": {"beta": 0.0001}}, "kasa_config"),
        ({"monteclora_config": {"num_samples": 8}}, "monteclora_config"),
        ({"layers_to_transform": [1]}, "layers_to_transform=[1]"),
        ({"target_modules": ".*_proj"}, "target_modules: input should be a valid list, got '.*_proj'"),
        ({"peft_type": "IA3"}, "peft_type: input should be 'LORA', got 'IA3'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"r": 0}, "r: input should be greater than or equal to 1, got 0"),
        ({"base_model_name_or_path": "Qwen/Qwen3-1.7B"}, "is for Qwen/Qwen3-1.7B, and the policy's model is seed"),
    ],
)
def test_other_adapters_are_refused(settings: dict, expected: str, tmp_path: Path, recipe: str) -> None:
    folder = adapter(tmp_path / "px")
    described = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**described, **settings}))
    with pytest.raises(ConfigError, match=r"team\.policies\.x\.lora\.path") as caught:
        load(recipe, [f"team.policies.x.lora.path={folder}"])
    assert expected in str(caught.value)


def test_what_is_written_beside_the_path_has_to_be_the_same(tmp_path: Path, recipe: str) -> None:
    folder = adapter(tmp_path / "px")
    path = f"team.policies.x.lora.path={folder}"
    for second in ("rank=8", "alpha=16", "targets=[q_proj]"):
        with pytest.raises(ConfigError, match=f"lora.{second.partition('=')[0]}: got"):
            load(recipe, [path, f"team.policies.x.lora.{second}"])
    assert load(recipe, [path, "team.policies.x.lora.rank=4", "team.policies.x.lora.alpha=8"])
    with pytest.raises(ConfigError, match=r"is for .*/models/seed, and the policy's model is games"):
        load(recipe, [path, "team.policies.x.model=games"])


def test_a_folder_that_lacks_something_is_said(tmp_path: Path, recipe: str) -> None:
    folder, change = adapter(tmp_path / "px"), [f"team.policies.x.lora.path={tmp_path / 'px'}"]
    whole = (folder / "adapter_model.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(whole[:-100])
    policy = load(recipe, change).team.policies["x"]
    with pytest.raises(EngineError, match="cannot be read"):
        TorchEngine("seed", {"x": policy}, seed=0)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ConfigError, match=r"holds no adapter_model\.safetensors"):
        load(recipe, change)
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(recipe, change)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(ConfigError, match=r"holds no adapter_config\.json"):
        load(recipe, change)
    with pytest.raises(ConfigError, match="is no folder"):
        load(recipe, ["team.policies.x.lora.path=nowhere"])


@pytest.mark.parametrize("lora", ["true", "7", "[adapter]", "rank"])
def test_a_lora_that_is_no_mapping_is_refused_in_a_sentence(lora: str) -> None:
    with pytest.raises(ConfigError, match=r"team\.policies\.shared\.lora: got .* expected a mapping"):
        load("plan-path", [f"team.policies.shared.lora={lora}"])
