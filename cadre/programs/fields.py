"""Reading JSON that a program sent: every field is looked at before it is used, and refused by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cadre.programs.refusal import Refused

MAX_TOOLS = 256
MAX_STOPS = 16


def body_of(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises Refused."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise Refused(400, "The body is not JSON; expected an object.") from None
    if not isinstance(body, dict):
        raise Refused(400, f"The body is {shown(body)}; expected an object.")
    return body


def text(value: Any, where: str) -> str:
    """A text that can be written to a file, too."""
    if not isinstance(value, str):
        raise Refused(400, f"{where}: got {shown(value)}; expected a text.", where)
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise Refused(400, f"{where}: holds half a surrogate pair; expected valid Unicode.", where)
    return value


def optional_text(value: Any, where: str) -> str:
    """A text, "" where there is none."""
    return "" if value is None else text(value, where)


def listed(value: Any, where: str, most: int | None = None) -> list[Any]:
    """A list, [] where there is none."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise Refused(400, f"{where}: got {shown(value)}; expected a list.", where)
    if most is not None and len(value) > most:
        raise Refused(400, f"{where}: got {len(value)} entries; expected at most {most}.", where)
    return value


def table(value: Any, where: str) -> dict[str, Any]:
    """An object, {} where there is none."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(400, f"{where}: got {shown(value)}; expected an object.", where)
    return value


def flag(value: Any, where: str) -> bool:
    """True or false; false where there is none."""
    if value is not None and not isinstance(value, bool):
        raise Refused(400, f"{where}: got {shown(value)}; expected true or false.", where)
    return bool(value)


def count(body: dict[str, Any], names: Sequence[str]) -> int | None:
    """The first of these that is set, a whole number above 0."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Refused(400, f"{name}: got {shown(value)}; expected a whole number above 0.", name)
        return value
    return None


def stops(value: Any) -> tuple[str, ...]:
    """Stop strings: one, or a list of them."""
    texts = [value] if isinstance(value, str) else listed(value, "stop", MAX_STOPS)
    return tuple(stop for stop in (text(each, "stop") for each in texts) if stop)


def parts(value: Any, where: str) -> str:
    """Content: a text, or a list of parts that are text."""
    if value is None or isinstance(value, str):
        return optional_text(value, where)
    said = []
    for number, part in enumerate(listed(value, where)):
        here = f"{where}[{number}]"
        entry = {"text": part} if isinstance(part, str) else table(part, here)
        if "text" not in entry and "refusal" not in entry:
            raise Refused(400, f"{here}: got a part of type {shown(entry.get('type'))}; expected text alone.", here)
        said.append(text(entry.get("text", entry.get("refusal")), here))
    return "\n".join(said)


def shown(value: Any) -> str:
    """What was got, in short."""
    words = repr(value)
    return f"{type(value).__name__} {words[:60]}{'...' if len(words) > 60 else ''}"
