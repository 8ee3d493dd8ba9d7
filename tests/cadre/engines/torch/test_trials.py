"""Models whose attention is not plain are sampled in a form that is right for them, or refused when they are loaded."""

import asyncio
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cadre.engines.torch import TorchLearner, TrainingSettings, shared_prefix_cache, trials
from cadre.engines.torch.kv_cache import run_eagerly
from cadre.engines.torch.model import check_attention_keywords
from cadre.errors import EngineError
from cadre.rollout.batching import gather
from cadre.settings import LearnerConfig
from cadre.types import Message, PreviousTurn
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import request, sample
from tests.helpers.plain_logprobs import plain_logprobs

WIDE = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
# By type in config.json: attention with sinks, of its own, with keywords of its own, and with values of another width.
SETTINGS = {
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": tiny.WINDOW},
    "diffllama": {},
    "stablelm": {},
    "falcon": {},
    "gptj": {**WIDE, "rotary_dim": 4},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
    },
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 512},
    "bloom": {"n_layer": 2, "n_head": 4},
}
WITHOUT_CACHE = ("mpt", "bloom")
CACHED = sorted(SETTINGS.keys() - set(WITHOUT_CACHE))


@pytest.fixture(scope="module")
def odd_folders(tmp_path_factory):
    """A folder with a tiny model of every type of `SETTINGS`."""
    root = tmp_path_factory.mktemp("others")
    for kind, family_settings in SETTINGS.items():
        config = AutoConfig.for_model(kind, **{"vocab_size": 260, **tiny.SHAPE, **family_settings})
        tiny.save(lambda config=config: AutoModelForCausalLM.from_config(config), root / kind)
        tiny.byte_tokenizer().save_pretrained(root / kind)
    return root


async def two_turns(engine):
    """Prompts of different length at once, and another turn of one of them."""
    requests = [request("go", 2, 1, max_tokens=20), request("a prompt that is longer than a window", 1, 2)]
    first = [sample for siblings in await gather(*map(engine.sample, requests)) for sample in siblings]
    message = (Message("assistant", first[0].text), Message("user", "and then?"))
    previous = PreviousTurn(requests[0].messages, first[0])
    return first + await engine.sample(
        replace(requests[0], messages=requests[0].messages + message, key=3, previous=previous, count=2)
    )


def gap(folder, engine):
    """Return the largest difference between two turns' log-probabilities and those of plain forwards."""
    (samples,) = asyncio.run(gather(two_turns(engine)))
    reference = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=engine.loaded.model.config._attn_implementation
    )
    return max(
        float((plain_logprobs(reference, sample, 1.0) - torch.tensor(sample.logprobs)).abs().max())
        for sample in samples
    )


@pytest.mark.parametrize("record", [None, run_eagerly])
@pytest.mark.parametrize("kind", CACHED)
def test_attention_that_is_not_plain_is_sampled_without_sharing(odd_folders, engine, kind, record):
    torch_engine = engine(odd_folders / kind)
    torch_engine.record = record
    assert torch_engine._form == "copied"
    assert shared_prefix_cache.can_share(torch_engine.loaded.model)
    assert gap(odd_folders / kind, torch_engine) < 1e-4


@pytest.mark.parametrize("kind", WITHOUT_CACHE)
def test_a_model_that_no_cached_form_is_right_for_is_sampled_without_a_cache(odd_folders, engine, kind):
    with pytest.warns(UserWarning, match=rf"type '{kind}', is sampled without a cache.*: its family is not among"):
        torch_engine = engine(odd_folders / kind)
    assert torch_engine._form == "plain"
    assert gap(odd_folders / kind, torch_engine) < 1e-4


