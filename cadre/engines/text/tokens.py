"""Strings that steer generation: a tokenizer's control tokens, kept out of texts, and stop strings.

A tokenizer looks for its added tokens (`<|im_end|>`, `<think>`, `[INST]`) in a text before anything else, so a text of
a task, a tool or another agent that spells one out would give the model the control token. Such a text is broken by a
space, `< |im_end|>`. Exempt are added tokens that are whitespace, which some tokenizers have for indentation, and words
that somebody added to the vocabulary (`metoprolol`, `<move_left>`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

# Marks the edges of a text within a rendered conversation; private use, so that no text has a meaning for it.
EDGE = "\ue0f7"
# A mark of thinking, which a model may write in its own turn: <think>, [/THINK], <|END_THINKING|>, <seed:think>.
THINKING = re.compile(r"\W*((start|end|begin|begin_of|end_of|seed)\W*)?_?(think|thinking|thought|reasoning)\W*", re.I)
# Control tokens of common models by their shape, for endpoints whose tokenizer is not known here.
COMMON = re.compile(
    r"<[|\uff5c][^<>|\uff5c\s]{1,64}[|\uff5c]>|</?s>|<(?:start|end)_of_(?:turn|image|text)>|<(?:bos|eos|pad|unk)>"
    r"|<\|[a-z_]{1,32}>|<[a-z_]{1,32}\|>"
    r"|</?(?:think|tool_call|tool_response|start_function_call|end_function_call)>"
    r"|\[/?(?:INST|THINK|ARGS|CALL_ID|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|SYSTEM_PROMPT|IMG)\]"
)


def break_common(text: str) -> str:
    """Return the text with everything that looks like a control token of a common model broken by a space."""
    while COMMON.search(text):
        text = COMMON.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
    return text


class ControlTokens:
    """The added tokens of one tokenizer that are more than whitespace and none of `words`; immutable, lives as long as
    the tokenizer.

    `special` are those that the tokenizer calls special. They are found by the tokenizer itself if it normalises text
    first (another case or width can spell a token then) or takes a token as a whole word only, else by a pattern.
    """

    def __init__(self, tokenizer: Any, words: Collection[str] = ()) -> None:
        self._tokenizer, decoder = tokenizer, tokenizer.added_tokens_decoder
        added = {id_: token for id_, token in decoder.items() if str(token).strip() and str(token) not in words}
        self.special = {str(token) for token in added.values() if token.special} | set(tokenizer.all_special_tokens)
        contents = {str(token) for token in added.values()} | self.special
        # One character that is not special is a letter like others, and cannot be broken.
        self.tokens = {token for token in contents if len(token) > 1 or token in self.special}
        self.by_id = {id_: str(token) for id_, token in added.items() if str(token) in self.tokens}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        normalizes = backend is not None and backend.normalizer is not None
        inexact = [token for token in added.values() if token.single_word or (token.normalized and normalizes)]
        self._needs_tokenizer = bool(inexact) and bool(tokenizer.is_fast)
        # Longest first, as the tokenizer matches them.
        ordered = sorted(self.tokens, key=lambda token: (-len(token), token))
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._prefixes = {token[:length] for token in self.tokens for length in range(1, len(token))}
        self._suffixes = {token[length:] for token in self.tokens for length in range(1, len(token))}
        self._longest = max(map(len, self.tokens), default=0)
        self._joined = "\0".join(sorted(self.tokens))

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Return (start, end, token) of every token that the tokenizer would find in the text."""
        if self._pattern is None:
            return []
        if not self._needs_tokenizer:
            return [(match.start(), match.end(), match[0]) for match in self._pattern.finditer(text)]
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        spans = zip(encoded.input_ids, encoded.offset_mapping, strict=True)
        return [(start, end, self.by_id[id_]) for id_, (start, end) in spans if id_ in self.by_id]

    def break_up(self, text: str, keep: Iterable[str] = ()) -> str:
        """Return the text with a space within every token that it spells out, but for those to `keep`."""
        exempt = frozenset(keep)
        for attempt in range(1, self._longest + 2):
            spans = [span for span in self.find(text) if span[2] not in exempt]
            if not spans:
                break
            for start, end, _ in reversed(spans):
                # A token may take the whitespace before it; the first visible character begins it.
                first = start + len(text[start:end]) - len(text[start:end].lstrip())
                # What is found again (a normaliser may drop the space) is broken further on.
                split = min(first + attempt, end - 1) if end - first > 1 else first
                rest = text[split:] if end - first > 1 else text[end:]
                text = f"{text[:split]} {rest}"
        return text

    def may_join(self, text: str) -> bool:
        """Return True if the text could become part of a token together with its neighbours."""
        core = text.strip()
        if not core or not self.tokens:
            return False
        if len(core) < self._longest and core in self._joined:
            return True
        lengths = range(1, min(self._longest, len(core) + 1))
        return any(core[-length:] in self._prefixes or core[:length] in self._suffixes for length in lengths)

    def break_joined(self, plain: str, marked: str) -> str:
        """Return the rendered text `plain` with a space in every token that came to be by joining texts. `marked` is
        the same rendered with EDGE at the edges of the texts that may join."""
        if marked.replace(EDGE, "") != plain:  # the template tests what the texts begin with, or escapes the marks
            tokens = [token for _, _, token in self.find(plain)]
            return plain if tokens == [token for _, _, token in self.find(marked)] else marked.replace(EDGE, " ")
        # Positions of the edges in `plain`, which has no marks.
        edges = list(accumulate(map(len, marked.split(EDGE))))[:-1]
        for start, end, _ in reversed(self.find(plain)):
            if inner := [edge for edge in edges if start < edge < end]:
                plain = f"{plain[: inner[0]]} {plain[inner[0] :]}"
        return plain


def mark_edges(text: str) -> str:
    """Return the text with EDGE before its first and after its last character that is no whitespace."""
    core = text.strip()
    start = text.index(core) if core else 0
    return f"{text[:start]}{EDGE}{core}{EDGE}{text[start + len(core) :]}" if core else text


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with every string in it changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_strings(key, change): map_strings(item, change) for key, item in value.items()}
    return [map_strings(item, change) for item in value] if isinstance(value, list | tuple) else value


def cut_at_stop(text: str, strings: Sequence[str]) -> str:
    """Return the text before the first stop string in it; all of it without one. The ids of a sample still include the
    string, as the loss is about what was sampled."""
    starts = [text.find(string) for string in strings if string in text]
    return text[: min(starts)] if starts else text


class StopStrings:
    """Return True for the ids of a completion so far once their text has one of the strings."""

    def __init__(self, strings: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        self._strings, self._decode = tuple(strings), decode
        # A character takes at most four tokens; the first ones of a tail may decode otherwise than in the middle.
        self._tail = 4 * max(map(len, self._strings)) + 8

    def __call__(self, token_ids: Sequence[int]) -> bool:
        text = self._decode(token_ids[-self._tail :])
        return any(string in text for string in self._strings)
