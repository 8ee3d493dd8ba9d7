"""MCP servers as tools, by the official client: programs over stdio, and addresses over streamable HTTP.

    tools = {"solver": [McpServer(["mcp-server-time"], stateless=True), McpServer(url="http://localhost:8000/mcp")]}

A server that is `stateless` is one process, or one connection, for all episodes of a process. Any other has a state,
and each state of an episode has a server of its own: a fork starts one when it first calls, and makes the calls again
that led to it. Connections live in the event loop of a thread, as those of an episode's loop would end with it.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

from cadre.envs.schemas import make_validator
from cadre.envs.tools import RunnableTool, ServerLost, as_text
from cadre.errors import ConfigError, ReplayDiverged, first_line
from cadre.plugins import package
from cadre.types import Tool

# JSON-RPC's code of a connection that is closed; other codes are answers of the server.
CONNECTION_CLOSED = -32000
# What the client writes itself where an address answers without JSON-RPC: a server that was started again does not
# know the session, and a gateway has no server behind it.
CLIENT_ERRORS = ("Session terminated", "Server returned an error response")
CLOSE_S = 3.0
MAX_PAGES = 50
# Bytes that are kept of what a server writes on stderr, the last ones, for the message where it does not start.
MAX_LOG = 65_536
MAX_SAID = 300  # characters of its last line
REPEATED = (
    "when a fork made the calls again that had led to its state; expected the result that it had. If no call changes "
    "what another returns, write stateless=True."
)


@dataclass(frozen=True)
class ServerLaunch:
    """How a server is reached: a command with its environment variables, or a URL with its headers."""

    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    start_s: float = 120.0

    def __str__(self) -> str:
        return self.url or " ".join(self.command)


class McpServer:
    """The tools of an MCP server, an entry of `Env.tools`.

    command, environment   the program and its arguments, and variables beside PATH, HOME and their like
    url, headers           an address in place of a command
    only                   the tools that are offered; all if empty
    stateless              True if no call changes what another returns: then all episodes share one server
    start_s                seconds that it may take to start
    """

    def __init__(
        self,
        command: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        url: str = "",
        headers: Mapping[str, str] | None = None,
        only: Sequence[str] = (),
        stateless: bool = False,
        start_s: float = 120.0,
    ) -> None:
        command = (command,) if isinstance(command, str) else tuple(command)
        if bool(command) == bool(url):
            advice = 'Write McpServer(["program", "argument"]) or McpServer(url="http://...").'
            got = f"got the command {list(command)} and the url {url!r}"
            raise ConfigError(f"McpServer: {got}; expected one of them. {advice}")
        variables, pairs = tuple((environment or {}).items()), tuple((headers or {}).items())
        self.launch = ServerLaunch(command, variables, url, pairs, start_s)
        self.only, self.stateless = tuple(only), stateless
        # The calls that led to this state with their results, and a connection to a server that is in it.
        self._calls: tuple[tuple[str, str, str], ...] = ()
        self._connection: _Connection | None = None

    def __repr__(self) -> str:
        return f"McpServer({str(self.launch)!r})"

    def __deepcopy__(self, memo: object) -> McpServer:
        if self.stateless:
            return self
        twin = object.__new__(McpServer)
        twin.launch, twin.only, twin.stateless = self.launch, self.only, False
        twin._calls, twin._connection = self._calls, None
        return twin

    def check(self) -> None:
        """Raise ConfigError if the client is not installed or the program is not found. Starts nothing."""
        package("mcp", "mcp", "McpServer")
        if self.launch.command and shutil.which(self.launch.command[0]) is None:
            advice = "Install the server, or write the path to its program."
            raise ConfigError(f"McpServer: there is no program {self.launch.command[0]!r}; expected one. {advice}")

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools that are offered. Starts the server once for each process to ask it."""
        listed = _Shared.listed(self.launch, self.stateless)
        if missing := [name for name in self.only if name not in [tool.name for tool in listed]]:
            expected = f"expected one of {', '.join(tool.name for tool in listed)}"
            raise ConfigError(f"McpServer: {self.launch} has no tool {missing[0]!r}; {expected}. Fix `only`.")
        return tuple(tool for tool in listed if not self.only or tool.name in self.only)

    def runnable_tools(self) -> list[RunnableTool]:
        """Return the tools that are offered, with what validates and runs a call of each."""
        return [
            RunnableTool(tool, partial(self._call_by_name, tool.name), partial(_validate, tool), self._connect)
            for tool in self.tools()
        ]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the text that a call returns. An error of the tool is a text that begins with "Error: "."""
        await self._connect()
        return await self._call_by_name(name, **arguments)

    def close(self) -> None:
        """End the server of this state, if it has one of its own."""
        if self._connection is not None and not self.stateless:
            self._connection.close()
            self._connection = None

    async def _connect(self, call_s: float | None = None) -> None:
        """Connect to a server that is in this state, and to another one if the connection is lost. Each call that led
        to the state may take `call_s` seconds again."""
        if self._connection is not None and self._connection.is_open:
            return
        try:
            if self.stateless:
                self._connection = await asyncio.to_thread(_Shared.connection, self.launch)
                return
            connection = _Connection(self.launch)
            # A state that is forgotten without being closed leaves no process behind.
            weakref.finalize(self, connection.close)
            await asyncio.wrap_future(connection.opened)
        except ConfigError as error:
            if self.launch in _Shared.listings:  # it has started before
                raise ServerLost(str(error)) from None
            raise
        try:
            for name, arguments, result in self._calls:
                async with asyncio.timeout(call_s):
                    repeated = await connection.call(name, json.loads(arguments))
                if repeated != result:
                    got = f"returned {repeated[:200]!r} for {name} in place of {result[:200]!r}"
                    raise ReplayDiverged(f"McpServer: {self.launch} {got} {REPEATED}")
        except TimeoutError:
            connection.close()
            got = f"did not answer {name} within {call_s:g} s"
            raise ReplayDiverged(f"McpServer: {self.launch} {got} {REPEATED}") from None
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    async def _call_by_name(self, name: str, /, **arguments: Any) -> str:
        connection = self._connection
        assert connection is not None
        try:
            text = await connection.call(name, arguments)
        except BaseException:
            # Whether the call was made is unknown: the next one is made by a server in the state before.
            self.close()
            raise
        if not self.stateless:
            self._calls = (*self._calls, (name, json.dumps(arguments), text))
        return text


def _validate(tool: Tool, text: str) -> dict[str, Any]:
    """Return the arguments of a call. Raises ValueError, with a message for the model, if the schema forbids them."""
    import jsonschema
    from referencing.exceptions import Unresolvable

    try:
        arguments = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(arguments, dict):
        raise ValueError("expected a JSON object")
    try:
        error = jsonschema.exceptions.best_match(make_validator(tool.parameters).iter_errors(arguments))
    except TimeoutError:
        raise ValueError("a pattern of the schema could not be matched in time; write something simpler") from None
    except (Unresolvable, RecursionError, jsonschema.SchemaError):
        return arguments  # the server validates them itself
    if error is not None:
        raise ValueError(": ".join(filter(None, (".".join(map(str, error.absolute_path)), error.message[:300]))))
    return arguments


@contextmanager
def _bounded_log() -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """Return a file for a process to write to, and what returns the last MAX_LOG bytes of it. The running loop reads
    the rest away."""
    loop, log = asyncio.get_running_loop(), bytearray()
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    def drain() -> str:
        with suppress(BlockingIOError):
            log.extend(os.read(reader, MAX_LOG))
            del log[:-MAX_LOG]
        return log.decode(errors="replace")

    loop.add_reader(reader, drain)
    try:
        with open(writer, "w") as file:
            yield file, drain
    finally:
        loop.remove_reader(reader)
        os.close(reader)


# Connections, in the event loop of a thread of their own


class _Shared:
    """What the episodes of one process share: the loop, listings, and connections to stateless servers."""

    process = 0
    lock = threading.RLock()
    loop: asyncio.AbstractEventLoop
    listings: dict[ServerLaunch, tuple[Tool, ...]] = {}
    connections: dict[ServerLaunch, _Connection] = {}
    open: weakref.WeakSet[_Connection] = weakref.WeakSet()

    @classmethod
    def submit(cls, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run the coroutine in the loop; a forked process makes its own."""
        with cls.lock:
            if cls.process != os.getpid():
                cls.process, cls.loop = os.getpid(), asyncio.new_event_loop()
                cls.connections, cls.open = {}, weakref.WeakSet()
                threading.Thread(target=cls.loop.run_forever, name="cadre-mcp", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, cls.loop)

    @classmethod
    def connection(cls, launch: ServerLaunch) -> _Connection:
        """Return the open connection to a stateless server."""
        with cls.lock:
            connection = cls.connections.get(launch)
            if connection is None or not connection.is_open:
                connection = cls.connections[launch] = _Connection(launch)
            connection.opened.result()
        return connection

    @classmethod
    def listed(cls, launch: ServerLaunch, keep: bool) -> tuple[Tool, ...]:
        """Return all tools of a server; keep the connection that was made to ask it if `keep`."""
        with cls.lock:
            if launch not in cls.listings:
                connection = cls.connection(launch)
                cls.listings[launch] = connection.opened.result()[1]
                if not keep:
                    connection.close()
            return cls.listings[launch]


