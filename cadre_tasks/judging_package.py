"""Packages that read hostile text for a reward: their location, and sandboxes whose warm parents have loaded them."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cadre.errors import ConfigError, SandboxError
from cadre.plugins import install_command
from cadre_tasks.sandbox import Limits, Sandbox, default


@dataclass(frozen=True)
class JudgingPackage:
    """`name` is what pip knows it by and `extra` the extra that brings it; `module` uses it inside of the sandbox."""

    name: str
    extra: str
    does: str
    module: str

    def file(self) -> str:
        """Return the path of the installed package. Raises ConfigError if it is missing: environments check this before
        any model loads."""
        spec = importlib.util.find_spec(self.name.replace("-", "_"))
        if spec is None or spec.origin is None:
            raise ConfigError(
                f"env: this environment {self.does} with the package {self.name}; got a Python without it; expected it "
                f"installed. Run: {install_command(self.extra)}"
            )
        return spec.origin

    @cached_property
    def sandbox(self) -> Sandbox:
        """The sandbox that has this package loaded, at the level of the process's own sandbox."""
        packages = (os.path.dirname(os.path.dirname(self.file())),)
        return Sandbox(default().level, packages=packages, preload=(self.module,), cgroup=default().cgroup)

    async def call(self, function: str, arguments: Mapping[str, Any], limits: Limits) -> Any:
        """Return the JSON value that a function of `module` prints on a line that begins with its `nonce`, or None
        without such a line. Raises ConfigError without the package, SandboxError if its process cannot be started."""
        # The judged text could print a result of its own; it cannot know the nonce.
        nonce = secrets.token_hex(16)
        job_arguments = {**arguments, "nonce": nonce}
        job = {"kind": "external", "function": f"{self.module}:{function}", "arguments": job_arguments, "nonce": nonce}
        ending = (await self.sandbox.submit([job], "", limits))[0]
        if not ending.layers:
            raise SandboxError(f"the package {self.name} cannot be asked: {ending.error}")
        lines = ending.stdout.decode("ascii", "replace").splitlines()
        result_line = next((line for line in lines if line.startswith(f"{nonce} ")), None)
        return None if result_line is None else json.loads(result_line.removeprefix(nonce))
