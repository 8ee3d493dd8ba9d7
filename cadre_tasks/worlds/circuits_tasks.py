"""Circuits drawn from dials, and stimuli that distinguish each from similar ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from cadre import random_keys
from cadre_tasks.worlds.circuits import Circuit, Inputs, predicted, stimuli
from cadre_tasks.worlds.circuits_arbiter import Arbiter
from cadre_tasks.worlds.circuits_control import Counter, Detector
from cadre_tasks.worlds.circuits_paths import OPERATIONS, DataPath

Kind = Literal["any", "counter", "detector", "arbiter", "path"]
HIDDEN = 3  # sequences that a design is judged on, the first of them calm
CYCLES = 120  # of each
LONG = 400  # cycles of a sequence that shows whether two circuits do the same
MUTANTS = 4  # wrong designs that a bench is to find
REACHED = 40  # steps that a counter without load gets in a sequence, at most


def draw_circuit(draw: random.Random, kind: Kind, width: int, features: int) -> Circuit:
    """Return a circuit of a kind, with so many features."""
    chosen = draw.choice(tuple(DRAWN)) if kind == "any" else kind
    return DRAWN[chosen](draw, max(width, 2), features)


def draw_counter(draw: random.Random, width: int, features: int) -> Circuit:
    names = ("enable", "down", "load", "tick")
    chosen = taken(draw, names, ("stops", "load_needs_en", "tick_needs_en"), features)
    has = tuple(name for name in names if name in chosen)
    largest = (1 << width) - 1 if "load" in has else min((1 << width) - 1, REACHED)
    # Without load the end must be within reach of counting.
    last = draw.randint(min(3, largest), largest)
    return Counter(
        width,
        last,
        draw.randint(0, min(last, REACHED)),
        has,
        "stops" in chosen,
        draw.random() < 0.3,
        "load_needs_en" in chosen and {"enable", "load"} <= set(has),
        "tick_needs_en" in chosen and {"enable", "tick"} <= set(has),
    )


def draw_detector(draw: random.Random, width: int, features: int) -> Circuit:
    chosen = taken(draw, ("valid", "count"), ("stops",), features)
    pattern = tuple(draw.getrandbits(1) for _ in range(min(width, 12)))
    has = tuple(name for name in ("valid", "count") if name in chosen)
    overlap, late = draw.random() < 0.5, draw.random() < 0.5
    return Detector(len(pattern), pattern, has, overlap, late, "stops" in chosen and "count" in has)


def draw_arbiter(draw: random.Random, width: int, features: int) -> Circuit:
    chosen = taken(draw, ("mask", "busy"), ("turns", "holds", "blocks"), features)
    order = tuple(draw.sample(range(min(width, 8)), min(width, 8)))
    has = tuple(name for name in ("mask", "busy") if name in chosen)
    blocks = "blocks" in chosen and "mask" in has
    return Arbiter(len(order), order, has, "turns" in chosen, draw.random() < 0.5, "holds" in chosen, blocks)


def draw_path(draw: random.Random, width: int, features: int) -> Circuit:
    chosen = taken(draw, ("enable", "zero", "sign"), ("saturates", "by_sign", "late"), features)
    operations = draw.sample(tuple(OPERATIONS), 2 + min(2 * features, 10))
    required = {"saturates": "add", "by_sign": "max"}
    for position, (flag, name) in enumerate(required.items()):
        if flag in chosen and name not in operations:
            operations[position] = name
    # Holding and one more operation could leave the register at 0 forever.
    if operations[0] == "hold" and len(operations) == 2:
        operations[0] = "load" if operations[1] != "load" else "add"
    has = tuple(name for name in ("enable", "zero", "sign") if name in chosen)
    flags = [name in chosen for name in ("saturates", "by_sign", "late")]
    return DataPath(width, tuple(operations), has, *flags)


DRAWN: dict[str, Callable[[random.Random, int, int], Circuit]] = {
    "counter": draw_counter,
    "detector": draw_detector,
    "arbiter": draw_arbiter,
    "path": draw_path,
}
CLASSES: dict[str, Callable[..., Circuit]] = {it.__name__: it for it in (Counter, Detector, Arbiter, DataPath)}


def taken(draw: random.Random, ports: Sequence[str], ways: Sequence[str], count: int) -> set[str]:
    """Return `count` of both, half of them ports as far as there are enough."""
    # Half of the features, rounded up, are ports as far as there are enough.
    first = draw.sample(list(ports), min(len(ports), (count + 1) // 2))
    return {*first, *draw.sample(list(ways), min(len(ways), count - len(first)))}


def circuit_of(data: Mapping[str, Any]) -> Circuit:
    """Return the circuit of a task's data."""
    values: dict[str, Any] = {name: tuple(it) if isinstance(it, list) else it for name, it in data.items()}
    return CLASSES[values.pop("kind")](**values)


def sequences(circuit: Circuit, seed: int) -> list[list[dict[str, int]]]:
    """Return the hidden sequences of inputs, the first of them calm."""
    draws = [random_keys.generator("circuit stimuli", seed, number) for number in range(HIDDEN)]
    return [stimuli(circuit, draw, CYCLES, calm=number == 0) for number, draw in enumerate(draws)]


def mutants(circuit: Circuit, seed: int) -> list[Circuit] | None:
    """Return at most MUTANTS circuits that differ in one thing and behave differently. None if the hidden sequences do
    not distinguish them all from the circuit, or if the outputs never change."""
    input_sequences = sequences(circuit, seed)
    expected = [predicted(circuit, it) for it in input_sequences]
    if any(len(set(it)) < 2 for it in expected):
        return None
    long_sequence = stimuli(circuit, random_keys.generator("circuit long", seed), LONG)
    long_outputs = predicted(circuit, long_sequence)
    distinct: list[Circuit] = []
    for variant in circuit.others():
        if outputs_differ(variant, input_sequences[1:], expected[1:]):
            distinct.append(variant)
        # A different circuit that the hidden sequences miss: a wrong design could be judged right.
        elif outputs_differ(variant, [long_sequence], [long_outputs]):
            return None
    return distinct[:MUTANTS] if len(distinct) > 1 else None


def outputs_differ(
    variant: Circuit, input_sequences: Sequence[Sequence[Inputs]], expected: Sequence[Sequence[tuple[int, ...]]]
) -> bool:
    """Return True if another circuit has other outputs in any of the sequences."""
    return any(predicted(variant, inputs) != shown for inputs, shown in zip(input_sequences, expected, strict=True))
