"""Writing: two writers work at once, without a message, and are rewarded together.

`Tldr` is one short and one long summary, `Arxiv` a paragraph of background and one of method, both with the published
graded reward (`cadre_tasks.writing.text`), which ignores the source, or with `reward: faithful`, which multiplies it by
the faithfulness of the less faithful text. `Story` is a story continued by two writers, rewarded by ROUGE-L times a
score for prose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cadre.types import Message, Observation, Reward, Task
from cadre_tasks.data.records import Article, Kind
from cadre_tasks.exchange import Exchange, SingleAgent
from cadre_tasks.writing.text import ARXIV, TLDR, Levels, faithful, graded, prose, rouge_l, uncopied

LONGEST = 4000  # characters of a source that a writer sees


class Writing(Exchange):
    """Two writers with one prompt each. Settings: those of `Exchange`."""

    kind: ClassVar[Kind] = "article"
    # The prompt of each role, in the order of `roles`.
    ask: ClassVar[dict[str, str]]

    def __init__(self, task: Task, **data: Any) -> None:
        super().__init__(task, **data)
        self.article, self.over, self.won = Article(**task.data), False, False

    @property
    def success(self) -> bool:
        return self.won

    def asked(self) -> dict[str, Observation]:
        text = f"{self.article.title}\n{self.article.text}".strip()[:LONGEST]
        prompts = {role: (Message("user", words.format(text=text)),) for role, words in self.ask.items()}
        return {} if self.over else {role: Observation(role, messages) for role, messages in prompts.items()}


class Tldr(Writing):
    """Success: the three levels before style are full, and if the reward looks at the source, the source supports half
    of the texts. Settings: the `reward`, and those of `FromData`."""

    roles: ClassVar[tuple[str, ...]] = ("short", "long")
    one_agent: ClassVar[str] = "tldr-single-agent"
    writers: ClassVar[tuple[str, ...]] = ("short", "long")
    sets: ClassVar[tuple[str, str]] = ("scitldr", "scitldr")
    levels: ClassVar[Levels] = TLDR
    ask: ClassVar[dict[str, str]] = {
        "short": "Sum this up in one or two sentences.\n\n{text}",
        "long": "Sum this up in a paragraph of varied words, with transitions between its sentences.\n\n{text}",
    }

    def __init__(self, task: Task, reward: Literal["published", "faithful"] = "published", **data: Any) -> None:
        super().__init__(task, **data)
        self.reward = reward

    def parts(self, first: str, second: str) -> dict[str, float]:
        """Return the graded reward by level and in total, the faithfulness of the less faithful text, and the short
        text's ROUGE-L. Takes half a second for the longest texts."""
        parts = graded(first, second, self.levels)
        truth = min(faithful(self.article.text, text) for text in (first, second))
        best = max((rouge_l(reference, first) for reference in self.article.references), default=0.0)
        return {**parts, "published": sum(parts.values()), "faithful": truth, "rouge_l": best}

    async def judge(self, actions: dict[str, str]) -> Reward:
        # In a thread: ROUGE-L of long texts would hold up the event loop of all episodes.
        parts = await asyncio.to_thread(self.parts, *(actions[role] for role in self.writers))
        published, truth, looks = parts["published"], parts["faithful"], self.reward == "faithful"
        # The maxima of the three levels are .5, 1 and .5.
        full = parts["range"] + parts["length"] + parts["distinct"] == 2.0
        self.over, self.won = True, full and (truth >= 0.5 or not looks)
        return Reward(team=published * truth if looks else published, parts=parts)


class Arxiv(Tldr):
    """An abstract expanded: one writes why, the other how, each in a paragraph of 128 to 256 words."""

    roles: ClassVar[tuple[str, ...]] = ("background", "method")
    one_agent: ClassVar[str] = "arxiv-single-agent"
    writers: ClassVar[tuple[str, ...]] = ("background", "method")
    sets: ClassVar[tuple[str, str]] = ("arxiv", "arxiv")
    levels: ClassVar[Levels] = ARXIV
    ask: ClassVar[dict[str, str]] = {
        "background": "Write a paragraph of about 140 words on the background and motivation of this paper, for its "
        "introduction. A team mate writes about its method.\n\n{text}",
        "method": "Write a paragraph of about 200 words on the method of this paper and what follows from it, for its "
        "introduction. A team mate writes about its background.\n\n{text}",
    }


class Story(Writing):
    """A story whose first half is given: one writer continues it, the other ends it.

    Settings: what is `enough` for success, and those of `FromData`."""

    roles: ClassVar[tuple[str, ...]] = ("middle", "ending")
    one_agent: ClassVar[str] = "story-single-agent"
    writers: ClassVar[tuple[str, ...]] = ("middle", "ending")
    sets: ClassVar[tuple[str, str]] = ("stories", "stories")
    ask: ClassVar[dict[str, str]] = {
        "middle": "Write the next paragraph of this story. A team mate writes its end.\n\n{text}",
        "ending": "Write the end of this story. A team mate writes the paragraph before it.\n\n{text}",
    }

    def __init__(self, task: Task, enough: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2, **data: Any) -> None:
        super().__init__(task, **data)
        words = self.article.text.split()
        half, room = len(words) // 2, max(1, LONGEST - len(self.article.title) - 1)
        # The end of the first half, next to the continuation, if not all of it fits.
        self.given = " ".join(words[:half])[-room:]
        # 512 words bound the time of ROUGE-L.
        self.rest, self.enough = " ".join(words[half : half + 512]), enough
        self.article = Article(self.article.id, self.article.title, self.given)

    async def judge(self, actions: dict[str, str]) -> Reward:
        parts = await asyncio.to_thread(self.parts, " ".join(actions[role] for role in self.writers))
        worth = parts["rouge_l"] * parts["prose"] * parts["new"]
        self.over, self.won = True, worth >= self.enough
        return Reward(team=worth, parts=parts)

    def parts(self, written: str) -> dict[str, float]:
        """Return the similarity to the true continuation, the score as prose, and the share that is not copied from the
        beginning."""
        return {"rouge_l": rouge_l(self.rest, written), "prose": prose(written), "new": uncopied(self.given, written)}


def by_one(ask: Mapping[str, str]) -> dict[str, str]:
    """Return the prompts of two writers, in order, reworded for one agent that does both."""
    first, last = ask
    return {
        first: ask[first].replace("A team mate writes", "You will write"),
        last: ask[last].replace("A team mate writes", "You have written"),
    }


class TldrSingleAgent(SingleAgent, Tldr):
    """One agent that writes the short summary and then the long one."""


class ArxivSingleAgent(SingleAgent, Arxiv):
    """One agent that writes the background and then the method."""

    ask: ClassVar[dict[str, str]] = by_one(Arxiv.ask)


class StorySingleAgent(SingleAgent, Story):
    """One agent that writes the continuation and then the end."""

    ask: ClassVar[dict[str, str]] = by_one(Story.ask)
