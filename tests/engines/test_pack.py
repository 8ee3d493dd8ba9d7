"""The trie against plain padding: the same loss and gradients on sequences of every shape, and nothing run twice."""

import dataclasses
import random
from contextlib import contextmanager

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex_attention
from transformers import GPT2Config, GPT2LMHeadModel

from cadre.engines.torch import TorchEngine, readout
from cadre.engines.torch.learner import score
from cadre.errors import EngineError
from cadre.learn import flex_attention, pack, tree_attention
from cadre.learn.batch import collate
from cadre.learn.groups import groups
from cadre.sections import LearnerConfig, LossConfig, PolicyConfig
from cadre.types import Datum, Targets
from tests.engines import tiny
from tests.engines.test_adapters import team  # noqa: F401

TOLERANCE = 1e-5


def sequence(ids, mask, policy="p", temperature=1.0, draw=random) -> Datum:
    """A sequence with sampled log-probabilities and advantages where it is trained on."""
    logprobs = tuple(-4.0 * draw.random() if kept else 0.0 for kept in mask)
    advantages = tuple(draw.choice((-1.0, 1.0)) * (0.1 + draw.random()) if kept else 0.0 for kept in mask)
    return Datum(policy, "r", tuple(ids), tuple(mask), logprobs, advantages, 0, temperature)


@st.composite
def sequences(draw, policies=("p",), longest=12):
    """Walks of a random tree: siblings, turns that extend each other, duplicates, prefixes, and unrelated tasks."""
    source = draw(st.randoms(use_true_random=False))
    grown = {policy: [()] for policy in policies}
    data = []
    for _ in range(draw(st.integers(1, 12))):
        policy = source.choice(policies)
        ids, mask = grown[policy][source.randrange(len(grown[policy]))] or ((), ())
        cut = source.choice((len(ids), source.randint(0, len(ids))))
        ids, mask = ids[:cut], mask[:cut]
        for _turn in range(source.randint(1, 2)):
            prompt, said = source.randint(not ids, longest), source.randint(1, longest)
            # Few different tokens, so that siblings agree for a while.
            ids += tuple(source.randrange(3) for _ in range(prompt + said))
            mask += (False,) * prompt + (True,) * said
        grown[policy].append((ids, mask))
        data.append(sequence(ids, mask, policy, source.choice((1.0, 1.0, 0.7)), source))
    return data


@settings(max_examples=100, deadline=None)
@given(sequences(("p", "q")), st.sampled_from([(1, 3), (2, 5), (3, 8), (6, 16)]))
def test_every_ancestor_is_attended_to_once(data, lengths):
    with closing_at(*lengths):
        trie = pack.trie(sorted(data, key=pack.path))
        blocks, reaches = pack.cover(trie)
    paths = [tuple(path.tolist()) for path in trie.paths]
    wanted = {(path[i], path[j]) for path in paths for i in range(len(path)) for j in range(i + 1)}
    found = [(b.nodes[i], b.nodes[j]) for b in blocks for i in range(len(b.near), b.size) for j in range(i + 1)]
    found += [(node, key) for reach in reaches for node in range(reach.start, reach.end) for key in reach.block.nodes]
    assert len(found) == len(set(found))
    assert set(found) == wanted


@settings(max_examples=60, deadline=None)
@given(sequences(("p", "q")))
def test_a_node_is_a_policy_and_a_prefix(data):
    data = sorted(data, key=pack.path)
    trie = pack.trie(data)
    read = [(one.policy, one.token_ids[: depth + 1]) for one in data for depth in range(pack.reads(one))]
    assert len(trie.token_ids) == len(set(read))
    named = {}
    for one, path in zip(data, trie.paths, strict=True):
        assert trie.token_ids[path].tolist() == list(one.token_ids[: pack.reads(one)])
        assert trie.depths[path].tolist() == list(range(len(path)))
        for depth, node in enumerate(path.tolist()):
            assert named.setdefault(node, (one.policy, one.token_ids[: depth + 1])) == (
                one.policy,
                one.token_ids[: depth + 1],
            )
    above = {
        (node, key) for path in trie.paths for i, node in enumerate(path.tolist()) for key in path[: i + 1].tolist()
    }
    ends = trie.ends.tolist()
    assert above == {(i, j) for j in range(len(ends)) for i in range(j, ends[j])}
    assert sum(size for _, size in trie.policies) == len(trie.token_ids)


