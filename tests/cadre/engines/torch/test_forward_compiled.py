"""The learner's GPU code on a CPU: compiled layers, the block masks, and the fused projection.

Inductor has no backward pass of FlexAttention for CPUs, so layers are traced and run as they were traced.
"""

import contextlib
import dataclasses
import functools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import flex_attention as torch_flex_attention

from cadre.engines.torch import forward, logprobs, prefix_tree
from cadre.engines.torch.logprobs import ALL_TOKENS, LogprobQuery, compute_token_logprobs, fused_logprobs
from cadre.engines.torch.model import find_window
from cadre.engines.torch.prefix_tree import TreeForm
from cadre.errors import EngineError
from cadre.learn import prefix_tree as tree_of_prefixes
from cadre.learn import tree_attention
from cadre.learn.prefix_tree import PrefixTree, attention_mask, path
from cadre.learn.tree_attention import FlexMasks, Layout, compile_variants
from tests.cadre.learn.sequences import sequence, sequences
from tests.helpers.memory_shortage import run_out_of_memory
from tests.helpers.prefix_trees import apart, caught, check_bfloat16
from tests.helpers.slow import few_of

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def traced_layer():
    """The function of a layer, whose graphs run operation by operation. Each is traced once for all of these tests."""
    torch._dynamo.reset()
    yield torch.compile(prefix_tree._run_layer, backend="aot_eager")
    torch._dynamo.reset()


@pytest.fixture
def traced(monkeypatch, traced_layer):
    """Compiled layers."""
    monkeypatch.setattr(torch_flex_attention, "_validate_device", lambda *_: None)
    monkeypatch.setattr(forward, "MIN_COMPILED", 0)
    monkeypatch.setattr(prefix_tree, "_compiled_layer", lambda: traced_layer)


@pytest.fixture
def untraced():
    """Compiled layers of which none has been traced, for tests that count them."""
    torch._dynamo.reset()


def compile_layers(learner):
    learner.rank._runner._precision = dataclasses.replace(learner.rank._runner._precision, form=TreeForm(True, True))
    return learner


def trees(policies, sizes):
    """Prompts with several completions each, in turn of the policies."""
    data = []
    for number, (prompt, completion) in enumerate(sizes):
        ids = tuple(range(number, number + prompt))
        for k in range(3):
            text = tuple((7 * number + 11 * k + 3 * n) % 250 for n in range(completion))
            mask = (False,) * prompt + (True,) * completion
            data.append(sequence(ids + text, mask, policies[number % len(policies)]))
    return data


@pytest.mark.usefixtures("traced", "untraced")
@pytest.mark.parametrize(
    ("architecture", "limit"),
    # Mistral reads its window from its settings; the adapters below are tried in compiled layers of llama too.
    few_of([("mistral", 1), ("llama", 1), ("qwen3", 1), ("gemma2", 4), ("gemma3", 2)], [("mistral", 1)]),
)
def test_compiled_layers_are_the_models_and_are_compiled_for_all_sizes_at_once(learner, architecture, limit):
    """Windowed and full attention are compiled separately; a soft cap is compiled for one size and then for all."""
    first, other_torch_learner = (
        compile_layers(learner(architecture, pack="prefix_tree")),
        learner(architecture, pack="padded"),
    )
    initial = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    batches = [
        trees(("p",), sizes)
        for sizes in ([(40, 8), (30, 20)], [(90, 60), (120, 30)], [(250, 126)], [(240, 90), (100, 20), (30, 9)])
    ]
    for data in batches:
        assert apart(caught(first, data), caught(other_torch_learner, data)) < 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - initial == limit
    for data in (batches[0], batches[2]):  # two numbers of blocks
        gaps = [
            abs(value - reference)
            for pair in zip(
                first.engine.work(first.rank._runner.compute_logprobs, data),
                other_torch_learner.engine.work(other_torch_learner.rank._runner.compute_logprobs, data),
                strict=True,
            )
            for value, reference in zip(*pair, strict=True)
        ]
        assert max(gaps) < 1e-5


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_bfloat16_in_compiled_layers_is_as_close_as_padding(learner, architecture):
    check_bfloat16(learner, architecture, 0, TreeForm(flex=True, compiled=True))


