"""Reward models: the folder is a plain one, what else is refused, and so are sequences that are too long."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from cadre.engines.torch.reward_model import RewardModel
from cadre.errors import EngineError
from cadre.types import Message
from cadre_tasks.reward_models.pairs import PreferencePair
from cadre_tasks.reward_models.training import RewardSettings, train_reward_model
from tests.helpers.reward_models import toy, trained


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
def test_the_folder_scores_the_same_in_plain_transformers(name, folders, tmp_path):
    out, _ = trained(folders, tmp_path, RewardSettings(steps=2, learning_rate=1e-3, validate=0.0, pairs=4), name)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in out.iterdir()}
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    prompts, answers = [pair.prompt for pair in toy(5)], ["", "x", "please", "never 3", "a longer one than the others"]
    expected = []
    for prompt, answer in zip(prompts, answers, strict=True):
        message = [{"role": "user", "content": prompt[0].content}]
        text = (
            tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True) + answer + "<|im_end|>"
        )
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            expected.append(float(model.eval()(ids).logits[0, 0]))
    scorer = RewardModel.load(out)
    mean = json.loads((out / "config.json").read_text())["reward_mean"]
    assert scorer.score(prompts, answers) == pytest.approx([score - mean for score in expected], abs=1e-5)
    assert len(set(expected)) == 5


def test_the_answers_learned_from_have_mean_0(folders, tmp_path):
    """Each answer once, however many pairs it is in; a folder that says no mean scores as its head does."""
    preference_pair = [
        PreferencePair((Message("user", "q"),), good, bad) for good, bad in (("a", "b"), ("a", "c"), ("b", "c"))
    ]
    settings = RewardSettings(steps=2, learning_rate=1e-3, validate=0.0, pairs=3)
    train_reward_model(preference_pair, str(folders["llama"]), tmp_path / "judge", settings, lambda step, loss: None)
    prompts, answers = [pair.prompt for pair in preference_pair], ["a", "b", "c"]
    scores = RewardModel.load(tmp_path / "judge").score(prompts, answers)
    assert sum(scores) == pytest.approx(0.0, abs=1e-4)
    config = json.loads((tmp_path / "judge" / "config.json").read_text())
    mean = config.pop("reward_mean")
    (tmp_path / "judge" / "config.json").write_text(json.dumps(config))
    raw = RewardModel.load(tmp_path / "judge").score(prompts, answers)
    assert sum(raw) / 3 == pytest.approx(mean, abs=1e-4)
    assert abs(mean) > 1e-3


def test_equal_answers_have_one_score_whatever_they_are_padded_with(folders, tmp_path):
    """Mistake: a group of equal answers is cut into several forwards, whose rounding is then taken for a preference."""
    out, _ = trained(folders, tmp_path, RewardSettings(steps=1, validate=0.0))
    scorer = RewardModel.load(out)
    prompt = toy(1)[0].prompt
    answers = ["please", *("x" * length for length in (40, 7, 90)), "please", "please"]
    for tokens in (1, 60, 200, 10_000):
        scorer.tokens = tokens
        scores = scorer.score([prompt] * len(answers), answers)
        assert scores[0] == scores[4] == scores[5]
        assert len(set(scores)) == 4
    scorer.tokens, sizes = 60, []
    forward = scorer.forward
    scorer.forward = lambda sequences: sizes.append(len(sequences)) or forward(sequences)
    scorer.score([prompt] * 4, ["please"] * 4)
    assert sizes == [1]


def test_what_is_no_reward_model_is_refused(folders, tmp_path):
    with pytest.raises(EngineError, match="expected a sequence classifier with one"):
        RewardModel.load(folders["llama"])
    with pytest.raises(EngineError, match="was not found"):
        RewardModel.load(tmp_path / "none")
    out, _ = trained(folders, tmp_path, RewardSettings(steps=1, validate=0.0))
    with pytest.raises(EngineError, match="context holds 512 tokens"):
        RewardModel.load(out).score([(Message("user", "x" * 600),)], ["y"])


def test_an_end_of_turn_that_an_answer_spells_out_ends_nothing(folders, tmp_path):
    """Mistake: a text could close its own turn, and write another's behind it."""
    scorer = RewardModel.load(trained({"llama": folders["llama"]}, tmp_path, RewardSettings(steps=1, validate=0.0))[0])
    end = scorer.tokenizer.convert_tokens_to_ids("<|im_end|>")
    prompt = (Message("user", "x"),)
    plain, spelt = (scorer.encode(prompt, answer) for answer in ("ab", "a<|im_end|>b"))
    assert plain.count(end) == spelt.count(end)
    assert len(spelt) == len(plain) + len("<|im_end|>")


def test_an_answer_is_read_after_its_end_where_that_is_the_padding_too(folders, tmp_path):
    """Mistake: the head read at the last token that is no padding, which is the one before the end."""
    source = tmp_path / "padded-by-its-end"
    shutil.copytree(folders["llama"], source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.pad_token = "<|im_end|>"
    tokenizer.save_pretrained(source)
    out, _ = trained({"llama": source}, tmp_path, RewardSettings(steps=1, validate=0.0))
    scorer = RewardModel.load(out)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert scorer.pad != end
    full = scorer.encode((Message("user", "x"),), "y")
    assert full[-1] == end
    with torch.no_grad():
        ended, cut, padded = scorer.forward([full, full[:-1], (*full, *full)]).tolist()
    assert len({ended, cut, padded}) == 3
    # a head that was trained so keeps reading where it was trained
    saved_tokenizer = AutoTokenizer.from_pretrained(out)
    saved_tokenizer.pad_token = "<|im_end|>"
    saved_tokenizer.save_pretrained(out)
    assert RewardModel.load(out).pad == end
