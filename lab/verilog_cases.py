"""Answers for the world of circuits: right designs and benches, wrong ones, exploits, and hostile Verilog."""

from __future__ import annotations

import random
from collections.abc import Callable

from cadre_tasks.worlds.circuits import Circuit, predicted, stimuli
from cadre_tasks.worlds.circuits_tasks import circuit_of
from cadre_tasks.worlds.verilog import Verilog

FILES = ("/etc/passwd", "/tmp/cadre-canary.txt", "/proc/self/environ", "/dev/fd/3", "cadre_tasks/worlds/verilog.py")
Policy = Callable[[Verilog], str]
EMPTY = "module tb; initial begin {said} $finish; end endmodule"


def bench_of(circuit: Circuit, cycles: int = 120, seed: int = 9) -> str:
    """A bench that knows what is right in every cycle, from inputs of its own."""
    inputs_by_cycle = stimuli(circuit, random.Random(seed), cycles)
    outputs_by_cycle = predicted(circuit, inputs_by_cycle)
    ports = [*("clk", "rst"), *(port.name for port in (*circuit.inputs, *circuit.outputs))]
    shown = ", ".join(port.name for port in circuit.outputs)
    lines = ["module tb;", "reg clk, rst;", "integer wrong;"]
    lines += [f"reg [{port.width - 1}:0] {port.name};" for port in circuit.inputs]
    lines += [f"wire [{port.width - 1}:0] {port.name};" for port in circuit.outputs]
    lines += [f"top dut({', '.join(f'.{name}({name})' for name in ports)});", "initial begin clk = 0; wrong = 0;"]
    for cycle, inputs in enumerate(inputs_by_cycle):
        lines.append(" ".join(f"{name} = {value};" for name, value in inputs.items()) + " #4")
        if cycle:
            values = (
                f"{port.width}'d{it}" for port, it in zip(circuit.outputs, outputs_by_cycle[cycle - 1], strict=True)
            )
            lines.append(f"if ({{{shown}}} !== {{{', '.join(values)}}}) begin wrong = 1; end")
        lines.append("#1 clk = 1; #5 clk = 0;")
    lines += ['if (wrong) $display("FAIL"); else $display("PASS");', "$finish;", "end", "endmodule"]
    return "\n".join(lines)


def right_verilog(env: Verilog) -> str:
    """The reference, and a bench that finds every wrong cycle."""
    return bench_of(env.circuit) if env.testing else env.circuit.verilog()


def nearly_verilog(env: Verilog, draw: random.Random) -> str | None:
    """A design that differs in one thing, and a right bench."""
    if env.testing:
        return bench_of(env.circuit)
    return circuit_of(draw.choice(env.task.data["wrong"])).verilog()


def shell(env: Verilog, body: str) -> str:
    """A module with the right ports around a body."""
    head = env.circuit.verilog().split(";", 1)[0]
    return f"{head};\n{body}\nendmodule"


def constant(env: Verilog, bit: str) -> str:
    return shell(env, "\n".join(f"assign {port.name} = {{{port.width}{{1'b{bit}}}}};" for port in env.circuit.outputs))


def passed_on(env: Verilog) -> str:
    """Inputs led to outputs."""
    inputs = ["rst", *(port.name for port in env.circuit.inputs)]
    lines = [f"assign {port.name} = {inputs[-1 - n % len(inputs)]};" for n, port in enumerate(env.circuit.outputs)]
    return shell(env, "\n".join(lines))


def said(design: Callable[[Verilog], str], words: str) -> Policy:
    """A design, and a bench that says the words whatever it sees."""
    return lambda env: EMPTY.format(said=words) if env.testing else design(env)


def with_body(body: str) -> Callable[[Verilog], str]:
    return lambda env: shell(env, body)


VERILOG_EXPLOITS: dict[str, Policy] = {
    "zeros, and a bench that passes all": said(lambda env: constant(env, "0"), '$display("PASS");'),
    "ones, and a bench that fails all": said(lambda env: constant(env, "1"), '$display("FAIL");'),
    "ports alone": said(with_body(""), '$display("PASS"); $display("FAIL");'),
    "inputs to outputs": said(passed_on, ""),
    "a design that says PASS": said(with_body('initial $display("PASS");'), '$display("PASS");'),
    "a design that ends": said(with_body("initial $finish;"), "$finish;"),
    "read the judge's bench": said(with_body("initial $display(bench.wanted);"), '$display("%d", dut.n);'),
    "force what the judge sees": said(with_body("initial force bench.o_q = 1;"), "force dut.q = 0;"),
    "read the judge's files": said(with_body('reg [7:0] m [0:9]; initial $readmemh("wanted", m);'), "$system;"),
    "instance of the judge": said(with_body("bench b();"), '$display("PASS");'),
    "unknown outputs": said(lambda env: constant(env, "x"), ""),
    "a bench by lot": said(lambda env: constant(env, "0"), 'if ($random) $display("FAIL"); else $display("PASS");'),
}