@pytest.mark.usefixtures("traced", "untraced")
def test_adapters_of_several_policies_in_compiled_layers(team):
    ranks = {"planner": 4, "tool": 8}
    first, other_built_team = (
        team(ranks, "llama", frozen=("judge",), pack=packing) for packing in ("prefix_tree", "padded")
    )
    for name in ranks:
        start = torch.Generator().manual_seed(1)
        for key in first.engine.parameters(name):
            value = 0.1 * torch.randn(first.engine.parameters(name)[key].shape, generator=start)
            for side in (first, other_built_team):
                side.engine.parameters(name)[key].data.copy_(value)
    data = trees(tuple(ranks), [(40, 8), (30, 20), (60, 9), (122, 126)])  # the last are padded to whole blocks
    assert first.rank._runner._adapters.can_join(first.engine.loaded.model.base_model.layers)
    assert apart(caught(compile_layers(first), data), caught(other_built_team, data)) < 1e-5

    # The reference is the base without them, by the same compiled layers.
    initial = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    reference_logprobs, reference = first.reference_logprobs(data), other_built_team.reference_logprobs(data)
    assert (
        max(abs(a - b) for pair in zip(reference_logprobs, reference, strict=True) for a, b in zip(*pair, strict=True))
        < 1e-5
    )
    own_work = first.engine.work(first.rank._runner.compute_logprobs, data)
    assert (
        max(abs(a - b) for pair in zip(reference_logprobs, own_work, strict=True) for a, b in zip(*pair, strict=True))
        > 1e-2
    )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= initial + 4  # not one for each layer


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("is_traced", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_window_that_the_mask_does_not_have_is_an_error(learner, monkeypatch, is_traced):
    compiled = compile_layers(learner("gemma3", pack="prefix_tree"))
    if not is_traced:
        monkeypatch.setattr(prefix_tree, "_compiled_layer", lambda: prefix_tree._run_layer)
    monkeypatch.setattr(prefix_tree, "find_window", lambda attention: None)
    with pytest.raises(
        EngineError, match=r"attends within 12 tokens; its mask.*window of None.*learner\.compile: false"
    ):
        caught(compiled, trees(("p",), [(40, 8)]))


def test_a_window_in_the_settings_counts_for_models_that_read_it():
    """A checkpoint of another type may have one in its settings that its attention does not have."""
    settings = {
        name: SimpleNamespace(model_type=name, sliding_window=12) for name in ("mistral", "llama", "gemma3_text")
    }
    assert find_window(SimpleNamespace(config=settings["mistral"])) == 12
    assert find_window(SimpleNamespace(config=settings["llama"])) is None
    assert find_window(SimpleNamespace(config=settings["gemma3_text"], sliding_window=None)) is None
    assert find_window(SimpleNamespace(config=settings["gemma3_text"], sliding_window=7)) == 7


def test_functions_of_many_variants_are_compiled_in_every_thread(monkeypatch):
    """torch's own limit is 8, after which a function runs as it is."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    times = compile_variants(lambda values, name: values * len(name))
    initial = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with ThreadPoolExecutor(1) as thread:
        for length in range(1, 25):
            call = thread.submit if length % 2 else lambda *arguments: SimpleNamespace(result=partial(*arguments))
            assert float(call(times, torch.ones(()), "a" * length).result()) == length
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - initial == 24


@pytest.mark.slow
@pytest.mark.usefixtures("traced", "untraced")
def test_layers_with_adapters_are_compiled_for_all_sizes_at_once(team):
    """A compilation took up to 15 seconds on a GPU, and each number of nodes in a micro-batch needed one."""
    ranks = {"planner": 4, "tool": 8}
    compiled = compile_layers(team(ranks, "llama", pack="prefix_tree"))

    def count_graphs(*sizes):
        caught(compiled, trees(tuple(ranks), sizes))
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    initial_count_graphs = count_graphs()
    assert count_graphs((40, 8), (30, 20)) == initial_count_graphs + 1
    assert count_graphs((90, 60), (120, 30)) == initial_count_graphs + 1
    assert (
        count_graphs((200, 126)) == initial_count_graphs + 2
    )  # one for all ranks: a micro-batch of one policy has fewer
    for prompt in (60, 120, 240):
        assert count_graphs((prompt, 90), (prompt, 30)) == initial_count_graphs + 2
        assert count_graphs((prompt, 30)) == initial_count_graphs + 2


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("minimum", [0, 10_000])
def test_a_small_forward_without_gradients_is_not_compiled_and_not_padded(learner, monkeypatch, minimum):
    first, other_torch_learner = compile_layers(learner("llama", pack="prefix_tree")), learner("llama", pack="padded")
    monkeypatch.setattr(forward, "MIN_COMPILED", minimum)
    data = trees(("p",), [(40, 8)])
    work, reference = (
        side.engine.work(side.rank._runner.compute_logprobs, data) for side in (first, other_torch_learner)
    )
    assert max(abs(a - b) for pair in zip(work, reference, strict=True) for a, b in zip(*pair, strict=True)) < 1e-5
    micro = next(first.rank._runner.split(data))
    with torch.no_grad():
        nodes = len(first.rank._runner.collate(micro).tree.token_ids)
    assert nodes == (256 if minimum == 0 else len(micro.tree.token_ids))


@pytest.mark.usefixtures("traced")
def test_the_check_after_an_update_runs_the_layers_that_are_compiled(learner, monkeypatch):
    first, other_torch_learner = compile_layers(learner("llama", pack="prefix_tree")), learner("llama", pack="padded")
    monkeypatch.setattr(forward, "MIN_COMPILED", 10_000)
    data = trees(("p",), [(40, 8)])
    caught(first, trees(("p",), [(90, 60)]))  # compiles the layers
    initial = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    sides = [(first, {"after_update": True}), (other_torch_learner, {})]
    work, reference = (
        side.engine.work(side.rank._runner.compute_logprobs, data[:1], None, **how) for side, how in sides
    )
    assert max(abs(a - b) for a, b in zip(work[0], reference[0], strict=True)) < 1e-5
    assert any(work[0])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == initial > 0


def test_layers_with_adapters_at_other_places_are_not_compiled(team):
    adapters = team({"p": 4}, "llama").engine.loaded.adapters
    layers = team({"p": 4}, "llama").engine.loaded.model.base_model.layers
    assert not adapters.can_join(layers)  # of another model
    adapter_layers = [adapters._modules[name] for name in adapters._modules]
    first, second = nn.Module(), nn.Module()
    first.a, second.b = adapter_layers[0], adapter_layers[1]
    adapters._modules = dict(enumerate(adapter_layers[:2]))
    assert not adapters.can_join([first, second])
    second.a = second.b
    del second.b
    assert adapters.can_join([first, second])


@settings(max_examples=20, deadline=None)
@given(sequences(("p", "q"), longest=30), st.sampled_from([2, 8, 16]))
def test_padded_trees_hold_the_same_tokens_and_see_the_same(data, block):
    """Padding sees only itself; each policy's nodes stay side by side."""
    tree = PrefixTree.of(sorted(data, key=path))
    if not len(tree.token_ids):
        return
    padded = tree.padded(block)
    total = len(padded.token_ids)
    assert total % block == 0
    assert total >= 2 * block
    full = torch.arange(total)
    recorded = attention_mask(full[:, None], full, padded.depths, padded.ends, None)
    assert bool(recorded.diagonal().all())
    nodes = torch.unique(torch.cat(padded.paths))
    inside = torch.zeros(total, dtype=torch.bool).index_fill_(0, nodes, True)
    assert not bool((recorded & ~torch.eye(total, dtype=torch.bool))[:, ~inside].any())
    for first, second in zip(tree.paths, padded.paths, strict=True):
        assert torch.equal(tree.token_ids[first], padded.token_ids[second])
        assert torch.equal(tree.depths[first], padded.depths[second])
    initial_arange = torch.arange(len(tree.token_ids))
    assert torch.equal(
        attention_mask(initial_arange[:, None], initial_arange, tree.depths, tree.ends, None),
        recorded[inside][:, inside],
    )
    owners = [name for name, count in padded.policies for _ in range(count)]
    assert len(owners) == total
    assert [name for name, count in tree.policies for _ in range(count)] == [owners[node] for node in nodes.tolist()]
    read = torch.zeros(len(tree.token_ids), dtype=torch.bool).index_fill_(0, tree.read, True)
    assert torch.equal(nodes[read], padded.read)
    assert [chain.end - chain.start for chain in tree.chains] == [chain.end - chain.start for chain in padded.chains]


def test_completions_that_nearly_fill_their_blocks_begin_with_one():
    prompt = tuple(n % 250 for n in range(500))
    data = [
        sequence(prompt + (k, *((7 * k + n) % 250 for n in range(249))), (False,) * 500 + (True,) * 250, "p")
        for k in range(8)
    ]
    tree = PrefixTree.of(sorted(data, key=path))
    padded = tree.padded(128)
    assert [chain.start % 128 for chain in padded.chains] == [0] * 8
    assert len(padded.token_ids) < 1.02 * len(tree.token_ids) + 128
    masks = [FlexMasks(item.depths, item.ends, CPU).mask(None) for item in (tree, padded)]
    masked = [int(mask.kv_num_blocks.sum()) for mask in masks]
    looked_at = [int(mask.kv_num_blocks.sum() + mask.full_kv_num_blocks.sum()) for mask in masks]
    assert masked[1] < 0.6 * masked[0]
    assert looked_at[1] < 0.9 * looked_at[0]
    with pytest.raises(ValueError, match="of them in paths"):
        Layout.of(padded, CPU)
    # Short ones would grow by much.
    short = PrefixTree.of([sequence((number, *range(20)), (False,) + (True,) * 20, "p") for number in range(9)])
    assert len(short.padded(128).token_ids) == 256


def test_words_that_begin_every_prompt_are_not_keys_of_a_whole_micro_batch(learner):
    """Prompts that share their first two tokens only: no block of keys is seen by many more blocks than one prompt's
    completions are, which would keep one kernel busy while the GPU waits."""
    rng = random.Random(0)
    data = []
    for prompt in range(8):
        words = tuple(rng.randrange(250) for _ in range(300))
        for answer in range(8):
            text = (answer, *(rng.randrange(250) for _ in range(129)))
            data.append(sequence((1, 2, prompt, *words, *text), (False,) * 303 + (True,) * 130, "p"))
    torch_learner = learner("llama", pack="prefix_tree", tokens_per_microbatch=32_768)

    def most_seen() -> tuple[int, int, int]:
        """Return the blocks of queries that see one block of keys, at most, all blocks, and the number of nodes."""
        (micro,) = torch_learner.rank._runner.split(data)
        tree = micro.tree.padded(128)
        mask = FlexMasks(tree.depths, tree.ends, CPU).mask(None)
        recorded = int((mask.q_num_blocks + mask.full_q_num_blocks).max())
        return recorded, len(tree.token_ids) // 128, len(micro.tree.token_ids)

    full, blocks, nodes = most_seen()
    assert full == blocks >= 84
    assert nodes == 2 + 8 * (301 + 8 * 129)
    compile_layers(torch_learner)  # four prompts are 5,334 nodes with the two tokens, which then begin another tree
    half, blocks, repeated = most_seen()
    assert half <= blocks / 2 + 1
    assert repeated == nodes + 2


@pytest.mark.usefixtures("traced")
def test_a_start_that_is_run_twice_changes_no_gradient(learner, monkeypatch):
    first, other_torch_learner = compile_layers(learner("llama", pack="prefix_tree")), learner("llama", pack="padded")
    data = [sequence((7, *range(number, number + 40), *[k] * 9), (False,) * 41 + (True,) * 9) for number, k in PAIRS]
    (micro,) = first.rank._runner.split(data)
    monkeypatch.setattr(tree_of_prefixes, "LEAST_REPEATED", 50)
    (repeated,) = first.rank._runner.split(data)
    assert len(repeated.tree.token_ids) == len(micro.tree.token_ids) + 2
    assert apart(caught(first, data), caught(other_torch_learner, data)) < 1e-5


PAIRS = [(number, k) for number in range(3) for k in range(2)]


@settings(max_examples=10, deadline=None)
@given(sequences(("p", "q"), longest=60), st.sampled_from([None, 1, 5, 40]), st.sampled_from([2, 8]))
def test_block_masks_hold_every_pair(data, window, block):
    """With blocks of a few nodes, all pairs of full blocks see each other, and no pair lies outside of all blocks."""
    tree = PrefixTree.of(sorted(data, key=path))
    if not len(tree.token_ids):
        return
    padded = tree.padded(block)
    original, tree_attention.FLEX_BLOCK = tree_attention.FLEX_BLOCK, block
    try:
        mask = FlexMasks(padded.depths, padded.ends, CPU).mask(window)
    finally:
        tree_attention.FLEX_BLOCK = original
    count = len(padded.token_ids) // block
    nodes = torch.arange(count * block)
    recorded = attention_mask(nodes[:, None], nodes, padded.depths[: len(nodes)], padded.ends[: len(nodes)], window)
    by_block = recorded.view(count, block, count, block).transpose(1, 2)
    for row in range(count):
        partial = mask.kv_indices[0, 0, row, : mask.kv_num_blocks[0, 0, row]].tolist()
        full = mask.full_kv_indices[0, 0, row, : mask.full_kv_num_blocks[0, 0, row]].tolist()
        assert not set(partial) & set(full)
        assert all(bool(by_block[row, column].all()) for column in full)
        rest = set(range(count)) - set(partial) - set(full)
        assert not any(bool(by_block[row, column].any()) for column in rest)


def test_padded_trees_see_themselves():
    tree = PrefixTree.of([sequence((1, 2, 3, 4), (False, True, True, True), "p")])
    padded = tree.padded(4)
    assert len(padded.token_ids) == 8
    assert padded.policies == (("p", 8),)
    assert padded.ends[3:].tolist() == [4, 5, 6, 7, 8]


class Head:
    """A model of nothing but a vocabulary projection."""

    def __init__(self, states, vocabulary):
        self.head = nn.Linear(states, vocabulary, bias=False, dtype=torch.float64)
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=vocabulary))
        self._logit_scalings = ()

    def get_output_embeddings(self):
        return self.head


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("chunk", [1, 97 * 3, 1 << 29])
def test_the_fused_projection_equals_the_plain_one(monkeypatch, spread, chunk):
    """Log-probabilities, entropies and gradients, in several chunks, of which two are kept for the backward pass."""
    torch.manual_seed(0)
    model = Head(16, 97)
    monkeypatch.setattr(logprobs, "FUSED_CHUNK", chunk)
    monkeypatch.setattr(logprobs, "GPU_KEPT", 97 * 6)
    states = torch.randn(20, 16, dtype=torch.float64, requires_grad=True)
    temperatures = torch.tensor([1.0, 0.7])[torch.randint(0, 2, (40,))]
    query = LogprobQuery.make(torch.randint(0, 20, (40,)), temperatures, torch.randint(0, 97, (40,)))
    weights = torch.randn(2, 40)

    def gradients(numbers):
        message, entropy = numbers
        model.head.zero_grad()
        states.grad = None
        ((message * weights[0]).sum() + ((entropy * weights[1]).sum() if spread else 0.0)).backward()
        return message.detach(), entropy.detach(), states.grad.clone(), model.head.weight.grad.clone()

    def fused():
        message, entropy = fused_logprobs(model, states, query, spread)
        blank = torch.zeros(40)
        return blank.index_put((query.order,), message), blank.index_put((query.order,), entropy)

    expected = gradients(compute_token_logprobs(model, states, query, ALL_TOKENS if spread else 0))
    for gradient, reference in zip(gradients(fused()), expected, strict=True):
        assert float((gradient - reference).abs().max()) < 5e-6


