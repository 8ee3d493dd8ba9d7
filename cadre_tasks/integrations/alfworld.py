"""Household tasks of ALFWorld (arXiv 2010.03768) by its package, from a folder of its games, for one role or two."""

from __future__ import annotations

import copy
import json
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from cadre.env import GeneratedTasks, Split
from cadre.errors import ConfigError
from cadre.plugins import package
from cadre.types import Task
from cadre_tasks.integrations.textworld import TextGame, Turn

PLAYER = (
    "You act in a household. You may think first; the last line of your answer is one command, such as: go to desk 1, "
    "open drawer 1, take mug 1 from desk 1, move mug 1 to shelf 1, clean mug 1 with sinkbasin 1, heat egg 1 with "
    "microwave 1, cool egg 1 with fridge 1, use desklamp 1, examine shelf 1, inventory, look."
)
Rooms = Literal["unseen", "seen"]
MOST_LETTERS = 150
# Copies of the planner's library, each of which serves one game at a time.
FREE_PLANNERS: list[Any] = []
# The sentence of a task; its braces, brackets and hashes would be read by the grammar that it is put into.
SENTENCE = re.compile(r"Your task is to: ([^\"\\#{}\[\]]+)")


class AlfWorld(TextGame):
    """Settings:

    folder   of the games, with ALFWorld's own folders train, valid_seen and valid_unseen
    rooms    of the test split: `unseen`, which training does not have, or `seen`
    kinds    of task, such as pick_and_place_simple; all of them if empty
    listed   every reply lists the commands that do something
    guided   the task is shown to a role `guide`, who advises the `player` before each command
    turns    an episode with more commands is over

    The team earns 1 if the task is done, which is a success.
    """

    def __init__(
        self,
        task: Task,
        folder: str,
        rooms: Rooms = "unseen",
        kinds: Sequence[str] = (),
        listed: bool = True,
        guided: bool = False,
        turns: int = 50,
    ) -> None:
        game = load_game(Path(folder).expanduser() / task.data["game"], listed)
        super().__init__(task, game, PLAYER, guided, turns)

    @classmethod
    def tasks(  # type: ignore[override]
        cls, split: Split, folder: str, rooms: Rooms = "unseen", kinds: Sequence[str] = (), **settings: Any
    ) -> Sequence[Task]:
        home = Path(folder).expanduser()
        place = home / ("train" if split == "train" else f"valid_{rooms}")
        files = [file for file in sorted(place.glob("*/*/game.tw-pddl")) if is_played(file, kinds)]
        if not files:
            raise ConfigError(
                f"settings.folder: no games in {place}; expected KIND-OBJECT-.../TRIAL/game.tw-pddl that are marked "
                "solvable. Download them by alfworld-download, and name the folder that has train in it."
            )
        names = [str(file.relative_to(home)) for file in files]
        return GeneratedTasks(len(names), lambda index: {"game": names[index]}, split)


def is_played(file: Path, kinds: Sequence[str]) -> bool:
    """Return True for the games that ALFWorld's own environment plays, if they are of these kinds."""
    name = file.parent.parent.name
    is_supported = "movable" not in name and "Sliced" not in name
    is_kind = not kinds or name.split("-")[0] in kinds
    return is_supported and is_kind and bool(json.loads(file.read_text()).get("solvable"))


@dataclass(frozen=True)
class Position:
    """A state of a game: its number in the package's planner, what the package keeps beside it, and the last result."""

    number: int
    kept: dict[str, Any]
    result: Any


class Household:
    """The package's interpreter of one game, which plays from any position, and what the game is for."""

    most = 1
    tables = ("_facts", "_vars_by_name", "_vars_by_type", "_var_counts", "_operators")

    def __init__(self, interpreter: Any, shown: str, objective: str, listed: bool) -> None:
        self.interpreter, self.shown, self.objective, self.listed = interpreter, shown, objective, listed
        self.planner = interpreter.downward_lib
        self.start = self.current = self.position()
        weakref.finalize(self, FREE_PLANNERS.append, self.planner)

    def play(self, state: Position, text: str) -> Turn:
        """Return what the command in the last line of a text leads to."""
        lines = text.strip().lower().splitlines() or [""]
        command = lines[-1].strip().removeprefix(">").strip()[:MOST_LETTERS]
        self.go_to(state)
        result, score, is_over = self.interpreter.step(command)
        self.current = self.position()
        reply = result.feedback.strip()
        if self.listed and not is_over:
            reply += list_commands(result)
        return Turn(self.current, reply, score, bool(result["won"]), is_over)

    def position(self) -> Position:
        tables = {name: copy_table(getattr(self.interpreter._pddl_state, name)) for name in self.tables}
        return Position(self.planner.get_state_id(), tables, self.interpreter.state)

    def go_to(self, position: Position) -> None:
        if position is not self.current:
            self.planner.set_state_id(position.number)
            for name, table in position.kept.items():
                setattr(self.interpreter._pddl_state, name, copy_table(table))
            self.interpreter.state = position.result
            self.current = position

    @property
    def walkthrough(self) -> list[str]:
        """The commands of a plan by the package's planner."""
        self.go_to(self.start)
        return list(self.interpreter._pddl_state.replan(self.interpreter._entity_infos))


def copy_table(table: Any) -> Any:
    """Return a copy of a dictionary of the package, and of the sets in it."""
    twin = copy.copy(table)
    for key, value in twin.items():
        twin[key] = set(value) if isinstance(value, set) else value
    return twin


def list_commands(result: Any) -> str:
    return f"\nYou can: {', '.join(result['admissible_commands'])}."


@lru_cache(maxsize=16)
def load_game(file: Path, listed: bool) -> Household:
    """Return the game of a file. Its problem and the sentence of its task are read; rules and wording are the
    package's, as the interpreter runs what stands in braces of a wording as Python."""
    info = package("alfworld.info", "alfworld")
    demangler = package("alfworld.agents.utils.misc", "alfworld").Demangler
    data = json.loads(file.read_text())
    sentence = SENTENCE.search(data["grammar"])
    if sentence is None:
        raise ConfigError(
            f"{file}: its grammar has no 'Your task is to:'; expected a game of ALFWorld. Fetch it again."
        )
    grammar = Path(info.ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL.", sentence[1].strip())
    # As PddlEnv begins, which would make a new copy of the planner's library, of 34 MB that are never freed.
    environment = package("textworld.envs.pddl", "alfworld").PddlEnv
    interpreter = environment.__new__(environment)
    package("textworld", "alfworld").Environment.__init__(interpreter)
    load_planner = package("fast_downward", "alfworld").load_lib
    interpreter.downward_lib = FREE_PLANNERS.pop() if FREE_PLANNERS else load_planner()
    domain = Path(info.ALFRED_PDDL_PATH).read_text()
    interpreter.load({"pddl_domain": domain, "grammar": grammar, "pddl_problem": data["pddl_problem"]})
    names = demangler(game_infos=interpreter._entity_infos)
    for entity in interpreter._entity_infos.values():
        entity.name = names.demangle_alfred_name(entity.id)
    first = interpreter.reset()
    shown, _, objective = first.feedback.partition("Your task is to: ")
    shown = shown.partition("=-\n")[2].strip() + (list_commands(first) if listed else "")
    return Household(interpreter, shown, f"Your task is to: {objective.strip()}", listed)
