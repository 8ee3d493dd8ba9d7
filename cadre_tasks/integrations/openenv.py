"""Environments of OpenEnv (package `openenv-core`, 0.3) by its client: a server that runs, or one started here.

A WebSocket connection is a session with an environment of its own. A fork is another session, which is reset with the
same seed and given the recorded actions; a server has no copy of a state, so the environment must be deterministic.
`Pool` says how many sessions a server has at once: sessions that wait are closed and replayed when they are needed.

An action that the server does not accept is the agent's fault, and ends the episode without reward. A server that is
gone, too slow, or raises an error is not: the state is replayed once in a new session, and `ServerFailed`, an error of
the machine, ends the branch without a reward for its samples.
"""

from __future__ import annotations

import atexit
import copy
import importlib.util
import json
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, Self

from cadre.errors import ConfigError
from cadre.plugins import package
from cadre.types import Reward, Task
from cadre_tasks.integrations import OneAgentGame, expect_equal

# Codes of messages about an action that has another form than the environment's; older servers send none.
INVALID_ACTION = ("(code: VALIDATION_ERROR)", "(code: INVALID_JSON)")


class ServerFailed(ConnectionError):
    """A server failed at something that says nothing about the action."""


class InvalidAction(Exception):
    """A server does not accept an action."""


class Pool:
    """The sessions of one server, at most `size` at a time; that of the state used longest ago is closed for another.
    Of a synchronous client, as the states of a rollout are stepped one after the other."""

    def __init__(self, url: str, size: int, timeout_s: float) -> None:
        self.url, self.size, self.timeout_s = url, size, timeout_s
        self.has_answered = False
        # By state, the one used longest ago first.
        self.sessions: dict[int, Any] = {}

    def open(self, state: int) -> Any:
        """Return a new session for a state, without an episode. Raises ConfigError if the server has never answered,
        and ServerFailed later."""
        while len(self.sessions) >= self.size:
            self.close(next(iter(self.sessions)))
        kind = package("openenv.core", "openenv").GenericEnvClient
        client = kind(self.url, connect_timeout_s=self.timeout_s, message_timeout_s=self.timeout_s).sync()
        try:
            client.connect()
        except (OSError, TimeoutError) as error:
            if self.has_answered:
                raise ServerFailed(f"openenv: {self.url} does not answer any more ({error})") from error
            raise ConfigError(
                f"settings.url: no OpenEnv server answers at {self.url} ({error}). Start it, or name its app in "
                "settings.app."
            ) from None
        self.has_answered = True
        self.sessions[state] = client
        return client

    def get(self, state: int) -> Any:
        """Return the session of a state, or None if it has none any more."""
        if (client := self.sessions.pop(state, None)) is not None:
            self.sessions[state] = client
        return client

    def call(self, state: int, method: str, *arguments: Any, **named_arguments: Any) -> Any:
        """Return the result of a session's method.

        Raises InvalidAction, and ServerFailed after any other error, which closes the session: the late answer to a
        call that took too long would be taken for that of the next one.
        """
        try:
            return getattr(self.sessions[state], method)(*arguments, **named_arguments)
        except Exception as error:
            message = f"{type(error).__name__}: {error}".rstrip(": ")
            is_of_server = isinstance(error, RuntimeError) and str(error).startswith("Server error")
            if is_of_server and ("(code: " not in message or any(code in message for code in INVALID_ACTION)):
                raise InvalidAction(str(error)) from error
            self.close(state)
            hint = ""
            if "CAPACITY" in message:
                hint = f". It has fewer sessions at once than settings.sessions, {self.size}: lower that"
            raise ServerFailed(f"openenv: {self.url} failed at {method} ({message}){hint}") from error

    def close(self, state: int) -> None:
        if (client := self.sessions.pop(state, None)) is not None:
            with suppress(Exception):  # a connection that is broken cannot be closed in order
                client.close()


@lru_cache
def pool_of(url: str, size: int, timeout_s: float) -> Pool:
    return Pool(url, size, timeout_s)