def test_the_fused_projection_counts_a_score_of_minus_infinity_0():
    """A product of 16 positive states with a row of large negative weights is beyond the lowest number."""
    torch.manual_seed(0)
    model = Head(16, 97)
    states = torch.rand(20, 16, dtype=torch.float64, requires_grad=True)
    query = LogprobQuery.make(torch.arange(20), torch.ones(20), torch.randint(0, 90, (20,)))
    results = []
    for lowest in (-1e40, -1e3):  # minus infinity in float32, and a number whose probability is 0
        model.head.weight.data[95] = lowest
        message, entropy = fused_logprobs(model, states, query, True)
        (gradient,) = torch.autograd.grad(message.sum() + 1e3 * entropy.sum(), states)
        results.append((message.detach(), entropy.detach(), gradient))
    for infinite, finite in zip(*results, strict=True):
        assert float(finite.abs().max()) > 0.1
        assert torch.equal(infinite, finite)


@pytest.mark.parametrize("spread", [False, True])
def test_the_fused_projection_in_bfloat16_is_as_close_as_the_plain_one(spread):
    """Both round the scores. The plain form keeps their gradient in float32 for the softmax and rounds it once, before
    the products; the fused form adds a sampled token's own part to the rounded rest, which rounds that entry twice. So
    its errors have at most twice the variance.
    """
    torch.manual_seed(0)
    model = Head(64, 997)
    states = torch.randn(200, 64)
    query = LogprobQuery.make(torch.arange(200), torch.tensor([1.0, 0.7]).repeat(100), torch.randint(0, 997, (200,)))
    weights = torch.randn(2, 200)

    def numbers(dtype, compute):
        model.head.to(torch.float32 if dtype == torch.bfloat16 else dtype).zero_grad()
        inputs = states.to(model.head.weight.dtype, copy=True).requires_grad_()
        with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
            logprobs, entropy = compute(inputs)
        ((logprobs * weights[0]).sum() + ((entropy * weights[1]).sum() if spread else 0.0)).backward()
        return logprobs.detach(), entropy.detach(), inputs.grad, model.head.weight.grad.clone()

    def fused(inputs):
        logprobs, entropy = fused_logprobs(model, inputs, query, spread)
        blank = torch.zeros(200)
        return blank.index_put((query.order,), logprobs), blank.index_put((query.order,), entropy)

    def plain(inputs):
        return compute_token_logprobs(model, inputs, query, ALL_TOKENS if spread else 0)

    exact = numbers(torch.float64, plain)
    model.head.weight.data = model.head.weight.data.float()
    for number, reference, right in zip(
        numbers(torch.bfloat16, fused), numbers(torch.bfloat16, plain), exact, strict=True
    ):
        assert number.dtype == reference.dtype == torch.float32
        errors = [float((side - right).square().mean().sqrt()) for side in (number, reference)]
        assert 0.0 < errors[0] < 2.0**0.5 * errors[1]


