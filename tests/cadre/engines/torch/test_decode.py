"""Sampling parity: against transformers' generate, a plain forward, one request at a time, and the learner."""

import gc
import math
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from cadre.engines.torch import decode, kv_cache, llama_step, prefill, shared_prefix_cache, trials
from cadre.engines.torch import engine as engine_module
from cadre.engines.torch.decode import CacheOptions, DecodingBatch, ReplayedBatch, start_batch
from cadre.engines.torch.kv_cache import record_graph, run_eagerly
from cadre.engines.torch.llama_step import MODEL_TYPES, LlamaStep
from cadre.engines.torch.model import narrow_weights
from cadre.engines.torch.prefix_cache import KeyValueBlock, PrefixCache
from cadre.engines.torch.request_batcher import GenerationRequest
from cadre.types import Sampling
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import datum, request, sample, update
from tests.helpers.plain_logprobs import plain_logprobs
from tests.helpers.recorded_steps import record_operations
from tests.helpers.slow import few_of

TEXTS = ("a", "move the block", "a much longer prompt that fills more than the sliding window", "move it")
# Text, siblings, longest completion; more tokens than the cache has room for at first.
RECORDED = ("llama", "gemma2", "gemma3")
MANY = [(TEXTS[0], 5, 90), (TEXTS[1], 1, 3), (TEXTS[2], 3, 40), (TEXTS[3], 7, 12), (TEXTS[0] * 30, 2, 6)]


@pytest.mark.parametrize("architecture", few_of(tiny.ARCHITECTURES, ["llama", "gemma3"]))
def test_greedy_equals_generate(folders, engine, architecture):
    torch_engine = engine(architecture)
    reference = AutoModelForCausalLM.from_pretrained(folders[architecture], attn_implementation="eager")
    samples = sample(torch_engine, *(request(text, temperature=0.0, max_tokens=24) for text in TEXTS))
    for (completion,) in samples:
        prompt = torch.tensor([completion.prompt_ids])
        full = reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=[257, 259],
            pad_token_id=256,
        )
        assert full[0, prompt.shape[1] :].tolist() == list(completion.token_ids)
        assert set(completion.logprobs) == {0.0}


@pytest.mark.parametrize("architecture", few_of(tiny.ARCHITECTURES, ["qwen3", "gemma2"]))
def test_logprobs_equal_a_plain_forward_and_the_learner(folders, learner, architecture):
    torch_learner = learner(architecture, learning_rate=1e-3)
    reference = AutoModelForCausalLM.from_pretrained(folders[architecture], attn_implementation="eager")
    samples = sample(torch_learner, *(request(text, 3, key, temperature=0.7) for key, text in enumerate(TEXTS)))
    completions = [completion for siblings in samples for completion in siblings]
    for completion in completions:
        difference = plain_logprobs(reference, completion, 0.7) - torch.tensor(completion.logprobs)
        assert float(difference.abs().max()) < 1e-4
    figures = update(torch_learner, [datum(completion, (-1.0) ** k, 0.7) for k, completion in enumerate(completions)])[
        "p"
    ]
    assert figures["logprob_diff_max"] < 1e-4
    assert abs(figures["kl_to_sampler"]) < 1e-6
    assert figures["clip_fraction"] == 0.0


@pytest.mark.parametrize("architecture", few_of(tiny.ARCHITECTURES, ["gemma2", "gemma3"]))
def test_prompts_held_once_give_what_a_copy_a_row_gives(engine, architecture, monkeypatch):
    """Prompts of many lengths and sibling counts, rows that stop early, and windows shorter than prompts."""
    requests = [request(text, count, key, max_tokens=limit) for key, (text, count, limit) in enumerate(MANY)]
    torch_engine = engine(architecture)
    assert shared_prefix_cache.can_share(torch_engine.loaded.model) == (architecture != "gemma2")
    once = sample(torch_engine, *requests)
    monkeypatch.setattr(shared_prefix_cache, "can_share", lambda model: False)
    element = sample(engine(architecture), *requests)
    for item, other_samples in zip(once, element, strict=True):
        assert [first.token_ids for first in item] == [second.token_ids for second in other_samples]
        for first, second in zip(item, other_samples, strict=True):
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)


