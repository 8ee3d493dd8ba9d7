"""Circuits that choose: arbiters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cadre_tasks.worlds.circuits import Circuit, Inputs, Port, State, any_value


@dataclass(frozen=True)
class Arbiter(Circuit):
    """Grants one of `width` requests, by their `order`. `has` of mask, busy."""

    order: tuple[int, ...] = (0, 1)
    has: tuple[str, ...] = ()
    turns: bool = False  # looks on behind the one that was chosen last, round the order
    late: bool = False
    holds: bool = False
    blocks: bool = False  # a mask bit of 1 blocks its request; else it lets it through

    @property
    def inputs(self) -> tuple[Port, ...]:
        open_to_all = 0 if self.blocks else (1 << self.width) - 1
        mask = (Port("mask", self.width, neutral=open_to_all),) if "mask" in self.has else ()
        return (Port("req", self.width), *mask)

    @property
    def outputs(self) -> tuple[Port, ...]:
        return (Port("gnt", self.width), *((Port("busy"),) if "busy" in self.has else ()))

    def english(self) -> str:
        n, order = self.width, ", ".join(map(str, self.order))
        way = (
            f"They take turns in the order {order}, round and round: the first request has it that comes behind the "
            "one that was chosen last. After a reset one begins at the front of the order."
            if self.turns
            else f"The request has it that comes first in the order {order}."
        )
        lines = [
            f"An arbiter: bit i of `req` is the request of number i, from 0 to {n - 1}, and bit i of `gnt` its grant.",
            "At most one has a grant, and none where nobody requests.",
            way,
        ]
        if self.holds:
            lines.append("But whoever was chosen in the cycle before is chosen again as long as it requests.")
        if "mask" in self.has:
            means = "blocked" if self.blocks else "let through; those whose bit is 0 are blocked"
            lines.append(f"Requests whose bit in `mask` is 1 are {means}. What is blocked counts as no request.")
        lines.append(
            "`gnt` shows who was chosen in the cycle before; after a reset nobody."
            if self.late
            else "`gnt` shows who is chosen in the same cycle, without delay; in a cycle with `rst`, too."
        )
        if "busy" in self.has:
            lines.append("`busy` is 1 where any bit of `gnt` is.")
        return "\n".join(lines)

    def brief(self) -> str:
        flags = [name for name in ("turns", "late", "holds", "blocks") if getattr(self, name)]
        return " ".join(["arbiter", *map(str, self.order), *self.has, *flags])

    @property
    def start(self) -> State:
        return (self.width - 1, 0)  # the place in the order that was chosen last, and the grant of the cycle before

    def chosen(self, state: State, inputs: Inputs) -> int:
        """Return the grant for the requests, one bit at most."""
        requests = inputs["req"]
        if "mask" in self.has:
            requests &= ~inputs["mask"] if self.blocks else inputs["mask"]
        if self.holds and requests & state[1]:
            return state[1]
        first = state[0] + 1 if self.turns else 0
        circle = [self.order[(first + i) % self.width] for i in range(self.width)]
        return next((1 << number for number in circle if requests >> number & 1), 0)

    def shown(self, state: State, inputs: Inputs) -> tuple[int, ...]:
        grant = state[1] if self.late else self.chosen(state, inputs)
        return (grant, int(grant > 0)) if "busy" in self.has else (grant,)

    def after(self, state: State, inputs: Inputs) -> State:
        grant = self.chosen(state, inputs)
        # A grant is one bit; its number is bit_length - 1. Without a grant the turn stays.
        return (self.order.index(grant.bit_length() - 1) if grant else state[0], grant)

    def body(self) -> str:
        n = self.width
        requests = ("req & ~mask" if self.blocks else "req & mask") if "mask" in self.has else "req"
        position = f"(last + 1 + i) % {n}" if self.turns else "i"
        first = "if (wanted & cur) pick = cur; else" if self.holds else ""
        # Two tables: from a position in the order to the number of a request, and back.
        order_cases = " ".join(f"{position}: number = {number};" for position, number in enumerate(self.order))
        last_cases = " ".join(f"{number}: last <= {position};" for position, number in enumerate(self.order))
        lines = [
            f"wire [{n - 1}:0] wanted = {requests};",
            f"reg [{n - 1}:0] cur, pick;",
            "integer i, j, last, number;",
            "always @(wanted or cur or last) begin",
            f"  pick = 0; number = 0; {first}",
            f"  for (i = 0; i < {n}; i = i + 1) begin",
            f"    case ({position}) {order_cases} endcase",
            "    if (pick == 0 && wanted[number]) pick[number] = 1'b1;",
            "  end",
            "end",
            "always @(posedge clk)",
            f"  if (rst) begin cur <= 0; last <= {n - 1}; end",
            "  else begin",
            "    cur <= pick;",
            f"    for (j = 0; j < {n}; j = j + 1) if (pick[j]) case (j) {last_cases} endcase",
            "  end",
            f"assign gnt = {'cur' if self.late else 'pick'};",
        ]
        return "\n".join([*lines, *(["assign busy = |gnt;"] if "busy" in self.has else [])])

    def others(self) -> Sequence[Circuit]:
        first, second, *rest = self.order
        variants = [replace(self, order=(second, first, *rest)), replace(self, late=not self.late)]
        variants += [replace(self, holds=not self.holds), replace(self, turns=not self.turns)]
        if self.width > 2:
            variants.append(replace(self, order=self.order[::-1]))
        if "mask" in self.has:
            variants.append(replace(self, blocks=not self.blocks))
        return variants

    def drawn(self, draw: random.Random, state: State) -> dict[str, int]:
        values = super().drawn(draw, state)
        if draw.random() < 0.4:
            # A request that stays shows if its grant is held.
            values["req"] |= state[1]
        if "mask" in values and draw.random() < 0.5:
            values["mask"] = any_value(draw, Port("mask", self.width)) | values["mask"]
        return values
