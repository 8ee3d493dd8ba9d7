"""Adapters on a base of four bits, against the real package: what the base stands for is what is trained on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.settings import LearnerConfig, LoraConfig
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import datum, request, sample, update

bitsandbytes = pytest.importorskip("bitsandbytes", reason="the extra quantization is not installed")
pytest.importorskip("accelerate", reason="the extra quantization is not installed")


def build(folder: Path, **settings: object) -> TorchLearner:
    policy = tiny.policy(folder, lora=LoraConfig(rank=4, alpha=8.0), dtype="float32", **settings)
    return TorchLearner(
        TorchEngine(folder, {"p": policy}, 0), TrainingSettings({"p": LearnerConfig(learning_rate=1e-2)})
    )


def layers(learner: TorchLearner) -> Iterator[tuple[str, Any]]:
    for name, module in learner.engine.loaded.model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            yield name, module


def test_training_on_a_quantised_base_is_training_on_the_weights_that_it_stands_for(tmp_path: Path) -> None:
    """Mistake: sampling packs the weights for products without gradients, which are then trained through."""
    # Layers whose size is no multiple of 64 cannot be quantised.
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_key_value_heads": 4}
    quantised = build(tiny.build(tmp_path / "model", **shape), quantization="4bit")
    stored = {name: module.weight.detach().clone() for name, module in layers(quantised)}
    assert len(stored) == 2 * 7

    # The same model with the values of the four bits in float32: what a layer makes of the identity.
    dense = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    with torch.no_grad():
        for name, module in layers(quantised):
            weight = dense.get_submodule(name).weight
            values = module(torch.eye(weight.shape[1])).T
            assert 0.003 < float((weight - values).abs().mean()) < 0.03  # of a standard deviation of 0.15
            weight.copy_(values)
    dense.save_pretrained(tmp_path / "dense")
    AutoTokenizer.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "dense")
    plain = build(tmp_path / "dense")
    first, second = quantised.engine.parameters("p"), plain.engine.parameters("p")
    initial = {name: value.detach().clone() for name, value in first.items()}

    (samples,) = sample(quantised, request("go", 4, max_tokens=6))
    data = [datum(sample, advantage) for sample, advantage in zip(samples, (1.0, -1.0, 0.5, -0.5), strict=True)]
    losses = []
    for _ in range(4):
        metrics = update(quantised, data)["p"]
        update(plain, data)
        losses.append(metrics["loss"])
    for name, value in first.items():
        assert torch.allclose(value, second[name], atol=1e-4), name
    assert max(float((initial[name] - value).abs().max()) for name, value in first.items()) > 1e-2
    assert losses[-1] < losses[0] - 0.1
    assert all(torch.equal(module.weight, stored[name]) for name, module in layers(quantised))
