"""`cadre init`: a task of one's own to begin with, its recipe and its test, which pass as they are."""

from __future__ import annotations

import keyword
import sys
from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import console, must_be_new
from cadre.errors import ConfigError
from cadre.files import publish_atomically

TAKEN = {"Env", "Message", "Observation", "Reward", "Task", "cadre", *sys.stdlib_module_names}
TASK = '''\
"""{title}: one role gives a hint, the other answers. Change what they see, what their texts do and what pays."""

from cadre import Env, Message, Observation, Reward, Task


class {title}(Env):
    roles = ("helper", "solver")

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.hint: str | None = None
        self.answer: str | None = None

    @classmethod
    def tasks(cls, split: str) -> list[Task]:  # train and test share no task
        numbers = [n for n in range(200) if (n % 5 == 0) == (split == "test")]
        return [Task(f"{{split}}-{{n}}", {{"number": n}}) for n in numbers]

    def observe(self) -> dict[str, Observation]:  # who acts now, and what it sees; {{}} when the episode is over
        number = self.task.data["number"]
        if self.hint is None:
            return {{"helper": Observation("helper", (Message("user", f"Say something about {{number}}."),))}}
        if self.answer is None:
            return {{"solver": Observation("solver", (Message("user", f"Is it even? {{self.hint}}"),))}}
        return {{}}

    async def step(self, actions: dict[str, str]) -> Reward:  # the texts of those who acted, and what they are paid
        if "helper" in actions:
            self.hint = actions["helper"][:200]
            return Reward()
        self.answer = actions["solver"].strip().lower()
        return Reward(team=float(self.success))

    @property
    def success(self) -> bool:
        return self.answer == ("yes" if self.task.data["number"] % 2 == 0 else "no")
'''
RECIPE = """\
env: {name}.py:{title}
team:
  policies: {{shared: seed}}   # the embedded model; any Hugging Face model or folder
  roles: {{helper: shared, solver: shared}}
algorithm: {{name: grpo, k: 4}}
sampling: {{max_tokens: 16}}
train: {{steps: 5, tasks_per_step: 4}}
evaluate: {{tasks: 10}}
"""
TEST = '''\
"""The task keeps the contract, and what it pays is what it should."""

import asyncio

from {name} import {title}

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec


def test_the_contract_holds() -> None:
    assert asyncio.run(check_env(EnvSpec("{name}.py:{title}", {{}})))


def test_a_right_answer_is_paid() -> None:
    env = {title}({title}.tasks("test")[0])  # number 0
    asyncio.run(env.step({{"helper": "It is zero."}}))
    assert asyncio.run(env.step({{"solver": "Yes"}})).team == 1.0
    assert env.success
'''


def init(name: Annotated[str, typer.Argument(help="of the task, such as parity: letters, digits and _")]) -> None:
    """Write a task to begin with: NAME.py, NAME.yaml and test_NAME.py."""
    if not (name.isidentifier() and name.islower()):
        raise ConfigError(f"init: got {name!r}; expected a name in small letters, digits and _, such as my_task.")
    title = "".join(part.capitalize() for part in name.split("_"))
    if {name, title} & TAKEN or keyword.iskeyword(name) or keyword.iskeyword(title):
        raise ConfigError(
            f"init: got {name!r}, which has a meaning in Python or in the file itself; expected another name, such as "
            f"my_{name}."
        )
    files = {f"{name}.py": TASK, f"{name}.yaml": RECIPE, f"test_{name}.py": TEST}
    outs = [Path(file) for file in files]
    must_be_new(outs, "init")
    with publish_atomically(*outs) as built:
        for path, text in zip(built, files.values(), strict=True):
            path.write_text(text.format(name=name, title=title), encoding="utf-8")
    console.print(
        f"Wrote {', '.join(files)}. Next:\n  cadre check {name}.py:{title}\n  pytest test_{name}.py\n"
        f"  cadre train {name}.yaml",
        markup=False,
        highlight=False,
    )
