"""What a program asks for and does not get: how answers are drawn is the training's choice."""

from __future__ import annotations

from typing import Any

OURS = ("temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "logit_bias")


def note_of(body: dict[str, Any]) -> str:
    """A sentence that names the settings of a request that are not followed; "" where there are none."""
    asked = [name for name in OURS if body.get(name) is not None]
    return f"{', '.join(asked)} not followed: answers are drawn as Cadre is set to." if asked else ""
