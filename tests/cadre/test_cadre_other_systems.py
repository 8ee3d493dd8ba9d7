"""macOS, simulated: what needs Linux's kernel is refused in a sentence, and the rest does without."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cadre.engines import host
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.types import Task
from cadre_programs.containers import ContainerConfig, check_containers
from cadre_programs.program import Program
from cadre_sandbox import SandboxError, levels
from cadre_sandbox.inside import parent


@pytest.fixture(autouse=True)
def _macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


def test_programs_and_containers_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"env: needs Linux, and this is darwin: programs are started .* container"):
        Program(Task("t", {}), "nothing.py:main", ["a"])
    with pytest.raises(ConfigError, match="container: needs Linux, and this is darwin"):
        check_containers(ContainerConfig(image="python:3.12-slim"))


def test_memory_and_scratch_folders_do_without_proc(tmp_path: Path) -> None:
    assert host.read_meminfo("MemAvailable", tmp_path / "meminfo") is None
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


@pytest.mark.slow
@pytest.mark.parametrize("task", ["plan-path-no-tool", "plan-path"])
def test_a_whole_training_on_the_cpu(task: str, tmp_path: Path) -> None:
    """A process of its own, whose modules of Cadre are imported as on a Mac; other packages have no Mac's files here. A
    task that runs programs of the model does so when asked to."""
    script = (
        "import contextlib, os, sys, torch, transformers, urllib.request, zoneinfo\n"
        "with contextlib.suppress(ImportError): import psutil\n"
        "sys.platform = 'darwin'\n"
        "for name in ('pidfd_open memfd_create sched_getaffinity O_PATH waitid getrandom pipe2 fdatasync getxattr '\n"
        "  'eventfd copy_file_range splice posix_fadvise posix_fallocate getresuid O_DIRECT').split():\n"
        "    delattr(os, name)\n"
        "import resource, select, socket, time\n"
        "del time.pthread_getcpuclockid, time.CLOCK_TAI, time.CLOCK_BOOTTIME, select.POLLRDHUP, resource.prlimit\n"
        "del resource.RLIMIT_MSGQUEUE, socket.SO_PEERCRED\n"
        "import platform; platform.system = lambda: 'Darwin'\n"
        "from cadre.cli import main; main()"
    )
    small = ["train.steps=2", "train.tasks_per_step=1", "evaluate.tasks=1", "settings.turns=1", "sampling.max_tokens=8"]
    command = [sys.executable, "-c", script, "train", task, "--run", str(tmp_path / "run"), *small]

    by_name = ["sandbox.level=process"] if task == "plan-path" else []
    result = subprocess.run([*command, *by_name], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert ("sandbox level process on darwin: nothing keeps programs" in result.stderr) == (task == "plan-path")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_child_that_ends_is_noticed_and_its_times_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no `waitid` before Python 3.13: there a child is reaped as soon as it is seen to have ended."""
    monkeypatch.delattr(os, "waitid")
    actual, reference = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(3)"], stdin=subprocess.PIPE
    )
    child = parent.Child(process.pid, -1, actual, [])
    assert parent.wait_for_end([child], reference, 0.001) == []
    assert process.stdin is not None
    process.stdin.close()
    while not parent.wait_for_end([child], reference, 1.0):
        pass
    report = parent.reap(child, "none", 0.0)
    assert report["code"] == 3
    assert report["cpu_s"] > 0
    reference.close()
    process.returncode = 3


def test_programs_run_without_confinement_only_by_name_and_with_a_notice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The guard of the training above."""
    monkeypatch.setattr(levels, "attempt", lambda level: levels.Trial(level, level == "process", "no Landlock"))
    assert levels.choose("process") == "process"
    assert "sandbox level process on darwin: nothing keeps programs of a model from your files" in caplog.text
    with pytest.raises(
        SandboxError, match=r"cannot confine programs at level 'auto'.* ask for level 'process' by name"
    ):
        levels.choose("auto")
