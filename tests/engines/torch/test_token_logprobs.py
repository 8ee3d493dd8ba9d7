"""What is read off scores: numbers by hand, and gradients against differences and against torch's own graph."""

import math

import pytest
import torch

from cadre.engines.torch.logprobs import SelectedLogprobs, compute_top_entropy


def plain(scores, which, tokens):
    """The same by log_softmax, all of it in the graph."""
    logs = scores.log_softmax(dim=-1)
    return logs[which, tokens], -(logs.exp() * logs).sum(dim=-1)


def test_a_log_probability_and_an_entropy_by_hand():
    """Scores 0 and log 3: probabilities 1/4 and 3/4."""
    scores = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.float64, requires_grad=True)
    chosen, entropy = SelectedLogprobs.apply(scores, torch.tensor([0, 0]), torch.tensor([0, 1]), True)
    assert chosen.tolist() == pytest.approx([math.log(0.25), math.log(0.75)])
    assert entropy.tolist() == pytest.approx([0.25 * math.log(4.0) + 0.75 * math.log(4.0 / 3.0)])
    (gradient,) = torch.autograd.grad(chosen[0], scores, retain_graph=True)
    assert gradient[0].tolist() == pytest.approx([0.75, -0.75])
    (gradient,) = torch.autograd.grad(entropy[0], scores)
    # -p (log p + H) with H = log 4 - 3/4 log 3: 1/4 of 3/4 log 3, and 3/4 of -1/4 log 3.
    assert gradient[0].tolist() == pytest.approx([0.1875 * math.log(3.0), -0.1875 * math.log(3.0)])


@pytest.mark.parametrize("spread", [False, True])
def test_gradients_equal_finite_differences_and_torchs_own(spread):
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(3, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    which, tokens = torch.tensor([0, 0, 2, 2, 2]), torch.tensor([1, 6, 0, 0, 3])  # a token twice, a row unread

    def asked(scores):
        chosen, entropy = SelectedLogprobs.apply(scores, which, tokens, spread)
        return (chosen, entropy) if spread else (chosen,)

    assert torch.autograd.gradcheck(asked, (scores,))
    weights = [torch.randn(size, dtype=torch.float64, generator=generator) for size in (5, 3)]
    found, wanted = (
        torch.autograd.grad(sum((w * one).sum() for w, one in zip(weights, read, strict=False)), scores)[0]
        for read in (asked(scores), plain(scores, which, tokens)[: 2 if spread else 1])
    )
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_scores_that_are_ruled_out_stay_so():
    scores = torch.tensor([[0.0, -math.inf, 0.0]], requires_grad=True)
    chosen, _ = SelectedLogprobs.apply(scores, torch.tensor([0]), torch.tensor([0]), False)
    assert chosen.item() == pytest.approx(math.log(0.5))
    chosen.backward()
    assert scores.grad[0].tolist() == [0.5, 0.0, -0.5]


def test_entropies_have_no_gradient_unless_asked():
    _, entropy = SelectedLogprobs.apply(
        torch.zeros(1, 2, requires_grad=True), torch.tensor([0]), torch.tensor([0]), False
    )
    assert not entropy.requires_grad


def test_the_entropy_of_the_likeliest_by_hand():
    """Of scores 0, log 3 and log 12 the two likeliest have 1/5 and 4/5 of what is theirs; the third counts nothing."""
    scores = torch.tensor([[math.log(3.0), 0.0, math.log(12.0)]], dtype=torch.float64, requires_grad=True)
    entropy = compute_top_entropy(scores, 2)
    assert entropy.tolist() == pytest.approx([0.2 * math.log(5.0) + 0.8 * math.log(1.25)])
    entropy.backward()
    # -p (log p + H): 1/5 (log 5 - H) and -4/5 (H - log 5/4), with H = log 5 - 4/5 log 4.
    assert scores.grad[0].tolist() == pytest.approx([0.16 * math.log(4.0), 0.0, -0.16 * math.log(4.0)])


def test_the_entropy_of_as_many_as_there_are_is_that_of_all():
    scores = torch.randn(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    _, entropy = SelectedLogprobs.apply(scores, torch.tensor([0]), torch.tensor([0]), True)
    torch.testing.assert_close(compute_top_entropy(scores, 9), entropy, rtol=1e-12, atol=1e-12)
