"""Containers by the command line of a fake runtime, and of a real one where CADRE_TEST_IMAGE names an image of it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time

import pytest

from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, SandboxError, SandboxUnavailable
from cadre.types import Message, Observation, Reward, Sample, Task, ToolCall
from cadre_programs import containers
from cadre_programs.containers import (
    Container,
    ContainerConfig,
    ContainerShell,
    check_containers,
    find_missing_limits,
    make_archive,
    read_archive,
    run_in_container,
)
from tests.helpers.containers import fake_runtime

CONFIG = ContainerConfig(seconds=5, output=4, disk=1)


@pytest.fixture
def state(tmp_path):
    with fake_runtime(tmp_path, "docker") as folder:
        yield folder


def run(command, files=None, collect=False, config=CONFIG):
    archive = make_archive(files or {}) if files is not None else b""
    return asyncio.run(run_in_container(config, ["sh", "-c", command], archive, collect))


def running(state):
    return [name for name in os.listdir(state) if name.startswith("cadre-")]


# Files


def test_files_go_in_and_come_out(state):
    result = run("cat src/a; echo more >> src/a; echo oops >&2; exit 3", {"src/a": "text\n", "b": b"\xff"}, True)
    assert (result.status, result.code, result.stdout, result.stderr) == ("error", 3, "text\n", "oops\n")
    assert read_archive(result.archive) == {"src/a": b"text\nmore\n", "b": b"\xff"}
    assert running(state) == []


def test_equal_files_make_equal_archives():
    assert make_archive({"a": "1", "b": "2"}) == make_archive({"b": b"2", "a": b"1"})


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", "a//b", "", ".", "a\nb", "a/\x00"])
def test_paths_that_leave_the_folder_or_are_odd_make_no_archive(path):
    with pytest.raises(ValueError, match="expected a relative one"):
        make_archive({path: "x"})


def archive_of(*members):
    """Return an archive of (name, content, changes of the member)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content, changes in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for field, value in changes.items():
                setattr(member, field, value)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


GOOD = ("good", b"1", {})
SPARSE = {"pax_headers": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "99999999999"}}


@pytest.mark.parametrize(
    "member",
    [
        ("link", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("hard", b"", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}),
        ("device", b"", {"type": tarfile.CHRTYPE}),
        ("pipe", b"", {"type": tarfile.FIFOTYPE}),
        ("folder", b"", {"type": tarfile.DIRTYPE}),
        ("/etc/cron.d/x", b"1", {}),
        ("../../x", b"1", {}),
        ("a/../../x", b"1", {}),
        ("line\nbreak", b"1", {}),
        ("\x1b[31mred", b"1", {}),
        ("\u202eright", b"1", {}),
        ("\udcff", b"1", {}),
        ("x" * 2000, b"1", {}),
        ("sparse", b"1\n0\n1\n" + b"\0" * 506, SPARSE),
    ],
)
def test_links_and_odd_names_of_a_hostile_archive_are_left_out(member):
    assert read_archive(archive_of(GOOD, member)) == {"good": b"1"}


def test_what_is_too_much_or_damaged_is_left_out(monkeypatch):
    huge = archive_of(GOOD, ("huge", b"0" * 5000, {}), ("after", b"1", {}))
    assert read_archive(huge, max_bytes=1000) == {"good": b"1"}
    assert read_archive(huge[:3000], max_bytes=10_000) in ({"good": b"1"}, {"good": b"1", "huge": b""})
    for damaged in (b"", None, b"\0" * 1024, b"no archive", os.urandom(2048), huge[:100]):
        assert read_archive(damaged) == {}
    monkeypatch.setattr(containers, "MAX_FILES", 1)
    assert read_archive(archive_of(GOOD, ("more", b"1", {}))) == {"good": b"1"}


# Limits


def test_a_container_is_confined(state):
    words = Container(CONFIG).run_words()
    expected = (
        "--rm --pull=never --network=none --read-only --cap-drop=ALL --security-opt=no-new-privileges "
        "--user=65533:65533 --memory=1024m --memory-swap=1024m --pids-limit=64 --cpus=1 --log-driver=none"
    )
    assert set(expected.split()) <= set(words)
    assert "--network=none" not in Container(ContainerConfig(network=True)).run_words()
    assert "--env=http_proxy=" in words


