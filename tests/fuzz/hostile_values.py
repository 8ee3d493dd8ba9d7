"""Hostile values for fields of a stranger's file, and ways to break a file's text."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from cadre.errors import CadreError

# Values of each kind that JSON and YAML know, and texts that mean something to what reads them.
WORDS = ("", " ", "*", "seed", "at_grpo", "nan", "auto", "../..", "/", "/dev/null", "~", "a/b/c", "file.py:Class", "\0")
ODD = ("\ud800", "\u202e", "\U0010ffff", "é" * 300, "x" * 5000)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 10**18, 10**400]),
    st.floats(),
    st.sampled_from([*WORDS, *ODD]),
    st.text(max_size=20),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
Place = tuple[Any, ...]


def places(value: Any, above: Place = ()) -> Iterator[Place]:
    """Every key and index of a nested value, outermost first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*above, key)
        yield from places(inner, (*above, key))


def changed(value: Any, position: Place, do: str, new: Any) -> Any:
    """A copy in which one place is set, left out, or stands under another name (in a list: stands twice)."""
    copied = copy.deepcopy(value)
    section = copied
    for key in position[:-1]:
        section = section[key]
    if do == "set":
        section[position[-1]] = new
        return copied
    selected = section.pop(position[-1])
    if do == "rename" and isinstance(section, dict):
        section[str(new)[:20]] = selected
    elif do == "rename":
        section.extend([selected, selected])
    return copied


@st.composite
def mutated(draw: st.DrawFn, full: Any, limit: int = 3) -> Any:
    """The value with one to `most` places changed."""
    for _ in range(draw(st.integers(1, limit))):
        found_places = list(places(full))
        if not found_places:
            return full
        do = draw(st.sampled_from(["set", "set", "set", "drop", "rename"]))
        full = changed(full, draw(st.sampled_from(found_places)), do, draw(VALUES))
    return full


PIECES = (b"[", b"{", b": ", b"\n- ", b"&a *a", b"!!python/object:os.system", b"\xff", b"\0", b"1e999", b"\n")


@st.composite
def broken(draw: st.DrawFn, full: bytes) -> bytes:
    """A file's bytes with a piece cut out, and others put in its place."""
    start = draw(st.integers(0, len(full)))
    end = draw(st.integers(start, min(len(full), start + 40)))
    return full[:start] + draw(st.binary(max_size=12) | st.sampled_from(PIECES)) + full[end:]


def refused_well(work: Callable[[], object]) -> bool:
    """Return True if the work is done, or ends in an error of ours in one paragraph that fits a screen. Others pass."""
    try:
        work()
    except CadreError as error:
        words = str(error)
        return bool(words.strip()) and "\n" not in words and len(words) < 2500
    return True