@lru_cache
def start_server(app: str, start_timeout_s: float) -> str:
    """Start a server of this machine for `module:app`, once, and return its URL. It ends with this process. Raises
    ConfigError if there is no such app, or it does not listen within the time."""
    package("openenv.core", "openenv")
    module = app.partition(":")[0]
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or ":" not in app:
        raise ConfigError(
            f"settings.app: {app!r} is in no installed module; expected MODULE:NAME, such as echo_env.server.app:app."
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Every session that is closed is an error in the log of the server.
    options = f"--host 127.0.0.1 --port {port} --log-level critical"
    server = subprocess.Popen([sys.executable, "-m", "uvicorn", app, *options.split()])
    atexit.register(server.terminate)
    deadline = time.monotonic() + start_timeout_s
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return f"http://127.0.0.1:{port}"
        time.sleep(0.05)
    status = server.poll()
    server.terminate()
    if status is not None:
        raise ConfigError(f"settings.app: the server of {app} ended with status {status}; its messages are above.")
    raise ConfigError(
        f"settings.app: the server of {app} did not start within {start_timeout_s:g} s. Raise settings.start_timeout_s."
    )


class OpenEnv(OneAgentGame):
    """Settings:

    url           of a running server; or
    app           MODULE:NAME of a server's app in an installed package, which is started on this machine
    action        the field of an action that the answer is; "" if the answer is the whole action, as JSON
    action_fields other fields of every action
    observation   the field of an observation that is shown; without it all of them as JSON
    prompt        a system message
    reset         arguments of every reset, besides the task's seed
    turns         an episode that takes more steps is over, without success
    solved        sum of rewards from which an episode that is over is a success
    sessions      how many the server has at once (its `max_concurrent_envs`)
    timeout_s     of a connection, a reset or a step
    start_timeout_s  within which the server of `app` listens
    exceptions    what an exception of the environment in a step is: a `failure` of the environment, or `invalid`, the
                  agent's, for environments that raise one for an action against the rules
    count         tasks of the training split; a tenth as many for testing, with other seeds
    """

    plain_text = dict.fromkeys(("action", "observation", "prompt"), ".*")

    def __init__(
        self,
        task: Task,
        url: str = "",
        app: str = "",
        action: str = "message",
        action_fields: dict[str, Any] | None = None,
        observation: str = "",
        prompt: str = "",
        reset: dict[str, Any] | None = None,
        turns: int = 20,
        solved: float = 1.0,
        sessions: int = 1,
        timeout_s: float = 60.0,
        exceptions: Literal["failure", "invalid"] = "failure",
        start_timeout_s: float = 300.0,
    ) -> None:
        super().__init__(task, observation, turns, solved)
        if bool(url) == bool(app):
            raise ConfigError(f"settings.url: got url {url!r} and app {app!r}; expected one of them.")
        self.pool = pool_of(url or start_server(app, start_timeout_s), max(1, sessions), timeout_s)
        self.action, self.fields, self.exceptions = action, dict(action_fields or {}), exceptions
        self.reset_arguments = dict(reset or {})
        self.begin(prompt, self._with_retry(self._open).observation)

    def _open(self) -> Any:
        """Open a session, reset it and repeat the actions; return the last result."""
        self.pool.open(id(self))
        weakref.finalize(self, self.pool.close, id(self)).atexit = False
        try:
            result = self.pool.call(id(self), "reset", seed=self.task.data["seed"], **self.reset_arguments)
        except InvalidAction as error:
            self.pool.close(id(self))
            raise ConfigError(
                f"settings.reset: got {self.reset_arguments!r}, which the server does not accept ({error})."
            ) from None
        total = 0.0
        for action in self.actions:
            try:
                result = self.pool.call(id(self), "step", action)
            except InvalidAction as error:
                self.pool.close(id(self))
                raise ServerFailed(f"openenv: {self.pool.url} accepted an action once alone ({error})") from error
            total += float(result.reward or 0.0)
        if self.actions:
            expect_equal(
                "openenv",
                (self.messages[-1].content, self.total),
                (self.text_of(result.observation), total),
                "Name a field in settings.observation that depends on the seed and the actions alone, or raise "
                "settings.sessions.",
            )
        return result

    def _with_retry(self, work: Callable[[], Any]) -> Any:
        """Return the result of the work, which is done once more, in a new session, if the server fails."""
        try:
            return work()
        except ServerFailed:
            return work()

    def _step(self, action: dict[str, Any]) -> Any:
        if self.pool.get(id(self)) is None:
            self._open()
        return self.pool.call(id(self), "step", action)

    async def step(self, actions: dict[str, str]) -> Reward:
        (text,) = actions.values()
        action = self._action_of(text)
        if action is None:
            self.over = True
            return Reward(parts={"valid": 0.0})
        try:
            result = self._with_retry(lambda: self._step(action))
        except (InvalidAction, ServerFailed) as error:
            is_raised = self.exceptions == "invalid" and "(code: EXECUTION_ERROR)" in str(error)
            if isinstance(error, ServerFailed) and not is_raised:
                raise
            self.over = True
            self.pool.close(id(self))
            return Reward(parts={"valid": 0.0})
        return self.took(text, action, result.observation, float(result.reward or 0.0), bool(result.done))

    def _action_of(self, text: str) -> dict[str, Any] | None:
        """Return the action of an answer; None for an answer that is to be JSON and is not an object."""
        if self.action:
            return {**self.fields, self.action: text}
        try:
            action = json.loads(text)
        except ValueError:
            return None
        return {**self.fields, **action} if isinstance(action, Mapping) else None

    def fork(self) -> Self:
        return copy.copy(self)

    def close(self) -> None:
        self.pool.close(id(self))
