"""Keys and values of one decoding batch in tensors that stay where they are, and decoding steps as CUDA graphs.

A small batch on a card waits for Python: the kernels of a layer take less time than starting them. So a step is
recorded once, as a graph of kernels on fixed places in memory, and replayed for every token until sequences are dropped
or room runs out. All that changes between steps is data on the card: the token, its position and the slot that it
takes. On a CPU every step runs as it is, which is how this is tested; `bench/gpu.py` compares the replayed steps of a
card. The simple form is `CopiedPrompts`. Not for models whose scores are soft-capped: `serves` tells.

Letters: B sequences, H heads, G key/value heads, C slots of room, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from cadre.engines.torch.base.loading import attending, check_keywords
from cadre.engines.torch.sampling.kv_cache import KeyValues
from cadre.engines.torch.sampling.shared_prefix_cache import Scoring, is_plain
from cadre.engines.torch.sampling.turn_cache import Piece, rows_of

NAME = "cadre_fixed"
# Slots that are added at once when room runs out, which moves the tensors.
ROOM = 256
# The position of a slot that nobody looks at: after all others.
NOWHERE = 1 << 40

Step = Callable[[Tensor, Tensor], Tensor]
Record = Callable[[Step, tuple[Tensor, Tensor]], Callable[[], Tensor]]


def serves(model: Any) -> bool:
    """Whether the model can be decoded this way."""
    return is_plain(model)


class FixedKeys:
    """The cache of one batch, in which every sequence has a copy of its prompt's. `moved` counts how often its tensors
    were replaced by others."""

    def __init__(self, cache: KeyValues, lengths: Tensor) -> None:
        """`cache` [B, G, C, D] a layer holds prompts of `lengths` int64 [B] in its first slots, and zeros beyond."""
        self._keys = [layer.keys.to(layer.values.dtype) for layer in cache.layers]
        self._values = [layer.values for layer in cache.layers]
        self._prompt = self._length = cache.length
        slot = torch.arange(self._capacity, device=lengths.device)
        self._positions = torch.where(slot < lengths.unsqueeze(1), slot, NOWHERE)
        self._position = lengths
        self._slot = slot.new_tensor([self._length])
        self._masks: dict[int | None, Tensor] = {}
        self.moved = 0

    @property
    def _capacity(self) -> int:
        return self._keys[0].shape[2]

    def advance(self) -> None:
        """Make room for one more token a sequence, which the step that follows takes in."""
        if self._length == self._capacity:
            self._keys, self._values = (
                [pad(part, (0, 0, 0, ROOM)) for part in of] for of in (self._keys, self._values)
            )
            self._positions = pad(self._positions, (0, ROOM), value=NOWHERE)
            self.moved += 1
        self._length += 1

    @contextmanager
    def reading(self, model: Any, position: Tensor) -> Iterator[dict[str, Any]]:
        """Within it the model attends to these keys, each layer taking in those of one more token a sequence."""
        self._positions.index_copy_(1, self._slot, position.unsqueeze(1))
        self._position = position
        self._masks.clear()
        with attending(model, NAME):
            yield {"fixed": self, "use_cache": False}
        self._slot.add_(1)

    def select(self, kept: Tensor) -> None:
        """Keep these sequences, in this order."""
        self._keys, self._values = ([part[kept] for part in of] for of in (self._keys, self._values))
        self._positions = self._positions[kept]
        self.moved += 1

    def said(self, rows: Tensor) -> Piece:
        """The keys and values of what these sequences have said."""
        return rows_of(self._keys, self._values, rows, slice(self._prompt, self._length))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """The attended values [B, H, 1, D] of `query` [B, H, 1, D], `key` and `value` [B, G, 1, D] being taken in."""
        keys, values = self._keys[layer], self._values[layer]
        keys.index_copy_(2, self._slot, key.to(keys.dtype))
        values.index_copy_(2, self._slot, value.to(values.dtype))
        # Heads that share keys stand side by side as queries of one head, so keys are never repeated.
        beside = query.to(values.dtype).reshape(len(query), keys.shape[1], -1, query.shape[3])
        mask = self._mask(scoring.window, values.dtype)
        attended = scaled_dot_product_attention(beside, keys, values, attn_mask=mask, scale=scoring.scale)
        return attended.reshape(query.shape)

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """What hides slots from the newest token, additive [B, 1, 1, C], the same in every layer with this window."""
        if window not in self._masks:
            newest = self._position.unsqueeze(1)
            seen = self._positions <= newest
            if window is not None:
                seen &= self._positions > newest - window
            blank = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
            self._masks[window] = blank.masked_fill(~seen, torch.finfo(dtype).min)[:, None, None]
        return self._masks[window]


class Replayed:
    """A step that is replayed where it can be: run as it is once after its keys have moved, recorded the second time.

    `step` takes tokens and positions, int64 [B], and returns logits [B, V], which the next call overwrites. `record` is
    how it is recorded; None for a device that cannot.
    """

    def __init__(self, step: Step, keys: FixedKeys, record: Record | None) -> None:
        self._step, self._keys, self._record = step, keys, record
        self._inputs: tuple[Tensor, Tensor] | None = None
        self._moved = -1
        self._replay: Callable[[], Tensor] | None = None

    def __call__(self, token: Tensor, position: Tensor) -> Tensor:
        self._keys.advance()
        if self._inputs is None or self._keys.moved != self._moved:
            # Libraries make their plans and autocast its copies of weights in this step, which no graph may hold.
            self._moved, self._replay = self._keys.moved, None
            self._inputs = token.clone(), position.clone()
            return self._step(*self._inputs)
        for fixed, given in zip(self._inputs, (token, position), strict=True):
            fixed.copy_(given)
        if self._record is None:
            return self._step(*self._inputs)
        self._replay = self._replay or self._record(self._step, self._inputs)
        return self._replay()


def recorder(device: torch.device) -> Record | None:
    """How steps are recorded on a device, if they can be."""
    return recorded if device.type == "cuda" else None


def recorded(step: Step, inputs: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    """The step on these very tensors as a CUDA graph. Recording runs nothing."""
    graph = torch.cuda.CUDAGraph()
    # Other engines go on in threads of their own meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        logits = step(*inputs)

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: None,
    *,
    fixed: FixedKeys,
    scaling: float,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for attention: `query` [B, H, 1, D] in, [B, 1, H, D] out."""
    check_keywords(rest)
    scoring = Scoring(scaling, sliding_window)
    return fixed.attend(module.layer_idx, query, key, value, scoring).transpose(1, 2), None


AttentionInterface.register(NAME, _attend)
