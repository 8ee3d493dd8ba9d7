"""A circuit in Verilog: a designer who writes it and a verifier who writes its test bench, simulated by Icarus Verilog.

The specification is generated (`circuits`). A turn is a design and then a bench, which is run on it; both roles see its
output, and the episode ends with PASS or with the last turn. The value of a design is the share of hidden sequences of
inputs in which its outputs are right in every cycle, according to a model outside the simulation. A bench is judged on
a right design and on wrong ones that differ from it in one thing. `VerilogOneTurn` writes the design alone,
`VerilogSingleAgent` is one agent that does both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadre import random_keys
from cadre.env import Split
from cadre.envs import drawings
from cadre.envs.splits import drawn_tasks, in_split
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
    """A design and its judgement: the share of hidden sequences in which it is right (`worth`), and an error, such as
    the compiler's, if it was not simulated."""

    text: str = ""
    worth: float = 0.0
    error: str = "there is none"


@dataclass(frozen=True)
class Bench:
    """A bench and its judgement: if a right design passes (`valid`), the share of wrong ones that fail then (`kills`),
    and its verdict on the last design."""

    text: str = ""
    valid: bool = False
    kills: float = 0.0
    passed: bool | None = None
    feedback: str = ""


class Verilog(TurnBased):
    """The team form. Settings: `turns` the team gets, `prompts` wording, `reward` shaped or by outcome; of its circuits
    the `kind`, the `width` (bits, requests, or the length of a pattern) and the number of `features`."""

    roles: ClassVar[tuple[str, ...]] = ("designer", "verifier")
    one_agent: ClassVar[str] = "verilog-single-agent"

    def __init__(
        self, task: Task, turns: Turns = 2, prompts: Prompts = "full", reward: Rewards = "shaped", **dials: Any
    ) -> None:
        super().__init__(task)
        self.turns, self.prompts, self.reward = turns, prompts, reward
        self.circuit = circuit_of(task.data["circuit"])
        self.turn, self.design, self.bench, self.account = 0, Design(), Bench(), Account()
        # A design is written, and the next action is a bench.
        self.testing = False
        # The local rewards of the last design and of the last bench.
        self.earned = [0.0, 0.0]

    @classmethod
    def tasks(
        cls,
        split: Split,
        kind: Kind = "any",
        width: Annotated[int, Field(ge=2, le=16)] = 4,
        features: Annotated[int, Field(ge=0, le=5)] = 1,
        **settings: Any,
    ) -> Sequence[Task]:
        """Return circuits keyed by split and index. The circuit decides the split."""
        verilog.tools()

        def draw(index: int, attempt: int) -> dict[str, Any] | None:
            generator = random_keys.generator("verilog", split, index, attempt, kind, width, features)
            circuit = draw_circuit(generator, kind, width, features)
            if not in_split(split, repr(circuit)):
                return None
            seed = generator.getrandbits(60)
            wrong = [it.data() for it in mutants(circuit, seed) or ()]
            return {"circuit": circuit.data(), "wrong": wrong, "seed": seed} if wrong else None

        dials = {"kind": kind, "width": width, "features": features}
        return drawn_tasks(split, draw, dials, f"{split}-{kind}-{width}-{features}")

    @property
    def success(self) -> bool:
        """True if the last design is right in every cycle of every hidden sequence."""
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
        """Return the prompt for a design or for a bench."""
        if self.prompts == "compact":
            request = f"{'bench' if testing else 'design'}\n{brief_ports(self.circuit)}\n{self.circuit.brief()}"
            return f"{request}\n{self.seen(testing)}".rstrip()
        request = BENCH if testing else DESIGN
        return f"{self.question()}\n\n{self.seen(testing)}{request} Answer with one ```verilog block."

    def question(self) -> str:
        return f"A circuit with these ports:\n\n{ports(self.circuit)}\n\n{self.circuit.english()}"

    def seen(self, testing: bool) -> str:
        """Return the earlier work: the design for a bench; for a design the last one, and the output of its bench."""
        design = self.design.text[:SHOWN]
        if self.prompts == "compact":
            return design if testing else self.bench.feedback[:200]
        if testing:
            return f"The design that is to be tested:\n{design}\n\n"
        return f"The last design was:\n{design}\n\nWhat came of it:\n{self.bench.feedback}\n\n" if self.turn else ""

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

    def pay(self, role: str, index: int, earned: float, parts: dict[str, float]) -> Reward:
        """Return the reward of a design (index 0) or a bench (1): the change in the values of the team and
        the author."""
        solved = float(self.success)
        # With `reward: outcome` both authors are rewarded for a solved task alone.
        self.earned[index] = earned if self.reward == "shaped" else TEAM * solved
        worth = self.design.worth if self.reward == "shaped" else solved
        self.account, reward = self.account.settle(TEAM * worth, {role: self.local(index)}, parts)
        return reward

    def local(self, index: int) -> float:
        """Return the total local value of the author of a design (index 0) or a bench (1)."""
        return self.earned[index]

    async def judged(self, text: str) -> Design:
        """Simulate the design on the hidden sequences and compare its outputs in every cycle but each first."""
        circuit = self.circuit
        input_sequences = sequences(circuit, self.task.data["seed"])
        inputs = {"rst": 1, **{port.name: port.width for port in circuit.inputs}}
        outputs = {port.name: port.width for port in circuit.outputs}
        simulation = await verilog.sampled(text, outputs, input_sequences, inputs)
        if simulation.error:
            return Design(text, 0.0, simulation.error)
        right, position = 0, 0
        for sequence in input_sequences:
            # All sequences are in one output; the state in the first cycle of each is unknown.
            lines, position = simulation.lines[position + 1 : position + len(sequence)], position + len(sequence)
            right += list(lines) == words(circuit, predicted(circuit, sequence))
        return Design(text, right / len(input_sequences), "")

    async def tested(self, text: str) -> Bench:
        """Run the bench on a right design, on the wrong ones if it passes, and on the team's design."""
        reference_verdict = await verilog.benched(text, self.circuit.verilog())
        # A bench that fails a right design would fail wrong ones for no merit.
        wrong = [circuit_of(it).verilog() for it in self.task.data["wrong"]] if reference_verdict.passed else []
        wrong_verdicts = await asyncio.gather(*(verilog.benched(text, it) for it in wrong))
        kills = sum(verdict.passed is False for verdict in wrong_verdicts) / max(len(wrong_verdicts), 1)
        if self.design.error:
            # A design that does not compile has no verdict; the bench is judged all the same.
            return Bench(text, bool(reference_verdict.passed), kills, None, f"The design: {self.design.error}")
        design_verdict = await verilog.benched(text, self.design.text)
        return Bench(
            text, bool(reference_verdict.passed), kills, design_verdict.passed, f"The bench: {design_verdict.output}"
        )

    def privileged(self) -> str:
        return f"reference {self.circuit.verilog()}"

    def render(self) -> Drawing:
        """Return the question, and the last design and bench with their results."""
        parts: list[tuple[str, Drawing]] = [("question", drawings.text(self.question()))]
        for title, text, output in (
            ("design", self.design.text, self.design.error),
            ("bench", self.bench.text, self.bench.feedback),
        ):
            if text:
                parts += [(title, drawings.code(text, language="verilog")), (f"of the {title}", drawings.text(output))]
        return drawings.several(*parts)


