"""Which packing of sequences is right for a model, found out on two short ones before it is trained.

Padding on the right changes nothing where what a layer computes of a token depends on those before it alone. Not every
model is so: some choose the best few keys out of all, padding included. So the packing that a policy asks for is tried
before it is used, on the model and on a copy with small windows, against the model's own forward over each sequence
alone. What no packing is right for is run one sequence at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cadre.engines.torch.base.loading import Loaded
from cadre.engines.torch.base.plain_forward import (
    ModelKind,
    logit_distance,
    meaningless_tokens,
    model_kind,
    plain_logits,
    try_precisions,
)
from cadre.engines.torch.base.small_windows import with_small_windows
from cadre.engines.torch.learning.lm_head import project
from cadre.engines.torch.learning.prefix_tree_forward import batch_states
from cadre.errors import EngineError, first_line
from cadre.learn.batch import collate
from cadre.learn.prefix_tree import PrefixTree
from cadre.settings import Packing
from cadre.types import TrainingSequence

# Tokens of the two sequences, and how many of them are the same. Both are longer than `small_windows.WINDOW`.
LENGTHS, SHARED = (23, 37), 11

_found: dict[tuple[ModelKind, int, torch.dtype, str], str] = {}


@dataclass(frozen=True)
class LearningForm:
    """How a model's sequences are run in an update: in this packing, and several `together` or each alone."""

    packing: Packing
    together: bool


def learning_form(loaded: Loaded, dtype: torch.dtype, packing: Packing) -> LearningForm:
    """The form of this packing, or the nearest to it, that is right for a model. Raises EngineError where none is."""
    kind = loaded.model.config.model_type
    wrong = "" if packing == "padded" else _trial(loaded, dtype, "prefix_tree")
    if wrong and packing == "prefix_tree":
        raise EngineError(
            f"learner.pack is prefix_tree, but the model {loaded.source!r}, of type {kind!r}, run so {wrong}; expected "
            "the logits of its own forward over each sequence alone. Set learner.pack to auto."
        )
    if not _trial(loaded, dtype, "padded"):
        return LearningForm("padded" if wrong else packing, together=True)
    if wrong := _trial(loaded, dtype, "alone"):
        raise EngineError(
            f"The torch engine cannot train {loaded.source!r}, a model of type {kind!r}: by its learner it {wrong}; "
            "expected the logits of the model's own forward. Such a model can be played with frozen: true, and not "
            "trained. Take a model of another type."
        )
    return LearningForm("padded", together=False)


def _trial(loaded: Loaded, dtype: torch.dtype, form: str) -> str:
    """What is wrong with a form, "" for nothing. Models that are alike are tried once."""
    key = (model_kind(loaded.model), loaded.context, dtype, form)
    if key not in _found:
        _found[key] = _tried(loaded, dtype, form) or _tried_past_windows(loaded, form)
    return _found[key]


def _tried_past_windows(loaded: Loaded, form: str) -> str:
    if form == "alone":
        return ""
    try:
        shrunk = with_small_windows(loaded)
    except Exception as error:  # noqa: BLE001 - a model's code raises anything over settings that it is not made for
        return f"raises {first_line(error)} once its windows are small"
    wrong = _tried(shrunk, shrunk.model.dtype, form) if shrunk else ""
    return wrong and f"{wrong} past its window"


@torch.no_grad()
def _tried(loaded: Loaded, dtype: torch.dtype, form: str) -> str:
    """What is wrong with a form, "" for nothing."""
    data = _sequences(loaded)
    parts = [[datum] for datum in data] if form == "alone" else [data]
    trees = [PrefixTree.of(part) if form == "prefix_tree" else None for part in parts]

    def distance(precision: torch.dtype) -> float:
        return max(_off(loaded, precision, part, tree) for part, tree in zip(parts, trees, strict=True))

    return try_precisions(loaded, dtype, distance)


def _sequences(loaded: Loaded) -> list[TrainingSequence]:
    """Two sequences with a common beginning, of which all but the first token is read; shorter in a short context."""
    lengths = [min(length, loaded.context - 2 + place) for place, length in enumerate(LENGTHS)]
    common = meaningless_tokens(loaded.model, SHARED, 0)
    rows = [(*common, *meaningless_tokens(loaded.model, max(LENGTHS), 1 + place)) for place in range(len(LENGTHS))]
    return sorted(
        (
            TrainingSequence(
                "", "", row[:length], (False, *(True,) * (length - 1)), (0.0,) * length, (0.0,) * length, 0
            )
            for row, length in zip(rows, lengths, strict=True)
        ),
        key=lambda datum: datum.token_ids,
    )


def _off(loaded: Loaded, dtype: torch.dtype, data: list[TrainingSequence], tree: PrefixTree | None) -> float:
    """How far the logits that a learner reads are from those of plain forwards."""
    model = loaded.model
    batch = collate(data, model.device, tree)
    states, nodes = batch_states(model, batch, flex=False)
    furthest = 0.0
    for row, datum in enumerate(data):
        read = len(datum.token_ids) - 1
        got, wanted = project(model, states[nodes[row, :read]]).float(), plain_logits(loaded, datum.token_ids)[:read]
        distances = logit_distance(got, wanted)
        furthest = max(furthest, float(distances.max() if dtype == torch.float32 else distances.median()))
    return furthest
