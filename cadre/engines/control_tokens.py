"""The added tokens of a tokenizer, and texts that are kept from spelling them out.

A tokenizer looks for its added tokens (`<|im_end|>`, `<think>`, `[INST]`) in a text before anything else, so a text of
a task, a tool or another agent that spells one out would give the model the control token. Such a text is broken by a
space, `< |im_end|>`. Exempt are added tokens that are whitespace, which some tokenizers have for indentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
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
        text = COMMON.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
    return text


class ControlTokens:
    """The added tokens of one tokenizer that are more than whitespace; immutable, lives as long as the tokenizer.

    `special` are those that the tokenizer calls special. Matching is the tokenizer's own where it normalises text
    first (another case or width can spell a token then) or takes a token as a whole word only.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = {id_: token for id_, token in tokenizer.added_tokens_decoder.items() if str(token).strip()}
        self.special = {str(token) for token in added.values() if token.special} | set(tokenizer.all_special_tokens)
        contents = {str(token) for token in added.values()} | self.special
        # One character that is not special is a letter like others, and cannot be broken.
        self.tokens = {token for token in contents if len(token) > 1 or token in self.special}
        self._ids = {id_: str(token) for id_, token in added.items() if str(token) in self.tokens}
        core = getattr(tokenizer, "backend_tokenizer", None)
        own = [token for token in added.values() if token.single_word or (token.normalized and _normalises(core))]
        self._asks = bool(own) and bool(tokenizer.is_fast)
        self._pattern = _pattern(self.tokens)
        self._prefixes = {token[:length] for token in self.tokens for length in range(1, len(token))}
        self._suffixes = {token[length:] for token in self.tokens for length in range(1, len(token))}
        self._longest = max(map(len, self.tokens), default=0)
        self._joined = "\0".join(sorted(self.tokens))

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Return (start, end, token) of every token that the tokenizer would find in the text."""
        if self._pattern is None:
            return []
        if not self._asks:
            return [(found.start(), found.end(), found[0]) for found in self._pattern.finditer(text)]
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        each = zip(encoded.input_ids, encoded.offset_mapping, strict=True)
        return [(start, end, self._ids[id_]) for id_, (start, end) in each if id_ in self._ids]

    def in_ids(self, ids: Iterable[int]) -> bool:
        """Whether one of the ids is that of a control token."""
        return any(id_ in self._ids for id_ in ids)

    def break_up(self, text: str, keep: Iterable[str] = ()) -> str:
        """Return the text with a space within every token that it spells out, but for those to `keep`."""
        kept = frozenset(keep)
        for attempt in range(1, self._longest + 2):
            spans = [span for span in self.find(text) if span[2] not in kept]
            if not spans:
                break
            for start, end, _ in reversed(spans):
                core = start + len(text[start:end]) - len(text[start:end].lstrip())
                # What is found again (a normaliser may drop the space) is broken further on.
                place = min(core + attempt, end - 1) if end - core > 1 else core
                after = text[place:] if end - core > 1 else text[end:]
                text = f"{text[:place]} {after}"
        return text

    def may_join(self, text: str) -> bool:
        """Whether the text could become part of a token together with what stands beside it."""
        core = text.strip()
        if not core or not self.tokens:
            return False
        if len(core) < self._longest and core in self._joined:
            return True
        lengths = range(1, min(self._longest, len(core) + 1))
        return any(core[-length:] in self._prefixes or core[:length] in self._suffixes for length in lengths)

    def break_joined(self, plain: str, marked: str) -> str:
        """Return the rendered text `plain` with a space in every token that came to be by joining texts.

        `marked` is the same rendered with EDGE at the edges of the texts that may join.
        """
        if marked.replace(EDGE, "") != plain:  # the template asks what the texts begin with, or escapes the marks
            found = [token for _, _, token in self.find(plain)]
            return plain if found == [token for _, _, token in self.find(marked)] else marked.replace(EDGE, " ")
        edges, count = set(), 0
        for place, letter in enumerate(marked):
            if letter == EDGE:
                edges.add(place - count)
                count += 1
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
        return {map_strings(key, change): map_strings(below, change) for key, below in value.items()}
    return [map_strings(below, change) for below in value] if isinstance(value, list | tuple) else value


def _normalises(core: Any) -> bool:
    return core is not None and core.normalizer is not None


def _pattern(tokens: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted(tokens, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
