"""Mixtures of a game's programs: kinds with weights, each a list of texts or of functions that write one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Template = str | Callable[[random.Random], str]


@dataclass(frozen=True)
class Kind:
    """Programs of similar quality. `weight` is the probability of the kind in percent; its templates are equally
    likely."""

    weight: int
    templates: Sequence[Template]


# The kinds of every game.
Mixture = Mapping[str, dict[str, Kind]]


def sample(kinds: dict[str, Kind], generator: random.Random) -> tuple[str, str]:
    """Return (kind, program text), drawn by weight."""
    (name,) = generator.choices(list(kinds), [kind.weight for kind in kinds.values()])
    template = generator.choice(kinds[name].templates)
    return name, template if isinstance(template, str) else template(generator)


def with_mistakes(right: str, mistakes: Sequence[tuple[str, str]]) -> list[str]:
    """Return the program once for each pair (right text, its replacement). Every mistake must apply."""
    assert all(old in right for old, _ in mistakes)
    return [right.replace(old, new) for old, new in mistakes]


def with_several(right: str, mistakes: Sequence[tuple[str, str]], count: int) -> list[str]:
    """Return the program once for each combination of `count` mistakes at different places."""
    texts = []
    for chosen in itertools.combinations(mistakes, count):
        if len({old for old, _ in chosen}) == count:
            text = right
            for old, new in chosen:
                # An earlier mistake may have removed the text of a later one: such combinations are dropped.
                text = text.replace(old, new) if old in text else ""
            texts += [text] if text else []
    return texts


def repeated(templates: Sequence[str], times: Sequence[int]) -> list[str]:
    """Return each template as often as `times` says, which makes some likelier."""
    return [template for template, count in zip(templates, times, strict=True) for _ in range(count)]


def constant_moves(generator: random.Random) -> str:
    """Return a program that prints one to six random moves."""
    return f'print("{"".join(generator.choices("UDLR", k=generator.randint(1, 6)))}")\n'
