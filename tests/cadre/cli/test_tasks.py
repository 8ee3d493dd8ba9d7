"""`cadre check`: every fault to stderr and exit code 2, else what holds and the first prompts.

`cadre init`: files that pass as they are written.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre_tasks.integrations import openenv_server
from tests.cadre.cli.calling import call

BROKEN = """
from cadre.env import Env
from cadre.types import Message, Observation, Task

class Broken(Env):
    roles = ("speaker",)

    def __init__(self, task):
        super().__init__(task)
        self.said = None

    def observe(self):
        return {} if self.said else {"speaker": Observation("speaker", [Message("planner", "Go.")])}

    def step(self, actions):
        self.said = "x"
        return 1.0

    @classmethod
    def tasks(cls, split):
        return [Task(f"{split}-{i}", {"i": i, "split": split}) for i in range(4)]
"""


def test_a_sound_environment_shows_the_first_prompts() -> None:
    result = call("check", "examples/taboo.py:Taboo")
    assert result.code == 0
    assert result.out.count("ok  Taboo") == 6
    assert "First prompt of clue as the embedded model reads it" in result.out
    assert "<|user|>Describe this word" in result.out


LONG = """
from cadre import Env, Message, Observation, Reward, Task

class Long(Env):
    roles = ("reader",)
    done = False

    @classmethod
    def tasks(cls, split):
        return [Task(f"{split}-{i}", {"i": i, "split": split}) for i in range(4)]

    def observe(self):
        text = "\\n".join(f"line {n}" for n in range(1, 41))
        return {} if self.done else {"reader": Observation("reader", (Message("user", text),))}

    async def step(self, actions):
        self.done = True
        return Reward(team=1.0)

    @property
    def success(self):
        return self.done
"""


def test_a_long_prompt_shows_its_beginning_and_its_end(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    shown = call("check", f"{tmp_path}/long.py:Long").out.splitlines()
    start = next(n for n, line in enumerate(shown) if line.startswith("First prompt of reader"))
    prompt = [line.strip() for line in shown[start + 1 :]]
    assert prompt[0] == "<|user|>line 1"
    assert prompt[11:14] == ["line 12", "(16 more lines)", "line 29"]
    assert prompt[-1].startswith("line 40")


def test_every_fault_is_a_paragraph_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    result = call("check", f"{tmp_path}/broken.py:Broken")
    assert result.code == 2
    output = result.err.splitlines()
    assert [line.partition(";")[0] for line in output] == [
        "error: Broken.success: missing",
        "error: Broken.step: got a plain function",
        "error: Broken.observe: for speaker got a list [Message(role='planner', content='Go.')] as messages",
        "error: Broken.observe: for speaker message 1 of 1 is by 'planner'",
        "error: Broken.step: got a float 1.0",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import nowhere_at_all", "failed to load at line 1: ModuleNotFoundError"),
        ("class Broken(", "failed to load at line 1: SyntaxError"),
        ("Broken = 3", "has no environment 'Broken'"),
    ],
)
def test_a_file_that_does_not_load(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    result = call("check", f"{tmp_path}/broken.py:Broken")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert expected in result.err


@pytest.mark.parametrize("line", ["import time; time.sleep(0.5)", "await __import__('asyncio').sleep(60)"])
def test_a_step_that_takes_too_long_ends_the_check_with_a_paragraph(line: str, tmp_path: Path) -> None:
    path = tmp_path / "hangs.py"
    path.write_text(
        "from tests.helpers.games import Digit\n\n\nclass Hangs(Digit):\n    async def step(self, actions):\n"
        f"        {line}\n        return await super().step(actions)\n"
    )
    result = call("check", f"{path}:Hangs", "--step-seconds", "0.2")
    assert result.code == 2
    assert result.err.startswith("error: Hangs.step: not done after 0.2 s")
    assert "--step-seconds" in result.err
    assert len(result.err.splitlines()) == 1


def test_what_is_written_passes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("init", "my_task")
    assert (result.code, result.err) == (0, "")
    assert resolve(load("my_task.yaml")).env_spec.roles == ("lookout", "pilot")
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_task.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert call("init", "my_task").code == 2


@pytest.mark.parametrize("name", ["My", "a-b", "1x", "../x", "class", "none", "task", "env", "json", "cadre"])
def test_other_names_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("init", name)
    assert result.code == 2
    assert "my_task" in result.err or f"my_{name}" in result.err
    assert list(tmp_path.iterdir()) == []


def test_serve_env_runs_the_app_of_the_task_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(openenv_server, "make_openenv_app", lambda *arguments: served.append(arguments) or "app")

    class FakeServer:
        def __init__(self, app: str) -> None:
            served.append(app)

        def run(self, sockets: list[socket.socket]) -> None:
            served.append(sockets[0].getsockname())

    fake = SimpleNamespace(Config=lambda app, **options: app, Server=FakeServer)
    monkeypatch.setitem(sys.modules, "uvicorn", fake)
    with socket.create_server(("127.0.0.1", 0)) as selected:
        port = selected.getsockname()[1]
        refused = call("serve-env", "sokoban", "--port", str(port))
    assert (refused.code, served.pop()) == (2, ("sokoban", {}, "train", 64))
    assert f"--port: {port} on 127.0.0.1 cannot be had" in refused.err

    result = call("serve-env", "sokoban", "turns=2", "--split", "test", "--port", str(port), "--sessions", "3")
    assert result.code == 0
    assert served == [("sokoban", {"turns": 2}, "test", 3), "app", ("127.0.0.1", port)]
    assert f"http://127.0.0.1:{port}" in result.out


def test_serve_env_without_openenv_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openenv.core.env_server", None)
    result = call("serve-env", "sokoban")
    assert result.code == 2
    assert "openenv needs the package openenv" in result.err
    assert "pip install" in result.err


def test_the_tools_that_the_check_called_have_a_line() -> None:
    result = call("check", "almanac")
    assert result.code == 0, result.err
    assert "ok  tools that were called: calculate, search" in result.out.splitlines()


def test_a_recipe_is_its_environment_with_its_settings(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    recipe = tmp_path / "long.yaml"
    recipe.write_text("env: long.py:Long\nalgorithm: at_grpo\n")
    shown = call("check", str(recipe))
    assert shown.code == 0, shown.err
    assert shown.out == call("check", f"{tmp_path}/long.py:Long").out
    recipe.write_text("env: plan-path\nsettings: {turns: 2, size: 3}\nalgorithm: at_grpo\n")
    assert call("check", str(recipe), "settings.size=4").out == call("check", "plan-path", "turns=2", "size=4").out
    assert "settings.turns" in call("check", str(recipe), "settings.turns=none").err
    assert "expected a YAML file" in call("check", str(tmp_path / "absent.yaml")).err