@pytest.mark.parametrize(
    ("architecture", "recorder"),
    few_of(
        [*((name, run_eagerly) for name in tiny.ARCHITECTURES), *((name, record_operations) for name in RECORDED)],
        [("gemma2", record_operations)],
    ),
)
def test_keys_in_fixed_places_give_what_a_copy_a_row_gives(engine, architecture, recorder, monkeypatch):
    """Room runs out and sequences are dropped, between which steps are replayed."""
    monkeypatch.setattr(shared_prefix_cache, "can_share", lambda model: False)
    monkeypatch.setattr(kv_cache, "STATIC_GROWTH", 30)
    requests = [request(text, count, key, max_tokens=limit) for key, (text, count, limit) in enumerate(MANY)]
    torch_engine = engine(architecture)
    torch_engine.record = recorder
    for item, other_samples in zip(
        sample(torch_engine, *requests), sample(engine(architecture), *requests), strict=True
    ):
        assert [first.token_ids for first in item] == [second.token_ids for second in other_samples]
        assert [first.finish for first in item] == [second.finish for second in other_samples]
        for first, second in zip(item, other_samples, strict=True):
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)


@pytest.mark.parametrize("check_steps", few_of([1, 7, 64], [7]))
def test_recorded_steps_end_where_stops_texts_and_limits_end_them(engine, monkeypatch, check_steps):
    """Whenever the host looks: stop tokens, stop strings, limits, temperature 0 and filters in one batch."""
    monkeypatch.setattr(decode, "CHECK_STEPS", check_steps)
    shared = {"temperature": 3.0}
    requests = [
        request("go", 3, 1, max_tokens=40, **shared),
        request("further", 2, 2, max_tokens=9, stop=("e", "a"), **shared),
        request("and on", 2, 3, max_tokens=1, **shared),
        request("greedy", 1, 4, max_tokens=12, temperature=0.0),
        request("few", 2, 5, max_tokens=23, top_k=3, top_p=0.8),
    ]
    torch_engine = engine()
    torch_engine.loaded = replace(torch_engine.loaded, stops=(101, 32, 116))
    # Strings are looked for after every token, filters are not recorded, and else all of a step is.
    for part in (requests, [requests[0], *requests[2:]], [requests[0], *requests[2:4]]):
        samples = []
        for torch_engine.record in (record_operations, None):
            samples.append(sample(torch_engine, *part))
        for first, second in zip(*samples, strict=True):
            assert [(s.token_ids, s.finish, s.text) for s in first] == [(s.token_ids, s.finish, s.text) for s in second]


