"""Vision-language models: sampler and learner against the model's own forward, gradients by padding, LoRA, weights."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings, vision
from cadre.engines.torch.kv_cache import run_eagerly
from cadre.errors import EngineError, PromptError
from cadre.settings import LearnerConfig, LoraConfig
from cadre.types import Message, PreviousTurn, Request, Sampling
from tests.cadre.engines import tiny, tiny_vision
from tests.cadre.engines.tiny import datum, sample, update
from tests.cadre.engines.tiny_vision import noise, own, request
from tests.helpers.prefix_trees import apart, caught

TOLERANCE = 1e-5
WIDE, TALL = noise(40, 20), noise(16, 48, seed=1)
ASKED = (
    request("Hi", WIDE, count=2),
    request("a longer question", TALL, WIDE),
    request("and none"),
    request("Hi", TALL),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("vision")
    return {kind: tiny_vision.build(root / kind, kind) for kind in tiny_vision.KINDS}


@pytest.fixture(params=list(tiny_vision.KINDS))
def every_folder(models, request):
    return models[request.param]


@pytest.fixture(params=["smolvlm", "qwen2_5_vl"])
def folder(models, request):
    """One whose pictures take places as tokens do, one with positions in three directions."""
    return models[request.param]


def learner_of(folder, lora=None, **settings):
    policies = {"p": tiny.policy(folder, lora=lora)}
    learners = {"p": LearnerConfig(**{"learning_rate": 1e-2, **settings})}
    return TorchLearner(TorchEngine(folder, policies, 0), TrainingSettings(learners))


def moved(learner):
    """The adapter drawn at random, as a fresh one adds nothing."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in learner.engine.parameters("p").values():
            weight.normal_(0.0, 0.05, generator=generator)
    return learner


def drawn(side, requests=ASKED):
    return [sample for siblings in sample(side, *requests) for sample in siblings]


def check_own(learner, model, folder):
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    samples = [item for item in drawn(learner) if model.config.image_token_id not in item.token_ids]
    assert len(samples) >= 3
    assert max(len(item.images) for item in samples) == 2
    learned = learner.rank._runner.compute_logprobs([datum(item, 1.0) for item in samples])
    for drawn_sample, values in zip(samples, learned, strict=True):
        expected = own(model, processor, drawn_sample)
        assert (torch.tensor(drawn_sample.logprobs) - expected).abs().max() < TOLERANCE
        assert (torch.tensor(values[len(drawn_sample.prompt_ids) :]) - expected).abs().max() < TOLERANCE


def test_sampler_and_learner_say_what_the_model_says(every_folder):
    learner = learner_of(every_folder)
    check_own(learner, learner.engine.loaded.model, every_folder)
    learner.close()


def test_keys_in_fixed_places_hide_no_picture(every_folder):
    """Mistake: masks by positions, of which a picture has fewer than tokens: the end of the prompt would be hidden."""
    learner = learner_of(every_folder)
    learner.engine.record = run_eagerly
    check_own(learner, learner.engine.loaded.model, every_folder)
    learner.close()


def test_with_an_adapter_they_say_what_base_and_adapter_merged_say(folder, tmp_path):
    learner = moved(learner_of(folder, LoraConfig(rank=2, alpha=4.0)))
    assert all("vision" not in name and "visual" not in name for name in learner.engine.parameters("p"))
    learner.export("p", tmp_path / "merged", merge=True)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged").eval()
    check_own(learner, model, tmp_path / "merged")
    learner.close()


def test_another_picture_makes_other_log_probabilities(folder):
    """Equal ids with different pictures are different prompts, in one batch and in one scope."""
    side = tiny.engine(folder)
    first, second, again = sample(side, *(request("Hi", item) for item in (noise(32, 32, 5), noise(32, 32, 6), WIDE)))
    assert first[0].prompt_ids == second[0].prompt_ids
    assert abs(first[0].logprobs[0] - second[0].logprobs[0]) > 1e-3
    assert sample(side, request("Hi", WIDE))[0][0].token_ids == again[0].token_ids
    side.close()


@pytest.mark.parametrize("lora", [None, pytest.param(LoraConfig(rank=2, alpha=4.0), marks=pytest.mark.slow)])
def test_gradients_are_the_same_however_sequences_are_padded(folder, lora):
    together, single = learner_of(folder, lora), learner_of(folder, lora, tokens_per_microbatch=1)
    if lora:
        moved(together), moved(single)
    data = [
        datum(sample, advantage) for sample, advantage in zip(drawn(together), (1.0, -0.5, 2.0, 1.0, -1.0), strict=True)
    ]
    first, second = caught(together, data), caught(single, data)
    assert apart(first, second) < TOLERANCE
    assert max(float(value.abs().max()) for value in second.values()) > 1e-4
    together.close(), single.close()


