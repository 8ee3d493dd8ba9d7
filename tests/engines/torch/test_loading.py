"""Models load one at a time, whichever threads ask for them."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from cadre.engines.torch import model as model_module
from cadre.settings import PolicyConfig


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