def test_a_step_is_recorded_once_for_every_place_of_its_keys(engine, monkeypatch):
    """And once more when half of the sequences have ended, not for every eighth."""
    records = []
    monkeypatch.setattr(kv_cache, "STATIC_GROWTH", 8)
    torch_engine = engine()
    torch_engine.record = lambda step: records.append(1) or record_operations(step)
    assert (
        trials.choose_recorder(torch_engine.loaded, torch_engine.dtype, torch_engine.record) is torch_engine.record
    )  # a trial that records too
    records.clear()
    requests = request("go", 4, 1, max_tokens=20, temperature=50.0)
    ((first, *_),) = sample(torch_engine, requests)
    assert len(records) in range(len(first.token_ids) // 8, 20 // 8 + 2)
    ((plain, *_),) = sample(engine(), requests)
    assert first.token_ids == plain.token_ids
    assert first.logprobs == pytest.approx(plain.logprobs, abs=1e-5)


def test_recorded_steps_ask_nothing_of_the_host():
    with pytest.raises(AssertionError, match="waits for the device"):
        record_operations(lambda: bool(torch.ones(2).any()))
    with pytest.raises(AssertionError, match="by a mask"):
        record_operations(lambda: torch.ones(2)[torch.tensor([True, False])])
    total = torch.zeros(())
    replay = record_operations(lambda: total.add_(1.0))
    assert float(total) == 0.0
    replay()
    assert float(total) == 1.0


def test_models_whose_steps_cannot_be_recorded_run_them_as_they_are(engine):
    def refuse(step):
        raise RuntimeError("operation not permitted when stream is capturing")

    torch_engine = engine()
    assert trials.choose_recorder(torch_engine.loaded, torch_engine.dtype, record_operations) is record_operations
    with pytest.warns(UserWarning, match=r"run kernel by kernel.*recorded as one, a step raises .*not permitted"):
        assert trials.choose_recorder(torch_engine.loaded, torch_engine.dtype, refuse) is run_eagerly
    torch_engine.record = refuse
    requests = request("go", 2, 1, max_tokens=6)
    with pytest.warns(UserWarning, match="run kernel by kernel"):
        sample(torch_engine, requests)
    assert [sample.token_ids for sample in sample(torch_engine, requests)[0]] == [
        sample.token_ids for sample in sample(engine(), requests)[0]
    ]


def test_the_form_follows_from_what_records(engine):
    """None of a CPU's forms changes."""
    torch_engine = engine()
    assert torch_engine.record is None
    requests = [GenerationRequest("p", (1, 2, 3), 2, 4, Sampling(), 1)]
    for record, kind in ((None, DecodingBatch), (run_eagerly, ReplayedBatch)):
        options = CacheOptions(PrefixCache(0), record=record)
        with torch.inference_mode():
            assert type(start_batch(torch_engine.loaded, requests, options)) is kind


@pytest.mark.parametrize(
    ("architecture", "record"),
    [("llama", None), ("gemma2", None), ("llama", run_eagerly), ("llama", record_operations)],
)
def test_a_batch_is_freed_when_it_is_done(engine, architecture, record):
    """Not when Python looks for cycles: it holds keys, values and a graph, which ends a recording if freed then."""
    torch_engine = engine(architecture)
    requests = [GenerationRequest("p", (1, 2, 3), 2, 4, Sampling(), 1)]
    options = CacheOptions(PrefixCache(0), record=record)
    gc.collect()
    gc.disable()
    try:
        with torch.inference_mode():
            batch = start_batch(torch_engine.loaded, requests, options)
            while len(batch):
                batch.sample()
                batch.forward()
        is_alive = weakref.ref(batch)
        del batch
        assert is_alive() is None
    finally:
        gc.enable()


def test_no_garbage_is_collected_while_a_graph_is_recorded(monkeypatch):
    enabled, streams = [], []

    @contextmanager
    def graph(*_, stream, **__):
        enabled.append(gc.isenabled())
        streams.append(stream)
        yield

    monkeypatch.setattr(kv_cache, "_streams", {})
    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: int(not gc.isenabled() and not was_enabled))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", graph)

    def fail():
        raise RuntimeError("operation not permitted when stream is capturing")

    for was_enabled in (True, False):
        (gc.enable if was_enabled else gc.disable)()
        try:
            record_graph(lambda: enabled.append(gc.isenabled()))
            assert gc.isenabled() is was_enabled
            with pytest.raises(RuntimeError, match="not permitted"):
                record_graph(fail)
            assert gc.isenabled() is was_enabled
        finally:
            gc.enable()
    assert not any(enabled)
    # Each of two GPUs, 0 first and then 1, has a stream of its own to record on.
    assert streams[0] is streams[1] is not streams[2] is streams[3]


def test_prompts_that_the_prefix_cache_refuses_are_held_once(engine):
    """The batch has a copy of their keys and values, and no use for the blocks of the prefill."""
    torch_engine = engine()
    requests = [GenerationRequest("p", tuple(range(start, 40)), 2, 4, Sampling(), 1) for start in (1, 5)]
    gc.collect()
    blocks = sum(isinstance(get_object, KeyValueBlock) for get_object in gc.get_objects())
    for limit, stored in ((0, 0), (1 << 30, 1)):
        cache = PrefixCache(limit)
        with torch.inference_mode():
            batch = start_batch(torch_engine.loaded, requests, CacheOptions(cache, record=run_eagerly))
        assert sum(isinstance(get_object, KeyValueBlock) for get_object in gc.get_objects()) - blocks == stored
        del batch, cache


