"""Estimates before a run: sizes, activations and speed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Model

from cadre.engines.torch import estimate
from cadre.engines.torch.estimate import (
    MAX_VECTORS,
    ProductSpeed,
    learning_seconds,
    load_configuration,
    measure,
    measure_activations,
    measure_scores,
    sampling_seconds,
    saved_bytes,
)
from cadre.engines.torch.logprobs import CHUNK, KEPT
from cadre.engines.torch.lora import Adapters
from cadre.engines.torch.memory import SCORE_BYTES
from cadre.engines.torch.model import autocast
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
    whole = measure("Qwen/Qwen3-1.7B", PolicyConfig(model="-", dtype="bfloat16"))
    assert whole.parameters == 1_720_574_976
    assert (whole.trained, whole.base, whole.training) == tuple(whole.parameters * n for n in (1, 4, 12))
    assert (whole.sequence.slot, whole.sequence.scores) == (2 * 28 * 8 * 128 * 2, 151_936 * SCORE_BYTES)
    lora = PolicyConfig(model="-", dtype="bfloat16", lora=LoraConfig(rank=8))
    adapted = measure("Qwen/Qwen3-1.7B", lora)
    # queries 2048 to 2048, keys and values to 1024, output 2048 to 2048, and the three of 6144
    layer = (2048 + 2048) * 2 + (2048 + 1024) * 2 + 3 * (2048 + 6144)
    assert adapted.trained == 28 * 8 * layer
    assert (adapted.base, adapted.training) == (2 * whole.parameters, 16 * adapted.trained)
    frozen = measure("Qwen/Qwen3-1.7B", PolicyConfig(model="-", frozen=True))
    assert (frozen.trained, frozen.training, frozen.base) == (0, 0, 4 * whole.parameters)


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


TOKENS = 96


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"lora": LoraConfig(rank=2)}], ids=str)
def test_as_much_as_a_real_forward_keeps(folders: dict[str, Path], architecture: str, settings: dict) -> None:
    folder = folders[architecture]
    policy = PolicyConfig(model=str(folder), **settings)
    guess = measure_activations(str(folder), policy, False, TOKENS)
    model = AutoModelForCausalLM.from_pretrained(folder).requires_grad_(policy.lora is None)
    adapters = Adapters(model, {"p": policy.lora} if policy.lora else {}, 0)
    ids = torch.zeros(1, TOKENS, dtype=torch.int64)
    with autocast(model, getattr(torch, policy.dtype)), adapters.rows([("p", 1)]):
        real = saved_bytes(model, lambda: model.base_model(input_ids=ids, use_cache=False))
    # Keys are repeated for heads that share them, or not, as the kernel at hand wants it.
    assert guess == pytest.approx(real, rel=0.1)
    assert real > 2 * TOKENS * 32 * 4


def test_checkpointing_keeps_each_layer_s_input_and_one_layer(folders: dict[str, Path]) -> None:
    """Two layers of width 32."""
    policy, folder = PolicyConfig(model="-"), str(folders["llama"])
    whole = measure_activations(folder, policy, False, TOKENS)
    less = measure_activations(folder, policy, True, TOKENS)
    assert less == 4 * TOKENS * 32 * 2 + whole // 2


def test_a_frozen_model_keeps_nothing(folders: dict[str, Path]) -> None:
    assert measure_activations(str(folders["llama"]), PolicyConfig(model="-", frozen=True), False, TOKENS) == 0


def test_scores_by_hand() -> None:
    """Float32: those of 10 tokens of a vocabulary of 100 are kept once, or twice, beside three that are in work."""
    assert measure_scores(100, 10, entropy=False) == 4 * 1000 * (1 + 3)
    assert measure_scores(100, 10, entropy=True) == 4 * 1000 * (2 + 3)
    assert measure_scores(1 << 17, 4096, entropy=False) == 4 * (KEPT + 3 * CHUNK)


ROPES = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("kind", ROPES)
def test_positions_of_every_kind_are_estimated_alike(tmp_path: Path, kind: str) -> None:
    """Mistake: to ask of a tensor without numbers whether it is longer than some context."""
    policy = PolicyConfig(model="-", device="cpu")
    plain = measure_activations(str(tiny.build(tmp_path / "plain")), policy, False, 600)
    rope = {"rope_type": kind, "rope_theta": 10000.0, **ROPES[kind]}
    folder = tiny.build(tmp_path / "scaled", max_position_embeddings=128, rope_parameters=rope)
    assert measure_activations(str(folder), policy, False, 600) == pytest.approx(plain, rel=0.05)


def test_what_looks_at_numbers_is_estimated_as_a_llama_model_of_its_sizes(monkeypatch, folders) -> None:
    policy, folder = PolicyConfig(model="-", device="cpu"), str(folders["llama"])
    wanted = measure_activations(folder, policy, False, TOKENS)

    def looks(self, *inputs: object, **more: object) -> object:
        return bool(torch.zeros(1).sum() > 0)

    monkeypatch.setattr(Qwen3Model, "forward", looks)
    assert measure_activations(str(folders["qwen3"]), policy, False, TOKENS + 1) == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("kind", ["mamba", "falcon_mamba"])
def test_a_model_without_attention_heads_is_estimated(tmp_path: Path, kind: str) -> None:
    config = AutoConfig.for_model(kind, vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert measure_activations(str(tmp_path), PolicyConfig(model="-", device="cpu"), False, TOKENS) > 4 * TOKENS * 32


PRODUCTS = ProductSpeed(torch.device("cpu"), torch.float32)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a weight takes a nanosecond, and each vector another."""
    monkeypatch.setattr(estimate, "measure_product", lambda device, dtype, vectors: (1 + vectors) * 1e-9)


def test_products_of_more_vectors_take_in_proportion(steady: None) -> None:
    assert PRODUCTS.seconds(3, 1000) == pytest.approx(4e-6)
    most = PRODUCTS.seconds(MAX_VECTORS, 1000)
    assert most == pytest.approx((1 + MAX_VECTORS) * 1e-6)
    assert PRODUCTS.seconds(4 * MAX_VECTORS, 1000) == pytest.approx(4 * most)


def test_a_batch_is_a_product_a_token(steady: None) -> None:
    """10 completions of 7 tokens, 4 at once: three batches of 7 products with 4 vectors."""
    assert sampling_seconds(PRODUCTS, 1000, 10, 4, 7) == pytest.approx(3 * 7 * 5e-6)
    assert sampling_seconds(PRODUCTS, 1000, 3, 4, 7) == pytest.approx(7 * 4e-6)


def test_learning_is_so_many_products(steady: None) -> None:
    assert learning_seconds(PRODUCTS, 1000, 20, 3) == pytest.approx(3 * 21e-6)


def test_it_is_measured() -> None:
    assert PRODUCTS.seconds(4, 1_000_000) > 0.0
