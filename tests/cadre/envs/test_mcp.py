"""MCP servers as tools, over stdio and HTTP: calls, state in forks, and servers that fail."""

from __future__ import annotations

import asyncio
import copy
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cadre.env import Env
from cadre.envs.check import check_env
from cadre.envs.mcp import McpServer
from cadre.envs.spec import EnvSpec
from cadre.envs.tools import ServerLost, run_call, runnable_tools
from cadre.errors import ConfigError
from cadre.types import Message, Observation, Reward, Task, Tool, ToolCall
from tests.helpers.extras import skip_without
from tests.helpers.mcp_server import TOOLS, http_server

skip_without("mcp")

# -S -E: the server needs nothing but the standard library, and starts sooner without the others.
COMMAND = (sys.executable, "-S", "-E", str(Path(__file__).parents[2] / "helpers" / "mcp_server.py"))


def totals(**settings: Any) -> McpServer:
    return McpServer(COMMAND, **settings)


def call(server: McpServer, name: str, arguments: str = "{}", timeout_s: float = 5.0) -> str:
    return asyncio.run(run_call(runnable_tools([server]), ToolCall("c", name, arguments), timeout_s, 500))[0]


def test_the_tools_of_a_server_are_offered_and_called() -> None:
    server = totals(stateless=True)
    server.check()
    assert server.tools() == tuple(Tool(name, "é", schema) for name, schema in TOOLS.items())
    assert call(server, "add", '{"number": 3}') == "é 3"
    assert call(server, "picture") == "[image: left out]"
    assert call(server, "fail") == "Error: é 3"
    assert [tool.name for tool in totals(only=["total"]).tools()] == ["total"]
    with pytest.raises(ConfigError, match="has no tool 'sum'; expected one of add, total"):
        totals(only=["sum"]).tools()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{}", "'number' is a required property"),
        ('{"number": "3"}', "number: '3' is not of type 'integer'"),
        ('{"number": 100}', "number: 100 is greater than the maximum of 99"),
        ("[3]", "expected a JSON object"),
        ("{", "Expecting property name"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_arguments_are_validated_before_they_are_sent(arguments: str, words: str) -> None:
    result = call(totals(stateless=True), "add", arguments)
    assert result.startswith("Error: wrong arguments of add: ")
    assert words in result


def test_a_fork_of_a_state_has_a_server_in_that_state() -> None:
    """Mistake: siblings share a server, and each reads what the others wrote."""
    server = totals()
    assert call(server, "add", '{"number": 1}') == "é 1"
    forks = [copy.deepcopy(server) for _ in range(2)]
    assert [call(fork, "add", f'{{"number": {n}}}') for fork, n in zip(forks, (10, 20), strict=True)] == [
        "é 11",
        "é 21",
    ]
    assert [call(item, "total") for item in (server, *forks)] == ["é 1", "é 11", "é 21"]
    assert call(totals(), "total") == "é 0"
    shared = totals(stateless=True)
    assert copy.deepcopy(shared) is shared


def test_a_call_that_takes_too_long_is_not_made_again() -> None:
    server = totals()
    call(server, "add", '{"number": 5}')
    assert call(server, "sleep", timeout_s=0.05) == "Error: sleep did not end within 0.05 s."
    assert call(server, "total") == "é 5"  # of another server, in the state before that call


@pytest.mark.parametrize("stateless", [True, False])
def test_a_server_that_dies_is_a_failure_of_the_machine_and_started_again(stateless: bool) -> None:
    server = McpServer([*COMMAND, "dies"], stateless=stateless)
    call(server, "add", '{"number": 5}')
    with pytest.raises(ServerLost, match=r"mcp_server\.py dies"):
        call(server, "die")
    assert call(server, "total") == ("é 0" if stateless else "é 5")


def test_a_server_over_http() -> None:
    with http_server() as url:
        server = McpServer(url=url, headers={"authorization": "Bearer x"}, stateless=True)
        assert len(server.tools()) == len(TOOLS)
        assert call(server, "add", '{"number": 7}') == "é 7"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, r"got the command \[\] and the url ''"),
        ({"command": ["x"], "url": "http://x"}, "expected one of them"),
        ({"command": ["no-such-program-7"]}, "there is no program 'no-such-program-7'"),
        (
            {"command": [sys.executable, "-c", "raise SystemExit('no key')"], "start_s": 3},
            "cannot be reached .*it wrote: no key",
        ),
        (
            {"command": [sys.executable, "-S", "-c", "input()\ninput()"], "start_s": 0.1},
            "expected an MCP server within 0.1 s",
        ),
        ({"url": "http://127.0.0.1:9/mcp", "start_s": 3}, "http://127.0.0.1:9/mcp cannot be reached"),
    ],
)
def test_what_is_wrong_with_a_server_is_said(settings: dict[str, Any], words: str) -> None:
    def start() -> None:
        server = McpServer(**settings)
        server.check()
        server.tools()

    with pytest.raises(ConfigError, match=words):
        start()


class Totals(Env):
    """A role that has a server with a state."""

    roles = ("clerk",)
    tools = {"clerk": [McpServer(COMMAND, only=["add", "total"])]}
    text = ""

    def observe(self) -> dict[str, Observation]:
        return {} if self.text else {"clerk": Observation("clerk", (Message("user", "What is the total?"),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        self.text = actions["clerk"] or "nothing"
        return Reward(local={"clerk": float(self.success)})

    @property
    def success(self) -> bool:
        return self.text == "42"

    @classmethod
    def tasks(cls, split: str, **settings: Any) -> Sequence[Task]:
        return [Task(f"{split}-{n}", {"n": n, "split": split}) for n in range(3)]


FLOOD = """
import runpy, sys, threading
# As long as the pipe and the log hold, many times over; written before and while calls are answered.
for _ in range(500):
    sys.stderr.write("x" * 9999 + "\\n")
threading.Thread(target=lambda: [sys.stderr.write("y" * 9999) for _ in iter(int, 1)], daemon=True).start()
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_what_a_server_writes_on_stderr_fills_no_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Mistake: it goes into a temporary file without a limit."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "flood.py").write_text(FLOOD)
    server = McpServer((sys.executable, "-S", "-E", str(tmp_path / "flood.py"), COMMAND[-1]))
    assert call(server, "add", '{"number": 3}') == "é 3"
    files = [Path("/proc/self/fd", name).resolve() for name in os.listdir("/proc/self/fd")]
    assert not [file for file in files if file.is_relative_to(tmp_path)]
    server.close()


def test_the_last_line_of_a_long_log_is_said(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import sys\nsys.stderr.write('x' * 500_000 + '\\nno key\\n')\nsys.exit(1)")
    with pytest.raises(ConfigError, match=r"cannot be reached .*it wrote: no key"):
        McpServer((sys.executable, str(tmp_path / "dies.py"))).tools()


@pytest.mark.slow
def test_the_contract_holds_with_a_server() -> None:
    assert len(asyncio.run(check_env(EnvSpec(Totals, {}), 1))) == 6
