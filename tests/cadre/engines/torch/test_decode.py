"""Sampling parity: against transformers' generate, a plain forward, one request at a time, and the learner."""

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import AutoModelForCausalLM

from cadre.engines.torch import decode, kv_cache, llama_step, prefill, shared_prefix_cache
from cadre.engines.torch.llama_step import MODEL_TYPES, LlamaStep
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import datum, request, sample, update
from tests.helpers.plain_logprobs import plain_logprobs
from tests.helpers.slow import few_of

TEXTS = ("a", "move the block", "a much longer prompt that fills more than the sliding window", "move it")
# Text, siblings, longest completion; more tokens than the cache has room for at first.
MANY = [(TEXTS[0], 5, 90), (TEXTS[1], 1, 3), (TEXTS[2], 3, 40), (TEXTS[3], 7, 12), (TEXTS[0] * 30, 2, 6)]


@pytest.mark.parametrize("architecture", few_of(tiny.ARCHITECTURES, ["llama", "gemma3"]))
def test_greedy_equals_generate(folders, engine, architecture):
    mine = engine(architecture)
    reference = AutoModelForCausalLM.from_pretrained(folders[architecture], attn_implementation="eager")
    drawn = sample(mine, *(request(text, temperature=0.0, max_tokens=24) for text in TEXTS))
    for (completion,) in drawn:
        prompt = torch.tensor([completion.prompt_ids])
        whole = reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=[257, 259],
            pad_token_id=256,
        )
        assert whole[0, prompt.shape[1] :].tolist() == list(completion.token_ids)
        assert set(completion.logprobs) == {0.0}


@pytest.mark.parametrize("architecture", few_of(tiny.ARCHITECTURES, ["qwen3", "gemma2"]))
def test_logprobs_equal_a_plain_forward_and_the_learner(folders, learner, architecture):
    mine = learner(architecture, learning_rate=1e-3)
    reference = AutoModelForCausalLM.from_pretrained(folders[architecture], attn_implementation="eager")
    drawn = sample(mine, *(request(text, 3, key, temperature=0.7) for key, text in enumerate(TEXTS)))
    completions = [completion for siblings in drawn for completion in siblings]
    for completion in completions:
        difference = plain_logprobs(reference, completion, 0.7) - torch.tensor(completion.logprobs)
        assert float(difference.abs().max()) < 1e-4
    figures = update(mine, [datum(completion, (-1.0) ** k, 0.7) for k, completion in enumerate(completions)])["p"]
    assert figures["logprob_diff_max"] < 1e-4
    assert abs(figures["kl_to_sampler"]) < 1e-6
    assert figures["clip_fraction"] == 0.0


@pytest.mark.parametrize("architecture", few_of(tiny.ARCHITECTURES, ["gemma2", "gemma3"]))
def test_prompts_held_once_give_what_a_copy_a_row_gives(engine, architecture, monkeypatch):
    """Prompts of many lengths and sibling counts, rows that stop early, and windows shorter than prompts."""
    asked = [request(text, count, key, max_tokens=limit) for key, (text, count, limit) in enumerate(MANY)]
    mine = engine(architecture)
    assert shared_prefix_cache.can_share(mine.loaded.model) == (architecture != "gemma2")
    once = sample(mine, *asked)
    monkeypatch.setattr(shared_prefix_cache, "can_share", lambda model: False)
    each = sample(engine(architecture), *asked)
    for one, other in zip(once, each, strict=True):
        assert [first.token_ids for first in one] == [second.token_ids for second in other]
        for first, second in zip(one, other, strict=True):
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)


def traced(step, inputs):
    """A step as a graph of its operations on these very tensors: what it knew of Python's numbers stays as it was."""
    graph = make_fx(lambda token, position: step(token, position))(*inputs)
    step.__self__._cache._slot.sub_(1)  # making it ran it
    return lambda: graph(*inputs)


@pytest.mark.parametrize(
    ("architecture", "recorder"),
    few_of(
        [*((name, None) for name in tiny.ARCHITECTURES), ("llama", traced), ("gemma3", traced)],
        [("gemma3", None)],
    ),
)
def test_keys_in_fixed_places_give_what_a_copy_a_row_gives(engine, architecture, recorder, monkeypatch):
    """Room runs out and sequences are dropped, between which steps are replayed."""
    monkeypatch.setattr(shared_prefix_cache, "can_share", lambda model: False)
    monkeypatch.setattr(kv_cache, "STATIC_GROWTH", 30)
    monkeypatch.setattr(kv_cache, "get_recorder", lambda device: recorder)
    asked = [request(text, count, key, max_tokens=limit) for key, (text, count, limit) in enumerate(MANY)]
    mine = engine(architecture)
    mine.graphs = True
    for one, other in zip(sample(mine, *asked), sample(engine(architecture), *asked), strict=True):
        assert [first.token_ids for first in one] == [second.token_ids for second in other]
        for first, second in zip(one, other, strict=True):
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)


