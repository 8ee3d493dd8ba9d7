"""A hidden law, found by experiments: an experimenter chooses them, one at a time, and a theorist states the law.

The law is a formula, a set of switches that set each other, or the heat of two substances (`lab_laws`). The value of a
theory comes from its predictions for inputs that were not tried, most of which cannot be tried: 1 if all are right,
else half its gain over always predicting the commonest outcome. The team gets .5 of the value, the theorist .4 and .1
for a law that can be read; an experiment decides nothing and is not rewarded. `LabSingleAgent` is one agent that does
both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadre import random_keys
from cadre.env import Split
from cadre.envs import drawings
from cadre.envs.splits import drawn_tasks, in_split
from cadre.types import Drawing, Reward, Task
from cadre_tasks.worlds.inquiry import Inquiry, Single
from cadre_tasks.worlds.lab_laws import (
    Inputs,
    Kind,
    Law,
    behaviour,
    check_variables,
    draw_law,
    held_out,
    outcome,
    parse_theory,
    parse_trial,
    substances_in,
)
from cadre_tasks.worlds.relay import Prompts, Rewards, answer_in

GRAMMAR = (
    "Laws are written with whole numbers, + - * // % **, comparisons, and, or, not, min, max, abs, and `a if b else c`."
)


class Lab(Inquiry):
    """The team form. Settings: the number of `experiments`, `prompts` wording, `reward` shaped or by outcome; of its
    laws the `kind`, the number of `variables`, and the difficulty `depth`; the largest error of a result (`noise`)."""

    roles: ClassVar[tuple[str, ...]] = ("experimenter", "theorist")
    one_agent: ClassVar[str] = "lab-single-agent"

    def __init__(
        self,
        task: Task,
        experiments: Annotated[int, Field(ge=1, le=40)] = 6,
        prompts: Prompts = "full",
        reward: Rewards = "shaped",
        noise: Annotated[int, Field(ge=0, le=5)] = 0,
        **law: Any,
    ) -> None:
        super().__init__(task, prompts, reward)
        data = task.data
        substances = {name: (mass, charge) for name, mass, charge in data["substances"]}
        self.law = Law(data["kind"], tuple(data["inputs"]), dict(data["equations"]), substances)
        self.truth = parse_theory(self.law.statement, self.law)
        self.experiments, self.noise = experiments, noise
        # Experiments and their results, as prompts show them.
        self.results: tuple[tuple[str, str], ...] = ()

    @classmethod
    def tasks(
        cls,
        split: Split,
        kind: Kind = "formula",
        variables: Annotated[int, Field(ge=1, le=6)] = 2,
        depth: Annotated[int, Field(ge=0, le=2)] = 0,
        **settings: Any,
    ) -> Sequence[Task]:
        """Return laws keyed by split and index, whose outcomes differ on the inputs that theories are judged on. A
        law's behaviour decides the split, not its form. Raises ConfigError if no law has so many variables."""
        check_variables(kind, variables)

        def draw(index: int, attempt: int) -> dict[str, Any] | None:
            generator = random_keys.generator("lab", kind, variables, depth, split, index, attempt)
            law = draw_law(generator, kind, variables, depth)
            data = law_data(law, generator.getrandbits(60))
            return data if in_split(split, behaviour(law)) and tells(law, data["seed"]) else None

        dials = {"kind": kind, "variables": variables, "depth": depth}
        return drawn_tasks(split, draw, dials, f"{split}-{kind}-{variables}-{depth}")

    @property
    def inquiring(self) -> bool:
        return len(self.results) < self.experiments

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        if not self.inquiring:
            return self.judged(role, answer_in(text, "", "law"))
        inputs = parse_trial(text, self.law)
        if inputs is None:
            # An unreadable experiment is spent, too.
            self.results = (*self.results, ("unreadable", "nothing"))
        else:
            self.results = (*self.results, (self.shown(inputs, text), self.measured(inputs)))
        return Reward(parts={"experiment/formed": float(inputs is not None)})

    def judged(self, role: str, text: str) -> Reward:
        theory = parse_theory(text, self.law)
        worth = 0.0 if theory is None else worth_of(self.law, theory, self.truth or {}, self.task.data["seed"])
        return self.pay(role, worth, theory is not None, "law")

    def measured(self, inputs: Inputs) -> str:
        """Return the result of the experiment, with noise that the task and the number of the experiment determine."""
        numbers = [number or 0 for number in outcome(self.law, self.truth or {}, inputs)]
        if self.law.kind == "causal":
            return " ".join(f"{name}={number}" for name, number in zip(self.law.inputs, numbers, strict=True))
        # The number of the experiment is part of the key, so that repeating one draws new noise.
        draw = random_keys.generator(
            "lab noise", self.task.data["seed"], len(self.results), repr(sorted(inputs.items()))
        )
        return str(numbers[0] + draw.randint(-self.noise, self.noise))

    def shown(self, inputs: Inputs, text: str) -> str:
        """Return the inputs in the form of later prompts."""
        if self.law.kind == "chemistry":
            return " ".join(substances_in(text, self.law))
        if self.law.kind == "formula" and self.prompts == "compact":
            return " ".join(str(inputs[name]) for name in self.law.inputs)
        return " ".join(f"{name}={number}" for name, number in sorted(inputs.items())) or "none"

    def ask(self) -> str:
        log = "\n".join(f"{trial} {result}" for trial, result in self.results)
        if self.prompts == "compact":
            head = "lab try" if self.inquiring else "lab law"
            return f"{head}\n{' '.join(self.law.inputs)}{self.table()}\n{log}".rstrip()
        experiments_left = self.experiments - len(self.results)
        listing = "\n".join(f"- {trial}: {result}" for trial, result in self.results) or "- none so far"
        request = (
            f"{experiments_left} experiments are left. {self.how_to_try()}" if self.inquiring else self.how_to_say()
        )
        return f"{self.rules()}\n\nExperiments so far:\n{listing}\n\n{request}"

    def table(self) -> str:
        return "".join(f"\n{name} {mass} {charge}" for name, (mass, charge) in self.law.substances.items())

    def rules(self) -> str:
        """Return the part of the full prompts on the law."""
        noise_note = f" Every result may be off by up to {self.noise}." if self.noise else ""
        names = ", ".join(self.law.inputs)
        if self.law.kind == "formula":
            return f"A hidden law gives a whole number from {names}, which are whole numbers.{noise_note}"
        if self.law.kind == "causal":
            return (
                f"The switches {names} are 0 or 1. Some are set by others by a hidden law, in no circle; those that "
                "are not are 0. An experiment sets some of them by hand and shows all."
            )
        return (
            "Two substances that are mixed give heat by a hidden law of their masses (m1, m2) and charges (q1, q2). "
            f"These are known, name, mass and charge:{self.table()}\nThe law holds for others too.{noise_note}"
        )

    def how_to_try(self) -> str:
        example = {
            "formula": " ".join(f"{name}=1" for name in self.law.inputs),
            "causal": "A=1 B=0",
            "chemistry": "arn bel",
        }
        limits = {"formula": " Each is 0 to 9.", "causal": " `Try: none` sets nothing.", "chemistry": ""}
        return f"Choose the next: end with one line such as `Try: {example[self.law.kind]}`.{limits[self.law.kind]}"

    def how_to_say(self) -> str:
        form = "`Law:` and then an expression over " + ", ".join(self.law.inputs)
        if self.law.kind == "causal":
            form = "`Law:` and then a line such as `C = A and not B` for every switch that is set by others"
        judged = "State the law; it is judged by what it predicts for inputs that were not tried."
        return f"{judged} End with {form}. {GRAMMAR}"

    def privileged(self) -> str:
        return f"law {self.law.statement}"

    def render(self) -> Drawing:
        return drawings.table(("tried", "result"), self.results) if self.results else drawings.text(self.rules())


