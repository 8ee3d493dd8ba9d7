"""The prefix tree against plain padding: the same loss and gradients on sequences of every shape, nothing run twice."""

import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex_attention
from transformers import GPT2Config, GPT2LMHeadModel

from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings, logprobs
from cadre.engines.torch.forward import Precision, Scorer
from cadre.engines.torch.prefix_tree import TreeForm
from cadre.errors import EngineError
from cadre.learn import tree_attention
from cadre.learn.batching import collate, make_microbatches
from cadre.settings import LearnerConfig, LossConfig
from cadre.types import Targets
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import update
from tests.cadre.learn.sequences import closing_at, sequence, sequences
from tests.helpers.prefix_trees import apart, caught, check_bfloat16
from tests.helpers.slow import few_of

TOLERANCE = 1e-5


def run_flex_attention_plainly(monkeypatch):
    """Run its plain form, whose backward pass PyTorch refuses on a processor although it is there."""
    monkeypatch.setattr(torch_flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(torch_flex_attention, "_validate_device", lambda *_: None)


def check_equal(shared, padded, policies=("p",), examples=12, data=None):
    """Both engines find the same gradients on random trees, and the same figures of the loss."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(sequences(policies, longest=20) if data is None else data, st.sampled_from([(3, 8), (48, 256)]))
    def equal(data, lengths):
        with closing_at(*lengths):
            first, second = caught(shared, data), caught(padded, data)
        assert apart(first, second) < TOLERANCE
        assert max(float(value.abs().max()) for value in second.values()) > 1e-4

    equal()


@pytest.mark.parametrize("architecture", few_of(tiny.ARCHITECTURES, ["llama", "gemma3"]))
def test_gradients_are_those_of_padding(learner, architecture):
    check_equal(*(learner(architecture, pack=packing) for packing in ("prefix_tree", "padded")))


def test_micro_batches_that_cut_a_tree(learner):
    check_equal(*(learner(pack=packing, tokens_per_microbatch=60) for packing in ("prefix_tree", "padded")))


def test_recomputed_activations(learner):
    check_equal(learner(pack="prefix_tree", gradient_checkpointing=True), learner(pack="padded"), examples=6)


@pytest.mark.parametrize("architecture", few_of(["llama", "gemma2", "gemma3"], ["llama"]))
def test_several_adapters(team, architecture):
    ranks = {"planner": 4, "tool": 8, "critic": 2}
    engines = [team(ranks, architecture, frozen=("judge",), pack=packing) for packing in ("prefix_tree", "padded")]
    for name in ranks:
        start = torch.Generator().manual_seed(1)
        for key in engines[0].engine.parameters(name):
            value = 0.1 * torch.randn(engines[0].engine.parameters(name)[key].shape, generator=start)
            for engine in engines:
                engine.engine.parameters(name)[key].data.copy_(value)
    check_equal(*engines, tuple(ranks))


@st.composite
def valued(draw):
    """Sequences of which a critic reads some, and some nobody else does."""
    data = draw(sequences())
    source = draw(st.randoms(use_true_random=False))
    read = []
    for datum in data:
        at = tuple(sorted({source.randrange(len(datum.token_ids)) for _ in range(3)}))
        returns = tuple(1.0 + source.random() for _ in at)
        targets = source.choice((None, Targets("v", at, returns, (0.0,) * len(at))))
        single = targets is not None and source.random() < 0.3
        mask = (False,) * len(datum.mask) if single else datum.mask
        read.append(dataclasses.replace(datum, targets=targets, mask=mask))
    return read


def test_values_entropy_and_divergence(folders):
    loss = LossConfig(entropy=0.1, kl=0.1)
    policy = tiny.policy(folders["qwen3"])
    engines = [
        TorchLearner(
            TorchEngine(folders["qwen3"], {"p": policy}, 0),
            TrainingSettings({"p": LearnerConfig(pack=packing)}, loss, heads={"p": ("v",)}),
        )
        for packing in ("prefix_tree", "padded")
    ]
    for engine in engines:
        engine.rank._heads.heads["p"]["v"].weight.data.fill_(0.02)
    check_equal(*engines, data=valued())
    for engine in engines:
        engine.close()


def test_what_is_read_of_a_forward(learner):
    """Log-probabilities and values of sequences one at a time, in order, from trees and from padding."""
    data = [
        sequence((1, 2, 3, 4, 5), (False, False, True, True, True), temperature=0.7),
        sequence((1, 2, 3, 4, 5), (False, False, True, True, True)),
        sequence((1, 2, 3), (False, True, True)),
        sequence((7,), (False,)),
        sequence((1, 2, 9, 4, 5, 6), (False, False, True, True, False, False)),
    ]
    shared, padded = learner(pack="prefix_tree"), learner(pack="padded")
    reference_logprobs, expected = shared.reference_logprobs(data), padded.reference_logprobs(data)
    assert [len(result) for result in reference_logprobs] == [5, 5, 3, 1, 6]
    for first, second in zip(reference_logprobs, expected, strict=True):
        assert first == pytest.approx(second, abs=1e-5)
    assert reference_logprobs[4][4:] == (0.0, 0.0)
    assert reference_logprobs[0][2] != reference_logprobs[1][2]


def test_nodes_that_are_run(learner, monkeypatch):
    """Four siblings of a prompt of 30 with 10 tokens each: 30 + 4 * 9 nodes, as nobody reads the last token's state."""
    torch_learner = learner()
    ids = [(*range(30), *range(40 + 10 * k, 50 + 10 * k)) for k in range(4)]
    data = [sequence(row, (False,) * 30 + (True,) * 10) for row in ids]
    body = torch_learner.engine.loaded.model.base_model
    shapes = []
    forward = type(body).forward
    monkeypatch.setattr(
        type(body), "forward", lambda self, *a, **k: shapes.append(k["input_ids"].shape) or forward(self, *a, **k)
    )
    update(torch_learner, data)
    assert shapes == [(66, 1), (1, 40)]  # the second is the look at what came of the update


@pytest.mark.parametrize("architecture", few_of(["llama", "gemma2"], ["gemma2"]))
@pytest.mark.parametrize("spread", [0, 4, logprobs.ALL_TOKENS])
def test_chunks_of_the_vocabulary_change_nothing(learner, architecture, spread, monkeypatch):
    """Also where logits are soft-capped after the projection, as in Gemma 2."""
    torch_learner = learner(architecture, pack="prefix_tree")
    data = [sequence((*range(10), *range(20 * k, 20 * k + 9)), (False,) * 10 + (True,) * 9) for k in range(3)]
    data += [sequence(data[0].token_ids, data[0].mask, temperature=0.5)]
    (group,) = make_microbatches(data, 4096, "prefix_tree", 32)
    batch = collate(group.data, torch.device("cpu"), group.tree)
    model = torch_learner.engine.loaded.model

    def results():
        scores = Scorer(model)(batch, Precision(entropy_tokens=spread))
        model.zero_grad()
        (scores.logprobs.sum() + (scores.entropy.square().sum() if spread else 0.0)).backward()
        return scores, {name: weight.grad.clone() for name, weight in model.named_parameters()}

    full, gradients = results()
    sizes = []
    project = logprobs.project
    monkeypatch.setattr(logprobs, "CHUNK", 260 * 4)
    monkeypatch.setattr(logprobs, "KEPT", 260 * 10)
    monkeypatch.setattr(logprobs, "project", lambda *a: sizes.append(len(a[1])) or project(*a))
    cut, again = results()
    # 1 + 3 * 8 states at temperature 1 and 9 at 0.5, four at a time; all but the first eight again in the backward.
    assert sum(sizes) == 2 * (25 + 9) - 8
    assert max(sizes) == 4
    assert torch.allclose(cut.logprobs, full.logprobs, atol=1e-6)
    assert torch.allclose(cut.entropy, full.entropy, atol=1e-5)
    assert cut.entropy.requires_grad == bool(spread)
    assert apart(gradients, again) < TOLERANCE * max(1.0, max(float(value.abs().max()) for value in gradients.values()))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_last_layer_goes_on_with_what_is_read(learner, checkpointing):
    ids = (*range(60), *range(70, 79))
    data = [sequence((*ids, 80 + k), (False,) * 60 + (True,) * 10) for k in range(4)]
    torch_learner = learner(pack="prefix_tree", gradient_checkpointing=checkpointing)
    recorded = {}

    def note(key, length):
        if torch.is_grad_enabled():  # not where the policy is asked what came of the update
            recorded[key] = length

    for number, layer in enumerate(torch_learner.engine.loaded.model.base_model.layers):
        for name, module in (("query", layer.self_attn.q_proj), ("output", layer.self_attn.o_proj), ("mlp", layer.mlp)):
            module.register_forward_hook(lambda _, inputs, __, key=(number, name): note(key, len(inputs[0])))
    update(torch_learner, data)
    last = len(torch_learner.engine.loaded.model.base_model.layers) - 1
    # 69 nodes, as the siblings part with their last token alone; from the prompt's last on, ten are read.
    less = {(last, "output"), (last, "mlp")} if not checkpointing else set()
    assert recorded == {key: 10 if key in less else 69 for key in recorded}


@pytest.mark.parametrize("architecture", few_of(["llama", "qwen3"], ["qwen3"]))
@pytest.mark.parametrize("seed", few_of(range(3), [0]))
@pytest.mark.parametrize("form", [TreeForm(), TreeForm(flex=True)], ids=str)
def test_bfloat16_is_as_close_as_padding(learner, architecture, seed, form, monkeypatch):
    run_flex_attention_plainly(monkeypatch)
    check_bfloat16(learner, architecture, seed, form)


@pytest.mark.parametrize("architecture", few_of(["llama", "qwen3", "gemma2", "gemma3"], ["llama"]))
def test_flex_attention(learner, architecture, monkeypatch):
    run_flex_attention_plainly(monkeypatch)
    windows, mask = [], tree_attention.FlexMasks._mask
    monkeypatch.setattr(tree_attention.FlexMasks, "_mask", lambda self, item: windows.append(item) or mask(self, item))
    shared = learner(architecture, pack="prefix_tree")
    shared.rank._runner._precision = dataclasses.replace(shared.rank._runner._precision, form=TreeForm(flex=True))
    check_equal(shared, learner(architecture, pack="padded"), examples=6)
    assert set(windows) == ({None, tiny.WINDOW} if architecture.startswith("gemma") else {None})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")
@pytest.mark.parametrize(("architecture", "shape"), [("llama", {"hidden_size": 64}), ("gemma2", {"head_dim": 16})])
def test_compiled_flex_attention(learner, tmp_path, architecture, shape):
    folder = tiny.build(tmp_path, architecture, **shape)  # The kernels are for heads of 16 and more.
    shared = learner(folder, pack="prefix_tree", flex_attention=True, device="cuda")
    check_equal(shared, learner(folder, pack="padded", device="cuda"), examples=6)


def test_flex_attention_that_cannot_be(learner):
    with pytest.raises(EngineError, match=r"is on the CPU.*Leave it off"):
        learner(flex_attention=True, device="cpu")


def test_packing_that_cannot_be(learner, team, folders, tmp_path):
    with pytest.raises(EngineError, match="padded and prefix_tree"):
        team({"planner": 4, "tool": 4}, changes={"tool": {"pack": "padded"}}, pack="prefix_tree")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=260, n_positions=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=257
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    tiny.byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(EngineError, match=r"'gpt2'.*expected one of gemma.*pack to auto"):
        learner(tmp_path, pack="prefix_tree")
    data = [sequence((1, 2, 3, 4 + k), (False, False, True, True)) for k in range(4)]
    assert update(learner(tmp_path), data)["p"]["sequences"] == 4
