"""Rows and reward functions as an environment: one role answers each row's prompt once.

    cadre.train(model="Qwen/Qwen3-0.6B", tasks=rows, reward=right, steps=50)
    cadre train rows.jsonl reward=mine.py:right model=DIR

`read_tasks` makes the tasks, also those of `cadre.envs.episode`; a `RewardFunction` is called by the names of its
parameters.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from cadre import random_keys
from cadre.env import Env, Split, actions_of
from cadre.envs.messages import to_messages
from cadre.errors import ConfigError, ContractError, DataError, nearest
from cadre.rows import read_rows
from cadre.settings.user_code import describe_errors, find_object, load_function, plain_scalar
from cadre.types import Message, Observation, Reward, Sample, Task

ROLE = "agent"
FILES = (".jsonl", ".json", ".parquet", ".csv")
HELD_OUT = 0.1  # fraction of the rows that is held out where nothing else is said
Rows = Sequence[Mapping[str, Any]]


# ---- Tasks


def read_tasks(
    split: Split, tasks: Any, held_out: Any = HELD_OUT, columns: Mapping[str, str] | None = None
) -> list[Task]:
    """Return the tasks of a split, one a row, whose data is the row.

    tasks     rows (mappings), a file of them (.jsonl, .json, .parquet, .csv), a mapping of the splits "train" and
              "test" to rows, or a function of the split
    held_out  the rows of the test split, or the fraction of `tasks` that is held out by the hash of a row
    columns   further names of columns, nested ones too: `{"prompt": "question", "answer": "reward.truth"}`

    Raises DataError for rows that are no mappings of plain values, a column that is missing, and held-out rows that are
    among those to train on.
    """
    tasks, held_out = find_object("tasks", tasks), find_object("held_out", held_out)
    if tasks is None:
        raise ConfigError("tasks: missing; expected rows, a file of them, or a function of the split. Add tasks=...")
    fraction = held_out if isinstance(held_out, int | float) and not isinstance(held_out, bool) else None
    if fraction is not None and not 0.0 <= fraction < 1.0:
        raise ConfigError(f"held_out: got {fraction}; expected a fraction of the rows from 0 to 1, or rows. Change it.")
    by_split = isinstance(tasks, Mapping) or (callable(tasks) and not isinstance(tasks, Sequence))
    if by_split or fraction is None:
        training = rows_of("tasks", tasks(split) if callable(tasks) else tasks, split)
        if split == "train":
            return _make_tasks("row", training, columns)
        rows = rows_of("held_out", held_out, split) if fraction is None else training
        if fraction is None and not by_split:
            contents = set(map(_content, training))
            if shared := sum(_content(row) in contents for row in rows):
                raise DataError(
                    f"held_out: {shared} of its {len(rows)} rows are also in tasks; expected rows that are not trained "
                    "on. Remove them from one of the two."
                )
        return _make_tasks("held-out", rows, columns)
    pool = _make_tasks("row", rows_of("tasks", tasks, split), columns)
    hashes = {task.id: random_keys.key("held out", _content(task.data)) / 2**63 for task in pool}
    # Of few rows none may be below the fraction: then those of the least hash are held out.
    if fraction and split == "test" and len(set(hashes.values())) == 1:
        raise DataError(
            f"held_out: got {len(pool)} rows that are all equal, of which none can be held out; expected rows of two "
            "kinds at least. Give held_out=rows, or evaluate={'tasks': 0}."
        )
    lowest = min(hashes.values()) if fraction and len(set(hashes.values())) > 1 else -1.0
    return [task for task in pool if (hashes[task.id] < fraction or hashes[task.id] == lowest) == (split == "test")]


def rows_of(setting: str, source: Any, split: Split) -> Rows:
    """Return the rows that a setting names: those of a file, of a split of a mapping, or the rows themselves."""
    if isinstance(source, Mapping):
        if split not in source:
            raise DataError(
                f"{setting}: got a mapping of {', '.join(map(str, source)) or 'nothing'}; expected the splits train "
                "and test. Rename them, or give a list of rows."
            )
        source = source[split]
    if isinstance(source, str | Path):
        file = Path(source).expanduser()
        if file.suffix not in FILES:
            raise DataError(
                f"{setting}: got {str(source)!r}; expected a file that ends in {', '.join(FILES)}. Name one."
            )
        return [row for _, row in read_rows(file)]
    try:
        return [row for row in source]  # a Dataset of Hugging Face yields mappings
    except TypeError:
        raise DataError(
            f"{setting}: got {source!r:.100}; expected a list of rows, the path of a file, or a function of the split."
        ) from None


def _make_tasks(name: str, rows: Rows, columns: Mapping[str, str] | None) -> list[Task]:
    tasks = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"tasks: row {number} is {row!r:.80}; expected a mapping of columns to values. Change it.")
        try:
            json.dumps(row)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"tasks: row {number} cannot be written to a file ({error}); expected texts, numbers, lists and "
                "mappings of them. Convert or leave out that column."
            ) from None
        named = {column: _nested(row, path, number) for column, path in (columns or {}).items()}
        tasks.append(Task(f"{name}-{number}", {**row, **named}))
    return tasks


def _nested(row: Mapping[str, Any], path: str, number: int) -> Any:
    """Return the value of a nested column: `answer.value`."""
    value: Any = row
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            names = [str(name) for name in value] if isinstance(value, Mapping) else []
            raise DataError(
                f"columns: row {number} has no {path!r}, as {key!r} is not there; expected one of {', '.join(names)}. "
                f"Fix the name.{nearest(key, names)}"
            )
        value = value[key]
    return value


def _content(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, default=repr)


# ---- Rewards


@dataclass(frozen=True)
class RewardFunction:
    """One reward function: called for each completion, or once for all completions of a prompt (`of_group`)."""

    name: str
    function: Callable[..., Any]
    weight: float = 1.0

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @cached_property
    def of_group(self) -> bool:
        return "completions" in self.parameters

    async def __call__(self, inputs: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        """Return what the function returns, given the arguments that it names; columns are lists for a group."""
        count = len(inputs["completions"]) if self.of_group else 0
        known = {name: [value] * count if self.of_group else value for name, value in row.items()} | dict(inputs)
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters.values())
        arguments = {name: value for name, value in known.items() if takes_all or name in self.parameters}
        missing = [
            name
            for name, parameter in self.parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            and name not in known
        ]
        if missing:
            raise ContractError(
                f"reward: {self.name} takes {missing[0]!r}; expected some of {', '.join(known)}. Rename the parameter, "
                f"or name the column: columns={{{missing[0]!r}: ...}}.{nearest(missing[0], known)}"
            )
        with describe_errors(f"reward: {self.name}"):
            result = self.function(**arguments)
            return await result if inspect.isawaitable(result) else result


def reward_functions(reward: Any) -> tuple[RewardFunction, ...]:
    """Return the functions of a setting: one, a list, or a mapping of names to a function or (function, weight). A
    function is `FILE.py:NAME`, or an object that Python code passed. Raises ConfigError for anything else."""
    if isinstance(reward, tuple) and all(isinstance(entry, RewardFunction) for entry in reward):
        return reward  # for all episodes of an environment they are loaded once
    several = reward if isinstance(reward, list | tuple) else [reward]
    entries = list(reward.items()) if isinstance(reward, Mapping) else [("", entry) for entry in several]
    functions = []
    for name, entry in entries:
        reference, weight = entry if isinstance(entry, list | tuple) and len(entry) == 2 else (entry, 1.0)
        if not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ConfigError(f"reward: got the weight {weight!r} of {name}; expected a number. Change it.")
        if not isinstance(reference, str):
            got = "missing" if reference is None else f"got {reference!r}"
            raise ConfigError(
                f"reward: {got}; expected a function, FILE.py:NAME, a list of them, or a mapping of names to "
                "(function, weight). Add reward=..."
            )
        function: Callable[..., Any] = load_function("reward", reference, {})
        functions.append(RewardFunction(name or reference.rpartition(":")[2], function, weight))
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"reward: got {', '.join(names)}; expected different names. Give a mapping of names to functions."
        )
    return tuple(functions)


def add_result(reward: Reward, function: RewardFunction, result: Any, named: bool) -> Reward:
    """Return a reward with what a function returned for one completion: a number, None (it does not apply), or numbers
    by name. With `named` a plain number is a part of the function's name. Raises ContractError for anything else."""
    if result is None:
        return reward
    numbers = result if isinstance(result, Mapping) else {function.name: result}
    try:
        plain = {str(name): float(plain_scalar(number)) for name, number in numbers.items()}
    except (TypeError, ValueError):
        raise ContractError(
            f"reward: {function.name} returned {result!r:.80}; expected a number, None where it does not apply, or "
            "numbers by name. Return one of them."
        ) from None
    parts = plain if named or isinstance(result, Mapping) else {}
    return replace(reward, team=reward.team + function.weight * sum(plain.values()), parts={**reward.parts, **parts})


