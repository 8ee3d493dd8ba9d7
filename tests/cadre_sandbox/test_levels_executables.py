"""A sandbox may name executables that its jobs become; what they can do then is no more than what programs can."""

import asyncio
import os
import shutil
import sys
import sysconfig

import pytest

from cadre_sandbox import Limits, Result, Sandbox, probes
from cadre_sandbox.inside import layers, seccomp, syscalls
from cadre_sandbox.probes import ROOM
from tests.cadre_sandbox import attacks
from tests.cadre_sandbox.attacks.world import World
from tests.helpers.sandboxes import shared_sandbox

PYTHON = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
CAT = os.path.realpath(shutil.which("cat") or "/bin/cat")
LIBRARIES = (str(sysconfig.get_config_var("LIBDIR")),) if sysconfig.get_config_var("Py_ENABLE_SHARED") else ()
EXECUTING = (
    "import os\ntry:\n    os.execve({path!r}, [{path!r}, '/dev/null'], {{}})\nexcept OSError as e:\n    print(e.errno)"
)


class Become:
    """Runs an attack in an interpreter that a job has become."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.level = sandbox, sandbox.level

    async def run(self, program: str, stdin: str = "", limits: Limits = ROOM) -> Result:
        program = f"import os\nos.environ.clear()  # a bare interpreter sets its locale itself\n{program}"
        return await self.sandbox.execute([PYTHON, "-I", "-S", "-B", "-c", program], stdin, "", limits)


@pytest.mark.parametrize("all_items", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("level", ["isolated", pytest.param("confined", marks=pytest.mark.slow)])
def test_no_attack_gets_through_what_a_job_has_become(level: str, all_items: int) -> None:
    """One attack of every kind, or of every fourth: each is a new interpreter."""

    async def outcomes() -> list[probes.Outcome]:
        with World() as world:
            async with Sandbox(level, workers=1, packages=LIBRARIES, executables=(PYTHON,)) as sandbox:  # type: ignore[arg-type]
                runner = Become(sandbox)
                kinds = {item.kind: item for item in attacks.suited(runner) if item.kind not in attacks.SLOW}
                return await probes.assault(runner, world, list(kinds.values())[::all_items])

    result = asyncio.run(outcomes())
    assert len(result) >= 25 // all_items
    # An executable's loader may need uname, so that it is left to a confined one (docs/sandbox.md).
    allowed = {"host name by the bare call"} if level == "confined" else set()
    assert [(item.name, item.breach) for item in result if item.breach and item.name not in allowed] == []


def done(level: str, command: list[str], stdin: str = "", data_file: str = "") -> Result:
    sandbox = shared_sandbox(level, executables=(CAT,))  # type: ignore[arg-type]
    return asyncio.run(sandbox.execute(command, stdin, data_file))


@pytest.mark.parametrize("level", ["process", "confined", "isolated"])
def test_a_job_becomes_the_executable_with_its_input_and_a_text_beside(level: str) -> None:
    result = done(level, [CAT, "/dev/stdin", "/dev/fd/3"], "in\n", "beside\n")
    assert (result.status, result.stdout, result.stderr) == ("ok", "in\nbeside\n", "")
    assert result.layers == layers.LAYERS[level]


@pytest.mark.parametrize("level", ["confined", "isolated"])
def test_nothing_else_can_be_executed_or_read(level: str) -> None:
    other_realpath = os.path.realpath(shutil.which("ls") or "/bin/ls")
    refused = done(level, [other_realpath, "/"])
    assert refused.status == "error"
    assert "PermissionError" in refused.stderr or "FileNotFoundError" in refused.stderr
    read = done(level, [CAT, __file__])
    assert (read.status, read.stdout) == ("error", "")


@pytest.mark.parametrize("level", ["confined", "isolated"])
def test_other_sandboxes_execute_nothing(level: str) -> None:
    """The filter's EPERM comes before Landlock's EACCES is asked."""

    sandbox = shared_sandbox(level)  # type: ignore[arg-type]
    program = asyncio.run(sandbox.run(EXECUTING.format(path=CAT)))
    job = asyncio.run(sandbox.execute([CAT, "/dev/null"]))
    assert program.stdout == "1\n"
    assert (job.status, "PermissionError: [Errno 1]" in job.stderr) == ("error", True)


def test_the_ordinary_filter_knows_nothing_of_it() -> None:
    execve = syscalls.NUMBERS["execve"]
    assert "execve" not in syscalls.ALWAYS + syscalls.IN_FOLDER
    assert seccomp.tail(False) == seccomp.tail(False, False) != seccomp.tail(False, True)
    allowed = {code for name in syscalls.ALWAYS if (code := syscalls.number(name)) is not None}
    assert not allowed & {execve[0 if syscalls.architecture() == "x86_64" else 1]}
    assert layers.loaded_by(()) == ()


def test_what_the_root_shows() -> None:
    shown = layers.visible_paths((), ("/usr/lib/tool", "/usr/bin/other"))
    assert "/usr/bin/other" in shown
    assert "/usr/lib/tool" not in shown