@pytest.mark.parametrize("lora", [None, 4])
def test_weights_that_are_narrowed_once_give_what_autocast_gives(engine, team, lora, monkeypatch):
    """To the bit, and the model's own weights stay as they are."""
    requests = [request("go", 2, 1, max_tokens=6), request("further on", 1, 2, max_tokens=4)]
    samples, narrowed = [], []
    for narrows in (True, False):
        torch_engine = engine(dtype="bfloat16") if lora is None else team({"p": lora}, dtype="bfloat16").engine
        generator = torch.Generator().manual_seed(1)
        for weight in torch_engine.parameters("p").values() if lora else ():
            weight.data.copy_(0.1 * torch.randn(weight.shape, generator=generator))
        torch_engine.record = run_eagerly
        dtypes = {name: weight.dtype for name, weight in torch_engine.parameters("p").items()}
        with narrow_weights(torch_engine.loaded, torch.bfloat16):
            narrowed.append(sum("forward" in module.__dict__ for module in torch_engine.loaded.model.modules()))
            assert {name: weight.dtype for name, weight in torch_engine.parameters("p").items()} == dtypes
        if not narrows:
            monkeypatch.setattr(engine_module, "narrow_weights", lambda *_: nullcontext())
        samples.append(sample(torch_engine, *requests))
        assert not any("forward" in module.__dict__ for module in torch_engine.loaded.model.modules())
    assert (narrowed[0] > 0) == (lora is None)  # a frozen base is held so
    for first, second in zip(*samples, strict=True):
        assert [(s.token_ids, s.logprobs) for s in first] == [(s.token_ids, s.logprobs) for s in second]


ALTERED = {"attention_bias": True, "mlp_bias": True, "rope_parameters": "llama3"}


@pytest.mark.parametrize("changes", few_of([{}, ALTERED], [ALTERED]))
@pytest.mark.parametrize("architecture", MODEL_TYPES)
def test_a_step_gives_what_the_model_s_own_forward_gives(engine, tmp_path, architecture, changes, monkeypatch):
    """Norms and biases that are not those of a new model, and angles that are scaled."""
    if changes:
        scaled = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope = scaled | {"rope_theta": 1e4, "original_max_position_embeddings": 32}
        changes = {**changes, "rope_parameters": rope}
    folder = tiny.build(tmp_path, architecture, **changes)
    samples, selected = [], []
    call = LlamaStep.__call__
    monkeypatch.setattr(LlamaStep, "__call__", lambda self, *arguments: selected.append(1) or call(self, *arguments))
    for _ in range(2):
        torch_engine = engine(folder)
        noise = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in torch_engine.loaded.model.parameters():
                if weight.dim() == 1:
                    weight.uniform_(-1.5, 1.5, generator=noise)
        samples.append(sample(torch_engine, *(request(text, 2, key) for key, text in enumerate(TEXTS))))
        steps = len(selected)
        monkeypatch.setattr(LlamaStep, "for_model", lambda model: None)
    assert len(selected) == steps > 10
    for item, other_samples in zip(*samples, strict=True):
        assert [first.token_ids for first in item] == [second.token_ids for second in other_samples]
        for first, second in zip(item, other_samples, strict=True):
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)


def test_who_takes_a_step(engine):
    for architecture in tiny.ARCHITECTURES:
        torch_engine = engine(architecture).loaded.model
        assert (LlamaStep.for_model(torch_engine) is not None) == (architecture in MODEL_TYPES)


@pytest.mark.parametrize("architecture", few_of(tiny.ARCHITECTURES, ["gemma3", "qwen2"]))
def test_packed_products_give_the_same(engine, architecture, monkeypatch):
    requests = [request(text, count, key, max_tokens=limit) for key, (text, count, limit) in enumerate(MANY)]
    plain = sample(engine(architecture), *requests)
    monkeypatch.setattr(llama_step, "LARGE", 1)
    torch_engine, products = engine(architecture), []
    product = llama_step._packed_product
    monkeypatch.setattr(llama_step, "_packed_product", lambda *arguments: products.append(1) or product(*arguments))
    packed = sample(torch_engine, *requests)
    for item, other_samples in zip(plain, packed, strict=True):
        assert [first.token_ids for first in item] == [second.token_ids for second in other_samples]
        for first, second in zip(item, other_samples, strict=True):
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)
    assert not any("forward" in module.__dict__ for module in torch_engine.loaded.model.modules())

    # They are packed once, and anew after any write that torch sees.
    count = len(products)
    sample(torch_engine, *requests)
    assert len(products) == count > 0
    with torch.no_grad():
        torch_engine.loaded.model.get_output_embeddings().weight.mul_(2.0)
    changed = sample(torch_engine, *requests)
    assert len(products) == 2 * count
    assert [item[0].logprobs for item in changed] != [item[0].logprobs for item in packed]


