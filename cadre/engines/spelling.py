"""How the tokens of a model are spelt, by its tokenizer and without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from cadre.engines import hub

# What a decoder writes for bytes that are no whole character.
BROKEN = "\ufffd"


class Speller:
    """Spells single tokens of one model; the tokenizer is loaded when the first is asked for."""

    def __init__(self, source: str, trust_remote_code: bool = False) -> None:
        self._source, self._trust = source, trust_remote_code
        self._tokenizer: Any = None

    def spell(self, token: int) -> str:
        """The text of a token with its spaces; `<0xE2><0x82>` where it is part of a character."""
        if self._tokenizer is None:
            source = self._source if Path(self._source).is_dir() else hub.available(self._source)
            self._tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=self._trust)
        piece: str = self._tokenizer.convert_ids_to_tokens(token) or ""
        text: str = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if BROKEN in text:
            return _as_bytes(piece)
        # SentencePiece marks a word's start with U+2581, which decoding one token alone would drop.
        return f" {text}" if piece.startswith("\u2581") and not text.startswith(" ") else text


def _as_bytes(piece: str) -> str:
    """The bytes that a byte-level tokenizer writes as printable letters."""
    letters = _letters()
    if all(letter in letters for letter in piece):
        return "".join(f"<0x{letters[letter]:02X}>" for letter in piece)
    return piece


def _letters() -> dict[str, int]:
    """The alphabet of byte-level BPE (Radford et al. 2019): bytes that print stand for themselves, the others follow
    from U+0100 on."""
    prints = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in prints]
    return {chr(byte): byte for byte in prints} | {chr(256 + place): byte for place, byte in enumerate(others)}
