"""Models whose rotary angles change with the longest sequence of a batch: no sequence depends on those beside it."""

import asyncio
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cadre.engines.model_folder import context_length, stable_rope_length
from cadre.engines.text.model import Previewer
from cadre.engines.torch import TorchLearner, TrainingSettings, shared_prefix_cache
from cadre.engines.torch.kv_cache import run_eagerly
from cadre.errors import EngineError
from cadre.rollout.batching import gather
from cadre.settings import LearnerConfig
from cadre.types import Message, PreviousTurn, TrainingSequence
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import request
from tests.helpers.plain_logprobs import plain_logprobs
from tests.helpers.slow import few_of

CONTEXT = 128
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 10000.0}
SETTINGS = {
    "phi3": {"rope_parameters": LONG, "original_max_position_embeddings": CONTEXT, "max_position_embeddings": 512},
    "llama": {
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
        "max_position_embeddings": CONTEXT,
    },
}


def configured(kind):
    return AutoConfig.for_model(kind, **{"vocab_size": 260, **tiny.SHAPE, **SETTINGS[kind]})


@pytest.fixture(scope="module", params=SETTINGS)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    tiny.save(lambda: AutoModelForCausalLM.from_config(configured(request.param)), path)
    tiny.byte_tokenizer().save_pretrained(path)
    return path


async def drawn(engine):
    """A sequence that ends at the context, with many that go on beside it; then a short turn more of a long
    conversation beside a long one of a short."""
    requests = [request("x" * 70, 1, 1, max_tokens=99), *(request("x", 12, key, max_tokens=80) for key in (2, 3))]
    first = [sample for siblings in await gather(*map(engine.sample, requests)) for sample in siblings]
    begun = [request("x" * 60, 1, 4, max_tokens=4), request("x", 1, 5, max_tokens=4)]
    answers = [item for (item,) in await gather(*map(engine.sample, begun))]
    going_on = [after(*turn) for turn in zip(begun, answers, ("?", "y" * 50), strict=True)]
    return first + answers + [item for (item,) in await gather(*map(engine.sample, going_on))]


def after(earlier_request, sample, text):
    """Return the next request of the conversation."""
    messages = (*earlier_request.messages, Message("assistant", sample.text), Message("user", text))
    return replace(earlier_request, messages=messages, previous=PreviousTurn(earlier_request.messages, sample))


@pytest.mark.parametrize("form", few_of(["shared", "copied", "fixed"], ["shared", "fixed"]))
def test_what_is_sampled_depends_on_no_longer_sequence(folder, engine, form, monkeypatch):
    """Mistakes: sequences that have ended, or padding, that stand beyond the context."""
    if form != "shared":
        monkeypatch.setattr(shared_prefix_cache, "can_share", lambda model: False)
    torch_engine = engine(folder)
    torch_engine.record = run_eagerly if form == "fixed" else None
    torch_engine.loaded = replace(torch_engine.loaded, stops=())
    (samples,) = asyncio.run(gather(drawn(torch_engine)))
    assert [item.history for item in samples[-2:]] == ["clean", "clean"]
    reference = AutoModelForCausalLM.from_pretrained(folder)
    assert max(len(item.prompt_ids) + len(item.token_ids) for item in samples) == CONTEXT
    assert CONTEXT == torch_engine.loaded.context == Previewer(str(folder)).context
    for sample in samples:
        difference = plain_logprobs(reference, sample, 1.0) - torch.tensor(sample.logprobs)
        assert float(difference.abs().max()) < 1e-4


def sequence(length):
    generator = torch.Generator().manual_seed(length)
    ids = tuple(torch.randint(0, 256, (length,), generator=generator).tolist())
    zeros = (0.0,) * length
    return TrainingSequence("p", "r", ids, (False, *(True,) * (length - 1)), zeros, zeros, 0)


def test_a_learner_takes_what_the_context_holds_and_refuses_more(folder, engine):
    single_learner = TorchLearner(engine(folder), TrainingSettings({"p": LearnerConfig()}))
    data = [sequence(length) for length in (20, CONTEXT, 90)]
    single = [single_learner.reference_logprobs([datum])[0] for datum in data]
    for first, second in zip(single, single_learner.reference_logprobs(data), strict=True):
        assert first == pytest.approx(second, abs=1e-5)
    with pytest.raises(EngineError, match=f"'p': a sequence has {CONTEXT + 1} tokens, and beyond {CONTEXT} .*Shorten"):
        single_learner.reference_logprobs([*data, sequence(CONTEXT + 1)])


def test_what_a_context_is():
    plain = AutoConfig.for_model("llama", max_position_embeddings=99)
    assert (context_length(plain), stable_rope_length(plain)) == (99, None)
    layered = AutoConfig.for_model("gemma3_text", max_position_embeddings=99)
    assert (context_length(layered), stable_rope_length(layered)) == (99, None)
    layered.rope_parameters["full_attention"] |= {"rope_type": "longrope", "original_max_position_embeddings": 50}
    assert (context_length(layered), stable_rope_length(layered)) == (50, 50)
    assert context_length(AutoConfig.for_model("mpt")) is None
    for kind in SETTINGS:
        assert (context_length(configured(kind)), stable_rope_length(configured(kind))) == (CONTEXT, CONTEXT)
