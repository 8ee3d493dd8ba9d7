"""What a program asks for and does not get: how answers are drawn is the training's choice."""

from __future__ import annotations

from typing import Any

OURS = (
    "temperature",
    "top_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "parallel_tool_calls",
    "top_k",
    "min_p",
    "repetition_penalty",
    "reasoning",
    "reasoning_effort",
    "verbosity",
    "max_tool_calls",
)


def note_of(body: dict[str, Any]) -> str:
    """Sentences that name the settings of a request that are not followed, and say that names of speakers are not told;
    "" where there are none."""
    asked = [name for name in OURS if body.get(name) is not None]
    told = [f"{', '.join(asked)} not followed: answers are drawn as Cadre is set to."] if asked else []
    messages = body.get("messages")
    if isinstance(messages, list) and any(isinstance(one, dict) and one.get("name") for one in messages):
        told.append("name of messages not told: chat templates have no place for it; write it into the content.")
    return " ".join(told)
