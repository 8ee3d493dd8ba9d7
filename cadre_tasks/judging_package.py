"""Packages that read hostile text for a reward: where they are, and sandboxes whose warm parents have them loaded."""

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
from cadre_tasks.sandbox import Limits, Sandbox, default


@dataclass(frozen=True)
class JudgingPackage:
    """`name` is what pip knows it by and `extra` the extra that brings it; `module` uses it inside of the sandbox."""

    name: str
    extra: str
    does: str
    module: str

    def file(self) -> str:
        """Where it is installed. Raises ConfigError where it is not: environments ask before any model loads."""
        found = importlib.util.find_spec(self.name.replace("-", "_"))
        if found is None or found.origin is None:
            raise ConfigError(
                f"env: this environment {self.does} with the package {self.name}; got a Python without it; expected it "
                f'installed. Run: pip install "cadre-rl[{self.extra}]"'
            )
        return found.origin

    @cached_property
    def sandbox(self) -> Sandbox:
        """At the level of the process's own sandbox."""
        packages = (os.path.dirname(os.path.dirname(self.file())),)
        return Sandbox(default().level, packages=packages, preload=(self.module,), cgroup=default().cgroup)

    async def told(self, function: str, arguments: Mapping[str, Any], limits: Limits) -> Any:
        """What a function of `module` writes as JSON in a line behind the `nonce` that it is given; None where it comes
        to no such line. Raises ConfigError without the package, SandboxError where its process cannot be started."""
        nonce = secrets.token_hex(16)
        asked = {**arguments, "nonce": nonce}
        job = {"kind": "external", "function": f"{self.module}:{function}", "arguments": asked, "nonce": nonce}
        ending = (await self.sandbox.submit([job], "", limits))[0]
        if not ending.layers:
            raise SandboxError(f"the package {self.name} cannot be asked: {ending.error}")
        lines = ending.stdout.decode("ascii", "replace").splitlines()
        said = next((line for line in lines if line.startswith(f"{nonce} ")), None)
        return None if said is None else json.loads(said.removeprefix(nonce))
