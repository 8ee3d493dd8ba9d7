"""Simulates Verilog that a model wrote: Icarus Verilog (ivl and vvp) behind the sandbox's layers.

Our own bench drives a design and prints its outputs in each cycle; the comparison with the expected values happens in
this process, so that no expected value ever enters the simulation. The lines carry a nonce that no text of a model can
contain; neither the compiler's driver nor its preprocessor is run. A model's bench prints its own verdict.
"""

from __future__ import annotations

import glob
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from cadre.errors import ConfigError, SandboxError
from cadre_tasks.sandbox import Limits, Result, Sandbox, default
from cadre_tasks.worlds.verilog_source import bench_refusal, design_refusal

COMPILING = Limits(cpu_s=1.0, memory_mb=256, output_bytes=4 << 20)
RUNNING = Limits(cpu_s=1.0, memory_mb=256, output_bytes=1 << 20)
LIBRARY = ("/usr/lib/*/ivl", "/usr/lib/ivl", "/usr/lib64/ivl", "/usr/local/lib/ivl")  # where its parts may lie
MODULES = ("system", "v2005_math", "v2009")
TOLD = 400  # letters of an error message for a model
LASTS = 1_000_000  # units of time after which a model's bench is ended
SLOW = "it took more time, memory or output than it may"
PROOF = 'module top; initial begin $display("works"); $finish(0); end endmodule'
WIDTH = re.compile(r"expects \d+ bits?, got \d+")


@dataclass(frozen=True)
class Tools:
    """The paths of the compiler, the simulator and their library."""

    ivl: str
    vvp: str
    library: str

    @property
    def settings(self) -> str:
        """The settings file of the driver `iverilog -g2012` for a compiler that reads stdin and writes to stdout."""
        modules = [f"module:{self.library}/{name}.vpi" for name in MODULES]
        flags = ["functor:cprop", "functor:nodangle", "flag:DLL=vvp.tgt", f"flag:VVP_EXECUTABLE={self.vvp}"]
        basis = [f"basedir:{self.library}", "generation:2012", "generation:no-specify", "warnings:p"]
        return "\n".join([*basis, *modules, "out:/dev/stdout", *flags, ""])


@dataclass(frozen=True)
class Simulated:
    """The lines that a simulation printed, or an error."""

    lines: tuple[str, ...] = ()
    error: str = ""


@cache
def tools() -> Tools:
    """Return the paths of Icarus Verilog. Raises ConfigError if it is missing: environments check this before any model
    loads."""
    vvp = shutil.which("vvp")
    libraries = [
        folder for pattern in LIBRARY for folder in sorted(glob.glob(pattern)) if os.path.exists(f"{folder}/ivl")
    ]
    if vvp is None or not libraries:
        raise ConfigError(
            "env: circuits are simulated with Icarus Verilog, which is missing. Run: apt-get install iverilog"
        )
    return Tools(f"{libraries[0]}/ivl", vvp, libraries[0])


@cache
def sandbox() -> Sandbox:
    """Return the sandbox whose jobs become the compiler and the simulator, at the level of the process's own."""
    installed = tools()
    level, cgroup = default().level, default().cgroup
    return Sandbox(level, packages=(installed.library,), cgroup=cgroup, executables=(installed.ivl, installed.vvp))


@cache
def proof() -> list[Simulated]:
    """Return a list to store the output of a trivial module in, filled by the first caller."""
    return []


async def simulated(source: str) -> Simulated:
    """Compile Verilog and run it. Raises SandboxError if nothing at all can be simulated behind the layers."""
    if not proof():
        proof().append(await compiled_and_run(PROOF))
    if proof()[0].lines != ("works",):
        raise SandboxError(
            f"circuits cannot be simulated in the sandbox at level {sandbox().level!r}. Got, from a module that prints "
            f"a word: {proof()[0]}. Expected the word. At level 'isolated' the kernel must let a /proc be mounted; "
            "`sandbox: {level: confined}` needs none."
        )
    return await compiled_and_run(source)


async def compiled_and_run(source: str) -> Simulated:
    installed = tools()
    compiled = await sandbox().execute(
        [installed.ivl, "-C", "/dev/fd/3", "--", "-"], source, installed.settings, COMPILING
    )
    wrong = WIDTH.search(compiled.stderr)
    if compiled.status != "ok" or not compiled.stdout or wrong:
        return Simulated(error=f"it does not compile: {wrong[0] if wrong else reason(compiled)}")
    ran = await sandbox().execute([installed.vvp, "-n", "/dev/stdin"], compiled.stdout, "", RUNNING)
    if ran.status != "ok":
        return Simulated(error=f"it does not run: {reason(ran)}")
    return Simulated(tuple(ran.stdout.splitlines()))


