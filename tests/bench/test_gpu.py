"""The benchmark of a card on the CPU, on tiny shapes: every part runs, and both sides agree."""

from __future__ import annotations

import pytest

import common
import gpu


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What is measured, by name."""
    kept: dict[str, float] = {}
    monkeypatch.setattr(gpu.Bench, "keep", lambda self, name, values, unit: kept.__setitem__(name, max(values)))
    return kept


def test_every_part_runs_on_a_cpu_and_agrees_with_it(figures: dict[str, float]) -> None:
    gpu.main(["parity", "learning", "sampling", "largest", "--tiny"])
    parity = {name: value for name, value in figures.items() if name.startswith("gpu.parity.")}
    assert len(parity) == 2 * (3 * 2 + 2 + 1)
    assert max(value for name, value in parity.items() if ".float32." in name) < 1e-4
    assert max(parity.values()) < 0.05
    for shape in ("tiny", "tiny-adapters"):
        for packing in ("tree", "padded"):
            assert figures[f"gpu.learning.{shape}.{packing}.mfu"] > 0
        for way in ("steps", "graphs"):
            assert figures[f"gpu.sampling.{shape}.{way}.tokens_per_s"] > 0
    assert figures["gpu.largest.adapters"] == figures["gpu.largest.models"] > 0


@pytest.mark.slow
def test_plan_path_is_trained(figures: dict[str, float]) -> None:
    gpu.main(["training", "--tiny"])
    assert figures["gpu.training.minutes"] > 0


def test_tiny_shapes_measure_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    gpu.main(["sampling", "--tiny", "--write"])
    assert not list(tmp_path.iterdir())


def test_without_a_card_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA card here"):
        gpu.main([])
