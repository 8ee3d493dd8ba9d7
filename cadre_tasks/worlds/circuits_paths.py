"""Circuits that compute: small data paths with a register."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cadre_tasks.worlds.circuits import Circuit, Inputs, Port, State, signed


@dataclass(frozen=True)
class Operation:
    """An operation of a data path: in words, in Verilog, and as a function of register, input and width. `saturated` is
    the Verilog that saturates at the range."""

    words: str
    verilog: str
    result: Callable[[int, int, int], int]
    like: str  # an operation that is easily taken for it
    signed_verilog: str = ""
    saturated: str = ""


def either(better: Callable[[int, int], int]) -> Callable[[int, int, int], int]:
    return lambda a, d, w: better(a, d)


OPERATIONS = {
    "hold": Operation("keeps its value", "acc", lambda a, d, w: a, "load"),
    "load": Operation("becomes d", "d", lambda a, d, w: d, "hold"),
    "add": Operation(
        "becomes acc + d", "acc + d", lambda a, d, w: a + d, "sub", saturated="(acc > ~d) ? {W{1'b1}} : acc + d"
    ),
    "sub": Operation(
        "becomes acc - d", "acc - d", lambda a, d, w: a - d, "from", saturated="(acc < d) ? {W{1'b0}} : acc - d"
    ),
    "from": Operation(
        "becomes d - acc", "d - acc", lambda a, d, w: d - a, "sub", saturated="(d < acc) ? {W{1'b0}} : d - acc"
    ),
    "and": Operation("becomes acc AND d, bit by bit", "acc & d", lambda a, d, w: a & d, "or"),
    "or": Operation("becomes acc OR d, bit by bit", "acc | d", lambda a, d, w: a | d, "xor"),
    "xor": Operation("becomes acc XOR d, bit by bit", "acc ^ d", lambda a, d, w: a ^ d, "or"),
    "not": Operation("becomes acc with every bit inverted", "~acc", lambda a, d, w: ~a, "hold"),
    "left": Operation("is shifted left by one bit, 0 coming in", "acc << 1", lambda a, d, w: a << 1, "rotate"),
    "right": Operation("is shifted right by one bit, 0 coming in", "acc >> 1", lambda a, d, w: a >> 1, "left"),
    "rotate": Operation(
        "is rotated left by one bit", "({acc, acc} << 1) >> W", lambda a, d, w: a << 1 | a >> (w - 1), "left"
    ),
    "max": Operation(
        "becomes the larger of acc and d",
        "(acc > d) ? acc : d",
        either(max),
        "min",
        "($signed(acc) > $signed(d)) ? acc : d",
    ),
    "min": Operation(
        "becomes the smaller of acc and d",
        "(acc < d) ? acc : d",
        either(min),
        "max",
        "($signed(acc) < $signed(d)) ? acc : d",
    ),
}
COMPARING = ("max", "min")
SATURATING = ("add", "sub", "from")


@dataclass(frozen=True)
class DataPath(Circuit):
    """A register `acc` of `width` bits and an operation each cycle, chosen by `op`. `has` of enable, zero, sign."""

    operations: tuple[str, ...] = ("hold", "add")
    has: tuple[str, ...] = ()
    saturates: bool = False
    by_sign: bool = False  # max and min read their operands in two's complement
    late: bool = False  # inputs are delayed by a cycle in registers

    @property
    def inputs(self) -> tuple[Port, ...]:
        enable = (Port("en", neutral=1, likely=0.8),) if "enable" in self.has else ()
        return (Port("op", max(1, (len(self.operations) - 1).bit_length())), Port("d", self.width), *enable)

    @property
    def outputs(self) -> tuple[Port, ...]:
        return (Port("acc", self.width), *(Port(name) for name in ("zero", "sign") if name in self.has))

    def english(self) -> str:
        lines = [f"A data path with a register `acc` of {self.width} bits, which a reset sets to 0. At an edge `acc`"]
        lines += [f"- where `op` is {n}: {OPERATIONS[name].words}," for n, name in enumerate(self.operations)]
        lines.append("- at any other `op`: keeps its value.")
        lines.append(
            "Numbers have no sign" + (", but max and min compare in two's complement." if self.by_sign else ".")
        )
        lines.append(
            f"A sum above {(1 << self.width) - 1} becomes that, a difference below 0 becomes 0."
            if self.saturates
            else "Bits that do not fit are dropped."
        )
        if "enable" in self.has:
            lines.append("Where `en` is 0, `acc` keeps its value.")
        if self.late:
            lines.append(
                "All inputs but `rst` are kept in registers first: what they say in one cycle is done at the edge that "
                "ends the next cycle. After a reset these registers are 0."
            )
        if "zero" in self.has:
            lines.append("`zero` is 1 in the cycles in which `acc` is 0.")
        if "sign" in self.has:
            lines.append("`sign` is the highest bit of `acc`.")
        return "\n".join(lines)

    def brief(self) -> str:
        flags = [name for name in ("saturates", "by_sign", "late") if getattr(self, name)]
        return " ".join(["path", *self.operations, *self.has, *flags])

    @property
    def start(self) -> State:
        return (0, 0, 0, int("enable" not in self.has))  # acc, and op, d, en of the cycle before

    def shown(self, state: State, inputs: Inputs) -> tuple[int, ...]:
        flags = {"zero": int(state[0] == 0), "sign": state[0] >> (self.width - 1)}
        return (state[0], *(value for name, value in flags.items() if name in self.has))

    def after(self, state: State, inputs: Inputs) -> State:
        new = (inputs["op"], inputs["d"], inputs.get("en", 1))
        # With `late` the operation of this edge is that of the inputs one cycle ago.
        op, d, en = state[1:] if self.late else new
        return (self.result(state[0], op, d) if en else state[0], *new)

    def result(self, acc: int, op: int, d: int) -> int:
        """Return the next value of the register."""
        name = self.operations[op] if op < len(self.operations) else "hold"
        if name in COMPARING and self.by_sign:
            acc, d = signed(acc, self.width), signed(d, self.width)
        value, largest = OPERATIONS[name].result(acc, d, self.width), (1 << self.width) - 1
        # The mask also wraps negative values, as two's complement does.
        return min(max(value, 0), largest) if self.saturates and name in SATURATING else value & largest

    def expression(self, name: str) -> str:
        operation = OPERATIONS[name]
        text = operation.signed_verilog if self.by_sign and name in COMPARING else operation.verilog
        text = operation.saturated if self.saturates and name in SATURATING else text
        return re.sub(r"\bW\b", str(self.width), text)

    def body(self) -> str:
        w, enable = self.width, "enable" in self.has
        op, d, en = ("op0", "d0", "en0") if self.late else ("op", "d", "en")
        cases = [f"    {n}: r <= {named(self.expression(name), d)};" for n, name in enumerate(self.operations)]
        flags = {"zero": "r == 0", "sign": f"r[{w - 1}]"}
        lines = [
            f"reg [{w - 1}:0] r;",
            "assign acc = r;",
            *(self.registers() if self.late else []),
            "always @(posedge clk)",
            "  if (rst) r <= 0;",
            f"  else {f'if ({en}) ' if enable else ''}case ({op})",
            *cases,
            "    default: r <= r;",
            "  endcase",
            *(f"assign {name} = {text};" for name, text in flags.items() if name in self.has),
        ]
        return "\n".join(lines)

    def registers(self) -> list[str]:
        """Return the Verilog registers that delay the inputs by a cycle."""
        names = [port.name for port in self.inputs]
        declared = [f"reg [{port.width - 1}:0] {port.name}0;" for port in self.inputs]
        resets, loads = (" ".join(f"{name}0 <= {value or name};" for name in names) for value in ("0", ""))
        return [*declared, f"always @(posedge clk) if (rst) begin {resets} end else begin {loads} end"]

    def others(self) -> Sequence[Circuit]:
        variants: list[Circuit] = []
        for position in range(min(3, len(self.operations))):
            name = OPERATIONS[self.operations[position]].like
            variants.append(
                replace(self, operations=(*self.operations[:position], name, *self.operations[position + 1 :]))
            )
        first, second, *rest = self.operations
        variants += [replace(self, operations=(second, first, *rest)), replace(self, late=not self.late)]
        if set(self.operations) & set(SATURATING):
            variants.append(replace(self, saturates=not self.saturates))
        if set(self.operations) & set(COMPARING):
            variants.append(replace(self, by_sign=not self.by_sign))
        return variants

    def drawn(self, draw: random.Random, state: State) -> dict[str, int]:
        """Return inputs with every operation equally likely, and now and then a code without an operation."""
        values = super().drawn(draw, state)
        is_operation = draw.random() < 0.95
        return values | {"op": draw.randrange(len(self.operations))} if is_operation else values


def named(expression: str, d: str) -> str:
    """Return the expression over the register `r` and the effective input."""
    words = {"acc": "r", "d": d}
    return re.sub(r"\b(acc|d)\b", lambda match: words[match[1]], expression)
