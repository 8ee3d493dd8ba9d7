"""Tokens are spelt with their spaces, and parts of characters by their bytes."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from cadre.engines.text.model import AnswerEncoder, ModelText, TokenSpeller, spell_bytes
from cadre.engines.text.template import Template
from cadre.errors import PromptError
from cadre.plugins import embedded_models
from cadre.types import Message, Request, Sampling
from tests.cadre.engines.tiny import CHATML, byte_tokenizer

SEED = Path(embedded_models()["seed"])


def test_spelt_tokens_make_up_the_text() -> None:
    text = "program\nS.#..G\nMoves: RRD  x"
    ids = AutoTokenizer.from_pretrained(SEED)(text, add_special_tokens=False).input_ids
    speller = TokenSpeller(str(SEED))
    assert "".join(speller.spell(token) for token in ids) == text


@pytest.mark.parametrize(("part", "spelt"), [("âĤ¬", "<0xE2><0x82><0xAC>"), ("Ġ", "<0x20>"), ("世", "世")])
def test_parts_of_characters_are_spelt_by_their_bytes(part: str, spelt: str) -> None:
    assert spell_bytes(part) == spelt


def test_code_that_ships_with_a_tokenizer_runs_where_it_is_trusted(tmp_path: Path) -> None:
    folder = shutil.copytree(SEED, tmp_path / "own", ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "own.py").write_text("from transformers import PreTrainedTokenizerFast as Own\nclass Mine(Own): pass\n")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "own.Mine"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    plain = TokenSpeller(str(SEED)).spell(20)
    assert TokenSpeller(str(folder), trust_remote_code=True).spell(20) == plain
    prompt, answer = [Message("user", "hi")], "there"
    trusting = AnswerEncoder.of(str(folder), trust_remote_code=True)
    assert trusting.encode(prompt, answer) == AnswerEncoder.of(str(SEED)).encode(prompt, answer)
    assert type(trusting._tokenizer).__name__ == "Mine"


def test_a_prompt_that_is_far_too_long_is_not_tokenised_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte takes seconds, during which nobody else is answered."""
    tokenizer, tokenised = byte_tokenizer(CHATML), list[int]()
    text = ModelText({"p": Template(tokenizer)}, (259,), context=1000)
    encode = type(tokenizer).__call__

    def spy(self: object, words: str, **options: object) -> object:
        tokenised.append(len(words))
        return encode(tokenizer, words, **options)

    monkeypatch.setattr(type(tokenizer), "__call__", spy)
    with pytest.raises(PromptError, match=r"first 6,000 of which are 5,\d{3} tokens.*context holds 1,000"):
        text.prompt(Request("r", "p", (Message("user", "word " * 200_000),), 1, Sampling(), 0))
    assert max(tokenised) == 6000


def test_a_long_text_of_few_tokens_fits() -> None:
    """Characters alone do not tell that a prompt is too long."""
    tokenizer = byte_tokenizer(CHATML)
    tokenizer.add_tokens(["abcdefghijklmnopqrst"])
    text = ModelText({"p": Template(tokenizer)}, (259,), context=128)
    prompt = text.prompt(Request("r", "p", (Message("user", "abcdefghijklmnopqrst" * 90),), 1, Sampling(), 0))
    assert len(prompt.ids) == 90 + len(tokenizer("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n").input_ids)
