"""Taboo: one agent describes a secret word without saying it, the other picks it from a list. A task in one file.

cadre check examples/taboo.py:Taboo
cadre train examples/taboo.yaml
"""

import random
import re
from collections.abc import Sequence
from typing import Any

from cadre import Env, Message, Observation, Reward, Task
from cadre.env import Split

WORDS = (
    "river mountain bridge candle teacher doctor kitchen garden winter summer music dance piano guitar bread "
    "butter coffee sugar horse tiger rabbit eagle whale forest desert island ocean cloud thunder rainbow "
    "window door ladder hammer needle thread button jacket pocket mirror clock calendar letter stamp market "
    "castle soldier king queen crown train airplane bicycle engine battery camera telephone newspaper library"
).split()


class Taboo(Env):
    """`clue` sees the secret word and describes it; `guess` sees the clue and `choices` words. Both win together."""

    roles = ("clue", "guess")

    def __init__(self, task: Task, choices: int = 4) -> None:
        super().__init__(task)
        self.secret = task.data["secret"]
        self.options = task.data["words"][:choices]
        self.clue: str | None = None
        self.guess: str | None = None

    @classmethod
    def tasks(cls, split: Split, choices: int = 4, **settings: Any) -> Sequence[Task]:
        """Secrets of the test split are never secrets in training."""
        secrets = WORDS[::5] if split == "test" else [word for word in WORDS if word not in WORDS[::5]]
        made = []
        for index in range(len(secrets) * 4):
            generator = random.Random(f"{split}-{index}")
            secret = secrets[index % len(secrets)]
            words = [secret, *generator.sample([word for word in WORDS if word != secret], choices - 1)]
            made.append(Task(f"{split}-{index}", {"secret": secret, "words": generator.sample(words, choices)}))
        return made

    def observe(self) -> dict[str, Observation]:
        if self.clue is None:
            text = f"Describe this word in one short sentence without saying it: {self.secret}"
            return {"clue": Observation("clue", (Message("user", text),))}
        if self.guess is None:
            text = f"Which word is meant: {', '.join(self.options)}?\nClue: {self.clue}\nAnswer with the word only."
            return {"guess": Observation("guess", (Message("user", text),))}
        return {}

    async def step(self, actions: dict[str, str]) -> Reward:
        if "clue" in actions:
            self.clue = actions["clue"].strip()
            return Reward(local={"clue": -1.0 if self.cheated else 0.0}, parts={"cheated": float(self.cheated)})
        self.guess = actions["guess"].strip().strip(".").lower()
        return Reward(team=float(self.success), parts={"right": float(self.guess == self.secret)})

    @property
    def cheated(self) -> bool:
        """The clue holds the word itself, or spells it out."""
        letters = re.sub("[^a-z]", "", (self.clue or "").lower())
        return self.secret in letters

    @property
    def success(self) -> bool:
        return self.guess == self.secret and not self.cheated