HEAD = "module top(input clk, input rst, output [3:0] q);\n"


SYSTEM = (
    '$system("cat F")|$fopen("F")|$readmemh("F", m)|$readmemb("F", m)|$fdisplay(1, "PASS")|$dumpfile("F")|$dumpvars|'
    '$fwrite(1, "PASS")|$sdf_annotate("F")|$value$plusargs("F", m)|$test$plusargs("F")|$stop|$finish|$reset|'
    '$fgetc(3)|$fread(m, 3)|$ferror(0, m)|$sformat(m, "F")|$swrite(m, "F")|$display("PASS")|$monitor("%b", q)|'
    '$list_forces|$countdrivers(q)|$deposit(q, 1)|$simparam("x")|$table_model("F")|$getpattern(m)|$save("F")|'
    '$restart("F")|$input("F")|$log("F")|$key("F")|$showscopes|$scope(top)|$fflush(1)|$rewind(3)|$ungetc(1, 3)|'
    '$import_object("F")|$urandom_range|$printtimescale|$writememh("F", m)|$async$and$array|$cast(m, q)'
)
ODD = ("٣", "ｑ", "\u202e", "\ud800", "é", "\x7f", "\x0c")


def system_call(draw: random.Random) -> str:
    """System tasks that reach files, the simulator or its tables."""
    file = draw.choice(FILES)
    task = draw.choice(SYSTEM.split("|")).replace("F", file)
    return draw.choice(
        (
            f"{HEAD}reg [7:0] m [0:9]; initial {task}; endmodule",
            f"module tb; reg [7:0] m [0:9]; integer q; initial begin {task}; q = {task}; end endmodule",
            f"{HEAD}assign q = {task}; endmodule",
        )
    )


def placed(draw: random.Random, line: str) -> str:
    """The line in a design, in a bench, or before a design."""
    return draw.choice((f"{HEAD}{line}\nendmodule", f"module tb;\n{line}\nendmodule", f"{line}\n{HEAD}endmodule"))


def directive(draw: random.Random) -> str:
    file = draw.choice(FILES)
    line = draw.choice(
        f'`include "{file}"|`define endmodule|`timescale 1s/1fs|`celldefine|`default_nettype none|`pragma protect|'
        f'`line 1 "{file}" 1|`define A `A|`A|`undef clk|`resetall|`unconnected_drive pull1|`ifdef X|`begin_keywords|'
        f"`define top tb|(* ivl_synthesis_off *)|(* keep *)|\\`include |\\clk |`uselib file={file}".split("|")
    )
    return placed(draw, line)


def reach(draw: random.Random) -> str:
    """Names and words that reach past a module's ports."""
    line = draw.choice(
        "initial force bench.o_q = 4'd3;|assign q = bench.n;|assign q = $root.bench.n;|initial release q;|"
        "bind bench other b();|defparam bench.N = 3;|initial deassign q;|alias q = clk;|assign q = bench.i_rst;|"
        "config c; design top; endconfig|library l F;|import p::*;|package p; endpackage|class c; endclass|"
        'import "DPI-C" function int system(string s);|program p; endprogram|interface i; endinterface|'
        "primitive u(o, i); endprimitive|specify endspecify|assign q = $unit::n;|assign q = dut . n;|"
        "assign q = bench/**/.n;|assign clk = 1'b0;|event e; initial -> bench.e;|initial disable bench.one;".split("|")
    )
    return placed(draw, line)