def test_a_step_is_recorded_once_for_every_place_of_its_keys(engine, monkeypatch):
    records = []
    monkeypatch.setattr(kv_cache, "STATIC_GROWTH", 8)
    monkeypatch.setattr(kv_cache, "get_recorder", lambda device: lambda *step: records.append(1) or traced(*step))
    mine = engine()
    mine.graphs = True
    asked = request("go", 4, 1, max_tokens=20, temperature=50.0)
    ((first, *_),) = sample(mine, asked)
    assert len(records) in range(len(first.token_ids) // 8, 20 // 8 + 5)
    ((plain, *_),) = sample(engine(), asked)
    assert first.token_ids == plain.token_ids
    assert first.logprobs == pytest.approx(plain.logprobs, abs=1e-5)


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
    drawn, taken = [], []
    call = LlamaStep.__call__
    monkeypatch.setattr(LlamaStep, "__call__", lambda self, *what: taken.append(1) or call(self, *what))
    for _ in range(2):
        mine = engine(folder)
        noise = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in mine.loaded.model.parameters():
                if weight.dim() == 1:
                    weight.uniform_(-1.5, 1.5, generator=noise)
        drawn.append(sample(mine, *(request(text, 2, key) for key, text in enumerate(TEXTS))))
        steps = len(taken)
        monkeypatch.setattr(LlamaStep, "for_model", lambda model, dtype: None)
    assert len(taken) == steps > 10
    for one, other in zip(*drawn, strict=True):
        assert [first.token_ids for first in one] == [second.token_ids for second in other]
        for first, second in zip(one, other, strict=True):
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)


def test_who_takes_a_step(engine):
    for architecture in tiny.ARCHITECTURES:
        own = engine(architecture).loaded.model
        assert (LlamaStep.for_model(own, torch.float32) is not None) == (architecture in MODEL_TYPES)
        assert LlamaStep.for_model(own, torch.bfloat16) is None


@pytest.mark.parametrize("architecture", few_of(tiny.ARCHITECTURES, ["gemma3"]))
@pytest.mark.parametrize("limits", [{"WIDE": 1}, {"LARGE": 1, "VECTORS": range(4, 9)}], ids=["head", "layers"])
def test_transposed_products_give_the_same(engine, architecture, limits, monkeypatch):
    asked = [request(text, count, key, max_tokens=limit) for key, (text, count, limit) in enumerate(MANY)]
    plain = sample(engine(architecture), *asked)
    for name, value in limits.items():
        monkeypatch.setattr(llama_step, name, value)
    mine = engine(architecture)
    transposed = sample(mine, *asked)
    for one, other in zip(plain, transposed, strict=True):
        assert [first.token_ids for first in one] == [second.token_ids for second in other]
        for first, second in zip(one, other, strict=True):
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)
    assert not any("forward" in module.__dict__ for module in mine.loaded.model.modules())


def test_a_sequence_is_the_same_alone_and_in_any_batch(engine):
    mine = engine("gemma2")
    requests = [
        request(TEXTS[0], 2, 11),
        request(TEXTS[1], 5, 12, temperature=0.6, max_tokens=40),
        request(TEXTS[2], 1, 13, temperature=0.0, max_tokens=7),
        request(TEXTS[1], 3, 14, top_k=5, max_tokens=3),
        request(TEXTS[3], 4, 15, top_p=0.7, temperature=1.3),
    ]
    together = sample(mine, *requests)
    for one, siblings in zip(requests, together, strict=True):
        (alone,) = sample(mine, one)
        for first, second in zip(siblings, alone, strict=True):
            assert (first.token_ids, first.text, first.finish) == (second.token_ids, second.text, second.finish)
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)


def test_more_siblings_do_not_change_the_first(engine):
    mine = engine()
    (few,), (many,) = sample(mine, request("go", 2, 5)), sample(mine, request("go", 6, 5))
    assert [one.token_ids for one in many[:2]] == [one.token_ids for one in few]
    assert len({one.token_ids for one in many}) == 6


