"""Strings that end a completion: where its text has one, the text ends before it, and nothing more is sampled.

The ids stay what was sampled, the string included, as the loss is about what was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def cut(text: str, strings: Sequence[str]) -> str:
    """The text before the first of the strings that it has; all of it where it has none."""
    starts = [text.find(string) for string in strings if string in text]
    return text[: min(starts)] if starts else text


class StopStrings:
    """Tells of the ids of a completion so far whether its text has one of the strings."""

    def __init__(self, strings: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        self._strings, self._decode = tuple(strings), decode
        # A character takes at most four tokens; the first ones of a tail may decode otherwise than in the middle.
        self._tail = 4 * max(map(len, self._strings)) + 8

    def __call__(self, token_ids: Sequence[int]) -> bool:
        text = self._decode(token_ids[-self._tail :])
        return any(string in text for string in self._strings)
