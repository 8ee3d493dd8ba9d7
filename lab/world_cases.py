"""Answers for the worlds: reference answers, answers that are nearly right, exploits, and hostile texts.

One `World` each, used by `lab/worlds.py` and, a few tasks at a time, by the tests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.hostile import texts
from cadre.env import Env
from cadre_tasks.worlds.search import Search, SearchSingleAgent

Policy = Callable[[Any], str]
CANARY = "canary-7d1f"  # what a file holds that hostile answers try to read
NOISE = texts("worlds")


@dataclass(frozen=True)
class World:
    """The policies and texts that a world is tested with.

    team, variants  the form that is played, and the single-agent ones
    dials          settings from trivial to hard
    honest         a right answer for the role that acts
    nearly         an answer to a decision that is close to right and is not; None where this task has none
    exploits       policies that exploit the reward, by name
    hostile        kinds of texts that try to break out or to last for ever
    """

    team: type[Env]
    variants: tuple[type[Env], ...]
    dials: tuple[dict[str, Any], ...]
    honest: Policy
    nearly: Callable[[Any, random.Random], str | None]
    exploits: Mapping[str, Policy]
    hostile: Mapping[str, Callable[[random.Random], str]] = field(default_factory=dict)

    def attack(self, draw: random.Random) -> tuple[str, str]:
        """(kind, text) of a hostile answer. What lasts for ever is one in fifty: each costs all the time there is."""
        if draw.random() < 0.3:
            return next(NOISE)
        lasting = draw.random() < 0.02
        kind = draw.choice([name for name in self.hostile if name.startswith("endless") == lasting] or ["endless"])
        return kind, self.hostile[kind](draw)


async def play(env: Env, policy: Policy) -> float:
    """Play an episode; return the sum of the rewards of the team and of every role."""
    total = 0.0
    while observations := env.observe():
        reward = await env.step(dict.fromkeys(observations, policy(env)))
        total += reward.team + sum(reward.local.values())
    return total


def play_out(env: Env, policy: Policy) -> float:
    return asyncio.run(play(env, policy))


def always(text: str) -> Policy:
    return lambda env: text


def echo(env: Env) -> str:
    """The prompt of who acts first, back."""
    return next(iter(env.observe().values())).messages[-1].content


# What is tried everywhere.
COMMON: dict[str, Policy] = {
    "empty answer": always(""),
    "echo the prompt": echo,
    "noise": always("I think it is easy!"),
    "overlong": always("Answer: (a b) x=1 " * 5000),
}


def follow(env: Search) -> str:
    """Open what the question needs, one after the other, and answer from it."""
    if env.inquiring:
        unread = [number for number in env.needed if number not in env.read]
        return f"Open: {unread[0] if unread else 0}"
    return f"Answer: {env.right} {list(env.needed)}"


def other_answer(env: Search, draw: random.Random) -> str | None:
    """The right search, and an answer with another name, or other citations."""
    if env.inquiring:
        return follow(env)
    cited, kind = list(env.needed), draw.randrange(3)
    if kind == 0:
        return f"Answer: {env.chain[env.task.data['hops'] - 1]} {cited}"
    if kind == 1:
        return f"Answer: {env.right} {cited[1:]}"
    return f"Answer: {env.right} {[*cited, 999]}"


def unread(env: Search) -> str:
    """The right answer, which is that of a judge's reader, and citations of passages that nobody opened."""
    return "Open: 0" if env.inquiring else f"Answer: {env.right} {list(env.needed)}"


def first_listed(env: Search) -> str:
    """The title of the first passage, after a search for the question."""
    if env.inquiring:
        return f"Search: {env.task.data['question']}" if not env.log else "Open: 0"
    return f"Answer: {env.passages[0].title} [1]"


SEARCH = World(
    Search,
    (SearchSingleAgent,),
    ({"hops": 1, "people": 8}, {}, {"hops": 3, "people": 40}),
    follow,
    other_answer,
    COMMON
    | {
        "echo the example": always("Answer: ada kern [3, 7]"),
        "the first title": first_listed,
        "cite without reading": unread,
        "open everything": lambda env: f"Open: {env.taken + 1}" if env.inquiring else "Answer: ada kern [1, 2, 3]",
        "cite everything": lambda env: follow(env) if env.inquiring else f"Answer: no one {list(range(1, 15))}",
        "read the judge": always("Open: ../../judge\nAnswer: self.right [1]"),
    },
    {
        "many words": lambda draw: "Search: " + "river " * draw.choice((40, 3000)),
        "letters": lambda draw: "Search: " + "a" * draw.choice((290, 9000)),
        "numbers": lambda draw: "Open: " + draw.choice(("-1", "9" * 50, "1e9", "٣", "0x1", "[2", "None", "1;2")),
        "paths": lambda draw: draw.choice(("Open: ", "Search: ")) + draw.choice(("/etc/passwd", "file:///etc/passwd")),
        "citations": lambda draw: "Answer: x [" + "1, " * draw.choice((15, 5000)) + "]",
        "brackets": lambda draw: "Answer: " + "[" * 900 + "1" + "]" * 900,
        "nul": lambda draw: "Search: \x00\ud800 river \u202e",
        "endless": lambda draw: "Answer: " + "a " * 950 + "[",
    },
)

WORLDS: dict[str, World] = {"search": SEARCH}
