"""Reward models: plain folders, read as TRL trains them; what else is refused, and sequences that are too long."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from cadre.engines.torch.reward_model import RewardModel
from cadre.errors import EngineError
from cadre.types import Message
from tests.cadre.engines import tiny

ANSWERS = ["", "x", "please", "never 3", "a longer one than the others"]


def asked(count):
    return [(Message("user", f"q{number}"),) for number in range(count)]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
def test_the_folder_scores_the_same_in_plain_transformers(name, folders, tmp_path):
    """The sequence is the whole conversation, as TRL renders it, with what follows the end of a turn."""
    out = tiny.judge(folders[name], tmp_path / "judge", reward_mean=0.25)
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    scorer, expected = RewardModel.load(out), []
    for prompt, answer in zip(asked(5), ANSWERS, strict=True):
        messages = [{"role": "user", "content": prompt[0].content}, {"role": "assistant", "content": answer}]
        ids = tokenizer.apply_chat_template(messages, return_tensors="pt").input_ids
        assert tokenizer.decode(ids[0]).endswith("<|im_end|>\n")
        assert scorer.encode(prompt, answer) == tuple(ids[0].tolist())
        with torch.no_grad():
            expected.append(float(model.eval()(ids).logits[0, 0]))
    assert scorer.score(asked(5), ANSWERS) == pytest.approx([score - 0.25 for score in expected], abs=1e-5)
    assert len(set(expected)) == 5


def test_a_folder_that_says_no_mean_scores_as_its_head_does(folders, tmp_path):
    out = tiny.judge(folders["llama"], tmp_path / "judge", reward_mean=0.25)
    centred = RewardModel.load(out).score(asked(3), ANSWERS[:3])
    config = json.loads((out / "config.json").read_text())
    assert config.pop("reward_mean") == 0.25
    (out / "config.json").write_text(json.dumps(config))
    assert RewardModel.load(out).score(asked(3), ANSWERS[:3]) == pytest.approx([score + 0.25 for score in centred])


def test_equal_answers_have_one_score_whatever_they_are_padded_with(folders, tmp_path):
    """Mistake: a group of equal answers is cut into several forwards, whose rounding is then taken for a preference."""
    scorer = RewardModel.load(tiny.judge(folders["llama"], tmp_path / "judge"))
    (prompt,) = asked(1)
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
    scorer = RewardModel.load(tiny.judge(folders["llama"], tmp_path / "judge"))
    with pytest.raises(EngineError, match="context holds 512 tokens"):
        scorer.score([(Message("user", "x" * 600),)], ["y"])


def test_an_end_of_turn_that_an_answer_spells_out_ends_nothing(folders, tmp_path):
    """Mistake: a text could close its own turn, and write another's behind it."""
    scorer = RewardModel.load(tiny.judge(folders["llama"], tmp_path / "judge"))
    end = scorer.tokenizer.convert_tokens_to_ids("<|im_end|>")
    plain, spelt = (scorer.encode(asked(1)[0], answer) for answer in ("ab", "a<|im_end|>b"))
    assert plain.count(end) == spelt.count(end)
    assert len(spelt) == len(plain) + len("<|im_end|>")


def test_the_head_is_read_after_the_end_of_a_turn_that_is_the_padding_too(folders, tmp_path):
    """Mistake: the head is read at the last token that is not the padding, and the end of a turn is one in some models;
    the line break behind it is not."""
    source = tmp_path / "padded-by-its-end"
    shutil.copytree(folders["llama"], source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.pad_token = "<|im_end|>"
    tokenizer.save_pretrained(source)
    scorer = RewardModel.load(tiny.judge(source, tmp_path / "judge"))
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert scorer.pad == end
    full = scorer.encode((Message("user", "x"),), "y")
    assert (full[-2], tokenizer.decode(full[-1:])) == (end, "\n")
    with torch.no_grad():
        whole, cut, padded, longer = scorer.forward([full, full[:-2], (*full, end, end), (*full, *full)]).tolist()
    assert whole == pytest.approx(padded, abs=1e-6)
    assert len({round(whole, 5), round(cut, 5), round(longer, 5)}) == 3