def apart(one, other):
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@contextmanager
def closing_at(short, long):
    """Blocks close at these lengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "SHORT", short)
        patch.setattr(pack, "LONG", long)
        patch.setattr(tree_attention, "ALONE", min(short, tree_attention.ALONE))
        yield


def check_equal(shared, padded, policies=("p",), examples=12, data=None):
    """On random trees both engines find the same gradients, and the same figures of the loss."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(sequences(policies, longest=20) if data is None else data, st.sampled_from([(3, 8), (48, 256)]))
    def equal(data, lengths):
        with closing_at(*lengths):
            one, other = caught(shared, data), caught(padded, data)
        assert apart(one, other) < TOLERANCE
        assert max(float(value.abs().max()) for value in other.values()) > 1e-4

    equal()


def caught(engine, data):
    """What the optimisers of all policies and heads are given, in place of a step, with the losses."""
    found = {}
    optimisers = {**engine._optimisers, **{f"{name}.head": one for name, one in engine._head_optimisers.items()}}

    def catcher(name, optimiser):
        def catch(loss):
            gradients = {key: weight.grad for key, weight in optimiser._parameters.items() if weight.grad is not None}
            found.update({f"{name}.{key}": value.clone() for key, value in gradients.items()})
            found[f"{name}.loss"] = torch.tensor(loss)
            optimiser.clear()
            return 1.0

        return catch

    with pytest.MonkeyPatch.context() as patch:
        for name, optimiser in optimisers.items():
            patch.setattr(optimiser, "step", catcher(name, optimiser))
        engine.update(data)
    return found


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_gradients_are_those_of_padding(engine, architecture):
    check_equal(*(engine(architecture, pack=packing) for packing in ("trie", "padded")))


def test_micro_batches_that_cut_a_tree(engine):
    check_equal(*(engine(pack=packing, tokens_per_microbatch=60) for packing in ("trie", "padded")))


def test_recomputed_activations(engine):
    check_equal(engine(pack="trie", gradient_checkpointing=True), engine(pack="padded"), examples=6)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gemma3"])
def test_several_adapters(team, architecture):  # noqa: F811
    ranks = {"planner": 4, "tool": 8, "critic": 2}
    engines = [team(ranks, architecture, frozen=("judge",), pack=packing) for packing in ("trie", "padded")]
    for name in ranks:
        start = torch.Generator().manual_seed(1)
        for key in engines[0]._parameters(name):
            value = 0.1 * torch.randn(engines[0]._parameters(name)[key].shape, generator=start)
            for one in engines:
                one._parameters(name)[key].data.copy_(value)
    check_equal(*engines, tuple(ranks))


@st.composite
def valued(draw):
    """Sequences of which a critic reads some, and some nobody else does."""
    data = draw(sequences())
    source = draw(st.randoms(use_true_random=False))
    read = []
    for one in data:
        at = tuple(sorted({source.randrange(len(one.token_ids)) for _ in range(3)}))
        returns = tuple(1.0 + source.random() for _ in at)
        targets = source.choice((None, Targets("v", at, returns, (0.0,) * len(at))))
        alone = targets is not None and source.random() < 0.3
        mask = (False,) * len(one.mask) if alone else one.mask
        read.append(dataclasses.replace(one, targets=targets, mask=mask))
    return read


def test_values_entropy_and_divergence(folders):
    loss = LossConfig(entropy=0.1, kl=0.1)
    policy = PolicyConfig(model=str(folders["qwen3"]))
    engines = [
        TorchEngine(
            folders["qwen3"], {"p": policy}, {"p": LearnerConfig(pack=packing)}, loss, 9, 0, "cpu", heads={"p": ("v",)}
        )
        for packing in ("trie", "padded")
    ]
    for one in engines:
        one._heads.heads["p"]["v"].weight.data.fill_(0.02)
    check_equal(*engines, data=valued())
    for one in engines:
        one.close()


