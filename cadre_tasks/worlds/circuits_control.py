"""Circuits that control: counters, and state machines that detect a pattern of bits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cadre_tasks.worlds.circuits import Circuit, Inputs, Port, State, bits


@dataclass(frozen=True)
class Counter(Circuit):
    """Counts from 0 to `last`. `has` names its optional ports: enable, down, load, tick."""

    last: int = 15
    first: int = 0
    has: tuple[str, ...] = ()
    stops: bool = False  # at the end, instead of starting again
    downwards: bool = False
    load_needs_en: bool = False
    tick_needs_en: bool = False

    @property
    def inputs(self) -> tuple[Port, ...]:
        ports = {
            "enable": (Port("en", neutral=1, likely=0.85),),
            "down": (Port("down", neutral=0, likely=0.4),),
            "load": (Port("load", neutral=0, likely=0.12), Port("d", self.width)),
        }
        return tuple(port for name in ports if name in self.has for port in ports[name])

    @property
    def outputs(self) -> tuple[Port, ...]:
        return (Port("q", self.width), *((Port("tick"),) if "tick" in self.has else ()))

    def english(self) -> str:
        way = "down" if self.downwards else "up"
        turned = f", and {'up' if self.downwards else 'down'} where `down` is 1" if "down" in self.has else ""
        end = "stays at the end of its way" if self.stops else "goes on from the other end"
        lines = [
            f"A counter with values from 0 to {self.last}, shown at `q`; a reset sets it to {self.first}.",
            f"It counts {way} by 1 a cycle{turned}. The end of its way is {self.last} when counting up and 0 when "
            f"counting down; there it {end}.",
        ]
        if "enable" in self.has:
            lines.append("It counts only where `en` is 1.")
        if "load" in self.has:
            need = "Where `load` and `en` are both" if self.load_needs_en else "Where `load` is"
            besides = "" if self.load_needs_en or "enable" not in self.has else ", whatever `en` is"
            lines.append(
                f"{need} 1 it takes the value of `d`, or {self.last} if `d` is more, instead of counting{besides}."
            )
        if "tick" in self.has:
            need = " and `en` is 1" if self.tick_needs_en else ""
            lines.append(f"`tick` is 1, without delay, in the cycles in which `q` is the end of its way{need}; else 0.")
        return "\n".join(lines)

    def brief(self) -> str:
        flags = [name for name in ("stops", "downwards", "load_needs_en", "tick_needs_en") if getattr(self, name)]
        return " ".join(["counter", f"{self.first} {self.last}", *self.has, *flags])

    @property
    def start(self) -> State:
        return (self.first,)

    def end(self, inputs: Inputs) -> int:
        return 0 if bool(inputs.get("down", 0)) != self.downwards else self.last

    def shown(self, state: State, inputs: Inputs) -> tuple[int, ...]:
        tick = state[0] == self.end(inputs) and (inputs.get("en", 1) == 1 or not self.tick_needs_en)
        return (state[0], int(tick)) if "tick" in self.has else state

    def after(self, state: State, inputs: Inputs) -> State:
        enabled, end = inputs.get("en", 1), self.end(inputs)
        if inputs.get("load", 0) and (enabled or not self.load_needs_en):
            return (min(inputs["d"], self.last),)
        if not enabled:
            return state
        if state[0] == end:
            # The value behind one end is the other: `end` is 0 or `last`.
            return state if self.stops else (self.last - end,)
        return (state[0] + (1 if end else -1),)

    def body(self) -> str:
        w, top = self.width, bits(self.last, self.width)
        down = f"{'!' if self.downwards else ''}down" if "down" in self.has else f"1'b{int(self.downwards)}"
        en = "en" if "enable" in self.has else "1'b1"
        lines = [
            f"reg [{w - 1}:0] n;",
            f"wire back = {down};",
            # `stop` is the end of the way, `turn` the value behind it.
            f"wire [{w - 1}:0] stop = back ? {bits(0, w)} : {top};",
            f"wire [{w - 1}:0] turn = {'stop' if self.stops else f'back ? {top} : {bits(0, w)}'};",
            "assign q = n;",
            "always @(posedge clk)",
            f"  if (rst) n <= {bits(self.first, w)};",
        ]
        if "load" in self.has:
            need = " && en" if self.load_needs_en else ""
            lines.append(f"  else if (load{need}) n <= (d > {top}) ? {top} : d;")
        lines.append(f"  else if ({en}) n <= (n == stop) ? turn : back ? n - 1'b1 : n + 1'b1;")
        if "tick" in self.has:
            lines.append(f"assign tick = (n == stop){' && en' if self.tick_needs_en else ''};")
        return "\n".join(lines)

    def others(self) -> Sequence[Circuit]:
        variants = [replace(self, stops=not self.stops), replace(self, downwards=not self.downwards)]
        variants += [replace(self, first=(self.first + 1) % (self.last + 1)), replace(self, last=self.last - 1)]
        if "enable" in self.has and "load" in self.has:
            variants.append(replace(self, load_needs_en=not self.load_needs_en))
        if "enable" in self.has and "tick" in self.has:
            variants.append(replace(self, tick_needs_en=not self.tick_needs_en))
        return [it for it in variants if it.first <= it.last and it.last > 0]

    def drawn(self, draw: random.Random, state: State) -> dict[str, int]:
        # Values to load at both ends, and one beyond `last`, which is clipped.
        near = draw.choice((0, 1, self.last - 1, self.last, min(self.last + 1, (1 << self.width) - 1)))
        values = super().drawn(draw, state)
        return values | ({"d": near} if "d" in values and draw.random() < 0.5 else {})


@dataclass(frozen=True)
class Detector(Circuit):
    """Detects `pattern`, of `width` bits, in a stream of bits. `has` of valid, count."""

    pattern: tuple[int, ...] = (1, 0)
    has: tuple[str, ...] = ()
    overlap: bool = True
    late: bool = False
    stops: bool = False  # the count of hits at 3, instead of starting again

    @property
    def inputs(self) -> tuple[Port, ...]:
        return (Port("x"), *((Port("valid", neutral=1, likely=0.75),) if "valid" in self.has else ()))

    @property
    def outputs(self) -> tuple[Port, ...]:
        return (Port("hit"), *((Port("count", 2),) if "count" in self.has else ()))

    def english(self) -> str:
        cycles = "each cycle in which `valid` is 1" if "valid" in self.has else "each cycle"
        when = (
            "in the cycle after the one in which the last bit of it comes"
            if self.late
            else "in the cycle in which the last bit of it comes, without delay"
        )
        sharing = "may share bits with the one before it" if self.overlap else "shares no bits with the one before it"
        lines = [
            f"A detector: `x` brings a bit in {cycles}. `hit` is 1 {when}, where the last {self.width} bits were "
            f"{''.join(map(str, self.pattern))}, the first of them first; else 0.",
            f"One occurrence {sharing}. After a reset no bit has come.",
        ]
        if "count" in self.has:
            end = "stays at 3" if self.stops else "goes on from 0 after 3"
            lines.append(
                f"`count` is the number of occurrences up to the cycle before; it {end}. A reset sets it to 0."
            )
        return "\n".join(lines)

    def brief(self) -> str:
        flags = [name for name in ("overlap", "late", "stops") if getattr(self, name)]
        return " ".join(["detector", *map(str, self.pattern), *self.has, *flags])

    @property
    def start(self) -> State:
        return (0, 0, 1)  # the count, a hit at the last edge, the bits that came behind a leading 1

    def found(self, state: State, inputs: Inputs) -> bool:
        if not inputs.get("valid", 1):
            return False
        last_bits = (bin(state[2])[3:] + str(inputs["x"]))[-self.width :]
        return last_bits == "".join(map(str, self.pattern))

    def shown(self, state: State, inputs: Inputs) -> tuple[int, ...]:
        hit = state[1] if self.late else int(self.found(state, inputs))
        return (hit, state[0]) if "count" in self.has else (hit,)

    def after(self, state: State, inputs: Inputs) -> State:
        count, _, history = state
        hit = self.found(state, inputs)
        if inputs.get("valid", 1):
            # A leading 1 marks the length, so that 0 and 00 are different states.
            bits_kept = "1" + (bin(history)[3:] + str(inputs["x"]))[-self.width + 1 :]
            # Without overlap the bits of an occurrence are forgotten.
            history = 1 if hit and not self.overlap else int(bits_kept, 2)
        count = (min(count + hit, 3) if self.stops else (count + hit) % 4) if "count" in self.has else 0
        return (count, int(hit), history)

    def body(self) -> str:
        w, valid = self.width, "valid" if "valid" in self.has else "1'b1"
        last_bits = f"{{bits[{w - 2}:0], x}}" if w > 1 else "x"
        restart = "1'b0" if self.overlap else "now"
        lines = [
            f"reg [{w - 1}:0] bits;",
            f"reg [{w.bit_length()}:0] seen;",
            "reg was;",
            f"wire now = {valid} && seen >= {w - 1} && {last_bits} == {w}'b{''.join(map(str, self.pattern))};",
            "always @(posedge clk)",
            "  if (rst) begin bits <= 0; seen <= 0; was <= 0; end",
            "  else begin",
            "    was <= now;",
            f"    if ({valid}) begin",
            f"      bits <= {last_bits};",
            f"      seen <= {restart} ? 0 : (seen < {w}) ? seen + 1'b1 : seen;",
            "    end",
            "  end",
            f"assign hit = {'was' if self.late else 'now'};",
        ]
        if "count" in self.has:
            step = "if (now && n != 2'd3) n <= n + 1'b1;" if self.stops else "if (now) n <= n + 1'b1;"
            lines += ["reg [1:0] n;", "assign count = n;", f"always @(posedge clk) if (rst) n <= 0; else {step}"]
        return "\n".join(lines)

    def others(self) -> Sequence[Circuit]:
        variants = [replace(self, overlap=not self.overlap), replace(self, late=not self.late)]
        # The first, the middle and the last bit; a set, as they may be the same.
        for position in {0, self.width // 2, self.width - 1}:
            bit = 1 - self.pattern[position]
            variants.append(replace(self, pattern=(*self.pattern[:position], bit, *self.pattern[position + 1 :])))
        if self.pattern != self.pattern[::-1]:
            variants.append(replace(self, pattern=self.pattern[::-1]))
        if "count" in self.has:
            variants.append(replace(self, stops=not self.stops))
        return variants

    def drawn(self, draw: random.Random, state: State) -> dict[str, int]:
        """Return mostly the bit that continues the longest beginning of the pattern that has come."""
        values, history = super().drawn(draw, state), bin(state[2])[3:]
        if draw.random() < 0.75:
            matched = [n for n in range(self.width) if history.endswith("".join(map(str, self.pattern[:n])))]
            values["x"] = self.pattern[max(matched)]
        return values
