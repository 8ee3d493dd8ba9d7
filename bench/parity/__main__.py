"""Our returns, advantages, aggregations and losses against other libraries' on random inputs in float64.

    make parity                          every library in an environment of its own, .venv-parity-LIBRARY
    python -m bench.parity trl           one of them, in an environment that has it
    python -m bench.parity total         the sums over the newest figures of all

A difference is not hidden by a tolerance: where two functions differ on purpose, ours is also computed by the other's
equation, and the input counts as explained if that agrees. docs/parity.md says who is right and why. With --write it
appends `parity.LIBRARY.functions`, `.inputs`, `.disagreements` and `.unexplained` to results/parity.jsonl, without
LIBRARY for the total.
"""

from __future__ import annotations

import argparse
from importlib import import_module

import torch
from rich.console import Console
from torch import Tensor

from bench.common import latest, record

LIBRARIES = ("verl", "trl", "comlrl", "skyrl")
FIGURES = ("functions", "inputs", "disagreements", "unexplained")
CLOSE = 1e-9
console = Console(soft_wrap=True)


def differs(first: Tensor, second: Tensor) -> bool:
    return not torch.allclose(first.double(), second.double(), rtol=CLOSE, atol=CLOSE)


def compare_with(library: str, inputs: int) -> dict[str, int]:
    """The figures of one library, whose functions are those of `FUNCTIONS` in its module here."""
    torch.set_default_dtype(torch.float64)  # else what they make of plain numbers is float32
    functions = import_module(f"bench.parity.{library}").FUNCTIONS
    disagreements, unexplained = 0, 0
    for number, (name, compared) in enumerate(functions.items()):
        generator = torch.Generator().manual_seed(number)
        results = [compared(generator) for _ in range(inputs)]
        disagreeing = sum(differs(cadre_value, library_value) for cadre_value, library_value, _ in results)
        remaining = sum(differs(changed, library_value) for _, library_value, changed in results)
        disagreements, unexplained = disagreements + disagreeing, unexplained + remaining
        console.print(f"{library}, {name}: {inputs} inputs, {disagreeing} disagree, {remaining} unexplained")
    return dict(zip(FIGURES, (len(functions), len(functions) * inputs, disagreements, unexplained), strict=True))


def total() -> tuple[dict[str, int], str]:
    """Return the sums over the newest figures of all libraries, and the commits that these are of."""
    lines = [[latest()[f"parity.{library}.{name}"] for library in LIBRARIES] for name in FIGURES]
    sums = [sum(int(line["value"]) for line in ones) for ones in lines]
    commits = dict.fromkeys(line["commit"] for ones in lines for line in ones)
    return dict(zip(FIGURES, sums, strict=True)), ", ".join(commits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("library", choices=(*LIBRARIES, "total"))
    parser.add_argument("--inputs", type=int, default=1000, help="random batches a function")
    parser.add_argument("--write", action="store_true", help="append to results/parity.jsonl")
    chosen = parser.parse_args()
    summing = chosen.library == "total"
    figures, commits = total() if summing else (compare_with(chosen.library, chosen.inputs), "")
    for figure, value in figures.items():
        name = f"parity.{figure}" if summing else f"parity.{chosen.library}.{figure}"
        console.print(f"{name}: {value}")
        if chosen.write:
            record("parity", name, [value], "count", "make parity", chosen.inputs, measured=commits)


if __name__ == "__main__":
    main()