def test_what_is_read_of_a_forward(engine):
    """Log-probabilities and values of sequences one at a time, in order, from tries and from padding."""
    data = [
        sequence((1, 2, 3, 4, 5), (False, False, True, True, True), temperature=0.7),
        sequence((1, 2, 3, 4, 5), (False, False, True, True, True)),
        sequence((1, 2, 3), (False, True, True)),
        sequence((7,), (False,)),
        sequence((1, 2, 9, 4, 5, 6), (False, False, True, True, False, False)),
    ]
    shared, padded = engine(pack="trie"), engine(pack="padded")
    found, wanted = shared.reference_logprobs(data), padded.reference_logprobs(data)
    assert [len(one) for one in found] == [5, 5, 3, 1, 6]
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert found[4][4:] == (0.0, 0.0)
    assert found[0][2] != found[1][2]


def test_nodes_that_are_run(engine, monkeypatch):
    """Four siblings of a prompt of 30 with 10 tokens each: 30 + 4 * 9 nodes, as nobody reads the last token's state."""
    mine = engine()
    ids = [(*range(30), *range(40 + 10 * k, 50 + 10 * k)) for k in range(4)]
    data = [sequence(one, (False,) * 30 + (True,) * 10) for one in ids]
    body = mine._loaded.model.base_model
    shapes = []
    forward = type(body).forward
    monkeypatch.setattr(
        type(body), "forward", lambda self, *a, **k: shapes.append(k["input_ids"].shape) or forward(self, *a, **k)
    )
    mine.update(data)
    assert shapes == [(66, 1)]


def test_auto_pads_where_nothing_is_shared():
    alike = [sequence(range(100 * k, 100 * k + 100), (False,) * 50 + (True,) * 50) for k in range(8)]
    siblings = [sequence((*range(80), *range(100 * k, 100 * k + 20)), (False,) * 80 + (True,) * 20) for k in range(8)]
    assert all(group.trie is None for group in groups(alike, 4096, "auto", 256))
    assert [group.trie is not None for group in groups(siblings, 4096, "auto", 256)] == [True]
    assert all(group.trie is None for group in groups(siblings, 4096, "padded", 256))
    assert all(group.trie is not None for group in groups(alike, 4096, "trie", 256))


@settings(max_examples=60, deadline=None)
@given(sequences(("p", "q")), st.integers(1, 80), st.sampled_from(["auto", "trie", "padded"]))
def test_groups_hold_every_sequence_once_and_keep_to_their_size(data, tokens, packing):
    made = groups(data, tokens, packing, 32)
    assert sorted(id(one) for group in made for one in group.data) == sorted(map(id, data))
    for group in made:
        longest = max(len(one.token_ids) for one in group.data)
        size = len(group.trie.token_ids) if group.trie else longest * len(group.data)
        assert size <= tokens or len(group.data) == 1
        assert [one.policy for one in group.data] == sorted(one.policy for one in group.data)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
@pytest.mark.parametrize("spread", [False, True])
def test_chunks_of_the_vocabulary_change_nothing(engine, architecture, spread, monkeypatch):
    """Also where logits are soft-capped after the projection, as in Gemma 2."""
    mine = engine(architecture, pack="trie")
    data = [sequence((*range(10), *range(20 * k, 20 * k + 9)), (False,) * 10 + (True,) * 9) for k in range(3)]
    data += [sequence(data[0].token_ids, data[0].mask, temperature=0.5)]
    (group,) = groups(data, 4096, "trie", 32)
    batch = collate(group.data, torch.device("cpu"), trie=group.trie)
    model = mine._loaded.model

    def results():
        scores = score(model, batch, torch.float32, spread=spread)
        model.zero_grad()
        (scores.logprobs.sum() + (scores.entropy.square().sum() if spread else 0.0)).backward()
        return scores, {name: weight.grad.clone() for name, weight in model.named_parameters()}

    whole, gradients = results()
    sizes = []
    project = readout.project
    monkeypatch.setattr(readout, "CHUNK", 260 * 4)
    monkeypatch.setattr(readout, "KEPT", 260 * 10)
    monkeypatch.setattr(readout, "project", lambda *a: sizes.append(len(a[1])) or project(*a))
    cut, again = results()
    # 1 + 3 * 8 states at temperature 1 and 9 at 0.5, four at a time; all but the first eight again in the backward.
    assert sum(sizes) == 2 * (25 + 9) - 8
    assert max(sizes) == 4
    assert torch.allclose(cut.logprobs, whole.logprobs, atol=1e-6)
    assert torch.allclose(cut.entropy, whole.entropy, atol=1e-5)
    assert cut.entropy.requires_grad == spread
    assert apart(gradients, again) < TOLERANCE * max(1.0, max(float(value.abs().max()) for value in gradients.values()))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_last_layer_goes_on_with_what_is_read(engine, checkpointing):
    ids = (*range(60), *range(70, 79))
    data = [sequence((*ids, 80 + k), (False,) * 60 + (True,) * 10) for k in range(4)]
    mine = engine(pack="trie", gradient_checkpointing=checkpointing)
    seen = {}
    for number, layer in enumerate(mine._loaded.model.base_model.layers):
        for name, module in (("query", layer.self_attn.q_proj), ("output", layer.self_attn.o_proj), ("mlp", layer.mlp)):
            module.register_forward_hook(lambda _, inputs, __, key=(number, name): seen.update({key: len(inputs[0])}))
    mine.update(data)
    last = len(mine._loaded.model.base_model.layers) - 1
    # 69 nodes, as the siblings part with their last token alone; from the prompt's last on, ten are read.
    less = {(last, "output"), (last, "mlp")} if not checkpointing else set()
    assert seen == {key: 10 if key in less else 69 for key in seen}


