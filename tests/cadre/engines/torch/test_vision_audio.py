"""Audio-language models: sampler and learner against the model's own forward, gradients by padding, LoRA, weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoFeatureExtractor, AutoModelForMultimodalLM

from cadre import sound
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings, vision
from cadre.errors import EngineError, PromptError
from cadre.settings import LearnerConfig, LoraConfig
from cadre.types import Message, PreviousTurn, Sample
from tests.cadre.engines import tiny, tiny_audio, tiny_vision
from tests.cadre.engines.tiny import datum, sample, update
from tests.cadre.engines.tiny_audio import noise, own, request
from tests.helpers.prefix_trees import apart, caught
from tests.helpers.slow import few_of

TOLERANCE = 1e-5
SHORT, LONG = noise(0.3), noise(0.9, seed=1)
ASKED = (
    request("Hi", SHORT, count=2),
    request("a longer question", LONG, SHORT),
    request("and none"),
    request("Hi", LONG),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("audio")
    return {kind: tiny_audio.build(root / kind, kind) for kind in tiny_audio.KINDS}


@pytest.fixture(params=list(tiny_audio.KINDS))
def every_folder(models: dict[str, Path], request: Any) -> Path:
    return models[request.param]


@pytest.fixture(params=few_of(tiny_audio.KINDS, ["qwen2_audio"]))
def folder(models: dict[str, Path], request: Any) -> Path:
    return models[request.param]


def learner_of(folder: Path, lora: LoraConfig | None = None, **settings: Any) -> TorchLearner:
    policies = {"p": tiny.policy(folder, lora=lora)}
    learners = {"p": LearnerConfig(**{"learning_rate": 1e-2, **settings})}
    return TorchLearner(TorchEngine(str(folder), policies, 0), TrainingSettings(learners))


def drawn(side: Any, requests: Any = ASKED) -> list[Sample]:
    return [sample for siblings in sample(side, *requests) for sample in siblings]


def check_own(learner: TorchLearner, model: Any, folder: Path, requests: Any) -> None:
    extractor = AutoFeatureExtractor.from_pretrained(folder)
    samples = [item for item in drawn(learner, requests) if model.config.audio_token_id not in item.token_ids]
    assert len(samples) >= 3
    assert max(len(item.images) for item in samples) == 2
    learned = learner.rank._runner.compute_logprobs([datum(item, 1.0) for item in samples])
    for drawn_sample, values in zip(samples, learned, strict=True):
        expected = own(model, extractor, drawn_sample)
        assert (torch.tensor(drawn_sample.logprobs) - expected).abs().max() < TOLERANCE
        assert (torch.tensor(values[len(drawn_sample.prompt_ids) :]) - expected).abs().max() < TOLERANCE


def test_sampler_and_learner_have_the_log_probabilities_of_the_model(every_folder: Path) -> None:
    learner = learner_of(every_folder)
    windows = (request("two windows", noise(1.7, seed=3)),) if every_folder.name == "voxtral" else ()
    check_own(learner, learner.engine.loaded.model, every_folder, (*ASKED, *windows))
    learner.close()


def test_with_an_adapter_they_have_those_of_base_and_adapter_merged(folder: Path, tmp_path: Path) -> None:
    learner = learner_of(folder, LoraConfig(rank=2, alpha=4.0))
    with torch.no_grad():
        for weight in learner.engine.parameters("p").values():
            weight.normal_(0.0, 0.05)
    assert all("audio" not in name for name in learner.engine.parameters("p"))
    learner.export("p", tmp_path / "merged", merge=True)
    model = AutoModelForMultimodalLM.from_pretrained(tmp_path / "merged").eval()
    check_own(learner, model, tmp_path / "merged", ASKED)
    learner.close()


def test_another_sound_makes_other_log_probabilities(folder: Path) -> None:
    """Equal ids with different sounds are different prompts."""
    side = tiny.engine(folder)
    (first,), (second,) = sample(side, request("Hi", noise(0.5, 5)), request("Hi", noise(0.5, 6)))
    assert first.prompt_ids == second.prompt_ids
    assert abs(first.logprobs[0] - second.logprobs[0]) > 1e-3
    side.close()


def test_gradients_are_the_same_however_sequences_are_padded(folder: Path) -> None:
    together, single = learner_of(folder), learner_of(folder, tokens_per_microbatch=1)
    data = [
        datum(sample, advantage) for sample, advantage in zip(drawn(together), (1.0, -0.5, 2.0, 1.0, -1.0), strict=True)
    ]
    first, second = caught(together, data), caught(single, data)
    assert apart(first, second) < TOLERANCE
    assert max(float(value.abs().max()) for name, value in second.items() if "audio" in name) > 1e-6
    together.close(), single.close()


def test_a_placeholder_that_a_model_samples_is_no_sound(folder: Path) -> None:
    learner = learner_of(folder)
    loaded = learner.engine.loaded
    assert loaded.pictures is not None
    (item,) = drawn(learner, [request("Hi", SHORT, max_tokens=4)])
    ids = (*item.token_ids[:1], loaded.pictures.token, *item.token_ids[1:])
    inputs = vision.make_inputs(loaded.model, loaded.pictures, [(item.prompt_ids + ids, item.images)])
    shown = inputs.tensors["input_ids"][0]
    assert int((shown == loaded.pictures.token).sum()) == loaded.pictures.count(SHORT)
    (values,) = learner.rank._runner.compute_logprobs(
        [datum(replace(item, token_ids=ids, logprobs=(-1.0,) * len(ids)), 1.0)]
    )
    assert all(value < 0.0 for value in values[len(item.prompt_ids) :])
    learner.close()


def test_a_conversation_keeps_sampled_ids_and_sounds(folder: Path) -> None:
    side = tiny.engine(folder)
    ((item,),) = sample(side, request("Hi <|AUDIO|>", SHORT, max_tokens=3))
    assert item.prompt_ids.count(side.loaded.pictures.token) == side.loaded.pictures.count(SHORT)  # the text is text
    recorded = (Message("user", "Hi <|AUDIO|>", sounds=(SHORT,)),)
    later = (*recorded, Message("assistant", item.text), Message("user", "and this?", sounds=(LONG,)))
    requests = replace(request("", max_tokens=3), messages=later, previous=PreviousTurn(recorded, item))
    ((two,),) = sample(side, requests)
    assert two.images == (SHORT, LONG)
    assert two.prompt_ids.count(side.loaded.pictures.token) == sum(map(side.loaded.pictures.count, two.images))
    side.close()


@pytest.mark.slow
def test_saved_weights_come_back(folder: Path, tmp_path: Path) -> None:
    first, other_torch_learner = learner_of(folder), learner_of(folder)
    data = [datum(sample, 1.0) for sample in drawn(first)]
    update(first, data)
    first.save(tmp_path)
    other_torch_learner.load(tmp_path)
    assert drawn(first) == drawn(other_torch_learner)
    again = tiny.engine(tmp_path / "p")
    assert again.loaded.pictures.count(LONG) == first.engine.loaded.pictures.count(LONG)
    first.close(), other_torch_learner.close(), again.close()


@pytest.mark.parametrize(
    ("kind", "heard", "got"),
    [
        (
            "qwen2_audio",
            noise(1.1),
            "1.10 seconds at 16,000 samples a second; expected 16,000 a second, and at least 0.1",
        ),
        ("qwen2_audio", noise(0.05), "0.05 seconds"),
        ("voxtral", sound(tiny_audio.np.zeros(8000), rate=8000), "1.00 seconds at 8,000"),
    ],
)
def test_a_sound_that_a_model_does_not_take_fails_the_prompt(
    models: dict[str, Path], kind: str, heard: Any, got: str
) -> None:
    side = tiny.engine(models[kind])
    with pytest.raises(PromptError, match=got):
        sample(side, request("Hi", heard))
    side.close()


def test_models_of_text_and_of_images_read_no_sounds(folders: Any, tmp_path: Path) -> None:
    for source in (folders["llama"], tiny_vision.build(tmp_path, "smolvlm")):
        side = tiny.engine(source)
        with pytest.raises(EngineError, match=r"1 sound\(s\), .* expected a model of the type qwen2_audio, voxtral"):
            sample(side, request("Hi", SHORT))
        side.close()


def test_a_prefix_tree_is_an_error(folder: Path) -> None:
    with pytest.raises(EngineError, match=r"learner.pack is prefix_tree, but models of type"):
        learner_of(folder, pack="prefix_tree")