def test_prompts_are_prefilled_once_and_in_bounded_groups(engine, monkeypatch):
    mine = engine()
    requests = [request(text, 2, key) for key, text in enumerate((*TEXTS, TEXTS[0], TEXTS[2]))]
    whole = sample(mine, *requests)
    seen = []
    forward = type(mine.loaded.model).forward

    def counting(self, input_ids, **options):
        seen.append(tuple(input_ids.shape))
        return forward(self, input_ids=input_ids, **options)

    monkeypatch.setattr(type(mine.loaded.model), "forward", counting)
    monkeypatch.setattr(prefill, "PREFILL_TOKENS", 60)
    assert [[one.token_ids for one in siblings] for siblings in sample(mine, *requests)] == [
        [one.token_ids for one in siblings] for siblings in whole
    ]
    prefills = [shape for shape in seen if shape[1] > 1]
    assert sum(rows for rows, _ in prefills) == 4
    assert len(prefills) > 1
    assert all(rows == 1 or rows * length <= 60 for rows, length in prefills)


def test_sequences_leave_when_they_end(engine, monkeypatch):
    mine = engine()
    sizes = []
    draw = decode.DecodingBatch.sample

    def counting(batch):
        sizes.append(len(batch))
        return draw(batch)

    monkeypatch.setattr(decode.DecodingBatch, "sample", counting)
    lengths = (2, 2, 2, 2, 4, 4, 9, 9)
    drawn = sample(mine, *(request("x", 1, key, max_tokens=most) for key, most in enumerate(lengths)))
    assert [len(one.token_ids) for (one,) in drawn] == list(lengths)
    assert sizes == [8, 8, 4, 4, 2, 2, 2, 2, 2]


def test_stop_and_length(engine):
    mine = engine()
    model = mine.loaded.model
    with torch.no_grad():
        model.lm_head.weight[259] *= 12.0
    drawn = [one for siblings in sample(mine, request("stop", 30, 3, max_tokens=12)) for one in siblings]
    stopped = [one for one in drawn if one.finish == "stop"]
    cut = [one for one in drawn if one.finish == "length"]
    assert stopped
    assert cut
    assert all(one.token_ids[-1] in (257, 259) and not {257, 259} & set(one.token_ids[:-1]) for one in stopped)
    assert all(len(one.token_ids) == 12 and not {257, 259} & set(one.token_ids) for one in cut)
    assert all(len(one.logprobs) == len(one.token_ids) for one in drawn)
    assert not any("<" in one.text and "|>" in one.text for one in drawn)


def test_a_stop_string_ends_the_completions_that_say_it(engine):
    """The same tokens up to where the string is complete; the text is cut before it, the ids are not."""
    mine = engine()
    (free,) = sample(mine, request("go on", 12, 3, max_tokens=60))
    string = free[0].text[20:22]
    (bound,) = sample(mine, request("go on", 12, 3, max_tokens=60, stop=(string, "never said")))
    assert sum(string in one.text for one in free) < len(free)
    for one, other in zip(free, bound, strict=True):
        if string not in one.text:
            assert (other.token_ids, other.text, other.finish) == (one.token_ids, one.text, one.finish)
            continue
        assert other.text == one.text.partition(string)[0]
        assert other.finish == "stop"
        assert other.token_ids == one.token_ids[: len(other.token_ids)]
        decode = mine.loaded.templates["p"].decode
        assert string in decode(other.token_ids)
        assert string not in decode(other.token_ids[:-1])


def test_an_ordinary_token_may_end_a_turn_and_is_no_text(tmp_path):
    folder = tiny.build(tmp_path / "bang")
    (bang,) = tiny.byte_tokenizer()("!").input_ids
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{bang}]}}')
    mine = tiny.engine(folder)
    with torch.no_grad():
        mine.loaded.model.lm_head.weight[bang] *= 8.0
    drawn = [one for one in sample(mine, request("stop", 30, 3))[0] if one.token_ids[-1] == bang]
    mine.close()
    assert drawn
    assert all(one.finish == "stop" and "!" not in one.text for one in drawn)


def test_text_has_the_special_tokens_that_were_sampled(engine):
    template = engine().loaded.templates["p"]
    assert template.decode([0, 256, 258, 1]) == '!<pad><|im_start|>"'


def test_bfloat16_samples_close_to_float32(learner, folders):
    mine = learner(dtype="bfloat16", learning_rate=1e-3)
    reference = AutoModelForCausalLM.from_pretrained(folders["llama"])
    ((completion, *_),) = sample(mine, request("half", 2, max_tokens=30))
    difference = plain_logprobs(reference, completion, 1.0) - torch.tensor(completion.logprobs)
    assert 0.0 < float(difference.abs().mean()) < 0.1
    figures = update(mine, [datum(completion, 1.0)])["p"]
    assert math.isfinite(figures["loss"])
    assert all(weight.dtype == torch.float32 for weight in mine.engine.loaded.model.parameters())