class _Connection:
    """One connection to one server. `opened` has its client and its tools, or the reason why there are none."""

    def __init__(self, launch: ServerLaunch) -> None:
        self._process = os.getpid()
        self.launch, self.opened = launch, Future[tuple[Any, tuple[Tool, ...]]]()
        self._closing: asyncio.Event | None = None
        self._is_closing = False
        self._ended = _Shared.submit(self._run())
        _Shared.open.add(self)

    @property
    def is_open(self) -> bool:
        return self._process == os.getpid() and not self._is_closing and not self._ended.done()

    async def _run(self) -> None:
        """Open the connection, and keep it until it is closed."""
        self._closing = asyncio.Event()
        mcp = package("mcp", "mcp")
        with _bounded_log() as (stderr, read_log):
            try:
                async with AsyncExitStack() as stack:
                    async with asyncio.timeout(self.launch.start_s):
                        client = await stack.enter_async_context(mcp.Client(self._transport(mcp, stderr)))
                        tools = await _list_tools(client)
                    self.opened.set_result((client, tools))
                    await self._closing.wait()
            except BaseException as error:
                if not self.opened.done():
                    output = read_log().strip().splitlines()[-1:]
                    cause = f"{first_line(_innermost(error))}{f'; it wrote: {output[0][:MAX_SAID]}' if output else ''}"
                    self.opened.set_exception(
                        ConfigError(
                            f"McpServer: {self.launch} cannot be reached ({cause}); expected an MCP server within "
                            f"{self.launch.start_s:g} s (start_s). Run it by hand, and look at what it writes."
                        )
                    )
                if not isinstance(error, Exception | asyncio.CancelledError):
                    raise

    def _transport(self, mcp: Any, stderr: Any) -> Any:
        launch = self.launch
        if launch.url:
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared._httpx_utils import create_mcp_http_client

            return streamable_http_client(
                launch.url, http_client=create_mcp_http_client(headers=dict(launch.headers)) if launch.headers else None
            )
        program, *arguments = launch.command
        parameters = mcp.StdioServerParameters(command=program, args=arguments, env=dict(launch.environment))
        return mcp.stdio_client(parameters, errlog=stderr)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the text that a call returns. Raises ServerLost if the connection breaks."""
        client, _ = self.opened.result()
        mcp = package("mcp", "mcp")
        try:
            result = await asyncio.wrap_future(_Shared.submit(client.call_tool(name, dict(arguments))))
        except mcp.MCPError as error:
            if error.code != CONNECTION_CLOSED and str(error) not in CLIENT_ERRORS:
                return f"Error: {error}"
            self.close()
            raise ServerLost(f"the MCP server {self.launch} closed the connection ({error})") from None
        except Exception as error:  # noqa: BLE001 - whatever the transport raises
            self.close()
            raise ServerLost(f"the MCP server {self.launch} is lost: {first_line(_innermost(error))}") from None
        return result_text(result)

    def close(self) -> None:
        """End the connection, and the server if it was started for it; returns at once."""
        if self.is_open and self._closing is not None:
            self._is_closing = True
            with suppress(RuntimeError):
                _Shared.loop.call_soon_threadsafe(self._closing.set)


def result_text(result: Any) -> str:
    """Return the text of a result: that of its parts, or its structured content where it has no parts."""
    text = "\n".join(map(_part_text, result.content))
    if not result.content and result.structured_content is not None:
        text = as_text(result.structured_content)
    return f"Error: {text}" if result.is_error and not text.startswith("Error: ") else text


def _part_text(part: Any) -> str:
    """Return the text of a part of a result; of an image or a sound that there was one."""
    text = getattr(part.resource if part.type == "resource" else part, "text", None)
    return text if isinstance(text, str) else f"[{part.type}: left out]"


async def _list_tools(client: Any) -> tuple[Tool, ...]:
    """Return the tools of a server, of all pages of its list."""
    tools, cursor = list[Tool](), None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += [Tool(tool.name, tool.description or "", dict(tool.input_schema)) for tool in page.tools]
        cursor = page.next_cursor
        if not cursor:
            break
    return tuple(tools)


def _innermost(error: BaseException) -> Exception:
    """Return the first error of nested groups, as task groups raise them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


@atexit.register
def _close_all() -> None:
    """End the servers of this process, so that none outlives it."""
    if _Shared.process != os.getpid():
        return
    connections = list(_Shared.open)
    for connection in connections:
        connection.close()
    for connection in connections:
        with suppress(Exception):
            connection._ended.result(CLOSE_S)
