"""Tokens are spelt with their spaces, and parts of characters by their bytes."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

import cadre
from cadre.engines.spelling import Speller, _as_bytes

SEED = Path(cadre.__file__).parent / "models" / "seed"


def test_spelt_tokens_make_up_the_text() -> None:
    text = "program\nS.#..G\nMoves: RRD  x"
    ids = AutoTokenizer.from_pretrained(SEED)(text, add_special_tokens=False).input_ids
    speller = Speller(str(SEED))
    assert "".join(speller.spell(token) for token in ids) == text


@pytest.mark.parametrize(("piece", "spelt"), [("âĤ¬", "<0xE2><0x82><0xAC>"), ("Ġ", "<0x20>"), ("世", "世")])
def test_parts_of_characters_are_spelt_by_their_bytes(piece: str, spelt: str) -> None:
    assert _as_bytes(piece) == spelt
