"""A melody that one role hears and another must play: with sound alone, or with sound, a picture and text together.

The role `listener` hears tones of a few pitches, `a` the lowest, and writes them down. The role `player` reads that
note and the order, forward or backward, that it alone knows, and presses the keys. In `Signals` the keys are colors:
the role `looker` sees a picture of their row, the lowest pitch at the left, and writes it down too.

The right keys are worth .5 to the team; the player earns .4 for them and .1 for an answer that is keys. A listener or
a looker earns .5 times the share of its note that is right, position by position. `MelodySingleAgent` hears and plays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadre import random_keys
from cadre.env import Env, Split
from cadre.envs import drawings
from cadre.envs.images import image
from cadre.envs.sounds import sound
from cadre.envs.splits import drawn_tasks, in_split
from cadre.types import Drawing, Image, Message, Observation, Reward, Sound, Task
from cadre_tasks.account import FORM, RIGHT, TEAM
from cadre_tasks.answers import behind
from cadre_tasks.turn_based import Prompts

RATE = 16_000
NOTE_S, GAP_S = 0.2, 0.04  # of a tone, and of the silence behind it
LOWEST_HZ, STEP = 220.0, 2 ** (4 / 12)  # four semitones from a pitch to the next
NAMES = "abcdefgh"
COLORS = {
    "red": (220, 40, 40), "green": (30, 160, 70), "blue": (40, 90, 220), "yellow": (235, 200, 40),
    "black": (20, 20, 20), "pink": (240, 130, 180), "brown": (150, 90, 40), "gray": (140, 140, 140),
}  # fmt: skip
NOTED = 0.5
LONGEST_NOTE = 300  # characters of a note that are passed on
MAX_ANSWER = 20_000
Notes = Annotated[int, Field(ge=1, le=12)]
Pitches = Annotated[int, Field(ge=2, le=8)]


@lru_cache(maxsize=1024)
def tones(melody: str, seed: int) -> Sound:
    """Return the sound of a melody; `seed` draws its tuning, loudness, overtones and noise."""
    import numpy

    generator = numpy.random.default_rng(seed)
    tuning, loudness, overtone = generator.uniform(0.97, 1.03), generator.uniform(0.3, 0.8), generator.uniform(0.0, 0.4)
    times = numpy.arange(int(NOTE_S * RATE)) / RATE
    swell = numpy.minimum(1.0, 50 * numpy.minimum(times, NOTE_S - times))  # without clicks
    silence = numpy.zeros(int(GAP_S * RATE))
    parts = []
    for name in melody:
        angle = 2 * numpy.pi * LOWEST_HZ * tuning * STEP ** NAMES.index(name) * times
        tone = numpy.sin(angle) + overtone * numpy.sin(2 * angle)
        parts += [loudness / (1 + overtone) * swell * tone, silence]
    values = numpy.concatenate(parts)
    return sound(numpy.clip(values + generator.normal(0.0, 0.01, len(values)), -1.0, 1.0), rate=RATE)


class Melody(Env):
    """The team form. Settings: the `prompts` wording; of the tasks the number of `notes` and of `pitches`."""

    roles: ClassVar[tuple[str, ...]] = ("listener", "player")
    one_agent: ClassVar[str] = "melody-single-agent"
    last_role: ClassVar[str] = "player"

    def __init__(self, task: Task, prompts: Prompts = "full", **melodies: Any) -> None:
        super().__init__(task)
        self.prompts = prompts
        self.written: tuple[str, ...] = ()  # what the roles before the last one wrote
        self.played: str | None = None
        self.worth = 0.0

    @classmethod
    def tasks(cls, split: Split, notes: Notes = 4, pitches: Pitches = 5, **settings: Any) -> Sequence[Task]:
        """Return melodies with an order and colors of the keys. The melody decides the split."""

        def draw(index: int, attempt: int) -> dict[str, Any] | None:
            generator = random_keys.generator("melody", split, index, attempt, notes, pitches)
            melody = "".join(generator.choices(NAMES[:pitches], k=notes))
            return {
                "melody": melody,
                "order": generator.choice(("forward", "backward")),
                "colors": generator.sample(list(COLORS), pitches),
                "seed": generator.randrange(2**32),
            } if in_split(split, melody) else None  # fmt: skip

        return drawn_tasks(split, draw, {"notes": notes, "pitches": pitches}, f"{split}-{notes}-{pitches}")

    @property
    def melody(self) -> list[str]:
        return list(self.task.data["melody"])

    @property
    def keys(self) -> list[str]:
        """The right keys in their order."""
        return self.melody if self.task.data["order"] == "forward" else self.melody[::-1]

    @property
    def names(self) -> list[str]:
        """The names of the keys, from the lowest pitch."""
        return list(NAMES[: len(self.task.data["colors"])])

    def heard(self, text: str, full: str) -> Message:
        """Return a message with the sound."""
        return Message("user", text if self.prompts == "compact" else full, sounds=(self.sound,))

    @property
    def sound(self) -> Sound:
        return tones(self.task.data["melody"], self.task.data["seed"])

    def observe(self) -> dict[str, Observation]:
        if self.played is not None:
            return {}
        role = self.roles[len(self.written)]
        return {role: Observation(role, (self.ask(role),))}

    def ask(self, role: str) -> Message:
        """Return the prompt of a role."""
        if role == "listener":
            return self.heard(
                "notes",
                f"You hear tones of {len(self.names)} pitches, named {' '.join(self.names)} from the lowest to the "
                "highest. A team mate, who hears nothing, has to play them. End with one line that begins with "
                "`Notes:`, then the names of the tones in their order, separated by spaces.",
            )
        order, (note,) = self.task.data["order"], self.written
        if self.prompts == "compact":
            return Message("user", f"{order} {note}")
        return Message(
            "user",
            f"A team mate has heard a melody and wrote:\n{note}\nPlay it {order}, on keys named "
            f"{' '.join(self.names)}. End with one line that begins with `Keys:`, then the keys in the order in which "
            "you press them, separated by spaces.",
        )

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        if role == self.last_role:
            return self.judge(role, text)
        right = self.names if role == "looker" else self.melody
        words = self.read(text, "notes")
        self.written = (*self.written, " ".join(words) or text[-LONGEST_NOTE:].strip())
        matches = sum(map(str.__eq__, words, right))
        share = matches / max(len(words), len(right))
        return Reward(local={role: NOTED * share}, parts={f"{role}/right": share})

    def read(self, text: str, word: str) -> list[str]:
        """Return the key names behind the last `word:` of an answer; nothing if there are others."""
        line = behind(word, text[-MAX_ANSWER:]).split("\n")[0].lower()
        words = re.findall(r"[^\s,;]+", line.strip(" .`*"))
        return words if all(name in self.readable for name in words) and len(words) <= 100 else []

    @property
    def readable(self) -> Sequence[str]:
        """The words that a note or an answer may have."""
        return self.names

    def judge(self, role: str, text: str) -> Reward:
        words = self.read(text, "keys")
        self.played, self.worth = " ".join(words), float(words == self.keys)
        parts = {"right": self.worth, "formed": float(bool(words))}
        return Reward(TEAM * self.worth, {role: FORM * bool(words) + RIGHT * self.worth}, parts)

    @property
    def success(self) -> bool:
        return self.worth == 1.0

    def privileged(self) -> str:
        return f"keys {' '.join(self.keys)}"

    def render(self) -> Drawing:
        written = dict(zip(self.roles, self.written, strict=False))
        rows: list[list[str | float]] = [["melody", " ".join(self.melody)], ["order", self.task.data["order"]]]
        rows += [[role, text] for role, text in written.items()]
        return drawings.table(("", ""), [*rows, ["keys", " ".join(self.keys)], ["played", self.played or ""]])


class MelodySingleAgent(Melody):
    """One agent that hears the melody, is told the order, and plays."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)
    last_role: ClassVar[str] = "agent"

    def ask(self, role: str) -> Message:
        order = self.task.data["order"]
        return self.heard(
            order,
            f"You hear tones of {len(self.names)} pitches, named {' '.join(self.names)} from the lowest to the "
            f"highest. Play them {order}, on keys of these names. End with one line that begins with `Keys:`, "
            "then the keys in the order in which you press them, separated by spaces.",
        )


