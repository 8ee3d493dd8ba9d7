"""The level is what was asked for, or a clear error: nothing degrades in silence."""

import asyncio
import logging
import shutil
import tempfile
from pathlib import Path

import pytest

from cadre import errors
from cadre_sandbox import Limits, Result, Sandbox, SandboxError, levels, probes
from cadre_sandbox.inside import layers, namespaces, seccomp, syscalls
from cadre_sandbox.levels import Trial
from cadre_sandbox.worker import WorkerDied
from cadre_tasks import sandbox
from tests.helpers.sandboxes import shared_sandbox


def trial_of(monkeypatch: pytest.MonkeyPatch, available: set[str]) -> None:
    monkeypatch.setattr(
        levels, "attempt", lambda level: Trial(level, level in available, "" if level in available else "no")
    )


@pytest.mark.parametrize(
    ("available", "chosen"),
    [({"process", "confined", "isolated"}, "isolated"), ({"process", "confined"}, "confined")],
)
def test_auto_takes_the_highest_that_holds(monkeypatch: pytest.MonkeyPatch, available: set[str], chosen: str) -> None:
    trial_of(monkeypatch, available)
    assert levels.choose("auto") == chosen


def test_auto_never_goes_below_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    trial_of(monkeypatch, {"process"})
    with pytest.raises(SandboxError, match=r"isolated: no; confined: no.*process' by name"):
        levels.choose("auto")


@pytest.mark.parametrize(
    ("answers", "is_available"),
    [
        ([WorkerDied("stuck"), []], True),
        ([[], []], True),
        ([WorkerDied("stuck")] * 3, False),
    ],
)
def test_what_was_only_slow_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, answers: list[WorkerDied | list[probes.Outcome]], is_available: bool
) -> None:
    attempts = iter(answers)

    async def attack_one(runner: levels.OneWorker, chosen: list[probes.Attack]) -> list[probes.Outcome]:
        answer = next(attempts)
        if isinstance(answer, WorkerDied):
            raise answer from TimeoutError()
        return answer

    monkeypatch.setattr(levels, "attack_one", attack_one)
    trial = levels.attempt.__wrapped__("confined")
    assert (trial.holds, trial.slow) == (is_available, not is_available)


def test_what_got_through_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    breached = probes.Outcome("fork", "fork", "ok", "it says so itself", "", 0.1)
    late = probes.Outcome("TCP connection", "network", "wall", "the next run came out as wall", "", 9.0, slow=True)
    tries = []

    async def attack_one(runner: levels.OneWorker, chosen: list[probes.Attack]) -> list[probes.Outcome]:
        tries.append(1)
        return [breached, late]

    monkeypatch.setattr(levels, "attack_one", attack_one)
    trial = levels.attempt.__wrapped__("confined")
    assert (trial.holds, trial.slow, len(tries)) == (False, False, 1)


def test_a_busy_machine_is_told_apart_and_no_lower_level_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "attempt", lambda level: Trial(level, False, "stuck", slow=level == "isolated"))
    with pytest.raises(SandboxError, match="too busy to try the sandbox at level 'isolated'"):
        levels.choose("auto")


def test_a_level_by_name_is_that_level_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    trial_of(monkeypatch, {"process", "confined"})
    with pytest.raises(SandboxError, match="'isolated'"):
        Sandbox("isolated")


def test_what_is_given_up_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    trial_of(monkeypatch, {"confined"})
    with caplog.at_level(logging.INFO, "cadre_sandbox"):
        levels.choose("auto")
    assert "isolated does not hold here: no" in caplog.text
    assert "level confined (rlimits" in caplog.text


