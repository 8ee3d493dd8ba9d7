"""Settings are declared once, in `__init__`; a class is named so that it is found again."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cadre.env import Env, GeneratedTasks
from cadre.envs.spec import EnvSpec, env_class, name_of
from cadre.envs.validation import declaration_faults
from cadre.errors import ConfigError, ContractError
from cadre.types import Task
from cadre_tasks.maths.maths import Maths
from tests.helpers.games import Digit


class Base(Env):
    """Its tasks take the settings that it declares, without defaults of their own."""

    roles = ("a", "b", "c")

    def __init__(self, task: Task, size: int = 3, name: str = "x") -> None:
        super().__init__(task)
        self.size, self.name = size, name

    @classmethod
    def roles_of(cls, size: int, **settings: Any) -> tuple[str, ...]:
        return cls.roles[:size]

    @classmethod
    def tasks(cls, split: str, size: int, **settings: Any) -> Sequence[Task]:
        return GeneratedTasks(size, lambda index: {"index": index, **settings}, split)


class Derived(Base):
    """Hands settings on, and has tasks that know none."""

    def __init__(self, task: Task, turns: tuple[int, ...] = (1,), **settings: Any) -> None:
        super().__init__(task, **settings)
        self.turns = turns

    @classmethod
    def tasks(cls, split: str) -> Sequence[Task]:
        return GeneratedTasks(7, lambda index: {}, split)


class Demanding(Base):
    def __init__(self, task: Task, source: str) -> None:
        super().__init__(task)


def test_tasks_and_roles_get_the_defaults_of_the_constructor() -> None:
    spec = EnvSpec(Base, {})
    assert (len(spec.tasks("train")), spec.roles) == (3, ("a", "b", "c"))
    assert spec.tasks("train")[0].data == {"index": 0, "name": "x"}
    changed = EnvSpec(Base, {"size": 2})
    assert (len(changed.tasks("test")), changed.roles, changed.make(Task("t", {})).size) == (2, ("a", "b"), 2)


def test_a_method_gets_what_it_has_parameters_for() -> None:
    spec = EnvSpec(Derived, {"size": 1, "turns": [2, 3]})
    assert (len(spec.tasks("train")), spec.roles) == (7, ("a",))
    env = spec.make(Task("t", {}))
    assert (env.size, env.name, env.turns) == (1, "x", (2, 3))


def test_central_play_has_the_tasks_of_what_is_played() -> None:
    spec = EnvSpec(Base, {"size": 2}, central=True)
    assert (spec.roles, len(spec.tasks("train"))) == (("team",), 2)


def test_values_become_what_is_declared() -> None:
    assert EnvSpec(Base, {"size": "4"}).settings == {"size": 4}
    with pytest.raises(ConfigError, match=r"settings\.turns: got 'many'"):
        EnvSpec(Derived, {"turns": "many"})
    with pytest.raises(ConfigError, match=r"settings\.sise: unknown to Derived.*Did you mean size\?"):
        EnvSpec(Derived, {"sise": 2})


def test_what_has_no_default_is_missing_until_it_is_given() -> None:
    assert EnvSpec(Demanding, {}).missing == ["source"]
    assert EnvSpec(Demanding, {"source": "here"}).missing == []


def test_names_that_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_of(Maths) == "maths"
    assert name_of(Digit) == f"{sys.modules[Digit.__module__].__file__}:Digit"
    assert env_class("tests.helpers.games:Digit") is Digit
    (tmp_path / "alone.py").write_text("from cadre.env import Env\nclass Mine(Env): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    import alone  # type: ignore[import-not-found]

    assert name_of(alone.Mine) == f"{tmp_path}/alone.py:Mine"
    assert env_class(name_of(alone.Mine)).__name__ == "Mine"
    del sys.modules["alone"]


def test_a_module_that_is_not_there_is_one_paragraph() -> None:
    with pytest.raises(ConfigError, match=r"env: got 'no\.such:Env', and no\.such cannot be imported"):
        env_class("no.such:Env")


class Counted(Base):
    """A setting of its tasks alone."""

    @classmethod
    def roles_of(cls, **settings: object) -> tuple[str, ...]:
        return ("a",)

    def __init__(self, task: Task) -> None:
        super().__init__(task)

    @classmethod
    def tasks(cls, split: str, count: int = 5) -> Sequence[Task]:
        return GeneratedTasks(count, lambda index: {}, split)


@pytest.mark.parametrize("central", [False, True])
def test_a_setting_of_the_tasks_is_not_asked_of_an_episode(central: bool) -> None:
    spec = EnvSpec(Counted, {"count": 2}, central)
    assert (len(spec.tasks("test")), spec.make(spec.tasks("test")[0]).task.id) == (2, "test-0")
    assert "__init__" not in {fault.name for fault in declaration_faults(spec)}


def returns(tasks: object) -> EnvSpec:
    """A class whose `tasks` returns this."""
    return EnvSpec(type("Returns", (Counted,), {"tasks": classmethod(lambda cls, split: tasks)}), {})


@pytest.mark.parametrize(
    ("tasks", "got"),
    [
        ((Task(str(n), {}) for n in range(3)), "got a generator; expected a sequence of Task"),
        (map(str, ()), "got a map; expected a sequence"),
        (None, "got nothing \\(None\\); expected a sequence"),
        ({0: Task("t", {})}, "got a dict; expected a sequence"),
        ("tasks", "got a str; expected a sequence"),
    ],
)
def test_tasks_that_are_no_sequence_of_tasks_are_a_paragraph(tasks: object, got: str) -> None:
    with pytest.raises(ContractError, match=rf"^Returns\.tasks\('train'\): {got}"):
        returns(tasks).tasks("train")


def test_a_list_of_tasks_is_returned_as_it_is() -> None:
    tasks = [Task("t", {})]
    assert returns(tasks).tasks("test") is tasks