def test_a_model_that_looks_at_later_tokens_is_refused_when_loaded(tmp_path, engine):
    config = AutoConfig.for_model("bert", **{"vocab_size": 260, **tiny.SHAPE})
    tiny.save(lambda: AutoModelForCausalLM.from_config(config), tmp_path)
    tiny.byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(EngineError, match=r"(?s)type 'bert'.*different length it gives logits that are.*Take a model"):
        engine(tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_plain_attention_is_shared_as_before(engine, architecture, dtype):
    torch_engine = engine(architecture, dtype=dtype)
    assert torch_engine._form == ("copied" if architecture == "gemma2" else "shared")
    assert trials.choose_recorder(torch_engine.loaded, torch_engine.dtype, run_eagerly) is run_eagerly


def test_too_little_memory_for_a_trial_is_not_remembered_as_a_fault(engine, monkeypatch):
    off, calls = trials._batch_distance, []
    torch_engine = engine()
    monkeypatch.setattr(trials, "_faults", {})

    def run_out_of_memory(*requests):
        calls.append(requests)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return off(*requests)

    monkeypatch.setattr(trials, "_batch_distance", run_out_of_memory)
    assert "out of memory" in trials._find_fault(torch_engine.loaded, torch_engine.dtype, "shared")
    assert not trials._find_fault(torch_engine.loaded, torch_engine.dtype, "shared")


def test_a_form_that_is_wrong_in_a_second_turn_is_not_taken(engine, monkeypatch):
    """Mistake: a form that is right for a first turn alone."""
    off = trials._batch_distance
    monkeypatch.setattr(trials, "_faults", {})

    def wrong_later(loaded, dtype, options, prompts):
        is_second = len(prompts[0]) > trials.PROMPT_LENGTHS[0]
        return 1.0 if is_second and options.form != "plain" else off(loaded, dtype, options, prompts)

    monkeypatch.setattr(trials, "_batch_distance", wrong_later)
    with pytest.warns(UserWarning, match="with keys kept it gives logits that are 100.0% off"):
        torch_engine = engine()
    assert torch_engine._form == "plain"
    (samples,) = asyncio.run(gather(two_turns(torch_engine)))
    assert len(samples) == 5
    assert torch_engine.prefix_cache.bytes == 0


def test_models_that_are_alike_are_tried_once_and_draw_no_random_numbers(engine, folders, monkeypatch):
    attempts, once = [], trials._batch_distance
    monkeypatch.setattr(trials, "_faults", {})
    monkeypatch.setattr(trials, "_batch_distance", lambda *requests: attempts.append(1) or once(*requests))
    initial_rng_state = torch.get_rng_state()
    first = sample(engine(), request("go", 2, 5))
    assert torch.equal(torch.get_rng_state(), initial_rng_state)
    assert len(attempts) == 2  # turns
    second = sample(engine(), request("go", 2, 5))
    engine("qwen2")
    assert len(attempts) == 4
    assert [sample.logprobs for sample in first[0]] == [sample.logprobs for sample in second[0]]


def test_a_keyword_that_a_form_does_not_know_is_not_swallowed():
    check_attention_keywords({"dropout": 0.0, "position_ids": torch.arange(3), "use_cache": False, "softcap": None})
    for name, value in {"s_aux": torch.zeros(2), "dropout": 0.1, "softcap": 5.0}.items():
        with pytest.raises(EngineError, match=f"attention '{name}'"):
            check_attention_keywords({name: value})


def test_a_form_that_is_slightly_wrong_is_not_taken(engine, monkeypatch):
    hidden = shared_prefix_cache.PromptGroup.make_mask

    def nearer(self, tokens, window, dtype):
        mask = hidden(self, tokens, window, dtype)
        blank = torch.zeros(len(self.lengths), 1, 1, self.keys[0].shape[2], dtype=dtype)
        return (blank if mask is None else mask) + 0.1

    monkeypatch.setattr(trials, "_faults", {})
    monkeypatch.setattr(shared_prefix_cache.PromptGroup, "make_mask", nearer)
    assert engine("mistral")._form == "copied"


def test_a_model_with_code_of_its_own_is_run_by_its_plain_forward(folders, engine, monkeypatch):
    """Mistake: to trust the type in config.json, as it may have a window of another kind."""
    model_class = type(engine().loaded.model)
    monkeypatch.setattr(model_class, "__module__", "transformers_modules.llama")
    with pytest.warns(UserWarning, match="its family is not among"):
        torch_engine = engine()
    assert torch_engine._form == "plain"
    assert TorchLearner(torch_engine, TrainingSettings({"p": LearnerConfig()})).rank._runner.tokens == 0
    with pytest.raises(EngineError, match=r"pack is prefix_tree.*not known to"):
        TorchLearner(torch_engine, TrainingSettings({"p": LearnerConfig(pack="prefix_tree")}))


def test_the_distance_of_logits_by_hand():
    """Differences 3 and 4 from logits that are 6 and 8 off their mean, whatever stands for what is never sampled."""
    for ruled_out in (-torch.inf, torch.finfo(torch.float32).min):
        expected = torch.tensor([[0.0, 12.0, 6.0, ruled_out], [ruled_out] * 4])
        logits = expected + torch.tensor([3.0, 4.0, 0.0, 0.0])
        assert trials.logit_distance(logits, expected).tolist() == pytest.approx([5.0 / 72.0**0.5, 0.0])
        assert trials.logit_distance(logits.fill_(torch.nan), expected).tolist() == [torch.inf, 0.0]
