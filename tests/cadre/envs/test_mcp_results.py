"""Results of MCP servers and states that are made again by repeated calls, with a connection that is a fake."""

from __future__ import annotations

import asyncio
import copy
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from cadre.envs import mcp
from cadre.envs.mcp import McpServer
from cadre.envs.tools import ServerLost, run_call
from cadre.errors import ReplayDiverged
from cadre.rollout.failures import failure_of
from cadre.types import Tool, ToolCall


class FakeConnection:
    """Answers each call of any connection with the next text."""

    texts: list[str] = []

    def __init__(self, launch: Any) -> None:
        self.is_open, self.opened = True, Future[Any]()
        self.opened.set_result((None, (Tool("draw", "", {}),)))

    async def call(self, name: str, arguments: Any) -> str:
        return self.texts.pop(0)

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> McpServer:
    monkeypatch.setattr(mcp, "_Connection", FakeConnection)
    return McpServer(["x"])


def test_a_fork_in_another_state_is_a_failure_of_the_machine(server: McpServer) -> None:
    """Mistake: the fork acts in a state of which the conversation before it says something else."""
    FakeConnection.texts = ["7", "7", "8", "9"]
    assert asyncio.run(server.call("draw", {})) == "7"
    alike, second = copy.deepcopy(server), copy.deepcopy(server)
    assert asyncio.run(alike.call("draw", {})) == "8"
    tools = {"draw": SimpleNamespace(validate=lambda text: {}, prepare=second._connect, function=None)}
    with pytest.raises(ReplayDiverged, match="returned '9' for draw in place of '7'") as caught:
        asyncio.run(run_call(tools, ToolCall("c", "draw", "{}"), 5.0, 100))  # type: ignore[arg-type]
    failure = failure_of(caught.value)
    assert (failure.reason, failure.rewarded) == ("diverged", False)


def test_a_call_that_a_fork_makes_again_has_the_time_limit_of_a_call(
    server: McpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeConnection.texts = ["7", "7"]
    assert asyncio.run(server.call("draw", {})) == "7"
    second = copy.deepcopy(server)

    async def hang(self: FakeConnection, name: str, arguments: object) -> str:
        await asyncio.sleep(1000.0)
        return "7"

    monkeypatch.setattr(FakeConnection, "call", hang)
    tools = {"draw": SimpleNamespace(validate=lambda text: {}, prepare=second._connect, function=None)}
    with pytest.raises(ReplayDiverged, match=r"did not answer draw within 0\.02 s when a fork"):
        asyncio.run(run_call(tools, ToolCall("c", "draw", "{}"), 0.02, 100))  # type: ignore[arg-type]


def test_arguments_that_a_pattern_matches_for_ages_are_an_error_for_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cadre.envs.schemas.PATTERN_S", 0.02)
    slow = Tool("say", "", {"type": "object", "properties": {"text": {"pattern": "^(a|aa)+$"}}})
    assert mcp._validate(slow, '{"text": "aaa"}') == {"text": "aaa"}
    with pytest.raises(ValueError, match="could not be matched in time"):
        mcp._validate(slow, f'{{"text": "{"a" * 60}!"}}')


class McpError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@pytest.mark.parametrize(
    ("code", "message", "is_lost"),
    [
        (-32000, "Connection closed", True),
        (-32600, "Session terminated", True),
        (-32603, "Server returned an error response", True),
        (-32602, "Unknown tool", False),
    ],
)
def test_a_server_that_was_started_again_is_lost(
    monkeypatch: pytest.MonkeyPatch, code: int, message: str, is_lost: bool
) -> None:
    """Mistake: the model reads "Session terminated" for every call from then on."""

    async def call_tool(name: str, arguments: Any) -> Any:
        raise McpError(code, message)

    monkeypatch.setattr(mcp, "package", lambda *names: SimpleNamespace(MCPError=McpError))
    connection = object.__new__(mcp._Connection)
    connection.launch, connection.opened, closed = mcp.ServerLaunch(url="http://x/mcp"), Future[Any](), []
    connection.opened.set_result((SimpleNamespace(call_tool=call_tool), ()))
    monkeypatch.setattr(mcp._Connection, "close", lambda self: closed.append(self))
    if is_lost:
        with pytest.raises(ServerLost, match=message):
            asyncio.run(connection.call("draw", {}))
    else:
        assert asyncio.run(connection.call("draw", {})) == f"Error: {message}"
    assert closed == [connection] * is_lost


def text(words: str) -> Any:
    return SimpleNamespace(type="text", text=words)


@pytest.mark.parametrize(
    ("content", "structured", "expected"),
    [
        ([text("a"), text("b")], {"c": 1}, "a\nb"),
        ([], {"c": [1, "é"]}, '{"c": [1, "é"]}'),
        ([], None, ""),
        ([SimpleNamespace(type="resource", resource=text("page"))], None, "page"),
        ([SimpleNamespace(type="resource", resource=SimpleNamespace(blob="AA"))], None, "[resource: left out]"),
        ([SimpleNamespace(type="image")], None, "[image: left out]"),
    ],
)
def test_no_part_of_a_result_is_lost_silently(content: list[Any], structured: Any, expected: str) -> None:
    """Mistake: a server that answers with structured content alone has answered with nothing."""
    result = SimpleNamespace(content=content, structured_content=structured, is_error=False)
    assert mcp.result_text(result) == expected
    assert mcp.result_text(SimpleNamespace(**{**vars(result), "is_error": True})) == f"Error: {expected}"