def test_only_a_bare_projection_is_fused():
    model = Head(4, 8)
    assert logprobs.can_fuse(model)
    model._logit_scalings = ((torch.div, 2.0),)
    assert not logprobs.can_fuse(model)
    model._logit_scalings, model.head = (), nn.Linear(4, 8)
    assert not logprobs.can_fuse(model)


def test_chunks_of_scores_are_sized_by_the_free_memory_of_a_gpu(monkeypatch):
    """A quarter of what is free holds a chunk, in tensors of 16 bytes a score (8 if fused), and half what is kept."""
    gpu, choose = torch.device("cuda"), logprobs.choose_chunk
    Memory(monkeypatch, 0, 1 << 40)
    assert choose(gpu, 4, fused=False) == (1 << 28, 1 << 32)
    assert choose(gpu, 2, fused=True) == (1 << 29, 1 << 32)
    Memory(monkeypatch, 0, 9 << 30)  # of which 2.25 and 4.5 GiB
    assert choose(gpu, 4, fused=False) == (1 << 27, 1 << 30)
    assert choose(gpu, 8, fused=False) == (1 << 27, 1 << 29)
    assert choose(gpu, 2, fused=True) == (1 << 28, 1 << 31)
    Memory(monkeypatch, 0, 0)
    assert choose(gpu, 4, fused=False) == choose(gpu, 2, fused=True) == (1 << 24, 1)
    # A CPU reads no free memory: its numbers are those of before.
    assert choose(CPU, 4, fused=False) == (1 << 24, 1 << 27)


