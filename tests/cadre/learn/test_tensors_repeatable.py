"""Sums over equal indices are the same to the last bit every time, with several threads."""

from __future__ import annotations

import pytest
import torch

from cadre.learn.tensors import add_at, sum_at, take


@pytest.fixture
def two_threads():
    initial_num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(initial_num_threads)


def test_by_hand() -> None:
    source = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
    index = torch.tensor([2, 0, 2])
    selected = take(source, index)
    assert selected.tolist() == [[5.0, 6.0], [1.0, 2.0], [5.0, 6.0]]
    (selected * torch.tensor([[1.0], [10.0], [100.0]])).sum().backward()
    assert source.grad.tolist() == [[10.0, 10.0], [0.0, 0.0], [101.0, 101.0]]
    target = torch.ones(3)
    add_at(target, index, torch.tensor([1.0, 2.0, 4.0]))
    assert target.tolist() == [3.0, 1.0, 6.0]
    assert sum_at(index, torch.tensor([1.0, 2.0, 4.0]), 4).tolist() == [2.0, 0.0, 5.0, 0.0]


def test_many_values_of_few_indices(two_threads: None) -> None:
    """There are so many that torch divides them among threads; `source[index]` gives others nearly every time."""
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(2000, 128, generator=generator)
    index = torch.randint(0, 20, (600,), generator=generator)
    weights = torch.randn(600, 128, generator=generator)
    gradients, totals = [], []
    for _ in range(12):
        leaf = source.clone().requires_grad_()
        (take(leaf, index) * weights).sum().backward()
        gradients.append(leaf.grad)
        totals.append(sum_at(index.repeat(128), weights.T.flatten(), 20))
    assert all(torch.equal(gradients[0], gradient) for gradient in gradients)
    assert all(torch.equal(totals[0], total) for total in totals)
