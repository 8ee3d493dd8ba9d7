"""Packages that read hostile text for a reward: where they are, and sandboxes whose warm parents have them loaded."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import cached_property

from cadre.errors import ConfigError
from cadre.sandbox import Sandbox, default


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