def test_copies_of_weights_that_change_are_freed_and_those_of_a_base_are_kept(learner, team, monkeypatch):
    monkeypatch.setattr(llama_step, "LARGE", 1)
    for trained, is_kept in ((learner("qwen2"), False), (team({"p": 4}, "qwen2"), True)):
        ((first, second),) = sample(trained, request("go", 2, 0, max_tokens=3))
        assert trained.engine.packed._products
        update(trained, [datum(first, 1.0), datum(second, -1.0)])
        assert bool(trained.engine.packed._products) == is_kept


def test_without_memory_for_them_products_are_not_packed(engine, monkeypatch):
    monkeypatch.setattr(llama_step, "LARGE", 1)
    monkeypatch.setattr(llama_step, "total_and_free", lambda device: (1 << 40, 0))
    monkeypatch.setattr(llama_step, "_packed_product", None)
    assert sample(engine("qwen2"), request(TEXTS[0], 2, 0))


@pytest.mark.parametrize("has_instructions", [False, True])
def test_weights_of_16_bits_are_packed_where_the_processor_multiplies_them(engine, monkeypatch, has_instructions):
    monkeypatch.setattr(llama_step, "LARGE", 1)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_instructions)
    model = engine("qwen2").loaded.model
    counts = [len(llama_step.PackedLinears(model, dtype)._modules) for dtype in (torch.float32, torch.bfloat16)]
    assert counts[0] > 0
    assert counts[1] == (counts[0] if has_instructions else 0)


def test_a_sequence_is_the_same_alone_and_in_any_batch(engine):
    torch_engine = engine("gemma2")
    requests = [
        request(TEXTS[0], 2, 11),
        request(TEXTS[1], 5, 12, temperature=0.6, max_tokens=40),
        request(TEXTS[2], 1, 13, temperature=0.0, max_tokens=7),
        request(TEXTS[1], 3, 14, top_k=5, max_tokens=3),
        request(TEXTS[3], 4, 15, top_p=0.7, temperature=1.3),
    ]
    together = sample(torch_engine, *requests)
    for item, siblings in zip(requests, together, strict=True):
        (single,) = sample(torch_engine, item)
        for first, second in zip(siblings, single, strict=True):
            assert (first.token_ids, first.text, first.finish) == (second.token_ids, second.text, second.finish)
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)


def test_more_siblings_do_not_change_the_first(engine):
    torch_engine = engine()
    (few,), (many,) = sample(torch_engine, request("go", 2, 5)), sample(torch_engine, request("go", 6, 5))
    assert [sample.token_ids for sample in many[:2]] == [sample.token_ids for sample in few]
    assert len({sample.token_ids for sample in many}) == 6


def test_prompts_are_prefilled_once_and_in_bounded_groups(engine, monkeypatch):
    torch_engine = engine()
    requests = [request(text, 2, key) for key, text in enumerate((*TEXTS, TEXTS[0], TEXTS[2]))]
    full = sample(torch_engine, *requests)
    recorded = []
    forward = type(torch_engine.loaded.model).forward

    def counting(self, input_ids, **options):
        recorded.append(tuple(input_ids.shape))
        return forward(self, input_ids=input_ids, **options)

    monkeypatch.setattr(type(torch_engine.loaded.model), "forward", counting)
    monkeypatch.setattr(prefill, "PREFILL_TOKENS", 60)
    assert [[sample.token_ids for sample in siblings] for siblings in sample(torch_engine, *requests)] == [
        [sample.token_ids for sample in siblings] for siblings in full
    ]
    prefills = [shape for shape in recorded if shape[1] > 1]
    assert sum(rows for rows, _ in prefills) == 4
    assert len(prefills) > 1
    assert all(rows == 1 or rows * length <= 60 for rows, length in prefills)