def ports(circuit: Circuit) -> str:
    """Return the ports of a circuit, a line each, as Verilog declares them."""
    lines = ["input clk", "input rst", *(port.declared("input") for port in circuit.inputs)]
    return "\n".join([*lines, *(port.declared("output") for port in circuit.outputs)])


def brief_ports(circuit: Circuit) -> str:
    """Return the ports in a line, for small models."""
    inputs, outputs = (" ".join(port.brief for port in side) for side in (circuit.inputs, circuit.outputs))
    return f"in {inputs} out {outputs}".replace("in  out", "in out")


def words(circuit: Circuit, shown: Sequence[tuple[int, ...]]) -> list[str]:
    """Return the simulator's output for these values of all outputs, a line a cycle."""
    widths = [port.width for port in circuit.outputs]
    return [" ".join(f"{value:0{width}b}" for value, width in zip(row, widths, strict=True)) for row in shown]


class VerilogOneTurn(Verilog):
    """One agent that writes the design, without a bench; it sees what the compiler says."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    @property
    def over(self) -> bool:
        return self.success or self.turn >= self.turns

    async def step(self, actions: dict[str, str]) -> Reward:
        reward = await super().step(actions)
        self.turn, self.testing = self.turn + 1, False
        self.bench = Bench(feedback=self.design.error or "It compiles. It is not right in every cycle.")
        return reward


class VerilogSingleAgent(OneAgent, Verilog):
    """One agent that writes the design, then its bench, in one conversation. Each step pays half."""

    @property
    def opening(self) -> bool:
        return not self.testing

    def local(self, index: int) -> float:
        return sum(self.earned) / 2
