"""A circuit in Verilog: a designer who writes it and a verifier who writes its test bench, simulated by Icarus Verilog.

The specification is generated (`circuits`). A turn is a design and then a bench, which is run on it; what it prints is
shown to both, and the episode ends where it prints PASS, or with the last turn. A design is worth the share of hidden
sequences of inputs in which its outputs are right in every cycle, by a model that is not in the simulation. A bench is
judged on a right design and on wrong ones that differ from it in one thing. `VerilogAlone` writes the design alone,
`VerilogSolo` is one agent that does both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadre import random_keys
from cadre.env import GeneratedTasks, Split
from cadre.envs import drawings
from cadre.envs.splits import SPLIT_SIZES, drawn, in_split
from cadre.types import Drawing, Message, Reward, Task
from cadre_tasks.account import Account
from cadre_tasks.turn_based import OneAgent, TurnBased
from cadre_tasks.worlds import verilog_judge as verilog
from cadre_tasks.worlds.circuits import Circuit, predicted
from cadre_tasks.worlds.circuits_tasks import Kind, circuit_of, draw_circuit, mutants, sequences
from cadre_tasks.worlds.relay import FORM, RIGHT, TEAM, Prompts, Rewards, Turns, answer_in

SHOWN = 4000  # letters of a design or a bench that the other is shown
DESIGN = (
    "Write the module `top` in Verilog. All changes happen at the rising edge of `clk`; `rst` is sampled there, too, "
    "and goes before all else. There may be other modules beside it, but no delays, no directives, no strings, no "
    "system tasks but $signed, $unsigned, $bits and $clog2, and no names that reach into another module."
)
BENCH = (
    "Write a test bench in Verilog, the one module `tb`, without ports: it makes an instance of `top` by the names of "
    "its ports, drives it, and prints with $display a line that begins with FAIL where an output is wrong, and at the "
    "end a line PASS if none was, then calls $finish. It is paid for letting right designs pass and for failing wrong "
    "ones. It may name nothing inside `top`, and has no directives and no files."
)


@dataclass(frozen=True)
class Design:
    """A design and what it came to: the share of hidden sequences in which it is right, and why there is none, such as
    what the compiler says."""

    text: str = ""
    worth: float = 0.0
    error: str = "there is none"


@dataclass(frozen=True)
class Bench:
    """A bench and what it came to: whether a right design passes, the share of wrong ones that fail then, and what it
    says of the last design."""

    text: str = ""
    valid: bool = False
    kills: float = 0.0
    passed: bool | None = None
    told: str = ""


def generate(split: Split, index: int, kind: Kind, width: int, features: int) -> dict[str, Any]:
    """A task of the split: a circuit, wrong ones like it, and the seed of what they are told apart by."""

    def draw(attempt: int) -> dict[str, Any] | None:
        generator = random_keys.generator("verilog", split, index, attempt, kind, width, features)
        circuit = draw_circuit(generator, kind, width, features)
        if not in_split(split, repr(circuit)):
            return None
        seed = generator.getrandbits(60)
        wrong = [it.data() for it in mutants(circuit, seed) or ()]
        return {"circuit": circuit.data(), "wrong": wrong, "seed": seed} if wrong else None

    return drawn(split, draw, {"kind": kind, "width": width, "features": features})


class Verilog(TurnBased):
    """The team form. Settings: `turns` the team gets, `prompts` wording, `reward` shaped or by outcome; of its circuits
    the `kind`, their `width` (bits, requests, or the length of a pattern) and how many `features` they have."""

    roles: ClassVar[tuple[str, ...]] = ("designer", "verifier")

    def __init__(
        self, task: Task, turns: Turns = 2, prompts: Prompts = "full", reward: Rewards = "shaped", **dials: Any
    ) -> None:
        super().__init__(task)
        self.turns, self.prompts, self.reward = turns, prompts, reward
        self.circuit = circuit_of(task.data["circuit"])
        self.turn, self.design, self.bench, self.account = 0, Design(), Bench(), Account()
        self.testing = False  # a design is written, and a bench is asked for
        self.earned = [0.0, 0.0]  # what the last design and the last bench pay their author

    @classmethod
    def tasks(
        cls,
        split: Split,
        kind: Kind = "any",
        width: Annotated[int, Field(ge=2, le=16)] = 4,
        features: Annotated[int, Field(ge=0, le=5)] = 1,
        **settings: Any,
    ) -> Sequence[Task]:
        """Circuits keyed by split and index. The circuit decides the split."""
        verilog.tools()
        name = f"{split}-{kind}-{width}-{features}"
        return GeneratedTasks(SPLIT_SIZES[split], lambda index: generate(split, index, kind, width, features), name)

    @property
    def success(self) -> bool:
        """The last design is right in every cycle of every hidden sequence."""
        return self.design.worth == 1.0

    @property
    def over(self) -> bool:
        return self.turn >= self.turns or (self.bench.passed is True and not self.testing)

    @property
    def acting(self) -> str:
        return self.roles[int(self.testing)]

    def conversation(self) -> tuple[Message, ...]:
        return (Message("user", self.ask(self.testing)),)

    def ask(self, testing: bool) -> str:
        """The prompt for a design or for a bench."""
        if self.prompts == "compact":
            asked = f"{'bench' if testing else 'design'}\n{brief_ports(self.circuit)}\n{self.circuit.brief()}"
            return f"{asked}\n{self.seen(testing)}".rstrip()
        asked = BENCH if testing else DESIGN
        return f"{self.question()}\n\n{self.seen(testing)}{asked} Answer with one ```verilog block."

    def question(self) -> str:
        return f"A circuit with these ports:\n\n{ports(self.circuit)}\n\n{self.circuit.english()}"

    def seen(self, testing: bool) -> str:
        """What is there already: the design for a bench; for a design the last one, and what its bench printed."""
        design = self.design.text[:SHOWN]
        if self.prompts == "compact":
            return design if testing else self.bench.told[:200]
        if testing:
            return f"The design that is to be tested:\n{design}\n\n"
        return f"The last design was:\n{design}\n\nWhat came of it:\n{self.bench.told}\n\n" if self.turn else ""

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        written = answer_in(text, "verilog")
        if self.testing:
            self.bench = await self.tested(written)
            self.turn, self.testing = self.turn + 1, False
            parts = {"bench/valid": float(self.bench.valid), "bench/kills": self.bench.kills}
            return self.pay(role, 1, FORM * self.bench.valid + RIGHT * self.bench.kills, parts)
        self.design, self.testing = await self.judged(written), True
        formed = not self.design.error
        parts = {"design/worth": self.design.worth, "design/formed": float(formed)}
        return self.pay(role, 0, FORM * formed + RIGHT * self.design.worth, parts)

    def pay(self, role: str, place: int, earned: float, parts: dict[str, float]) -> Reward:
        """Settle what the team and the author stand at after a design (place 0) or a bench (1)."""
        solved = float(self.success)
        self.earned[place] = earned if self.reward == "shaped" else TEAM * solved
        worth = self.design.worth if self.reward == "shaped" else solved
        self.account, reward = self.account.settle(TEAM * worth, {role: self.local(place)}, parts)
        return reward

    def local(self, place: int) -> float:
        """What the author of a design or a bench stands at."""
        return self.earned[place]

    async def judged(self, text: str) -> Design:
        """Drive the design through the hidden sequences and compare its outputs in every cycle but each first."""
        circuit = self.circuit
        given = sequences(circuit, self.task.data["seed"])
        inputs = {"rst": 1, **{port.name: port.width for port in circuit.inputs}}
        outputs = {port.name: port.width for port in circuit.outputs}
        done = await verilog.sampled(text, outputs, given, inputs)
        if done.error:
            return Design(text, 0.0, done.error)
        right, place = 0, 0
        for sequence in given:
            lines, place = done.lines[place + 1 : place + len(sequence)], place + len(sequence)
            right += list(lines) == words(circuit, predicted(circuit, sequence))
        return Design(text, right / len(given), "")

    async def tested(self, text: str) -> Bench:
        """Run the bench on a right design, on the wrong ones if it passes, and on the one at hand."""
        mine = await verilog.benched(text, self.circuit.verilog())
        wrong = [circuit_of(it).verilog() for it in self.task.data["wrong"]] if mine.passed else []
        found = await asyncio.gather(*(verilog.benched(text, it) for it in wrong))
        kills = sum(verdict.passed is False for verdict in found) / max(len(found), 1)
        if self.design.error:
            return Bench(text, bool(mine.passed), kills, None, f"The design: {self.design.error}")
        last = await verilog.benched(text, self.design.text)
        return Bench(text, bool(mine.passed), kills, last.passed, f"The bench: {last.told}")

    def privileged(self) -> str:
        return f"reference {self.circuit.verilog()}"

    def render(self) -> Drawing:
        """The question, and the last design and bench with what came of them."""
        parts: list[tuple[str, Drawing]] = [("question", drawings.text(self.question()))]
        for title, text, told in (
            ("design", self.design.text, self.design.error),
            ("bench", self.bench.text, self.bench.told),
        ):
            if text:
                parts += [(title, drawings.code(text, language="verilog")), (f"of the {title}", drawings.text(told))]
        return drawings.several(*parts)


def ports(circuit: Circuit) -> str:
    """The ports of a circuit, a line each, as Verilog declares them."""
    lines = ["input clk", "input rst", *(port.declared("input") for port in circuit.inputs)]
    return "\n".join([*lines, *(port.declared("output") for port in circuit.outputs)])


def brief_ports(circuit: Circuit) -> str:
    """The same in a line, for small models."""
    inputs, outputs = (" ".join(port.told for port in side) for side in (circuit.inputs, circuit.outputs))
    return f"in {inputs} out {outputs}".replace("in  out", "in out")


def words(circuit: Circuit, shown: Sequence[tuple[int, ...]]) -> list[str]:
    """What the simulator prints for the values of all outputs, a line a cycle."""
    widths = [port.width for port in circuit.outputs]
    return [" ".join(f"{value:0{width}b}" for value, width in zip(row, widths, strict=True)) for row in shown]


class VerilogAlone(Verilog):
    """One agent that writes the design, without a bench; it sees what the compiler says."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    @property
    def over(self) -> bool:
        return self.success or self.turn >= self.turns

    async def step(self, actions: dict[str, str]) -> Reward:
        reward = await super().step(actions)
        self.turn, self.testing = self.turn + 1, False
        self.bench = Bench(told=self.design.error or "It compiles. It is not right in every cycle.")
        return reward


class VerilogSolo(OneAgent, Verilog):
    """One agent that writes the design, then its bench, in one conversation. Each step pays half."""

    @property
    def opening(self) -> bool:
        return not self.testing

    def local(self, place: int) -> float:
        return sum(self.earned) / 2
