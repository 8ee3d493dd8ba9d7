"""Sampler, learner and plain forward agree for each way in which families go apart: windows that a layer has as a
keyword or in its mask, local attention beside gaps, the best few keys, chunks, recurrence, dropout by checkpointing.

Windows are longer than what is tried when a model is loaded, and shorter than what is sampled.
`bench/families.py` runs every family.
"""

import asyncio
import json
import warnings
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.engines.torch.families import COPIED, PADDED, SHARED
from cadre.engines.torch.kv_cache import run_eagerly
from cadre.errors import EngineError
from cadre.rollout.batching import gather
from cadre.settings import LearnerConfig
from cadre.types import Message, PreviousTurn
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import datum, request
from tests.helpers.plain_logprobs import plain_logprobs
from tests.helpers.slow import few_of

LONG = 48  # tokens of a window: more than a trial has, less than a longer prompt or a whole sequence
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
# By type: what is set, and how it is sampled.
KINDS = {
    "mistral": ({"sliding_window": LONG}, "shared"),
    "llama": ({"sliding_window": LONG}, "shared"),  # of another type's settings: its attention reads the whole context
    "phimoe": ({"sliding_window": LONG, **EXPERTS}, "copied"),
    "qwen2_moe": (
        {
            "use_sliding_window": True,
            "sliding_window": LONG,
            "max_window_layers": 1,
            "shared_expert_intermediate_size": 16,
            **EXPERTS,
        },
        "copied",
    ),
    "gpt_neo": ({"attention_types": [[["global", "local"], 1]], "window_size": LONG, "num_layers": 2}, "plain"),
    "llama4_text": ({"attention_chunk_size": LONG, "intermediate_size_mlp": 48, "head_dim": 8, **EXPERTS}, "plain"),
    "lfm2": ({"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}, "plain"),
    "opt": ({"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.5}, "shared"),
    "falcon": ({"hidden_dropout": 0.5, "attention_dropout": 0.5}, "copied"),
}


def built(folder, kind, **settings):
    settings = {"num_experts": 4, **settings} if kind == "doge" else settings
    config = AutoConfig.for_model(kind, **{"vocab_size": 260, **tiny.SHAPE, "bos_token_id": 258, **settings})
    tiny.save(lambda: AutoModelForCausalLM.from_config(config), folder)
    tiny.byte_tokenizer().save_pretrained(folder)
    return folder


async def two_turns(engine):
    """Prompts of unequal length in one batch, which pass the window, and another turn of one of them."""
    requests = [request("go", 2, 1, max_tokens=40), request("a prompt that is longer than the window is", 2, 2)]
    first = [sample for siblings in await gather(*map(engine.sample, requests)) for sample in siblings]
    message = (Message("assistant", first[0].text), Message("user", "and then?"))
    previous = PreviousTurn(requests[0].messages, first[0])
    second = replace(requests[0], messages=requests[0].messages + message, key=3, previous=previous)
    return first + await engine.sample(second)


@pytest.fixture(params=few_of(KINDS, ["mistral", "llama", "gpt_neo", "llama4_text", "opt"]))
def family(request, tmp_path):
    settings, form = KINDS[request.param]
    folder = built(tmp_path, request.param, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is slow
        engine = tiny.engine(folder)
    yield folder, engine, form
    engine.close()


def test_sampler_and_learner_are_the_plain_forward(family):
    folder, engine, form = family
    assert form == engine._form
    (samples,) = asyncio.run(gather(two_turns(engine)))
    engine.record = run_eagerly
    (again,) = asyncio.run(gather(two_turns(engine)))
    attention = engine.loaded.model.config._attn_implementation
    reference = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention)
    plain = [plain_logprobs(reference, sample, 1.0) for sample in samples]
    for first, second, expected in zip(samples, again, plain, strict=True):
        assert second.token_ids == first.token_ids
        for logprobs in (first.logprobs, second.logprobs):
            assert float((torch.tensor(logprobs) - expected).abs().max()) < 1e-4
    data = [datum(sample, 1.0) for sample in samples]
    for checkpointing in (False, True):
        learner = TorchLearner(engine, TrainingSettings({"p": LearnerConfig(gradient_checkpointing=checkpointing)}))
        with learner.rank._runner.checkpointing():
            scored = learner.rank._runner.compute_logprobs(data)
        for first, got, expected in zip(samples, scored, plain, strict=True):
            assert float((torch.tensor(got[-len(first.logprobs) :]) - expected).abs().max()) < 1e-4
    # The gradient is that of the plain forward too, whatever is run again for it.
    metrics = asyncio.run(learner.update(data))["p"]
    assert metrics["logprob_diff_max"] < 1e-4


OWN_CODE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

class NearConfig(LlamaConfig):
    model_type = "near"
    reach: int = 48

class NearForCausalLM(LlamaForCausalLM):
    config_class = NearConfig

    def forward(self, input_ids=None, attention_mask=None, **inputs):
        length = input_ids.shape[1]
        if attention_mask is None and length > 1:
            apart = torch.arange(length)[:, None] - torch.arange(length)
            seen = (apart >= 0) & (apart < self.config.reach)
            blank = torch.zeros(len(input_ids), 1, length, length, dtype=self.dtype)
            attention_mask = blank.masked_fill(~seen, torch.finfo(self.dtype).min)
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **inputs)
"""


def test_a_window_by_another_name_in_code_of_its_own(tmp_path):
    """Mistake: to look for windows under the names that are known."""
    folder = tiny.build(tmp_path)
    (folder / "near.py").write_text(OWN_CODE)
    config = json.loads((folder / "config.json").read_text())
    kinds = {"AutoConfig": "near.NearConfig", "AutoModelForCausalLM": "near.NearForCausalLM"}
    own_settings = {"model_type": "near", "architectures": ["NearForCausalLM"], "auto_map": kinds, "reach": LONG}
    (folder / "config.json").write_text(json.dumps(config | own_settings))
    with pytest.warns(UserWarning, match="'near', is sampled without a cache"):
        engine = TorchEngine(folder, {"p": tiny.policy(folder, trust_remote_code=True)}, 0)
    (samples,) = asyncio.run(gather(two_turns(engine)))
    learner = TorchLearner(engine, TrainingSettings({"p": LearnerConfig()}))
    with learner.rank._runner.checkpointing():
        scored = learner.rank._runner.compute_logprobs([datum(item, 1.0) for item in samples])
    for sample, learned in zip(samples, scored, strict=True):
        expected = plain_logprobs(engine.loaded.model, sample, 1.0)
        for got in (sample.logprobs, learned[-len(sample.logprobs) :]):
            assert float((torch.tensor(got) - expected).abs().max()) < 1e-4
    engine.close()


def test_the_best_few_keys_hold_a_model_to_sequences_of_so_many_tokens(tmp_path):
    folder = built(tmp_path, "doge", keep_window_size=LONG)
    with pytest.warns(UserWarning, match=f"'doge', is held to sequences of {LONG} tokens"):
        engine = tiny.engine(folder)
    samples = tiny.sample(engine, request("go", 2, max_tokens=90))[0]
    assert {len(item.prompt_ids + item.token_ids) for item in samples} == {LONG}
    reference = AutoModelForCausalLM.from_pretrained(folder)
    for sample in samples:
        assert float((plain_logprobs(reference, sample, 1.0) - torch.tensor(sample.logprobs)).abs().max()) < 1e-4
    engine.close()


def test_fewer_keys_than_are_tried_are_refused(tmp_path):
    with pytest.raises(EngineError, match=r"a model of type 'doge'.*Take a model of another type"):
        tiny.engine(built(tmp_path, "doge", keep_window_size=12))


def test_every_family_has_one_form():
    assert not SHARED & COPIED
    assert not (SHARED | COPIED) & PADDED
    all_families = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert all_families >= SHARED | COPIED | PADDED