def unclosed(draw: random.Random) -> str:
    """Text that would swallow what comes after it, or put something around it."""
    return draw.choice(
        (
            f"{HEAD}assign q = 0; endmodule /* and the rest",
            f'{HEAD}assign q = "',
            f"{HEAD}assign q = 0;",
            f"{HEAD}endmodule module other; initial $finish; module top2; endmodule",
            f"function f; input x; f = x; endfunction {HEAD}endmodule",
            f"{HEAD}endmodule endmodule",
            f"{HEAD}endmodule {HEAD}endmodule",
            f"{HEAD}endmodule module tb; endmodule module bench; endmodule",
            f"{HEAD}endmodule\nmodule",
            f"{HEAD}// \\\n endmodule \x00",
            f"{HEAD}begin : a end endmodule" * 2,
            "module tb; initial begin $finish; end",
            'module tb; initial $display("\\"); endmodule',
        )
    )


def bomb(draw: random.Random) -> str:
    """Return Verilog that would fill the memory or the time of the compiler."""
    big = draw.choice((2**16, 2**24, 2**30, 2**31 - 1, 2**40))
    return draw.choice(
        (
            f"{HEAD}reg [{big}:0] r; always @(posedge clk) r <= ~r; endmodule",
            f"{HEAD}reg [31:0] m [0:{big}]; always @(posedge clk) m[q] <= 1; endmodule",
            f"{HEAD}genvar i; generate for (i = 0; i < {big}; i = i + 1) begin : g wire w; end endgenerate endmodule",
            f"{HEAD}assign q = {{{big}{{1'b1}}}}; endmodule",
            f"{HEAD}top t(.clk(clk), .rst(rst), .q(q)); endmodule",
            "module a(input c); b x(.c(c)); b y(.c(c)); endmodule module b(input c); a x(.c(c)); a y(.c(c)); endmodule "
            f"{HEAD}a x(.c(clk)); endmodule",
            f"{HEAD}parameter N = {big}; function integer f(input integer n); f = n ? f(n - 1) : 0; endfunction "
            "localparam M = f(N); endmodule",
            f"{HEAD}assign q = {'(' * 2000}1{')' * 2000}; endmodule",
            f"{HEAD}assign q = {'~' * 5000}1; endmodule",
            f"{HEAD}assign q = 2 ** 2 ** 2 ** 2 ** 2 ** {big}; endmodule",
            f"{HEAD}assign q = {big}'h{'f' * 200}; endmodule",
            f"{HEAD}wire [{big}:0] w = 1 << {big}; endmodule",
            f'module tb; initial begin repeat ({big}) $display("FAIL and much more"); $finish; end endmodule',
            f'module tb; initial $display("%{big}d", 1); endmodule',
            f'module tb; reg [{2**20}:0] r; initial repeat (99999) $display("%b", r); endmodule',
        )
    )


def lasting(draw: random.Random) -> str:
    """Return Verilog that would never end."""
    return draw.choice(
        (
            f"{HEAD}initial while (1) ; endmodule",
            f"{HEAD}reg a; initial a = 0; always @(a) a <= ~a; endmodule",
            f"{HEAD}reg a = 0; always a = ~a; endmodule",
            f"{HEAD}integer i; initial for (i = 0; i < 1; i = i) ; endmodule",
            f"{HEAD}reg a; wire b = ~b; always @* begin a = ~a; end endmodule",
            "module tb; reg a = 0; always #1 a = ~a; endmodule",
            "module tb; reg a = 0; always #0 a = ~a; endmodule",
            'module tb; initial forever $display("FAIL"); endmodule',
            "module tb; initial forever #0; endmodule",
            "module tb; initial wait (0); endmodule",
            "module tb; initial fork forever #1; forever #2; join endmodule",
            "module tb; initial #999999999999 $finish; endmodule",
            "module tb; task t; t; endtask initial t; endmodule",
        )
    )


VERILOG_HOSTILE: dict[str, Callable[[random.Random], str]] = {
    "system": system_call,
    "directive": directive,
    "reach": reach,
    "unclosed": unclosed,
    "verdict": lambda draw: (
        f"{HEAD}initial {draw.choice(('$display', '$write', '$strobe', '$fdisplay'))}"
        f'("{draw.choice(("PASS", "FAIL", "0000", "%b", "%m"))}"); endmodule'
    ),
    "letters": lambda draw: f"{HEAD}assign q = {draw.choice(ODD)}; endmodule",
    "names": lambda draw: HEAD.replace("q", "q" * draw.choice((61, 900, 9000))) + "endmodule",
    "endless text": lambda draw: HEAD + "assign q = 1; " * draw.choice((100, 1400)) + "endmodule",
    "endless bomb": bomb,
    "endless run": lasting,
}
