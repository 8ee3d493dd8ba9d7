"""Hidden laws of the world `lab`: what can be tried, what comes of it, and what a theory predicts.

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
    """`Law("formula", ("x",), {"y": "2*x + 3"}, {})`: what can be set, the equations, and what is known of substances
    by name: `{"arn": (3, 1)}`, mass and charge."""

    kind: Kind
    inputs: tuple[str, ...]
    equations: Mapping[str, str]
    substances: Mapping[str, tuple[int, int]]

    @property
    def target(self) -> str:
        """What is predicted, where it is one figure."""
        return next(iter(self.equations))

    @property
    def told(self) -> str:
        """The law as a theory would state it."""
        if self.kind != "causal":
            return self.equations[self.target]
        return "\n".join(f"{name} = {text}" for name, text in self.equations.items())


def draw_law(draw: random.Random, kind: Kind, variables: int, depth: int) -> Law:
    """A law of so many variables, as hard as `depth` says, 0 to 2."""
    if kind == "causal":
        return _causal(draw, variables, depth)
    if kind == "chemistry":
        known = {name: (draw.randint(1, LARGEST), draw.randint(0, 4)) for name in ELEMENTS}
        return Law(kind, PROPERTIES, {"heat": _chemistry(draw, depth)}, known)
    return Law(kind, NAMES[:variables], {"result": _formula(draw, NAMES[:variables], depth)}, {})


def check_variables(kind: Kind, variables: int) -> None:
    """Raises ConfigError where a law of the kind has no such number of variables; the default goes with every kind."""
    fewest, most = {"formula": (1, len(NAMES)), "causal": (FEWEST, len(SWITCHES)), "chemistry": (USUAL, USUAL)}[kind]
    if variables == USUAL or fewest <= variables <= most:
        return
    fit = f"none, as the law is of {', '.join(PROPERTIES)}" if kind == "chemistry" else f"{fewest} to {most}"
    raise ConfigError(
        f"settings.variables: got {variables} with kind {kind}; expected {fit}. "
        f"{'Leave it out' if kind == 'chemistry' else 'Take one of these'}, or take another kind."
    )


def _formula(draw: random.Random, names: Sequence[str], depth: int) -> str:
    """A sum of terms; from depth 1 on with a product or a square, at 2 with a case or a remainder."""
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
    """The same whichever substance comes first."""
    scale, shift = draw.randint(1, 5), draw.randint(0, 9)
    base = f"{scale}*(m1 + m2) + {shift}"
    if depth == 0:
        return base
    charge = draw.choice(("q1*q2", "abs(q1 - q2)", "max(q1, q2)"))
    text = f"{base} + {draw.randint(2, 6)}*{charge}"
    return text if depth == 1 else f"{text} if (q1 + q2) % {draw.randint(2, 3)} == 0 else {draw.randint(0, 9)}"


def _causal(draw: random.Random, variables: int, depth: int) -> Law:
    """Every switch but the first `roots` is set by one or two that come before it in a hidden order."""
    names = list(SWITCHES[: max(FEWEST, variables)])
    order = draw.sample(names, len(names))
    roots, equations = 1 if depth == 0 else 2, {}
    for place in range(roots, len(order)):
        above = draw.sample(order[:place], min(place, 2))
        first, second = above[0], above[-1]
        forms = [first, f"not {first}"] if depth == 0 or len(above) < 2 else [f"{first} and {second}"]
        if depth and len(above) == 2:
            forms += [f"{first} or {second}", f"{first} and not {second}"]
            forms += [f"{first} != {second}"] if depth > 1 else []
        equations[order[place]] = draw.choice(forms)
    return Law("causal", tuple(names), dict(sorted(equations.items())), {})


def parse_trial(text: str, law: Law) -> Inputs | None:
    """What an experiment sets: "x=3 y=5", or bare numbers in order; switches "A=1 C=0", or "none"; two substances by
    name. Looked for behind a last "Try:". None for anything else."""
    said = behind_try(text)
    if law.kind == "chemistry":
        named = substances_in(text, law)
        return mixed(law, named[0], named[1]) if len(named) == 2 else None
    given = {name: int(number) for name, number in ASSIGNED.findall(said)}
    if law.kind == "causal":
        fits = set(given) <= set(law.inputs) and set(given.values()) <= {0, 1}
        return given if fits and (given or said.lower() == "none") else None
    if not given and re.fullmatch(r"\d{1,3}([\s,]+\d{1,3}){0,9}", said):
        given = dict(zip(law.inputs, map(int, re.findall(r"\d+", said)), strict=False))
    return given if set(given) == set(law.inputs) and max(given.values()) <= LARGEST else None


def behind_try(text: str) -> str:
    """What stands behind the last "Try:" of an answer."""
    return behind("try", text[-2000:])[:200]


def substances_in(text: str, law: Law) -> list[str]:
    """The substances that an experiment names."""
    return [word for word in re.findall(r"[a-z]+", behind_try(text).lower()) if word in law.substances]


def mixed(law: Law, first: str, second: str) -> Inputs:
    """What is known of two substances."""
    return dict(zip(PROPERTIES, (*law.substances[first], *law.substances[second]), strict=True))


def parse_theory(text: str, law: Law) -> dict[str, ast.expr] | None:
    """The equations of a theory: behind a last "Law:" an expression, or for switches a line `C = A and not B` each.
    None where anything in it cannot be read."""
    said = behind("law", text[-4000:])
    if law.kind != "causal":
        named = re.match(rf"{law.target}\s*=(?!=)", said)
        tree = formula.parse(said[named.end() :] if named else said, law.inputs)
        return None if tree is None else {law.target: tree}
    lines = [line for line in said.splitlines() if line.strip()]
    if len(lines) > 2 * len(SWITCHES):
        return None
    pairs = [EQUATION.fullmatch(line.strip()) for line in lines]
    trees = {pair[1]: formula.parse(pair[2], law.inputs) for pair in pairs if pair}
    right = len(trees) == len(lines) and set(trees) <= set(law.inputs) and None not in trees.values()
    return {name: tree for name, tree in trees.items() if tree is not None} if right and trees else None


def outcome(law: Law, theory: Mapping[str, ast.expr], inputs: Inputs) -> tuple[int | None, ...]:
    """What a theory says of these inputs: the figure, or every switch. None for what it has no value for."""
    if law.kind != "causal":
        return (formula.value(theory[law.target], inputs),)
    state: dict[str, int | None] = {}
    for name in law.inputs:
        _settle(name, theory, inputs, state, ())
    return tuple(state[name] for name in law.inputs)


def _settle(
    name: str, theory: Mapping[str, ast.expr], given: Inputs, state: dict[str, Any], above: Sequence[str]
) -> None:
    """Find what a switch is set to: by the experiment, else by its equation, else 0. A circle has no value."""
    if name in state:
        return
    if name in given or name not in theory:
        state[name] = given.get(name, 0)
        return
    needed = {node.id for node in ast.walk(theory[name]) if isinstance(node, ast.Name)}
    for other in sorted(needed - {name, *above}):
        _settle(other, theory, given, state, (*above, name))
    known = {other: state.get(other) for other in needed}
    numbers = {other: number for other, number in known.items() if number is not None}
    number = formula.value(theory[name], numbers) if len(numbers) == len(known) else None
    state[name] = None if number is None else int(bool(number))


def held_out(draw: random.Random, law: Law) -> list[Inputs]:
    """Inputs that theories are judged on: larger numbers than may be tried, substances that are not there to be tried,
    switches set in every way, or in many where there are more than four."""
    if law.kind == "formula":
        return [{name: draw.randint(0, 2 * LARGEST) for name in law.inputs} for _ in range(JUDGED_ON)]
    if law.kind == "chemistry":
        tops = dict(zip(PROPERTIES, (2 * LARGEST, 6) * 2, strict=True))
        return [{name: draw.randint(0, top) for name, top in tops.items()} for _ in range(JUDGED_ON)]
    ways = itertools.product((None, 0, 1), repeat=len(law.inputs))
    if len(law.inputs) > 4:
        ways = (draw.choices((None, 0, 1), k=len(law.inputs)) for _ in range(3 * JUDGED_ON))  # type: ignore[assignment]
    return [{name: way for name, way in zip(law.inputs, given, strict=True) if way is not None} for given in ways]


def behaviour(law: Law) -> str:
    """What a law does on inputs that are the same for all laws of its kind and number of variables: two that are
    written in different ways and predict the same have one."""
    truth = parse_theory(law.told, law) or {}
    inputs = held_out(random_keys.generator("lab behaviour"), law)
    return f"{law.kind} {' '.join(law.inputs)} {[outcome(law, truth, it) for it in inputs]}"
