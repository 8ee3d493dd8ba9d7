"""Which samples an update learns from, and how much: what lies between advantages and training sequences.

Completions that were cut off, answers that are too long, groups in which everybody earned the same, roles that should
weigh more than others. Pure functions of trees, groups and sequences, the same for every algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cadre import walk
from cadre.credit import NO_SPREAD, Group
from cadre.sections import CreditConfig
from cadre.types import Datum, Sample, Sampling, Tree


def overlong(sample: Sample, most: int, buffer: int) -> float:
    """The penalty of a completion of at most `most` tokens, from 0 to -1 over the last `buffer` of them.

    DAPO's soft overlong punishment (arXiv 2503.14476, equation 13). A completion that was cut off has all of it.
    """
    if sample.finish == "length":
        return -1.0
    return -max(0.0, len(sample.token_ids) - (most - buffer)) / buffer


def penalties(trees: Sequence[Tree], chosen: CreditConfig, sampling: Mapping[str, Sampling]) -> dict[int, float]:
    """What each sample loses of its own return, by `id` of the sample. A sample without token ids loses nothing."""
    if not chosen.overlong_buffer:
        return {}
    factor = 1.0 if chosen.overlong_factor is None else chosen.overlong_factor
    drawn = (sample for tree in trees for sample in walk.samples(tree.root) if sample.token_ids)
    return {id(one): -factor * overlong(one, sampling[one.role].max_tokens, chosen.overlong_buffer) for one in drawn}


def select(groups: Sequence[Group], chosen: CreditConfig) -> list[Group]:
    """The groups with what is learned from; their advantages were made of all that was sampled."""
    spread = [group for group in groups if chosen.without_spread == "keep" or group.spread >= NO_SPREAD]
    if chosen.truncated == "train":
        return spread
    whole = ([one for one in group.scored if one.sample.finish != "length"] for group in spread)
    return [replace(group, scored=tuple(kept)) for group, kept in zip(spread, whole, strict=True)]


def weighted(data: Sequence[Datum], chosen: CreditConfig) -> list[Datum]:
    """The sequences with their advantages times the weight of their role."""
    weights = chosen.role_weights
    return [
        replace(one, advantages=tuple(weights[one.role] * value for value in one.advantages))
        if one.role in weights
        else one
        for one in data
    ]


def dropped(groups: Sequence[Group], chosen: CreditConfig) -> int:
    """How many samples are not learned from."""
    return sum(len(group.scored) for group in groups) - sum(len(group.scored) for group in select(groups, chosen))