def test_a_placeholder_that_a_model_says_is_no_picture(folder):
    """It is read as another token, in decoding as in learning, and the next turn starts a new sequence."""
    learner = learner_of(folder)
    loaded = learner.engine.loaded
    (item,) = drawn(learner, [request("Hi", WIDE, max_tokens=4)])
    ids = (*item.token_ids[:1], loaded.pictures.token, *item.token_ids[1:])
    shown = vision.make_inputs(loaded.model, loaded.pictures, [(item.prompt_ids + ids, item.images)]).tensors[
        "input_ids"
    ][0]
    count = loaded.pictures.count(WIDE)
    assert int((shown == loaded.pictures.token).sum()) == count == item.prompt_ids.count(loaded.pictures.token)
    answer = replace(item, token_ids=ids, logprobs=(-1.0,) * len(ids))
    (values,) = learner.rank._runner.compute_logprobs([datum(answer, 1.0)])
    assert all(value < 0.0 for value in values[len(item.prompt_ids) :])
    recorded = (Message("user", "Hi", images=(WIDE,)),)
    later = (*recorded, Message("assistant", answer.text), Message("user", "and?"))
    template = loaded.templates["p"]
    assert template.prompt(later, PreviousTurn(recorded, answer), loaded.stops).history == "new"
    learner.close()


def test_a_conversation_keeps_sampled_ids_and_pictures(folder):
    side = tiny.engine(folder)
    (item,) = sample(side, request("Hi", WIDE, max_tokens=3))[0]
    later = (
        Message("user", "Hi", images=(WIDE,)),
        Message("assistant", item.text),
        Message("user", "and this?", images=(TALL,)),
    )
    requests = Request("r", "p", later, 1, Sampling(max_tokens=3), 1, PreviousTurn(later[:1], item))
    (two,) = sample(side, requests)[0]
    assert two.images == (WIDE, TALL)
    if two.history == "clean":
        assert two.prompt_ids[: len(item.prompt_ids) + len(item.token_ids)] == item.prompt_ids + item.token_ids
    count = sum(map(side.loaded.pictures.count, two.images))
    assert two.prompt_ids.count(side.loaded.pictures.token) == count
    side.close()


def test_text_that_looks_like_a_picture_stays_text(folder):
    side = tiny.engine(folder)
    marker = side.loaded.pictures.marker
    (item,) = sample(side, request(f"see {marker} here", WIDE, max_tokens=2))[0]
    assert item.prompt_ids.count(side.loaded.pictures.token) == side.loaded.pictures.count(WIDE)
    side.close()


def test_saved_weights_come_back(folder, tmp_path):
    """A checkpoint holds all that a folder of the model needs, and what was learned goes on from there."""
    first, other_torch_learner = learner_of(folder), learner_of(folder)
    data = [datum(sample, 1.0) for sample in drawn(first)]
    update(first, data)
    first.save(tmp_path)
    other_torch_learner.load(tmp_path)
    assert drawn(first) == drawn(other_torch_learner)
    assert update(first, data)["p"]["loss"] == update(other_torch_learner, data)["p"]["loss"]
    again = tiny.engine(tmp_path / "p")
    assert again.loaded.pictures.count(WIDE) == first.engine.loaded.pictures.count(WIDE)
    first.close(), other_torch_learner.close(), again.close()


def test_a_model_of_text_refuses_pictures(folders):
    side = tiny.engine(folders["llama"])
    with pytest.raises(EngineError, match="read as text alone here; expected a model of the type idefics3, smolvlm"):
        sample(side, request("Hi", WIDE))
    side.close()


def test_a_prefix_tree_is_refused(folder):
    with pytest.raises(EngineError, match=r"learner.pack is prefix_tree, but models of type"):
        learner_of(folder, pack="prefix_tree")


def test_a_picture_that_the_processor_refuses_fails_the_prompt(models):
    side = tiny.engine(models["qwen2_vl"])
    with pytest.raises(PromptError, match="cannot take a picture of 2000 by 2 pixels"):
        sample(side, request("Hi", noise(2000, 2)))
    side.close()