def test_no_variable_of_this_process_is_passed_on(state, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    assert not [word for word in Container(CONFIG).run_words() if "SECRET" in word]


def test_output_without_end(state):
    result = run("yes")
    assert (result.status, len(result.stdout)) == ("flood", 4096)
    assert running(state) == []


@pytest.mark.slow
def test_time_and_files_without_end(state):
    assert run("yes >&2").status == "flood"
    started = time.monotonic()
    result = run("echo begun; trap '' TERM; while :; do sleep 1; done", config=ContainerConfig(seconds=0.2))
    assert (result.status, result.archive) == ("timeout", None)
    assert time.monotonic() - started < 3
    assert run("head -c 3000000 /dev/zero > big", collect=True).status == "flood"
    assert running(state) == []


def test_a_container_ends_with_its_owner(state, monkeypatch):
    async def leave():
        container = Container(CONFIG)
        await container.start()
        assert running(state) == [container.name]
        assert json.loads((state / container.name / "record.json").read_text())["labels"] == {
            "cadre.run": "my_run-1",
            "cadre.owner": containers.owner_label(),
        }
        container.process.stdin.close()  # as the kernel does when this process is killed
        await container.process.wait()
        assert running(state) == []

    monkeypatch.setenv("CADRE_RUN", "my run-1")
    asyncio.run(leave())


@pytest.mark.parametrize(
    ("label", "is_removed"),
    [
        ("{machine}-{pid}-0", True),  # a later process has the number
        ("{machine}-4194303-1", True),
        ("{own}", False),
        ("another-1-4194303-1", False),  # of another machine, or namespace
        ("junk", False),
        ("", False),
    ],
)
def test_the_sweep_removes_what_dead_processes_left(state, label, is_removed):
    label = label.format(machine=containers._machine(), pid=os.getpid(), own=containers.owner_label())
    (state / "cadre-left").mkdir()
    (state / "cadre-left" / "record.json").write_text(json.dumps({"pid": 4194303, "labels": {"cadre.owner": label}}))
    assert containers.sweep(shutil.which("docker")) == (["cadre-left"] if is_removed else [])
    assert running(state) == ([] if is_removed else ["cadre-left"])


# What is missing is said before any model loads


def test_what_is_missing_is_an_error(state):
    (state.parent / "docker").unlink()
    with pytest.raises(ConfigError, match="docker is not on the PATH; podman is not on the PATH; expected"):
        check_containers(CONFIG)


def test_a_daemon_that_does_not_run_is_an_error_and_podman_is_taken_instead(tmp_path):
    with fake_runtime(tmp_path, "docker") as state:
        (state / "info").touch()
        with pytest.raises(ConfigError, match=r"docker info fails .info does not work.; podman is not"):
            check_containers(CONFIG)
        containers.find_runtime.cache_clear()
        (state.parent / "podman").write_text("#!/bin/sh\nexit 0\n")
        (state.parent / "podman").chmod(0o755)
        assert containers.find_runtime("auto") == str(state.parent / "podman")


def test_an_image_that_is_not_here_is_an_error(state):
    with pytest.raises(ConfigError, match=r"No such image: missing:1.*Run: docker pull missing:1"):
        check_containers(CONFIG, ["there:1", "missing:1"])


@pytest.mark.parametrize("image", ["", "-v=/:/host", "a b", "a\n", None, 3, "ä"])
def test_a_tasks_image_is_a_name(image):
    with pytest.raises(ConfigError, match=r"container.image: got .*expected the name of an image"):
        CONFIG.with_image(image)


PROBE = "user=65534\nCapEff=0\nCapBnd=0\nNoNewPrivs=1\nmemory=100\nprocesses={processes}\n"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("user=65534", "user=0"), "the user"),
        (("CapEff=0", "CapEff=1ff"), "dropped capabilities"),
        (("NoNewPrivs=1", "NoNewPrivs=0"), "no-new-privileges"),
        (("memory=100", "memory=max"), "the memory limit"),
        (("memory=100\n", ""), "the memory limit"),
        (("processes={processes}", "processes=max"), "the limit of processes"),
        (("user", "root=writable\nuser"), "the read-only root"),
        (("user", "interface=eth0:\nuser"), "no network"),
        (("user", "tar=missing\nuser"), "tar in the image"),
    ],
)
def test_a_limit_that_does_not_hold_is_found(change, fault):
    printed = PROBE.format(processes=CONFIG.processes)
    assert find_missing_limits(CONFIG, printed) == []
    old, new = (text.format(processes=CONFIG.processes) for text in change)
    assert find_missing_limits(CONFIG, printed.replace(old, new)) == [fault]


