"""Quests of TextWorld (arXiv 1806.11532) in houses that its package makes offline by seed, for one role or two."""

from __future__ import annotations

import copy
import json
import re
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from cadre.env import Env, Split
from cadre.plugins import package
from cadre.types import Message, Observation, Reward, Task
from cadre_tasks.integrations import seeded_tasks

PLAYER = (
    "You play a text adventure. Answer with one command, such as: look, inventory, go north, open box, take key from "
    "table, unlock door with key, put cup on shelf, insert coin into box, eat apple."
)
GUIDE = "A player of a text adventure does not know the quest. Tell the player in one sentence what to do next."
# What a command may be written with; no dot, which would join commands, and no angle bracket, which marks the score.
OTHER = re.compile(r"[^A-Za-z0-9 '-]+")
MOST_LETTERS = 150
# Words that steer the interpreter and not the game; some write files.
META = re.compile(r"(?i)\b(save|restore|restart|quit|q|undo|script|transcript|noscript|unscript|verify|tw-\S*)\b")
EXTRA = re.compile(r"<(score|moves)>\s*(\d+)\s*</\1>")


@dataclass(frozen=True)
class Turn:
    """What a command leads to: the state after it, the reply, the points so far (None if unchanged), and the end."""

    state: Any
    reply: str
    score: int | None
    is_won: bool
    is_over: bool


class TextGame(Env):
    """An adventure in text for one `player`, or for a `guide`, who alone is shown what the game is for, and a player.

    `game` has a `start`, the first text as `shown`, its `objective`, a `walkthrough`, the `most` points, and
    `play(state, text)`, which returns a Turn and may be called from any state.
    """

    def __init__(self, task: Task, game: Any, prompt: str, guided: bool, turns: int) -> None:
        super().__init__(task)
        self.guided, self.turns, self.game = guided, turns, game
        self.state, self.score, self.commands, self.won, self.over = game.start, 0, 0, False, False
        quest = f"{game.objective}\n\n{game.shown}"
        self.seen: dict[str, tuple[Message, ...]] = {
            "guide": (Message("user", f"{GUIDE}\n\n{quest}"),),
            "player": (Message("user", f"{prompt}\n\n{game.shown if guided else quest}"),),
        }
        self.acting = "guide" if guided else "player"

    @classmethod
    def roles_of(cls, guided: bool = False, **settings: Any) -> tuple[str, ...]:  # type: ignore[override]
        return ("guide", "player") if guided else ("player",)

    def observe(self) -> dict[str, Observation]:
        return {} if self.over else {self.acting: Observation(self.acting, self.seen[self.acting])}

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        self.see(role, Message("assistant", text))
        if role == "guide":
            self.acting, last = "player", self.seen["player"][-1]
            self.seen["player"] = (*self.seen["player"][:-1], Message("user", f"{last.content}\n\nThe guide: {text}"))
            return Reward()
        turn: Turn = self.game.play(self.state, text)
        score = self.score if turn.score is None else turn.score
        gained, self.score, self.commands, self.state = score - self.score, score, self.commands + 1, turn.state
        self.won, self.over = turn.is_won, turn.is_over or self.commands >= self.turns
        self.see("player", Message("user", turn.reply))
        self.see("guide", Message("user", f"The player: {text}\n\n{turn.reply}"))
        self.acting = "guide" if self.guided else "player"
        return Reward(gained / self.game.most)

    def see(self, role: str, message: Message) -> None:
        self.seen[role] = (*self.seen[role], message)

    def fork(self) -> Self:
        twin = copy.copy(self)
        twin.seen = dict(self.seen)
        return twin

    @property
    def success(self) -> bool:
        return self.won

    def privileged(self) -> str:
        return f"The commands of the quest: {'; '.join(self.game.walkthrough)}"


class TextWorld(TextGame):
    """Settings:

    rooms, objects, length   of a house: rooms, objects, and commands of the quest
    guided   the quest is shown to a role `guide`, who advises the `player` before each command
    turns    an episode with more commands is over
    folder   where games are kept, which take seconds to make
    count    tasks of the training split; a tenth as many for testing, with other seeds

    The team earns the part of the quest's points that a command brings; an episode is a success if the game is won.
    """

    def __init__(
        self,
        task: Task,
        rooms: int = 3,
        objects: int = 4,
        length: int = 4,
        guided: bool = False,
        turns: int = 20,
        folder: str = "",
    ) -> None:
        game = load_game(make_game(folder, task.data["seed"], rooms, objects, length))
        super().__init__(task, game, PLAYER, guided, turns)

    @classmethod
    def tasks(cls, split: Split, count: int = 1000, **settings: Any) -> Sequence[Task]:
        return seeded_tasks(split, count)


@dataclass(frozen=True)
class Game:
    """An interpreter that plays from any state: its memory at the start, the first text, and what the game is for."""

    interpreter: Any
    start: Any
    shown: str
    objective: str
    walkthrough: Sequence[str]
    most: int

    def play(self, state: Any, text: str) -> Turn:
        """Return what a command leads to; its points are None where it took no turn."""
        command = META.sub(" ", OTHER.sub(" ", text)).strip()[:MOST_LETTERS] or "look"
        self.interpreter.set_state(state)
        reply, *_ = self.interpreter.step(command)
        points = dict(EXTRA.findall(reply)).get("score")
        is_won = "*** The End ***" in reply
        is_over = is_won or "*** You lost! ***" in reply
        return Turn(self.interpreter.get_state(), clean(reply), int(points) if points else None, is_won, is_over)


@lru_cache(maxsize=64)
def load_game(file: Path) -> Game:
    """Return the game of a file that `make_game` wrote."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that only TextWorld knows the game's score
        interpreter = package("jericho", "textworld").FrotzEnv(str(file))
    shown, _ = interpreter.reset()
    interpreter.step("tw-extra-infos score")
    about = json.loads(file.with_suffix(".json").read_text())
    points = sum(quest["reward"] for quest in about["quests"])
    first_room = clean(shown[shown.index("-= ") :])
    return Game(
        interpreter, interpreter.get_state(), first_room, about["objective"], about["metadata"]["walkthrough"], points
    )


def make_game(folder: str, seed: int, rooms: int, objects: int, length: int) -> Path:
    """Return the file of a game, which is made unless the folder has it."""
    textworld = package("textworld", "textworld")
    home = Path(folder or "~/.cache/cadre-textworld").expanduser()
    file = home / f"{rooms}-{objects}-{length}-{seed}.z8"
    if not file.exists():
        home.mkdir(parents=True, exist_ok=True)
        options = textworld.GameOptions()
        options.seeds, options.nb_rooms, options.nb_objects, options.quest_length = seed, rooms, objects, length
        with tempfile.TemporaryDirectory(dir=home) as part:
            options.path = str(Path(part) / file.name)
            textworld.generator.compile_game(textworld.generator.make_game(options), options)
            for ending in (".json", ".z8"):  # the game last: where it is, both are whole
                (Path(part) / file.name).with_suffix(ending).replace(file.with_suffix(ending))
    return file


def clean(reply: str) -> str:
    """Return a reply of a game without its score and its prompt."""
    return re.sub(r"\n{3,}", "\n\n", EXTRA.sub("", reply).rpartition("\n>")[0] or reply).strip()
