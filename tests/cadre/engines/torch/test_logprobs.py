"""Log-probabilities and entropies of tokens, and the vocabulary projection that they are read from."""

import math

import pytest
import torch
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

from cadre.engines.torch.logprobs import (
    SCALINGS,
    SelectedLogprobs,
    check_projection,
    compute_last_states,
    compute_top_entropy,
    project,
)
from cadre.errors import EngineError
from tests.cadre.engines import tiny


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


def test_the_forward_is_the_root_modules_and_projects_nothing(folders):
    """Hooks on the root see one forward; the projection is given no state, so no logits are made."""
    model = AutoModelForCausalLM.from_pretrained(folders["llama"])
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(("root", tuple(output.logits.shape))))
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(("head", tuple(output.shape))))
    compute_last_states(model, input_ids=IDS)
    assert seen == [("head", (2, 0, 260)), ("root", (2, 0, 260))]
    assert "forward" not in vars(model.base_model)
    assert not model.lm_head._forward_pre_hooks