class Memory:
    """Stands for torch.cuda: bytes that forwards take by the token, and how many are free."""

    def __init__(self, monkeypatch, a_token, free):
        self.a_token, self.tokens = a_token, 0
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda *_: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *_: 1_000)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: 1_000)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (free, 2 * free))
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: 1_000 + self.a_token * self.tokens)


def test_micro_batches_take_three_quarters_of_free_memory(learner, monkeypatch):
    """1,000 bytes a token, and 8 of 40 MB spoken for: 0.75 of 32 MB are 24,000 tokens, or 23 times 1,024."""
    torch_learner = learner("llama", pack="prefix_tree")
    memory = Memory(monkeypatch, 1_000, 40_000_000)
    data = trees(("p",), [(40, 8), (30, 20)])

    def score(batch, entropy_tokens):
        memory.tokens = len(batch.tree.token_ids)

    monkeypatch.setattr(torch_learner.rank._runner, "score", score)
    torch_learner.rank._runner._is_open = True
    torch_learner.rank._runner.choose_tokens(data, 8_000_000)
    assert torch_learner.rank._runner.tokens == 23_552
    memory.a_token = 1
    torch_learner.rank._runner.choose_tokens(data, 0)  # chosen once
    assert torch_learner.rank._runner.tokens == 23_552
    torch_learner.rank._runner._is_open = True
    memory.a_token = 1_000_000
    torch_learner.rank._runner.choose_tokens(data, 0)
    assert torch_learner.rank._runner.tokens == forward.MIN_TOKENS