# ---- The environment


class RowTasks(Env):
    """An environment whose tasks are rows. All of its state is replaced and never changed in place."""

    def fork(self) -> Self:
        return copy.copy(self)

    @classmethod
    def tasks(
        cls,
        split: Split,
        *,
        tasks: Any = None,
        held_out: Any = HELD_OUT,
        columns: dict[str, str] | None = None,
        **settings: Any,
    ) -> Sequence[Task]:
        """Return the rows of a split (`read_tasks`)."""
        return read_tasks(split, tasks, held_out, columns)


class RowsEnv(RowTasks):
    """One role answers the prompt of a row once, and reward functions pay for the answer.

    reward      `FILE.py:NAME`, a list, or a mapping of names to [function, weight] (docs/ten_lines.md)
    success_at  an episode is solved if its reward is at least this
    tasks, held_out, columns   as in `read_tasks`
    """

    roles: ClassVar[tuple[str, ...]] = (ROLE,)

    def __init__(self, task: Task, reward: Any = None, success_at: float = 1.0) -> None:
        super().__init__(task)
        self.functions, self.success_at = reward_functions(reward), success_at
        self.reward: Reward | None = None

    def observe(self) -> dict[str, Observation]:
        if self.reward is not None:
            return {}
        return {ROLE: Observation(ROLE, to_messages(self.task.data["prompt"], f"tasks: {self.task.id}: prompt"))}

    async def step(self, actions: dict[str, str]) -> Reward:
        completion, row = actions[ROLE], dict(self.task.data)
        inputs = {"completion": completion, "row": row, "role": ROLE, "messages": self._messages(completion)}
        reward = Reward()
        for function in self.functions:
            if not function.of_group:
                reward = add_result(reward, function, await function(inputs, row), len(self.functions) > 1)
        self.reward = reward
        return reward

    async def compare(
        self, forks: Sequence[Env], actions: Sequence[Mapping[str, Sample]], rewards: Sequence[Reward]
    ) -> Sequence[Reward]:
        completions = [actions_of(self, action)[ROLE] for action in actions]
        row, compared = dict(self.task.data), list(rewards)
        inputs = {
            "completions": completions,
            "prompts": [row["prompt"]] * len(completions),
            "row": row,
            "role": ROLE,
            "messages": [self._messages(completion) for completion in completions],
        }
        for function in (function for function in self.functions if function.of_group and completions):
            returned = await function(inputs, row)
            # An array or a tensor of numbers is a list too.
            results = returned.tolist() if callable(getattr(returned, "tolist", None)) else returned
            if not isinstance(results, list | tuple) or len(results) != len(completions):
                raise ContractError(
                    f"reward: {function.name} returned {results!r:.80} for {len(completions)} completions of one "
                    "prompt; expected a list with a number, or None, for each. Return one a completion."
                )
            named = len(self.functions) > 1
            compared = [add_result(one, function, result, named) for one, result in zip(compared, results, strict=True)]
        for fork, reward in zip(forks, compared, strict=True):
            fork.reward = reward  # type: ignore[attr-defined]
        return compared

    def _messages(self, completion: str) -> list[dict[str, str]]:
        """Return the conversation with the completion, as clients write it."""
        messages = (*to_messages(self.task.data["prompt"], "prompt"), Message("assistant", completion))
        return [{"role": message.role, "content": message.content} for message in messages]

    @property
    def success(self) -> bool:
        return self.reward is not None and self.reward.team >= self.success_at

    @classmethod
    def tasks(cls, split: Split, *, reward: Any = None, **settings: Any) -> Sequence[Task]:
        """Return the rows of a split. Raises DataError for rows without a prompt, ConfigError without a reward."""
        reward_functions(reward)
        rows = super().tasks(split, **settings)
        for task in rows:
            if "prompt" not in task.data:
                names = [str(name) for name in task.data]
                raise DataError(
                    f"tasks: {task.id} has the columns {', '.join(names)}; expected one named prompt, a text or a list "
                    f"of messages. Name it: columns={{'prompt': {names[0] if names else '...'!r}}}."
                )
            to_messages(task.data["prompt"], f"tasks: {task.id}: prompt")
        return rows
