"""What a forward keeps, against what it does keep on tensors that are there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Model

from cadre.engines.torch.estimate import measure_activations, measure_scores, saved_bytes
from cadre.engines.torch.logprobs import CHUNK, KEPT
from cadre.engines.torch.lora import Adapters
from cadre.engines.torch.model import autocast
from cadre.settings import LoraConfig, PolicyConfig
from tests.engines import tiny

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