def test_settings_decide_the_size_of_micro_batches(learner):
    assert not learner("llama").rank._runner._is_open  # on a CPU it is a number
    assert learner("llama").rank._runner.tokens == forward.DEFAULT_TOKENS == 4_096
    assert learner("llama", tokens_per_microbatch=77).rank._runner.tokens == 77


def test_an_update_that_does_not_fit_is_run_in_halves(learner, monkeypatch):
    """The second forward is out of memory once: the update is that of smaller micro-batches, and so are its metrics."""
    data = trees(("p",), [(40, 30), (30, 20), (50, 25)])
    first, other_torch_learner = (learner("llama", pack="prefix_tree", tokens_per_microbatch=2_048) for _ in range(2))
    other_torch_learner.rank._runner.tokens = 1_024
    for side in (first, other_torch_learner):  # of which each sequence of a prompt is one
        side.rank._runner.tokens //= 16
    run_out_of_memory(monkeypatch, first, least_tokens=64)
    with pytest.warns(UserWarning, match=r"in parts of 64 tokens from here on\. Set learner\.tokens_per_m"):
        metrics = first.rank.update(data)
    assert first.rank._runner.tokens == 64
    expected = other_torch_learner.rank.update(data)
    del metrics["p"]["tokens_per_s"], expected["p"]["tokens_per_s"]
    assert metrics == expected
    for parameter, reference in zip(
        first.engine.parameters("p").values(), other_torch_learner.engine.parameters("p").values(), strict=True
    ):
        assert torch.equal(parameter, reference)