def reason(result: Result) -> str:
    """Return the first errors of a compiler or a simulator, for a model."""
    if result.status not in ("ok", "error"):
        return SLOW
    lines = [line for line in (result.stdout + result.stderr).splitlines() if "error" in line or "sorry" in line]
    return "\n".join(re.sub(r"^-:", "line ", line) for line in lines[:4])[:TOLD] or "no reason was given"


async def sampled(
    design: str,
    outputs: Mapping[str, int],
    input_sequences: Sequence[Sequence[Mapping[str, int]]],
    widths: Mapping[str, int],
) -> Simulated:
    """Return the outputs of a design in each cycle of sequences of inputs, as words of 0, 1, x and z, just before the
    rising edge: a line each. `outputs` and `widths` are the widths of outputs and of inputs by name, `rst` among them.
    An error for a design that is rejected, does not compile, or ends on its own."""
    rejection = design_refusal(design)
    if rejection:
        return Simulated(error=rejection)
    nonce = secrets.token_hex(16)
    simulation = await simulated(f"{design}\n{driver(nonce, outputs, input_sequences, widths)}")
    # Other lines may come from the design itself, which cannot know the nonce.
    lines = tuple(line.removeprefix(nonce + " ") for line in simulation.lines if line.startswith(nonce + " "))
    if not simulation.error and len(lines) != sum(map(len, input_sequences)):
        return Simulated(error="it does not run to the end")
    return Simulated(lines, simulation.error)


def driver(
    nonce: str,
    outputs: Mapping[str, int],
    input_sequences: Sequence[Sequence[Mapping[str, int]]],
    widths: Mapping[str, int],
) -> str:
    """Return the bench that drives a design: inputs change after the falling edge of `clk`, outputs are printed before
    the rising one."""
    ports = [*(f".{name}(i_{name})" for name in widths), *(f".{name}(o_{name})" for name in outputs)]
    shown = ", ".join(f"o_{name}" for name in outputs)
    lines = [
        f"module bench_{nonce};",
        "reg clk;",
        *(f"wire [{width - 1}:0] o_{name};" for name, width in outputs.items()),
        *(f"reg [{width - 1}:0] i_{name};" for name, width in widths.items()),
        f"top dut(.clk(clk), {', '.join(ports)});",
        f"task one(input [{sum(widths.values()) - 1}:0] given);",
        "begin",
        f"  {{{', '.join(f'i_{name}' for name in widths)}}} = given;",
        # Inputs are set at time 0 of a cycle, outputs are printed at 4, the edge is at 5.
        f'  #4 $display("{nonce}{" %b" * len(outputs)}", {shown});',
        "  #1 clk = 1; #5 clk = 0;",
        "end",
        "endtask",
        "initial begin",
        "clk = 0; #1",
        *(f"one({packed(inputs, widths)});" for sequence in input_sequences for inputs in sequence),
        "$finish(0);",
        "end",
        "endmodule",
    ]
    return "\n".join([*lines, ""])


def packed(inputs: Mapping[str, int], widths: Mapping[str, int]) -> str:
    """Return the values of all inputs as one constant, the first of them highest."""
    value = 0
    for name, width in widths.items():
        value = value << width | inputs[name]
    return f"{sum(widths.values())}'h{value:x}"


@dataclass(frozen=True)
class Verdict:
    """The verdict of a bench on a design: passed, failed, or neither (None); and the lines that it printed."""

    passed: bool | None
    output: str


async def benched(bench: str, design: str) -> Verdict:
    """Run a bench, the module `tb`, on a design, both a model's or one of ours. A line that begins with FAIL or PASS is
    its verdict; a single FAIL means that the design has failed."""
    rejection = bench_refusal(bench) or design_refusal(design)
    if rejection:
        return Verdict(None, rejection)
    nonce = secrets.token_hex(8)
    simulation = await simulated(f"{bench}\n{design}\nmodule end_{nonce};\ninitial #{LASTS} $finish(0);\nendmodule\n")
    words = {line.strip()[:4].upper() for line in simulation.lines}
    # FAIL first: a bench may print PASS at its end although it saw an error.
    passed = False if "FAIL" in words else True if "PASS" in words else None
    return Verdict(
        passed, simulation.error or "\n".join(line[:120] for line in simulation.lines)[:TOLD] or "nothing was printed"
    )
