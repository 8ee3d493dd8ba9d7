"""The programs of idioms.txt, and what each does under `python3` and behind the sandbox."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cadre_sandbox import Limits, Result, Sandbox

LIMITS = Limits(cpu_s=20.0, memory_mb=512, output_bytes=4 << 20)
TEXT = Path(__file__).with_name("idioms.txt").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Idiom:
    """A right program and its standard input."""

    name: str
    program: str
    stdin: str


@dataclass(frozen=True)
class Ending:
    """The end of a program: its output, whether it ended well, and a message that is not compared."""

    stdout: str
    well: bool
    message: str

    def like(self, second: "Ending") -> bool:
        return (self.stdout, self.well) == (second.stdout, second.well)


def idiom_of(section: str) -> Idiom:
    name, _, rest = section.partition("\n")
    program, _, arguments = rest.rstrip("\n").partition("\n<<< ")
    return Idiom(name, program.rstrip("\n") + "\n", arguments.encode("latin-1").decode("unicode_escape"))


IDIOMS = [idiom_of(section) for section in re.split(r"^=== ", TEXT, flags=re.MULTILINE)[1:]]


def hears_interrupts() -> None:
    """Background processes may ignore SIGINT; a program at a terminal does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def under_python(idiom: Idiom) -> Ending:
    """Return the end of `python3 program.py < input`."""
    with tempfile.TemporaryDirectory() as folder:
        file, arguments = Path(folder) / "program.py", Path(folder) / "input"
        file.write_text(idiom.program, encoding="utf-8")
        arguments.write_bytes(idiom.stdin.encode())
        environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PATH": os.environ.get("PATH", "")}
        command = [sys.executable, "-X", "utf8", str(file)]
        with arguments.open("rb") as source:
            run = subprocess.run(
                command, stdin=source, capture_output=True, env=environment, cwd=folder, preexec_fn=hears_interrupts
            )
    return Ending(run.stdout.decode(), run.returncode == 0, run.stderr.decode())


def behind_the_sandbox(level: str, mode: str, all_items: int = 1) -> dict[str, Ending]:
    """Return the end of each program in the sandbox, or of every nth."""
    idioms = IDIOMS[::all_items]

    async def go() -> list[Result]:
        async with Sandbox(level, mode) as sandbox:  # type: ignore[arg-type]
            return await asyncio.gather(*(sandbox.run(idiom.program, idiom.stdin, LIMITS) for idiom in idioms))

    ended = zip(idioms, asyncio.run(go()), strict=True)
    return {item.name: Ending(run.stdout, run.status == "ok", f"{run.status}: {run.stderr}") for item, run in ended}