def test_a_runtime_that_does_not_confine_is_an_error(state):
    (state / "probe").write_text(PROBE.replace("user=65534", "user=0"))
    with pytest.raises(SandboxError, match=r"a trial in python:3.12-slim printed 'user=0.*expected the user to hold"):
        check_containers(CONFIG)


def test_what_holds_is_no_error_and_a_container_that_does_not_start_is_one(state):
    check_containers(CONFIG)
    (state / "run").touch()
    with pytest.raises(SandboxUnavailable, match=r"did not start .run does not work"):
        run("true")


# The tool


class Shell(Env):
    roles = ("coder",)
    tools = {"coder": [ContainerShell({"common": "1"}, seconds=5, output=4)]}

    def observe(self):
        return {"coder": Observation("coder", (Message("user", "go"),))}

    async def step(self, actions):
        return Reward()


def act(env, command):
    """Return the result of a call of the tool."""
    message = Message("assistant", "", (ToolCall("0", "run_command", json.dumps({"command": command})),))
    asyncio.run(env.step_samples({"coder": Sample("coder", "p", "", (), (), (), "stop", 0, message)}))
    return env.observe()["coder"].messages[-1].content


def test_a_shell_is_a_tool_with_the_files_of_the_task(state):
    spec = EnvSpec(Shell, {})
    env = spec.make(Task("t", {"image": "own:1", "files": {"a": "one\n"}}))
    assert env.observe()["coder"].tools[0].name == "run_command"
    assert act(env, "ls; cat a; exit 2") == "[exit code 2]\na\ncommon\none\n"


@pytest.mark.slow
def test_the_files_of_a_shell_are_the_states_own(state):
    env = EnvSpec(Shell, {}).make(Task("t", {"files": {"a": "one\n"}}))
    fork = env.fork()
    assert act(fork, "echo two > a; exit 2") == "[exit code 2]"
    assert (act(fork, "cat a"), act(env, "cat a")) == ("two\n", "one\n")
    assert act(env, "rm a; yes").startswith("Error: the command printed or wrote too much.\ny\n")
    assert act(env, "cat a") == "one\n"


def test_a_shell_is_checked_before_a_model_loads(state):
    (state.parent / "docker").unlink()
    with pytest.raises(ConfigError, match="docker is not on the PATH"):
        EnvSpec(Shell, {})


# A real runtime: CADRE_TEST_IMAGE=python:3.12-slim pytest tests/cadre_programs/test_containers.py -m slow

HOSTILE = {
    "yes > big; ls": "ok",
    "dd if=/dev/zero of=holes bs=1 count=0 seek=1000000000000": "flood",
    "i=0; while [ $i -lt 3000 ]; do : > f$i; i=$((i+1)); done": "flood",
    "python3 -c 'x = bytearray(10**10)'": ("error", "killed"),
    "f() { f | f & }; f; sleep 1; echo on": None,
    "kill -9 -1; kill -STOP 1; kill -9 1; echo alive": ("ok", "killed"),
    "touch /x || exit 9": "error",
    "cat /proc/1/environ || exit 9": "error",
    "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 80), 2)\"": "error",
    'test $(id -u) = 65534 && test -z "$(env | grep -i secret)"': "ok",
    "ln -s /etc/passwd link; mkfifo pipe; : > \"$(printf 'a\\n\\377')\"; mkdir -m 0 closed": "ok",
}


@pytest.mark.slow
@pytest.mark.skipif("CADRE_TEST_IMAGE" not in os.environ, reason="CADRE_TEST_IMAGE names no image")
@pytest.mark.parametrize("command", HOSTILE)
def test_a_real_container_holds(command, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    config = ContainerConfig(image=os.environ["CADRE_TEST_IMAGE"], seconds=20, memory=0.25, disk=1)
    check_containers(config)
    result = run(command, {"a": "1"}, True, config)
    expected = HOSTILE[command]
    assert expected is None or result.status in expected, result
    assert set(read_archive(result.archive)) <= {"a", "big"}


@pytest.mark.slow
def test_nothing_is_left_of_a_process_that_was_killed(state):
    code = (
        "import asyncio, os; from cadre_programs.containers import *\n"
        "async def main():\n    container = Container(ContainerConfig())\n    await container.start()\n"
        "    asyncio.create_task(container.execute(['sleep', '50']))\n"
        "    await asyncio.sleep(0.3)\n    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    deadline = time.monotonic() + 5
    while running(state) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running(state) == []