class LabSingleAgent(Single, Lab):
    """One agent that chooses the experiments and says the law, in one conversation."""


def law_data(law: Law, seed: int) -> dict[str, Any]:
    """Return a law as the data of a task."""
    substances = [[name, mass, charge] for name, (mass, charge) in law.substances.items()]
    equations = [list(pair) for pair in law.equations.items()]
    return {
        "kind": law.kind,
        "inputs": list(law.inputs),
        "equations": equations,
        "substances": substances,
        "seed": seed,
    }


def held_out_outcomes(law: Law, truth: Any, seed: int) -> tuple[list[Inputs], list[tuple[int | None, ...]]]:
    """Return the inputs that theories are judged on, and the law's outcome for each."""
    inputs = held_out(random_keys.generator("lab held out", seed), law)
    return inputs, [outcome(law, truth, it) for it in inputs]


def tells(law: Law, seed: int) -> bool:
    """Return True if the outcomes differ on the inputs that theories are judged on, so that a constant is no right
    theory."""
    return len(set(held_out_outcomes(law, parse_theory(law.statement, law), seed)[1])) > 1


def worth_of(law: Law, theory: Any, truth: Any, seed: int) -> float:
    """Return the value of a theory: 1 if all predictions are right, else half its gain over always predicting the
    commonest outcome."""
    inputs, outcomes = held_out_outcomes(law, truth, seed)
    right = sum(outcome(law, theory, it) == expected for it, expected in zip(inputs, outcomes, strict=True))
    # The accuracy without any theory; (right - naive) / (all - naive) is the part of the rest that the theory wins.
    naive = Counter(outcomes).most_common(1)[0][1]
    # No theory gains on a guess that is always right.
    if right == len(inputs) or naive == len(inputs):
        return float(right == len(inputs))
    return 0.5 * max(0.0, (right - naive) / (len(inputs) - naive))
