"""macOS, simulated: what needs Linux's kernel is refused in a sentence, and the rest does without."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from cadre.engines import host
from cadre.envs.containers import ContainerConfig, check_containers
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.programs.program import Program
from cadre.types import Task


@pytest.fixture(autouse=True)
def _macos(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(host, "PROC", tmp_path / "no-proc")


def test_programs_and_containers_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"env: needs Linux, and this is darwin: programs are started .* container"):
        Program(Task("t", {}), "nothing.py:main", ["a"])
    with pytest.raises(ConfigError, match="container: needs Linux, and this is darwin"):
        check_containers(ContainerConfig(image="python:3.12-slim"))


def test_memory_and_scratch_folders_do_without_proc(tmp_path: Path) -> None:
    assert host.available_memory(tmp_path / "meminfo") is None
    assert host.cgroup_limit(tmp_path / "cgroup") == host.NO_LIMIT
    with host.temporary_scratch("test", tmp_path) as scratch:
        assert scratch.is_dir()
    assert not scratch.exists()


def test_a_task_that_runs_no_program_is_played() -> None:
    spec = EnvSpec("plan-path-no-tool", {})
    env = spec.make(spec.tasks("test")[0])
    (role,) = env.observe()
    asyncio.run(env.step({role: "[R]"}))
    assert env.observe()