def test_sequences_leave_when_they_end(engine, monkeypatch):
    torch_engine = engine()
    sizes = []
    draw = decode.DecodingBatch.sample

    def counting(batch):
        sizes.append(len(batch))
        return draw(batch)

    monkeypatch.setattr(decode.DecodingBatch, "sample", counting)
    lengths = (2, 2, 2, 2, 4, 4, 9, 9)
    samples = sample(torch_engine, *(request("x", 1, key, max_tokens=length) for key, length in enumerate(lengths)))
    assert [len(sample.token_ids) for (sample,) in samples] == list(lengths)
    assert sizes == [8, 8, 4, 4, 2, 2, 2, 2, 2]


def test_stop_and_length(engine):
    torch_engine = engine()
    model = torch_engine.loaded.model
    with torch.no_grad():
        model.lm_head.weight[259] *= 12.0
    samples = [
        sample for siblings in sample(torch_engine, request("stop", 30, 3, max_tokens=12)) for sample in siblings
    ]
    stopped = [sample for sample in samples if sample.finish == "stop"]
    cut = [sample for sample in samples if sample.finish == "length"]
    assert stopped
    assert cut
    assert all(sample.token_ids[-1] in (257, 259) and not {257, 259} & set(sample.token_ids[:-1]) for sample in stopped)
    assert all(len(sample.token_ids) == 12 and not {257, 259} & set(sample.token_ids) for sample in cut)
    assert all(len(sample.logprobs) == len(sample.token_ids) for sample in samples)
    assert not any("<" in sample.text and "|>" in sample.text for sample in samples)


def test_a_stop_string_ends_the_completions_that_say_it(engine):
    """The same tokens up to where the string is complete; the text is cut before it, the ids are not."""
    torch_engine = engine()
    (free,) = sample(torch_engine, request("go on", 12, 3, max_tokens=60))
    string = free[0].text[20:22]
    (bound,) = sample(torch_engine, request("go on", 12, 3, max_tokens=60, stop=(string, "never said")))
    assert sum(string in sample.text for sample in free) < len(free)
    for first, second in zip(free, bound, strict=True):
        if string not in first.text:
            assert (second.token_ids, second.text, second.finish) == (first.token_ids, first.text, first.finish)
            continue
        assert second.text == first.text.partition(string)[0]
        assert second.finish == "stop"
        assert second.token_ids == first.token_ids[: len(second.token_ids)]
        decode = torch_engine.loaded.templates["p"].decode
        assert string in decode(second.token_ids)
        assert string not in decode(second.token_ids[:-1])


def test_an_ordinary_token_may_end_a_turn_and_is_no_text(tmp_path):
    folder = tiny.build(tmp_path / "bang")
    (bang,) = tiny.byte_tokenizer()("!").input_ids
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{bang}]}}')
    torch_engine = tiny.engine(folder)
    with torch.no_grad():
        torch_engine.loaded.model.lm_head.weight[bang] *= 8.0
    samples = [sample for sample in sample(torch_engine, request("stop", 30, 3))[0] if sample.token_ids[-1] == bang]
    torch_engine.close()
    assert samples
    assert all(sample.finish == "stop" and "!" not in sample.text for sample in samples)


def test_text_has_the_special_tokens_that_were_sampled(engine):
    template = engine().loaded.templates["p"]
    assert template.decode([0, 256, 258, 1]) == '!<pad><|im_start|>"'


def test_bfloat16_samples_close_to_float32(learner, folders):
    torch_learner = learner(dtype="bfloat16", learning_rate=1e-3)
    reference = AutoModelForCausalLM.from_pretrained(folders["llama"])
    ((completion, *_),) = sample(torch_learner, request("half", 2, max_tokens=30))
    difference = plain_logprobs(reference, completion, 1.0) - torch.tensor(completion.logprobs)
    assert 0.0 < float(difference.abs().mean()) < 0.1
    figures = update(torch_learner, [datum(completion, 1.0)])["p"]
    assert math.isfinite(figures["loss"])
    assert all(weight.dtype == torch.float32 for weight in torch_learner.engine.loaded.model.parameters())
