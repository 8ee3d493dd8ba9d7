"""Given pairs of answers as an environment, for preference training without sampling.

    cadre train pairs.jsonl env=preferences 'algorithm={name: ma_dpo, k: 2}' model=DIR

A row has a `prompt` (a text or messages), the answers `chosen` and `rejected` (texts, or a message of the assistant as
TRL writes them), and a `role`, without which it is of `agent`. For a pair of joint actions the three are mappings by
role, without `role`. An episode is one decision, whose completions are the given answers; in evaluation it is a success
if the policy gives the chosen answer more probability than the rejected one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cadre.env import Split
from cadre.envs.messages import to_messages
from cadre.envs.rows import ROLE, RowTasks
from cadre.errors import DataError
from cadre.types import Observation, Reward, Task

FORM = '{"role": name, "prompt": text or messages, "chosen": text, "rejected": text}'


class Preferences(RowTasks):
    """Settings: `tasks`, `held_out` and `columns` as of rows (docs/ten_lines.md)."""

    given_answers = 2

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.pairs: Mapping[str, Sequence[str]] = task.data["pairs"]
        self.over = self.is_chosen = False

    @classmethod
    def roles_of(cls, **settings: Any) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(role for task in cls.tasks("train", **settings) for role in task.data["pairs"]))

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        """Return the pairs of a split. Raises DataError that names the first bad row."""
        return [read_pair(task) for task in super().tasks(split, **settings)]

    def observe(self) -> dict[str, Observation]:
        if self.over:
            return {}
        return {
            role: Observation(role, to_messages(self.task.data["prompts"][role], role), answers=tuple(answers))
            for role, answers in self.pairs.items()
        }

    async def step(self, actions: dict[str, str]) -> Reward:
        self.over, self.is_chosen = True, all(text == self.pairs[role][0] for role, text in actions.items())
        return Reward(float(self.is_chosen))

    @property
    def success(self) -> bool:
        return self.is_chosen


def read_pair(task: Task) -> Task:
    """Return a row's task with the prompts and the answers, the chosen one first, by role."""
    row, where = task.data, f"tasks: {task.id}"
    columns: list[Any] = [row.get(name) for name in ("prompt", "chosen", "rejected")]
    if not all(isinstance(column, Mapping) and "content" not in column for column in columns):
        columns = [{row.get("role", ROLE): column} for column in columns]
    prompts, chosen, rejected = columns
    if not prompts.keys() == chosen.keys() == rejected.keys():
        raise DataError(f"{where}: got {row!r:.200}; expected the same roles in prompt, chosen and rejected. Fix it.")
    for role, prompt in prompts.items():
        to_messages(prompt, f"{where}, {role}", DataError)
    pairs = {role: [read_answer(column[role], where) for column in (chosen, rejected)] for role in prompts}
    if all(first == second for first, second in pairs.values()):
        raise DataError(f"{where}: its chosen and rejected answers are equal; expected different ones. Remove it.")
    return Task(task.id, {"prompts": prompts, "pairs": pairs})


def read_answer(answer: Any, where: str) -> str:
    """Return an answer, a text or one message of the assistant, as text."""
    message = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    text = message.get("content") if isinstance(message, Mapping) and message.get("role") == "assistant" else message
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where}: got the answer {answer!r:.80}; expected {FORM}. Fix or remove the row.")
    return text
