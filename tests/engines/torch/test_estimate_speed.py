"""A guess of time, by numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from cadre.engines.torch import estimate
from cadre.engines.torch.estimate import MAX_VECTORS, ProductSpeed, learning_seconds, sampling_seconds

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
