"""Hidden laws of the world `lab`: experiments, their outcomes, and the predictions of theories.

A law is a set of equations in the grammar of `cadre_tasks.worlds.formula`, so that a theory that states it is right by
construction. Three kinds: `formula`, a number from numbers; `causal`, switches that set each other, to be found by
setting some of them; `chemistry`, the heat of two substances from what is known of each.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cadre import random_keys
from cadre.errors import ConfigError
from cadre_tasks.answers import behind
from cadre_tasks.worlds import formula

Kind = Literal["formula", "causal", "chemistry"]
Inputs = dict[str, int]

NAMES = ("x", "y", "z", "w")
SWITCHES = "ABCDEF"
FEWEST, USUAL = 3, 2  # switches of a law; the default of `variables`, which leaves it to the kind
ELEMENTS = ("arn", "bel", "cor", "dun", "eth", "fel", "gor", "hux")
PROPERTIES = ("m1", "q1", "m2", "q2")  # mass and charge of the first and of the second substance
LARGEST = 9  # of what an experiment may set; held-out inputs go to twice it
JUDGED_ON = 40  # held-out inputs
EQUATION = re.compile(r"([A-Za-z]\w{0,9})\s*=(?!=)\s*(.+)")
ASSIGNED = re.compile(r"\b([A-Za-z]\w{0,9})\s*=\s*(\d{1,3})\b")


@dataclass(frozen=True)
class Law:
    """`Law("formula", ("x",), {"y": "2*x + 3"}, {})`: the inputs, the equations, and the known substances by name:
    `{"arn": (3, 1)}`, mass and charge."""

    kind: Kind
    inputs: tuple[str, ...]
    equations: Mapping[str, str]
    substances: Mapping[str, tuple[int, int]]

    @property
    def target(self) -> str:
        """The name of the predicted figure, if there is only one."""
        return next(iter(self.equations))

    @property
    def statement(self) -> str:
        """The law in the form of a theory."""
        if self.kind != "causal":
            return self.equations[self.target]
        return "\n".join(f"{name} = {text}" for name, text in self.equations.items())


def draw_law(draw: random.Random, kind: Kind, variables: int, depth: int) -> Law:
    """Return a law of so many variables, as hard as `depth` says, 0 to 2."""
    if kind == "causal":
        return _causal(draw, variables, depth)
    if kind == "chemistry":
        substances = {name: (draw.randint(1, LARGEST), draw.randint(0, 4)) for name in ELEMENTS}
        return Law(kind, PROPERTIES, {"heat": _chemistry(draw, depth)}, substances)
    return Law(kind, NAMES[:variables], {"result": _formula(draw, NAMES[:variables], depth)}, {})


def check_variables(kind: Kind, variables: int) -> None:
    """Raise ConfigError if a law of the kind cannot have this number of variables; the default goes with every kind."""
    fewest, largest = {"formula": (1, len(NAMES)), "causal": (FEWEST, len(SWITCHES)), "chemistry": (USUAL, USUAL)}[kind]
    if variables == USUAL or fewest <= variables <= largest:
        return
    fit = f"none, as the law is of {', '.join(PROPERTIES)}" if kind == "chemistry" else f"{fewest} to {largest}"
    raise ConfigError(f"settings.variables: got {variables} with kind {kind}; expected {fit}.")


def _formula(draw: random.Random, names: Sequence[str], depth: int) -> str:
    """Return a sum of terms; from depth 1 on with a product or a square, at 2 with a case or a remainder."""
    text = " + ".join(f"{draw.randint(1, 9)}*{name}" for name in names) + f" + {draw.randint(0, 30)}"
    if depth:
        first, second = draw.choice(names), draw.choice(names)
        text += f" {draw.choice('+-')} {draw.randint(1, 3)}*{first}*{second}"
    if depth < 2:
        return text
    name, bound = draw.choice(names), draw.randint(3, 6)
    case = f"{draw.randint(2, 5)}*{name} + {draw.randint(0, 9)}"
    return draw.choice((f"{text} if {name} > {bound} else {case}", f"({text}) % {draw.randint(5, 11)}"))


def _chemistry(draw: random.Random, depth: int) -> str:
    """Return an expression that does not depend on the order of the substances."""
    scale, shift = draw.randint(1, 5), draw.randint(0, 9)
    base = f"{scale}*(m1 + m2) + {shift}"
    if depth == 0:
        return base
    charge = draw.choice(("q1*q2", "abs(q1 - q2)", "max(q1, q2)"))
    text = f"{base} + {draw.randint(2, 6)}*{charge}"
    return text if depth == 1 else f"{text} if (q1 + q2) % {draw.randint(2, 3)} == 0 else {draw.randint(0, 9)}"


def _causal(draw: random.Random, variables: int, depth: int) -> Law:
    """Return a law in which every switch but the first `roots` depends on one or two earlier ones in a hidden order."""
    names = list(SWITCHES[: max(FEWEST, variables)])
    order = draw.sample(names, len(names))
    roots, equations = 1 if depth == 0 else 2, {}
    for position in range(roots, len(order)):
        # Causes come earlier in the hidden order, so there is no cycle.
        above = draw.sample(order[:position], min(position, 2))
        first, second = above[0], above[-1]
        forms = [first, f"not {first}"] if depth == 0 or len(above) < 2 else [f"{first} and {second}"]
        if depth and len(above) == 2:
            forms += [f"{first} or {second}", f"{first} and not {second}"]
            forms += [f"{first} != {second}"] if depth > 1 else []
        equations[order[position]] = draw.choice(forms)
    return Law("causal", tuple(names), dict(sorted(equations.items())), {})


def parse_trial(text: str, law: Law) -> Inputs | None:
    """Return the inputs of an experiment: "x=3 y=5", or bare numbers in order; switches "A=1 C=0", or "none"; two
    substances by name, behind a last "Try:". None for anything else."""
    setting = trial_text(text)
    if law.kind == "chemistry":
        names = substances_in(text, law)
        return mixed(law, names[0], names[1]) if len(names) == 2 else None
    values = {name: int(number) for name, number in ASSIGNED.findall(setting)}
    if law.kind == "causal":
        fits = set(values) <= set(law.inputs) and set(values.values()) <= {0, 1}
        return values if fits and (values or setting.lower() == "none") else None
    # Bare numbers are assigned to the inputs in their order.
    if not values and re.fullmatch(r"\d{1,3}([\s,]+\d{1,3}){0,9}", setting):
        values = dict(zip(law.inputs, map(int, re.findall(r"\d+", setting)), strict=False))
    return values if set(values) == set(law.inputs) and max(values.values()) <= LARGEST else None


def trial_text(text: str) -> str:
    """Return the text behind the last "Try:" of an answer."""
    return behind("try", text[-2000:])[:200]


def substances_in(text: str, law: Law) -> list[str]:
    """Return the substances that an experiment names."""
    return [word for word in re.findall(r"[a-z]+", trial_text(text).lower()) if word in law.substances]


def mixed(law: Law, first: str, second: str) -> Inputs:
    """Return the properties of two substances as inputs."""
    return dict(zip(PROPERTIES, (*law.substances[first], *law.substances[second]), strict=True))


def parse_theory(text: str, law: Law) -> dict[str, ast.expr] | None:
    """Return the equations of a theory: behind a last "Law:" an expression, or for switches a line `C = A and not B`
    each. None if anything in it cannot be read."""
    theory_text = behind("law", text[-4000:]).rstrip(".; \t")
    if law.kind != "causal":
        target_prefix = re.match(rf"{law.target}\s*=(?!=)", theory_text)
        tree = formula.parse(theory_text[target_prefix.end() :] if target_prefix else theory_text, law.inputs)
        return None if tree is None else {law.target: tree}
    lines = [line for line in theory_text.splitlines() if line.strip()]
    if len(lines) > 2 * len(SWITCHES):
        return None
    pairs = [EQUATION.fullmatch(line.strip(" \t.;")) for line in lines]
    trees = {pair[1]: formula.parse(pair[2], law.inputs) for pair in pairs if pair}
    # Every line must be an equation of its own for a known switch.
    right = len(trees) == len(lines) and set(trees) <= set(law.inputs) and None not in trees.values()
    return {name: tree for name, tree in trees.items() if tree is not None} if right and trees else None


def outcome(law: Law, theory: Mapping[str, ast.expr], inputs: Inputs) -> tuple[int | None, ...]:
    """Return the prediction of a theory for these inputs: the figure, or every switch. None where it has no value."""
    if law.kind != "causal":
        return (formula.value(theory[law.target], inputs),)
    state: dict[str, int | None] = {}
    for name in law.inputs:
        _settle(name, theory, inputs, state, ())
    return tuple(state[name] for name in law.inputs)


def _settle(
    name: str, theory: Mapping[str, ast.expr], inputs: Inputs, state: dict[str, Any], ancestors: Sequence[str]
) -> None:
    """Set `state[name]` to the value of a switch: from the experiment, else from its equation, else 0. A cycle has no
    value."""
    if name in state:
        return
    if name in inputs or name not in theory:
        state[name] = inputs.get(name, 0)
        return
    needed = {node.id for node in ast.walk(theory[name]) if isinstance(node, ast.Name)}
    # Switches above this one are left out, so a cycle ends here, without a value.
    for cause in sorted(needed - {name, *ancestors}):
        _settle(cause, theory, inputs, state, (*ancestors, name))
    cause_values = {cause: state.get(cause) for cause in needed}
    numbers = {cause: number for cause, number in cause_values.items() if number is not None}
    number = formula.value(theory[name], numbers) if len(numbers) == len(cause_values) else None
    state[name] = None if number is None else int(bool(number))


def held_out(draw: random.Random, law: Law) -> list[Inputs]:
    """Return the inputs that theories are judged on: larger numbers than may be tried, substances that cannot be tried,
    switches set in every way, or in many if there are more than four."""
    if law.kind == "formula":
        return [{name: draw.randint(0, 2 * LARGEST) for name in law.inputs} for _ in range(JUDGED_ON)]
    if law.kind == "chemistry":
        # Twice the largest mass and half as much again as the largest charge of known substances.
        tops = dict(zip(PROPERTIES, (2 * LARGEST, 6) * 2, strict=True))
        return [{name: draw.randint(0, top) for name, top in tops.items()} for _ in range(JUDGED_ON)]
    # None leaves a switch to its equation: 3 ** 4 = 81 ways at the most, further switches are sampled.
    ways = itertools.product((None, 0, 1), repeat=len(law.inputs))
    if len(law.inputs) > 4:
        ways = (draw.choices((None, 0, 1), k=len(law.inputs)) for _ in range(3 * JUDGED_ON))  # type: ignore[assignment]
    return [{name: way for name, way in zip(law.inputs, setting, strict=True) if way is not None} for setting in ways]


def behaviour(law: Law) -> str:
    """Return the outcomes of a law on fixed inputs, the same for all laws of its kind and number of variables. Laws
    that are written differently but predict the same have the same behaviour."""
    truth = parse_theory(law.statement, law) or {}
    inputs = held_out(random_keys.generator("lab behaviour"), law)
    return f"{law.kind} {' '.join(law.inputs)} {[outcome(law, truth, it) for it in inputs]}"
