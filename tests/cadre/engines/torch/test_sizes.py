"""The sizes of a model, and what its layers keep of a token in learning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from cadre.engines.torch.lora import Adapters
from cadre.engines.torch.memory import SCORE_BYTES
from cadre.engines.torch.model import DTYPES, autocast
from cadre.engines.torch.sizes import load_configuration, measure
from cadre.errors import EngineError
from cadre.settings import LoraConfig, PolicyConfig
from tests.cadre.engines import tiny


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        # embeddings 151936 * 2048; a layer 2048 * (16 + 8 + 8 + 16) * 128 + 3 * 2048 * 6144 + 2 * 128 + 2 * 2048
        ("Qwen/Qwen3-1.7B", 151936 * 2048 + 28 * (2048 * 48 * 128 + 3 * 2048 * 6144 + 256 + 4096) + 2048),
        ("Qwen/Qwen3-8B", 2 * 151936 * 4096 + 36 * (4096 * 80 * 128 + 3 * 4096 * 12288 + 256 + 8192) + 4096),
        # queries and outputs 16 heads, keys and values 2 each, with biases on the first three
        (
            "Qwen/Qwen2.5-Coder-3B",
            151936 * 2048 + 36 * (2048 * 36 * 128 + 20 * 128 + 3 * 2048 * 11008 + 4096) + 2048,
        ),
        # 14 heads of 64, of keys and values 2 each
        (
            "Qwen/Qwen2.5-Coder-0.5B-Instruct",
            151936 * 896 + 24 * (896 * 32 * 64 + 18 * 64 + 3 * 896 * 4864 + 2 * 896) + 896,
        ),
    ],
)
def test_parameters_by_hand(model: str, parameters: int) -> None:
    assert measure(model, PolicyConfig(model=model)).parameters == parameters


def test_bytes_by_hand() -> None:
    full = measure("Qwen/Qwen3-1.7B", PolicyConfig(model="-", dtype="bfloat16"))
    assert full.parameters == 1_720_574_976
    assert (full.trained, full.base, full.training) == tuple(full.parameters * n for n in (1, 4, 12))
    assert (full.sequence.slot, full.sequence.scores) == (2 * 28 * 8 * 128 * 2, 151_936 * SCORE_BYTES)
    lora = PolicyConfig(model="-", dtype="bfloat16", lora=LoraConfig(rank=8))
    adapted = measure("Qwen/Qwen3-1.7B", lora)
    # queries 2048 to 2048, keys and values to 1024, output 2048 to 2048, and the three of 6144
    layer = (2048 + 2048) * 2 + (2048 + 1024) * 2 + 3 * (2048 + 6144)
    assert adapted.trained == 28 * 8 * layer
    assert (adapted.base, adapted.training) == (2 * full.parameters, 16 * adapted.trained)
    frozen = measure("Qwen/Qwen3-1.7B", PolicyConfig(model="-", frozen=True))
    assert (frozen.trained, frozen.training, frozen.base) == (0, 0, 4 * full.parameters)


def test_an_unknown_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EngineError, match="cannot be had: HF_HUB_OFFLINE is set"):
        load_configuration("nobody/no-model-of-this-name", PolicyConfig(model="-"))


@pytest.mark.parametrize("text", ["null", '{"model_type": "llama", "num_attention_heads": 0}'])
def test_a_folder_may_hold_anything(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(EngineError, match=r"(The configuration of|The model) .* cannot be loaded"):
        load_configuration(str(tmp_path), PolicyConfig(model="-"))


def test_code_that_ships_with_a_model_runs_where_the_policy_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}')
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "own.py").write_text(
        "from transformers import LlamaConfig\nclass Own(LlamaConfig):\n    model_type = 'own'\n"
    )
    with pytest.raises(EngineError, match="trust_remote_code"):
        load_configuration(str(tmp_path), PolicyConfig(model="-"))
    assert load_configuration(str(tmp_path), PolicyConfig(model="-", trust_remote_code=True)).model_type == "own"


def saved_bytes(model: torch.nn.Module, tokens: int) -> int:
    """The bytes that a forward keeps for its backward pass, each once and without the model's own weights."""
    weights = {weight.untyped_storage()._cdata for weight in model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def record(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    ids = torch.zeros(1, tokens, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        result = model.base_model(input_ids=ids, use_cache=False)
    size = sum(storage.nbytes() for address, storage in storages.items() if address not in weights)
    del result
    return size


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize(
    "settings", [{}, {"dtype": "bfloat16"}, {"lora": LoraConfig(rank=2)}, {"dtype": "bfloat16", "lora": LoraConfig()}]
)
def test_as_much_as_a_real_forward_keeps_of_a_token(tmp_path: Path, architecture: str, settings: dict) -> None:
    """A model with the proportions of a real one, so that an adapter is small in it."""
    folder = tiny.build(
        tmp_path, architecture, hidden_size=128, intermediate_size=384, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, num_hidden_layers=3,
    )  # fmt: skip
    policy = PolicyConfig(model=str(folder), **settings)
    guess = measure(str(folder), policy).activations(checkpointing=False)
    model = AutoModelForCausalLM.from_pretrained(folder).requires_grad_(policy.lora is None)
    adapters = Adapters(model, {"p": policy.lora} if policy.lora else {}, 0)
    with autocast(model, DTYPES[policy.dtype]), adapters.rows([("p", 1)]):
        real = (saved_bytes(model, 128) - saved_bytes(model, 64)) / 64
    assert guess == pytest.approx(real, rel=0.15)


def test_checkpointing_keeps_each_layer_s_input_and_one_layer(folders: dict[str, Path]) -> None:
    """Two layers of width 32."""
    sizes = measure(str(folders["llama"]), PolicyConfig(model="-"))
    assert sizes.activations(checkpointing=True) == 4 * 32 * 2 + sizes.activations(checkpointing=False) // 2


def test_activations_by_hand(tmp_path: Path) -> None:
    """Float32: a layer's two norms keep three states of 32; 4 inner of 64; 4 heads and 2 of keys, of 8, twice."""
    folder = tiny.build(
        tmp_path, "llama", hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, num_hidden_layers=2,
    )  # fmt: skip
    layer = 4 * (3 * 2 * 32 + 4 * 64 + 2 * (4 + 2) * 8)
    assert measure(str(folder), PolicyConfig(model="-")).activations(checkpointing=False) == 2 * layer


@pytest.mark.parametrize("kind", ["mamba", "falcon_mamba"])
def test_a_model_without_attention_heads_is_estimated(tmp_path: Path, kind: str) -> None:
    config = AutoConfig.for_model(kind, vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert measure(str(tmp_path), PolicyConfig(model="-", device="cpu")).activations(False) > 4 * 32
