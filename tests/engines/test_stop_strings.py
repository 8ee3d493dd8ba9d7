"""Stop strings: where a text is cut, and when a completion has one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cadre.engines.control_tokens import StopStrings, cut_at_stop


@pytest.mark.parametrize(
    ("text", "strings", "kept"),
    [
        ("one two three", ("two",), "one "),
        ("one two three", ("three", "two"), "one "),
        ("one two two", ("two",), "one "),
        ("one", ("two",), "one"),
        ("one", (), "one"),
        ("two", ("two",), ""),
    ],
)
def test_a_text_ends_before_the_first_string(text: str, strings: tuple[str, ...], kept: str) -> None:
    assert cut_at_stop(text, strings) == kept


def utf8(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


def test_a_string_is_seen_with_its_last_token() -> None:
    said = list("then </é> stop".encode())
    stops = StopStrings(("</é>", "never"), utf8)
    assert [stops(said[:count]) for count in range(len(said) + 1)].index(True) == len(b"then </\xc3\xa9>")


def test_only_the_end_is_looked_at() -> None:
    """One short string: its characters at four tokens each and eight more."""
    looked: list[int] = []

    def decode(token_ids: Sequence[int]) -> str:
        looked.append(len(token_ids))
        return utf8(token_ids)

    stops = StopStrings((".",), decode)
    assert not stops(list(b"a" * 1000))
    assert looked == [12]
    assert stops(list(b"a" * 999 + b"."))
    assert looked == [12, 12]