def test_a_child_that_arms_less_is_given_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer compares what the child says with what the level promises."""
    monkeypatch.setitem(layers.LAYERS, "confined", (*layers.CONFINED_LAYERS, "one more"))
    result: Result = asyncio.run(shared_sandbox("process").run("pass"))
    assert result.status == "ok"
    trial = asyncio.run(levels.attack_level("confined"))
    assert not trial.holds
    assert "one more" in trial.reason


def test_configure_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_default", None)
    sandbox.configure("confined")
    assert sandbox.record()["level"] == "confined"
    sandbox.configure("confined")
    sandbox.configure()
    with pytest.raises(errors.SandboxError, match="in use at level 'confined'"):
        sandbox.configure("isolated")


def test_the_table_has_a_row_for_each_level() -> None:
    rows = {row.name: row for row in sandbox.table()}
    assert {"system", "user", "Landlock", "level process", "level confined", "level isolated"} <= set(rows)
    assert rows["level confined"].given
    assert rows["level confined"].detail.endswith("seccomp")


def test_a_folder_needs_isolated() -> None:
    with pytest.raises(SandboxError, match="only level 'isolated'"):
        asyncio.run(shared_sandbox().run("pass", limits=Limits(folder_mb=1)))


def test_a_folder_is_writable_and_wiped() -> None:
    program = (
        "import os, pathlib, tempfile\nprint(os.listdir())\nopen('a', 'w').write('x' * 1000)\nos.mkdir('d')\n"
        "os.rename('a', 'd/b')\nprint(len(open('d/b').read()), sorted(os.listdir('.')))\nos.unlink('d/b')\n"
        "os.rmdir('d')\n"
        "open('left', 'w').close()"
    )

    async def go() -> list[Result]:
        return [await shared_sandbox("isolated").run(program, limits=Limits(folder_mb=1)) for _ in range(2)]

    for result in asyncio.run(go()):
        assert (result.status, result.stdout) == ("ok", "[]\n1000 ['d']\n"), result.stderr


def test_isolated_shows_libraries_below_tmp() -> None:
    """The new root is mounted there: files below it, such as a virtual environment, must be opened before."""
    folder = tempfile.mkdtemp(dir=namespaces.NEW_ROOT)
    try:
        for name, text in (("__init__", ""), ("late", "ANSWER = 42")):
            (Path(folder) / "venv" / "parcel").mkdir(parents=True, exist_ok=True)
            (Path(folder) / "venv" / "parcel" / f"{name}.py").write_text(text)
        (Path(folder) / "secret").write_text("secret")
        program = (
            "import os, parcel\nfrom parcel import late  # only now\nprint(late.ANSWER)\n"
            f"print(os.path.exists({folder + '/secret'!r}), os.path.exists({namespaces.NEW_ROOT + '/proc'!r}))"
        )

        async def go() -> Result:
            packages = (folder + "/venv",)
            async with Sandbox("isolated", workers=1, packages=packages, preload=("parcel",)) as box:
                return await box.run(program)

        result = asyncio.run(go())
    finally:
        shutil.rmtree(folder)
    assert (result.status, result.stdout) == ("ok", "42\nFalse False\n"), result.stderr


@pytest.mark.parametrize("level", ["confined", "isolated"])
def test_the_standard_streams_by_path(level: str) -> None:
    program = (
        "import os, sys\nprint(open('/dev/stdin').read(), open('/proc/self/fd/0').read())\n"
        "sys.stdout.flush()\nopen('/dev/stdout', 'a').write('more\\n')\nprint('end')\n"
        "open('/dev/stderr', 'w').write('error')\n"
    )

    result = asyncio.run(shared_sandbox(level).run(program, "input"))  # type: ignore[arg-type]
    assert (result.stdout, result.stderr) == ("input input\nmore\nend\n", "error")


def test_proc_shows_nothing_but_the_program() -> None:
    program = (
        "import os\ndef kind(path):\n    try:\n        return os.stat(path).st_mode > 0\n"
        "    except OSError as error:\n        return error.errno\n"
        "print([kind(f'/proc/{name}') for name in (1, 2, os.getppid(), 'sys', 'meminfo', 'self')])\n"
        "for name in ('', '/self', '/self/fd'):\n    try: print(os.listdir('/proc' + name))\n"
        "    except OSError as error: print(error.errno)\n"
        "for name in ('environ', 'mem', 'maps', 'status', 'root/etc/passwd', 'cwd/etc/passwd'):\n"
        "    try: print(open(f'/proc/self/{name}').read())\n    except OSError as error: print(error.errno)"
    )

    shown, *rest = asyncio.run(shared_sandbox("isolated").run(program)).stdout.splitlines()
    assert shown == "[2, 2, 2, 2, 2, True]"
    assert rest == ["13"] * 7 + ["2"] * 2


def test_both_architectures_have_every_call() -> None:
    """A table that lacks a call which the other has would break programs on one machine only."""
    for name in (*syscalls.ALWAYS, *syscalls.IN_FOLDER, *seccomp.conditional_rules(), "kill", "tgkill"):
        x86, arm = syscalls.NUMBERS[name]
        assert x86 is not None
        older = {
            "open",
            "stat",
            "lstat",
            "poll",
            "access",
            "pipe",
            "select",
            "dup2",
            "pause",
            "alarm",
            "rename",
            "mkdir",
        }
        older |= {"rmdir", "unlink", "getpgrp", "time", "epoll_wait"}
        assert (arm is None) == (name in older), name
    for position in (0, 1):
        numbers = [pair[position] for pair in syscalls.NUMBERS.values() if pair[position] is not None]
        assert len(numbers) == len(set(numbers))


def test_the_filter_of_one_process_is_the_one_made_for_it() -> None:
    shared = seccomp.assemble(seccomp.head() + seccomp.tail(folder=True))
    for pid in (1, 1234, 4_194_303):
        assert seccomp.personal(shared, pid) == seccomp.assemble(seccomp.head(pid) + seccomp.tail(folder=True))
    assert seccomp.personal(shared, 1) != shared


def answer(filters: list[seccomp.Instruction], number: int, arguments: tuple[int, ...] = (), machine: int = 0) -> int:
    """Run the BPF program as the kernel would."""
    arch = machine or syscalls.AUDIT_ARCH[syscalls.architecture()]
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = {0: number, 4: arch}
    for index, value in enumerate(padded):
        data[16 + 8 * index], data[20 + 8 * index] = value & 0xFFFFFFFF, value >> 32
    accumulator, position = 0, 0
    while True:
        code, true, false, constant = filters[position]
        position += 1
        if code == seccomp.LOAD:
            accumulator = data[constant]
        elif code == seccomp.AND:
            accumulator &= constant
        elif code == seccomp.RETURN:
            return constant
        else:
            holds = accumulator == constant if code == seccomp.EQUAL else accumulator >= constant
            position += true if holds else false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("folder", [False, True])
def test_the_filter_allows_exactly_the_list(monkeypatch: pytest.MonkeyPatch, machine: str, folder: bool) -> None:
    """For both architectures, call by call, whatever machine this is."""
    monkeypatch.setattr(seccomp, "architecture", lambda: machine)
    monkeypatch.setattr(seccomp, "number", lambda name: syscalls.NUMBERS[name][0 if machine == "x86_64" else 1])
    filters = seccomp.head(1234) + seccomp.tail(folder)
    assert all(max(true, false) < 256 for _, true, false, _ in filters)
    arch = syscalls.AUDIT_ARCH[machine]
    column = 0 if machine == "x86_64" else 1
    always = {syscalls.NUMBERS[name][column] for name in syscalls.ALWAYS + (syscalls.IN_FOLDER if folder else ())}
    special = {syscalls.NUMBERS[name][column] for name in (*seccomp.conditional_rules(), "kill", "tgkill")}
    for number in set(range(512)) - special:
        expected = seccomp.ALLOW if number in always else seccomp.ERRNO | 1
        assert answer(filters, number, machine=arch) == expected, number
    assert answer(filters, 0, machine=0x40000003) == seccomp.KILL_PROCESS
    if machine == "x86_64":
        assert answer(filters, 0x40000000, machine=arch) == seccomp.KILL_PROCESS

    def of(name: str, *arguments: int) -> int:
        number = syscalls.NUMBERS[name][column]
        assert number is not None
        return answer(filters, number, arguments, arch)

    allow, deny = seccomp.ALLOW, seccomp.ERRNO | 1
    unnamed = seccomp.head(1234) + seccomp.tail(folder, unnamed=True)
    for number in always - special - {None}:
        refused = number == syscalls.NUMBERS["uname"][column]
        assert answer(unnamed, number, machine=arch) == (deny if refused else allow)
    targets = (1234, 1, 0, 0xFFFFFFFF)
    assert [of("kill", target, 15) for target in targets] == [allow, deny, deny, deny]
    assert [of("tgkill", target, 1234, 15) for target in targets] == [allow, deny, deny, deny]
    assert (of("kill", 1234, 9), of("tgkill", 1234, 9, 15), of("tgkill", 1234, 1235, 9)) == (deny, allow, deny)
    assert (of("clone", 0x3D0F00), of("clone", 17), of("clone", 0x3D0F00 | 0x10000000)) == (allow, deny, deny)
    assert of("clone3") == seccomp.ERRNO | 38
    assert (of("prlimit64", 0, 9, 0), of("prlimit64", 0, 9, 1 << 40), of("prlimit64", 5, 9, 0)) == (allow, deny, deny)
    assert (of("sendto", 3, 1, 1, 0, 0), of("sendto", 3, 1, 1, 0, 1 << 33)) == (allow, deny)
    assert (of("socketpair", 1, 1), of("socketpair", 1, 2), of("socketpair", 2, 1)) == (allow, deny, deny)
    assert (of("fcntl", 3, 4), of("fcntl", 3, 8), of("fcntl", 3, 1031)) == (allow, deny, deny)
    for name, position in (("open", 1), ("openat", 2)):
        if syscalls.NUMBERS[name][column] is not None:
            answers = {
                flags: of(name, *(7,) * position, flags) for flags in (*range(4), 0x40, 0x42, 0x241, 0x242, 0x80000)
            }
            assert answers == {flags: deny if flags == 3 else allow for flags in answers}
            emptying = [flags | more for flags in (0x200, 0x203, 3) for more in (0, 0x40, 0x800, 0x80000, 0x200000)]
            assert [of(name, *(7,) * position, flags) for flags in emptying] == [deny] * len(emptying)
