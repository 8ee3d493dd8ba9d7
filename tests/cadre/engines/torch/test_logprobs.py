"""Log-probabilities and entropies of tokens, and the vocabulary projection that they are read from."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from cadre.engines.torch import logprobs
from cadre.engines.torch.logprobs import (
    ALL_TOKENS,
    SCALINGS,
    LogprobQuery,
    SelectedLogprobs,
    check_projection,
    compute_last_states,
    compute_token_logprobs,
    compute_top_entropy,
    project,
)
from cadre.errors import EngineError
from tests.cadre.engines import tiny


def plain(scores, choice, tokens):
    """The same by log_softmax, all of it in the graph."""
    logs = scores.log_softmax(dim=-1)
    return logs[choice, tokens], -(logs.exp() * logs).sum(dim=-1)


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
    choice, tokens = torch.tensor([0, 0, 2, 2, 2]), torch.tensor([1, 6, 0, 0, 3])  # a token twice, a row unread

    def asked(scores):
        chosen, entropy = SelectedLogprobs.apply(scores, choice, tokens, spread)
        return (chosen, entropy) if spread else (chosen,)

    assert torch.autograd.gradcheck(asked, (scores,))
    weights = [torch.randn(size, dtype=torch.float64, generator=generator) for size in (5, 3)]
    result, expected = (
        torch.autograd.grad(sum((w * item).sum() for w, item in zip(weights, read, strict=False)), scores)[0]
        for read in (asked(scores), plain(scores, choice, tokens)[: 2 if spread else 1])
    )
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


RULED_OUT = (-math.inf, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("ruled_out", RULED_OUT)
@pytest.mark.parametrize("spread", [False, True])
def test_a_score_that_is_ruled_out_counts_0(ruled_out, spread):
    """Scores 0 and log 3 of the numbers above, and one between them that has no probability."""
    scores = torch.tensor([[0.0, ruled_out, math.log(3.0)]], requires_grad=True)
    chosen, entropy = SelectedLogprobs.apply(scores, torch.tensor([0]), torch.tensor([0]), spread)
    assert chosen.item() == pytest.approx(math.log(0.25))
    assert entropy.item() == pytest.approx(0.25 * math.log(4.0) + 0.75 * math.log(4.0 / 3.0))
    (gradient,) = torch.autograd.grad(chosen.sum(), scores, retain_graph=True)
    assert gradient[0].tolist() == pytest.approx([0.75, 0.0, -0.75])
    if spread:  # times a thousand: a gradient that many tokens of one distribution add to
        (gradient,) = torch.autograd.grad(1e3 * entropy.sum(), scores)
        assert gradient[0].tolist() == pytest.approx([187.5 * math.log(3.0), 0.0, -187.5 * math.log(3.0)])


@pytest.mark.parametrize("ruled_out", RULED_OUT)
def test_a_score_that_is_ruled_out_counts_0_among_the_likeliest(ruled_out):
    scores = torch.tensor([[0.0, ruled_out, math.log(3.0)]], requires_grad=True)
    entropy = compute_top_entropy(scores, 3)
    assert entropy.tolist() == pytest.approx([0.25 * math.log(4.0) + 0.75 * math.log(4.0 / 3.0)])
    (1e3 * entropy).backward()
    assert scores.grad[0].tolist() == pytest.approx([187.5 * math.log(3.0), 0.0, -187.5 * math.log(3.0)])


def test_scores_that_are_no_numbers_stay_so():
    """Mistake: an entropy of 0 for a model that has diverged."""
    for wrong in (math.nan, math.inf):
        scores = torch.tensor([[0.0, wrong, 1.0]])
        assert SelectedLogprobs.apply(scores, torch.tensor([0]), torch.tensor([0]), False)[1].isnan().all()
        assert compute_top_entropy(scores, 2).isnan().all()


def test_entropies_have_no_gradient_unless_asked():
    _, entropy = SelectedLogprobs.apply(
        torch.zeros(1, 2, requires_grad=True), torch.tensor([0]), torch.tensor([0]), False
    )
    assert not entropy.requires_grad


def test_the_entropy_of_the_likeliest_by_hand():
    """The two likeliest of the scores 0, log 3 and log 12 have 1/5 and 4/5 of their sum; the third counts nothing."""
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


class BiasedHead:
    """A model of nothing but a vocabulary projection of 450 tokens, whose logits are far from 0."""

    def __init__(self):
        self.head = nn.Linear(32, 450)
        with torch.no_grad():
            self.head.weight.normal_()
            self.head.bias.fill_(20.0)
            self.head.bias[440:] = -math.inf
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=450))
        self._logit_scalings = ()

    def get_output_embeddings(self):
        return self.head


@pytest.mark.parametrize("stored", [0, 1 << 27])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("entropy_tokens", [0, 3, ALL_TOKENS])
def test_statistics_of_a_bfloat16_forward_are_those_of_its_logits_in_float32(
    monkeypatch, entropy_tokens, temperature, stored
):
    """Mistake: sums over the vocabulary under autocast, in bfloat16, with entropies below 0."""
    torch.manual_seed(0)
    model = BiasedHead()
    monkeypatch.setattr(logprobs, "KEPT", stored)  # with 0 all is computed again in the backward pass
    states = torch.randn(200, 32, requires_grad=True)
    tokens, weights = torch.randint(0, 440, (200,)), torch.randn(2, 200)
    query = LogprobQuery.make(torch.arange(200), torch.full((200,), temperature), tokens)

    def gradients(chosen, entropy):
        assert chosen.dtype == entropy.dtype == torch.float32
        model.head.zero_grad()
        states.grad = None
        ((chosen * weights[0]).sum() + ((entropy * weights[1]).sum() if entropy_tokens else 0.0)).backward()
        return chosen.detach(), entropy.detach(), states.grad.clone(), model.head.weight.grad.clone()

    with torch.autocast("cpu", torch.bfloat16):
        own_gradients = gradients(*compute_token_logprobs(model, states, query, entropy_tokens))
        logits = model.head(states)
    assert logits.dtype == torch.bfloat16
    scores = logits.float() / temperature
    chosen, entropy = plain(scores[:, :440], torch.arange(200), tokens)
    if entropy_tokens == 3:
        _, entropy = plain(scores.topk(3).values, torch.arange(200), torch.zeros_like(tokens))
    for number, (gradient, right) in enumerate(zip(own_gradients, gradients(chosen, entropy), strict=True)):
        # Gradients of scores are rounded to bfloat16 on their way: a number at a bound may fall to its other side.
        assert float((gradient - right).norm()) < (1e-5 if number < 2 else 1e-3) * float(right.norm())


SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def made(kind):
    """A random model with logits far from 0."""
    torch.manual_seed(0)
    model = {
        "cohere": lambda: CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=0.25)),
        "granite": lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=4.0)),
        "hyperclovax": lambda: AutoModelForCausalLM.from_config(
            AutoConfig.for_model("hyperclovax", **SHAPE, logits_scaling=4.0)
        ),
        "nearly": lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=1.004)),
        "unused": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, logit_scale=4.0, final_logit_softcapping=2.0)),
        "recurrent_gemma": lambda: AutoModelForCausalLM.from_config(
            AutoConfig.for_model("recurrent_gemma", **SHAPE, lru_width=32, head_dim=16, logits_soft_cap=3.0)
        ),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=2, eos_token_id=2)),
    }[kind]()
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_()
    return model.eval()


def check_equal(model):
    with torch.no_grad():
        states, logits = compute_last_states(model, input_ids=IDS), model(input_ids=IDS).logits
        projected = project(model, states.flatten(0, 1))
    assert states.shape == (2, 5, model.config.hidden_size)
    assert float((projected - logits.flatten(0, 1)).abs().max()) < 1e-5
    assert float(logits.abs().max()) > 0.1
    check_projection(model)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_logits_are_the_models_own(folders, architecture):
    model = AutoModelForCausalLM.from_pretrained(folders[architecture])
    check_equal(model)
    assert (architecture == "gemma2") == (getattr(model.config, "final_logit_softcapping", None) is not None)


@pytest.mark.parametrize("kind", ["cohere", "granite", "hyperclovax", "nearly", "unused", "recurrent_gemma", "gpt2"])
def test_scaled_logits_and_models_of_other_kinds(kind):
    check_equal(made(kind))


@pytest.mark.parametrize("kind", ["cohere", "granite", "nearly"])
def test_a_scaling_that_is_not_known_is_refused(kind, monkeypatch):
    for option in list(SCALINGS):
        monkeypatch.delitem(SCALINGS, option)
    with pytest.raises(
        EngineError, match=f"type '{made(kind).config.model_type}' do something to their logits.*frozen: true"
    ):
        check_projection(made(kind))


@pytest.mark.parametrize("ruled_out", RULED_OUT)
def test_ids_that_are_never_sampled_hide_no_other_difference(ruled_out):
    """Mistake: a tolerance of the largest logit, or a difference of two infinities, by which everything is equal."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("phi", **SHAPE)).eval()
    with torch.no_grad():
        model.lm_head.bias[40:] = ruled_out
    check_projection(model)

    def shift(module, inputs, output):
        output.logits[..., :3] += 1.0

    model.register_forward_hook(shift)
    with pytest.raises(EngineError, match="take their logits from more than their vocabulary projection"):
        check_projection(model)


def test_the_forward_is_the_root_modules_and_projects_nothing(folders):
    """Hooks on the root see one forward; the projection is given no state, so no logits are made."""
    model = AutoModelForCausalLM.from_pretrained(folders["llama"])
    recorded = []
    model.register_forward_hook(lambda module, inputs, output: recorded.append(("root", tuple(output.logits.shape))))
    model.lm_head.register_forward_hook(lambda module, inputs, output: recorded.append(("head", tuple(output.shape))))
    compute_last_states(model, input_ids=IDS)
    assert recorded == [("head", (2, 0, 260)), ("root", (2, 0, 260))]
    assert "forward" not in vars(model.base_model)
    assert not model.lm_head._forward_pre_hooks
