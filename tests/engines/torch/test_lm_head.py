"""The vocabulary projection apart from the forward: the model's own logits, for every way of scaling them."""

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

from cadre.engines.torch.logprobs import SCALINGS, check_projection, compute_last_states, project
from cadre.errors import EngineError
from tests.engines import tiny

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