def test_bfloat16_is_as_close_as_padding(engine):
    data = [sequence((*range(60), *range(70 + 9 * k, 79 + 9 * k)), (False,) * 60 + (True,) * 9) for k in range(4)]
    exact = torch.tensor(engine(pack="padded").reference_logprobs(data))
    found, padded = (
        torch.tensor(engine(pack=packing, dtype="bfloat16").reference_logprobs(data)) for packing in ("trie", "padded")
    )
    assert found.dtype == torch.float32
    assert float((found - exact).abs().max()) < 2.0 * float((padded - exact).abs().max())
    one, other = (caught(engine(pack=packing, dtype="bfloat16"), data) for packing in ("trie", "padded"))
    whole = caught(engine(pack="padded"), data)
    assert 0.0 < apart(one, whole) < 2.0 * apart(other, whole)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma2", "gemma3"])
def test_flex_attention(engine, architecture, monkeypatch):
    # Its plain form, whose backward pass PyTorch refuses on a processor although it is there.
    monkeypatch.setattr(torch_flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(torch_flex_attention, "_validate_device", lambda *_: None)
    windows, mask = [], flex_attention.Fused._mask
    monkeypatch.setattr(flex_attention.Fused, "_mask", lambda self, one: windows.append(one) or mask(self, one))
    shared = engine(architecture, pack="trie")
    shared._trainer._flex = True
    check_equal(shared, engine(architecture, pack="padded"), examples=6)
    assert set(windows) == ({None, tiny.WINDOW} if architecture.startswith("gemma") else {None})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")
@pytest.mark.parametrize(("architecture", "shape"), [("llama", {"hidden_size": 64}), ("gemma2", {"head_dim": 16})])
def test_compiled_flex_attention(engine, tmp_path, architecture, shape):
    folder = tiny.build(tmp_path, architecture, **shape)  # The kernels are for heads of 16 and more.
    shared = engine(folder, pack="trie", flex_attention=True, device="cuda")
    check_equal(shared, engine(folder, pack="padded", device="cuda"), examples=6)


def test_flex_attention_that_cannot_be(engine):
    with pytest.raises(EngineError, match=r"is on the processor.*Leave it off"):
        engine(flex_attention=True, device="cpu")
    with pytest.raises(EngineError, match=r"which is for tries, but learner\.pack is padded"):
        engine(flex_attention=True, pack="padded", device="cuda")


def test_packing_that_cannot_be(engine, team, folders, tmp_path):  # noqa: F811
    with pytest.raises(EngineError, match="padded and trie"):
        team({"planner": 4, "tool": 4}, changes={"tool": {"pack": "padded"}}, pack="trie")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=260, n_positions=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=257
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    tiny.byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(EngineError, match=r"'gpt2'.*expected one of gemma.*pack to auto"):
        engine(tmp_path, pack="trie")
    data = [sequence((1, 2, 3, 4 + k), (False, False, True, True)) for k in range(4)]
    assert engine(tmp_path).update(data)["p"]["sequences"] == 4