class Signals(Melody):
    """Sound, picture and text: a listener, a looker who sees the colors of the keys, and a player who knows the order.
    No role sees what another is shown, and the keys follow from all three."""

    roles: ClassVar[tuple[str, ...]] = ("listener", "looker", "player")
    one_agent: ClassVar[str] = ""

    def __init__(self, task: Task, cell: Annotated[int, Field(ge=4, le=64)] = 28, **settings: Any) -> None:
        super().__init__(task, **settings)
        self.cell = cell

    @property
    def names(self) -> list[str]:
        return list(self.task.data["colors"])

    @property
    def keys(self) -> list[str]:
        return [self.names[NAMES.index(name)] for name in super().keys]

    @property
    def readable(self) -> Sequence[str]:
        # The looker may name a color that no key has, and is paid for those that are right.
        return (self.pitches, list(COLORS), self.names)[len(self.written)]

    @property
    def pitches(self) -> list[str]:
        return list(NAMES[: len(self.names)])

    @property
    def picture(self) -> Image:
        return _keyboard(tuple(self.names), self.cell)

    def ask(self, role: str) -> Message:
        if role == "listener":
            return self.heard(
                "notes",
                f"You hear tones of {len(self.names)} pitches, named {' '.join(self.pitches)} from the lowest to the "
                "highest. A team mate, who hears nothing, has to play them. End with one line that begins with "
                "`Notes:`, then the names of the tones in their order, separated by spaces.",
            )
        if role == "looker":
            full = (
                "The picture shows a row of colored keys. A team mate, who does not see it, has to press some. End "
                f"with one line that begins with `Notes:`, then the colors from left to right, of {', '.join(COLORS)}, "
                "separated by spaces."
            )
            return Message("user", "colors" if self.prompts == "compact" else full, images=(self.picture,))
        order, (notes, colors) = self.task.data["order"], self.written
        if self.prompts == "compact":
            return Message("user", f"{order} {notes} / {colors}")
        return Message(
            "user",
            f"One team mate has heard a melody of pitches {' '.join(self.pitches)}, from the lowest to the highest, "
            f"and wrote:\n{notes}\nAnother has seen the keys and wrote their colors, from the lowest pitch to the "
            f"highest:\n{colors}\nPlay the melody {order}. End with one line that begins with `Keys:`, "
            "then the colors of the keys in the order in which you press them, separated by spaces.",
        )


@lru_cache(maxsize=512)
def _keyboard(colors: tuple[str, ...], cell: int) -> Image:
    """Return a picture of the keys side by side, each a cell wide and two high, with a white edge."""
    import numpy

    keys = numpy.full((2 * cell, cell * len(colors), 3), 255, numpy.uint8)
    for number, color in enumerate(colors):
        keys[1:-1, number * cell + 1 : (number + 1) * cell - 1] = COLORS[color]
    return image(keys)