@contextlib.contextmanager
def warned_of_halves():
    """Expect a warning for each of three halves of 512 tokens, and no other."""
    with pytest.warns(UserWarning, match="too little memory") as warned:
        yield
    expected = [f"in parts of {tokens} tokens from here on" for tokens in (256, 128, 64)]
    assert all(text in str(item.message) for text, item in zip(expected, warned, strict=True))


def test_micro_batches_are_halved_until_they_fit(learner, monkeypatch):
    data = trees(("p",), [(40, 30), (30, 20), (50, 25)])
    first, other_torch_learner = (
        learner("llama", pack="prefix_tree", tokens_per_microbatch=tokens) for tokens in (512, 64)
    )
    run_out_of_memory(monkeypatch, first, least_tokens=64, first=1, times=3)
    with warned_of_halves():
        first.rank.update(data)
    other_torch_learner.rank.update(data)
    assert first.rank._runner.tokens == 64
    for parameter, reference in zip(
        first.engine.parameters("p").values(), other_torch_learner.engine.parameters("p").values(), strict=True
    ):
        assert torch.equal(parameter, reference)


def test_a_measuring_forward_that_does_not_fit_is_met_by_smaller_micro_batches(learner, monkeypatch):
    Memory(monkeypatch, 1_000, 40_000_000)
    torch_learner = learner("llama", pack="prefix_tree")
    torch_learner.rank._runner._is_open = True
    calls = run_out_of_memory(monkeypatch, torch_learner, least_tokens=64, first=1)
    with pytest.warns(UserWarning, match=r"in parts of 2,048 tokens"):
        torch_learner.rank.update(trees(("p",), [(40, 30), (30, 20)]))
    assert len(calls) > 1
    assert torch_learner.rank._runner.tokens == 2_048


