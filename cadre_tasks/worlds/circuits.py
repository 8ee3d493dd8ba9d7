"""A synchronous circuit and its specification: ports, words, Verilog, and a model that predicts every cycle.

The Verilog text and the Python model of a circuit are written independently of each other, so that each checks the
other. All change at the rising edge of `clk`; `rst`, sampled there, brings the state back to its start and goes before
all else. What the outputs show in a cycle is sampled just before its edge.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

State = tuple[int, ...]
Inputs = Mapping[str, int]


@dataclass(frozen=True)
class Port:
    """An input or an output, `width` bits wide. `neutral` is the value of an input that switches nothing on; a one-bit
    input is 1 in the share `likely` of all cycles."""

    name: str
    width: int = 1
    neutral: int | None = None
    likely: float = 0.5

    def declared(self, direction: str) -> str:
        return f"{direction} {f'[{self.width - 1}:0] ' if self.width > 1 else ''}{self.name}"

    @property
    def brief(self) -> str:
        """The port for small models: `q 4`."""
        return f"{self.name} {self.width}"


@dataclass(frozen=True)
class Circuit(ABC):
    """A circuit of `width`, whose meaning depends on the kind. A subclass adds further choices."""

    width: int

    @property
    @abstractmethod
    def inputs(self) -> tuple[Port, ...]:
        """The inputs beside `clk` and `rst`."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[Port, ...]: ...

    @abstractmethod
    def english(self) -> str:
        """Return the specification, a sentence a line."""

    @abstractmethod
    def brief(self) -> str:
        """Return the specification in a few words, for small models."""

    @abstractmethod
    def body(self) -> str:
        """Return the Verilog between the ports and `endmodule`."""

    @property
    @abstractmethod
    def start(self) -> State:
        """The state after a reset."""

    @abstractmethod
    def shown(self, state: State, inputs: Inputs) -> tuple[int, ...]:
        """Return the outputs in a cycle, in their order."""

    @abstractmethod
    def after(self, state: State, inputs: Inputs) -> State:
        """Return the state after the edge of a cycle without reset."""

    @abstractmethod
    def others(self) -> Sequence[Circuit]:
        """Return circuits with the same ports that differ in one thing. Some may behave the same nevertheless."""

    def drawn(self, draw: random.Random, state: State) -> dict[str, int]:
        """Return inputs that are worth trying in a state."""
        return {port.name: any_value(draw, port) for port in self.inputs}

    def verilog(self) -> str:
        """Return the module `top`."""
        ports = [Port("clk").declared("input"), Port("rst").declared("input")]
        ports += [port.declared("input") for port in self.inputs] + [port.declared("output") for port in self.outputs]
        return f"module top({', '.join(ports)});\n{self.body()}\nendmodule\n"

    def data(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, **asdict(self)}


def any_value(draw: random.Random, port: Port) -> int:
    """Return a value of a port: one bit as often as it is likely, more bits often at the ends."""
    if port.width == 1:
        return int(draw.random() < port.likely)
    largest = (1 << port.width) - 1
    # Values at the ends of the range show overflow and signs.
    return draw.choice((0, 1, largest, largest - 1)) if draw.random() < 0.25 else draw.randint(0, largest)


def stimuli(circuit: Circuit, draw: random.Random, cycles: int, calm: bool = False) -> list[dict[str, int]]:
    """Return inputs for so many cycles, `rst` among them: two cycles of reset, then seldom one. With `calm`, ports with
    a neutral value keep it and there is no other reset."""
    sequence: list[dict[str, int]] = []
    state = circuit.start
    for cycle in range(cycles):
        values = circuit.drawn(draw, state)
        if calm:
            values |= {port.name: port.neutral for port in circuit.inputs if port.neutral is not None}
        # The first edge brings an unknown state to the start; the second cycle shows that it is there.
        reset = cycle < 2 or (not calm and draw.random() < 0.02)
        sequence.append({"rst": int(reset), **values})
        state = circuit.start if reset else circuit.after(state, values)
    return sequence


def predicted(circuit: Circuit, sequence: Sequence[Inputs]) -> list[tuple[int, ...]]:
    """Return the outputs in every cycle but the first, whose state is unknown."""
    state, shown = circuit.start, []
    for cycle, inputs in enumerate(sequence):
        if cycle:
            shown.append(circuit.shown(state, inputs))
        state = circuit.start if inputs["rst"] else circuit.after(state, inputs)
    return shown


def bits(value: int, width: int) -> str:
    """Return a value as a Verilog constant: `4'd9`."""
    return f"{width}'d{value}"


def signed(value: int, width: int) -> int:
    """Return a value read in two's complement."""
    return value - (1 << width) if value >> (width - 1) else value