@pytest.mark.parametrize("run", ["logprobs", "reference_logprobs"])
def test_forwards_without_gradients_that_do_not_fit_are_run_in_halves(learner, monkeypatch, run):
    data = trees(("p",), [(40, 30), (30, 20), (50, 25)])
    first, other_torch_learner = (
        learner("llama", pack="prefix_tree", tokens_per_microbatch=tokens) for tokens in (512, 64)
    )
    first.rank._reference = first.rank._runner.scorer
    forwards = run_out_of_memory(monkeypatch, first, least_tokens=64, first=1, times=3)
    with warned_of_halves():
        numbers = getattr(first, run)(data)
    assert numbers == getattr(other_torch_learner, run)(data)
    assert len(forwards) == 3 + 9


def test_updates_on_one_device_take_turns(learner):
    """Each of them chooses its micro-batches by all the memory that is free."""
    first, other_torch_learner = learner("llama"), learner("llama")
    goes_on, order = threading.Event(), []

    def update(name):
        def run(data):
            order.append(f"{name} begins")
            goes_on.wait(10.0)
            order.append(f"{name} ends")
            return {}

        return run

    for name, side in (("one", first), ("other", other_torch_learner)):
        side.rank._trainer = SimpleNamespace(update=update(name))
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(side.rank.update, []) for side in (first, other_torch_learner)]
        while not order:
            time.sleep(0.01)
        goes_on.set()
        assert [item.result() for item in running] == [{}, {}]
    assert [line.split()[1] for line in order] == ["begins", "ends", "begins", "ends"]


def test_memory_that_no_half_is_enough_for_is_an_error(learner, monkeypatch):
    torch_learner = learner("llama", pack="prefix_tree", tokens_per_microbatch=600)

    def short_of_memory(batch, entropy_tokens=0):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch_learner.rank._runner, "score", short_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        torch_learner.rank.update(trees(("p",), [(40, 30)]))


def test_activations_are_recomputed_once_the_smallest_micro_batch_does_not_fit(learner, monkeypatch):
    data = trees(("p",), [(40, 30), (30, 20)])
    first, other_torch_learner = (
        learner("llama", pack="prefix_tree"),
        learner("llama", pack="prefix_tree", gradient_checkpointing=True),
    )
    refused = learner("llama", pack="prefix_tree", gradient_checkpointing=False)
    run_out_of_memory(monkeypatch, refused, least_tokens=8_192, first=1)
    with pytest.raises(torch.OutOfMemoryError):
        refused.rank.update(data)
    run_out_of_memory(monkeypatch, first, least_tokens=8_192, first=1)
    with pytest.warns(
        UserWarning, match=r"activations are recomputed from here on\. Set learner\.gradient_checkpointing"
    ):
        metrics = first.rank.update(data)
    expected = other_torch_learner.rank.update(data)
    del metrics["p"]["tokens_per_s"], expected["p"]["tokens_per_s"]
    assert metrics == expected
    assert (first.rank._runner.tokens, first.rank._runner._checkpointing) == (4_096, True)


def test_a_size_that_was_chosen_too_large_is_halved_after_activations_are_recomputed(learner, monkeypatch):
    torch_learner, failures = learner("llama"), iter([512, 8_192])
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    torch_learner.rank._runner.tokens = 512

    def run():
        torch_learner.rank._runner.tokens = next(failures, torch_learner.rank._runner.tokens)
        if torch_learner.rank._runner.tokens in (512, 8_192):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch_learner.rank._runner.tokens

    with pytest.warns(UserWarning, match="recomputed"), pytest.warns(UserWarning, match="in parts of 4,096 tokens"):
        assert torch_learner.rank._runner.run_in_memory(run) == 4_096


def test_compiled_layers_that_cannot_be(learner):
    with pytest.raises(EngineError, match=r"learner\.compile on.*is on the CPU.*Leave it off"):
        learner(compile=True, device="cpu")
