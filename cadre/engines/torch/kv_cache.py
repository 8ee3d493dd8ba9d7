"""Key/value caches of one decoding batch in which every sequence has a copy of its prompt's keys and values.

The padded cache is the simple form: the model's own forward over growing tensors with a ready mask. The static cache
keeps its tensors in place, so that a decoding step can be recorded as a CUDA graph and replayed.

Slots are not positions: every sequence has its prompt in slots 0 to n - 1, then a gap up to the longest prompt of the
batch, then its completion. Masks decide which slots a token may attend to.

Letters: B sequences, P prompts, H heads, G key/value heads, C slots, D head size, V vocabulary.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from cadre.engines.torch.model import FULL, SLIDING, LayerAttention, check_attention_keywords, use_attention
from cadre.engines.torch.prefix_cache import KeyValueBlock
from cadre.learn.tree_attention import Scoring

GROWTH = 64  # slots that are added at once, at least, when a cache is full
STATIC_GROWTH = 256  # the same for the static cache, whose tensors move with it
NEVER = 1 << 40  # the position of a slot that no token attends to: after all others
NAME = "cadre_cache"

Mask = Tensor | Mapping[str, Tensor]
Step = Callable[[], None]
Recorder = Callable[[Step], Step]


class DecodingCache(Protocol):
    """The keys and values of a batch's sequences while it is decoded."""

    def step_inputs(self, model: Any, position: Tensor) -> AbstractContextManager[dict[str, Any]]:
        """Yield keywords with which the model's forward reads and extends the cache by one token a sequence. The tokens
        stand at `position` int64 [B]."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep these sequences, in this order."""
        ...

    def completion_block(self, rows: Tensor) -> KeyValueBlock:
        """Return the keys and values of these sequences' completions, without the tokens of this step."""
        ...


def attend_by_cache(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: None,
    *,
    decoding_cache: Any,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Attend by the `attend` method of the cache that is a keyword of the forward, as transformers calls it. `query`
    [B, H, Q, D] in, [B, Q, H, D] out."""
    check_attention_keywords(keywords)
    # Under autocast rotary embeddings leave queries and keys in another precision than values.
    query, key = query.to(value.dtype), key.to(value.dtype)
    scoring = Scoring(scaling, sliding_window, softcap)
    attended: Tensor = decoding_cache.attend(module.layer_idx, query, key, value, scoring)
    return attended.transpose(1, 2), None


AttentionInterface.register(NAME, attend_by_cache)


def hide(is_hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive mask: 0, and the lowest number where `is_hidden`."""
    blank = torch.zeros(is_hidden.shape, dtype=dtype, device=is_hidden.device)
    # Not minus infinity: a sequence that sees no slot must still have a number.
    return blank.masked_fill(is_hidden, torch.finfo(dtype).min)


# The growing cache, as transformers' models fill it.


class KeyValueLayer(CacheLayerMixin):
    """One layer's keys and values [B, G, capacity, D], of which the first `length` slots are in use."""

    is_sliding = False

    def __init__(self, capacity: int = 0) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = with_capacity(key_states[:, :, :0], self.capacity)
        self.values = with_capacity(value_states[:, :, :0], self.capacity)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append the new slots and return views of all slots in use."""
        start, end = self.length, self.length + key_states.shape[2]
        if not self.is_initialized:
            self.capacity = max(self.capacity, end)
            self.lazy_initialization(key_states, value_states)
        elif end > self.capacity:
            self.capacity = end + max(GROWTH, end // 4)
            self.keys = with_capacity(self.keys[:, :, :start], self.capacity)
            self.values = with_capacity(self.values[:, :, :start], self.capacity)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def select(self, rows: Tensor) -> None:
        """Keep these sequences, in this order, and free the memory of the others."""
        self.keys = with_capacity(self.keys[:, :, : self.length].index_select(0, rows), self.capacity)
        self.values = with_capacity(self.values[:, :, : self.length].index_select(0, rows), self.capacity)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


def with_capacity(used: Tensor, capacity: int) -> Tensor:
    """Return the slots in use, copied into a tensor with `capacity` slots."""
    count, heads, length, size = used.shape
    larger = used.new_empty(count, heads, capacity, size)
    larger[:, :, :length] = used
    return larger


class KeyValueCache(Cache):
    """The cache of one batch: one `KeyValueLayer` for each layer of the model, all of the same length."""

    def __init__(self, layers: int, capacity: int = 0) -> None:
        super().__init__(layers=[KeyValueLayer(capacity) for _ in range(layers)])

    @property
    def length(self) -> int:
        return self.layers[0].length

    def select(self, rows: Tensor) -> None:
        """Keep these sequences of every layer, in this order."""
        for layer in self.layers:
            layer.select(rows)

    @staticmethod
    def copy_prompts(groups: Sequence[KeyValueCache], prompts: Tensor, length: int, capacity: int) -> KeyValueCache:
        """Return one cache for all sequences of a batch, each with a copy of its prompt's keys; empties the groups.
        `prompts` int64 [B] are indices through the groups in order. `length` is the longest prompt: the new length."""

        def copy(parts: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
            _, heads, _, size = parts[0].shape
            # Zeros, not empty memory: a masked slot still enters a product, and 0 * NaN is NaN.
            target = parts[0].new_zeros(prompts.shape[0], heads, capacity, size)
            first = 0
            for part, used in zip(parts, lengths, strict=True):
                readers = ((prompts >= first) & (prompts < first + part.shape[0])).nonzero().squeeze(1)
                target[readers, :, :used] = part[:, :, :used].index_select(0, prompts[readers] - first)
                first += part.shape[0]
            return target

        result = KeyValueCache(len(groups[0].layers), capacity)
        for index, layer in enumerate(result.layers):
            sources = [group.layers[index] for group in groups]
            lengths = [source.length for source in sources]
            layer.keys = copy([source.keys for source in sources], lengths)
            layer.values = copy([source.values for source in sources], lengths)
            layer.length, layer.is_initialized = length, True
            for source in sources:
                source.keys = source.values = None
        return result


# Masks. A ready 4D mask spares transformers from building one each step. Models that mix full and sliding-window layers
# take one mask for each type of layer.


def make_masks(attention: LayerAttention, positions: Tensor, slots: Tensor, dtype: torch.dtype) -> Mask:
    """Return the model's `attention_mask`, [P, 1, Q, C], for queries and slots that hold tokens at these positions.
    `positions` int64 [P, Q], `slots` int64 [P, C]; no token attends to what comes after it."""
    query, key = positions.unsqueeze(2), slots.unsqueeze(1)
    visible = key <= query
    full = hide(~visible, dtype)[:, None]
    if attention.window is None:
        return full
    sliding = hide(~(visible & (key > query - attention.window)), dtype)[:, None]
    return sliding if len(attention.types) == 1 else {FULL: full, SLIDING: sliding}


class PaddedCache:
    """The cache and the masks of a batch whose sequences each have a copy of their prompt; the simple form. `lengths`
    int64 [B] are the tokens of the prompts."""

    def __init__(self, attention: LayerAttention, cache: KeyValueCache, lengths: Tensor) -> None:
        self._attention = attention
        self._cache = cache
        self._prompt_slots = cache.length
        slot = torch.arange(cache.length, device=lengths.device)
        # The number in its sequence of each slot's token, and of the next token. Positions of images are others.
        self._numbers, self._next = torch.where(slot < lengths.unsqueeze(1), slot, NEVER), lengths

    @contextmanager
    def step_inputs(self, model: Any, position: Tensor) -> Iterator[dict[str, Any]]:
        """Yield keywords of the model's own forward, which extends the cache; see `DecodingCache`."""
        newest, self._next = self._next.unsqueeze(1), self._next + 1
        self._numbers = torch.cat((self._numbers, newest), dim=1)
        mask = make_masks(self._attention, newest, self._numbers, self._cache.layers[0].keys.dtype)
        yield {"attention_mask": mask, "past_key_values": self._cache, "use_cache": True}

    def select(self, rows: Tensor) -> None:
        """Keep these sequences, in this order."""
        self._cache.select(rows)
        self._numbers, self._next = self._numbers[rows], self._next[rows]

    def completion_block(self, rows: Tensor) -> KeyValueBlock:
        """Return the keys and values of these sequences' completions."""
        keys, values = ([getattr(layer, name) for layer in self._cache.layers] for name in ("keys", "values"))
        return KeyValueBlock.copy_of(keys, values, rows, slice(self._prompt_slots, self._cache.length))


# The static cache. A small batch on a GPU waits for Python: the kernels of a layer take less time than launching them.
# So a step is recorded once, as a graph of kernels on fixed memory, and replayed for every token until sequences are
# dropped or the capacity is used up. All that changes between steps is data on the GPU: the token, its position and the
# slot that it takes. On a CPU a recorded step runs as it is; tests replay it operation by operation.


class StaticCache:
    """Keys and values of a batch in tensors that stay in place. `moves` counts how often they were replaced. `cache`
    [B, G, C, D] a layer holds prompts of `lengths` int64 [B] in its first slots, and zeros beyond."""

    def __init__(self, cache: KeyValueCache, lengths: Tensor) -> None:
        self._keys = [layer.keys.to(layer.values.dtype) for layer in cache.layers]
        self._values = [layer.values for layer in cache.layers]
        self._prompt_slots = self._length = cache.length
        slot = torch.arange(self._keys[0].shape[2], device=lengths.device)
        # The number in its sequence of each slot's token, and of the newest token. Positions of images are others.
        self._numbers, self._newest = torch.where(slot < lengths.unsqueeze(1), slot, NEVER), lengths
        self._slot = slot.new_tensor([self._length])
        self._masks: dict[int | None, Tensor] = {}
        self.moves = 0

    @property
    def room(self) -> int:
        """Return the tokens of a completion that the tensors have room for."""
        return self._keys[0].shape[2] - self._prompt_slots

    def advance(self) -> None:
        """Make room for one more token a sequence, which the following step adds."""
        if self._length == self._keys[0].shape[2]:
            self._keys = [pad(part, (0, 0, 0, STATIC_GROWTH)) for part in self._keys]
            self._values = [pad(part, (0, 0, 0, STATIC_GROWTH)) for part in self._values]
            self._numbers = pad(self._numbers, (0, STATIC_GROWTH), value=NEVER)
            self.moves += 1
        self._length += 1

    @contextmanager
    def step_inputs(self, model: Any, position: Tensor) -> Iterator[dict[str, Any]]:
        """Yield keywords with which the model attends to this cache; see `DecodingCache`."""
        self._numbers.index_copy_(1, self._slot, self._newest.unsqueeze(1))
        self._masks.clear()
        with use_attention(model, NAME):
            yield {"decoding_cache": self, "use_cache": False}
        self._slot.add_(1)
        self._newest.add_(1)

    def select(self, rows: Tensor) -> None:
        """Keep these sequences, in this order."""
        self._keys, self._values = [part[rows] for part in self._keys], [part[rows] for part in self._values]
        self._numbers, self._newest = self._numbers[rows], self._newest[rows]
        self.moves += 1

    def completion_block(self, rows: Tensor) -> KeyValueBlock:
        """Return the keys and values of these sequences' completions."""
        return KeyValueBlock.copy_of(self._keys, self._values, rows, slice(self._prompt_slots, self._length))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Add `key` and `value` [B, G, 1, D], and return the attended values [B, H, 1, D] of `query` [B, H, 1, D]."""
        keys, values = self._keys[layer], self._values[layer]
        keys.index_copy_(2, self._slot, key.to(keys.dtype))
        values.index_copy_(2, self._slot, value.to(values.dtype))
        # The mask of the newest token, additive [B, 1, 1, C], is the same in every layer with this window.
        if scoring.window not in self._masks:
            newest = self._newest.unsqueeze(1)
            visible = self._numbers <= newest
            if scoring.window is not None:
                visible &= self._numbers > newest - scoring.window
            self._masks[scoring.window] = hide(~visible, values.dtype)[:, None, None]
        # Heads that share keys become queries of one head, so that keys are never repeated.
        grouped = query.to(values.dtype).reshape(len(query), keys.shape[1], -1, query.shape[3])
        mask = self._masks[scoring.window]
        if scoring.softcap is None:
            attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scoring.scale)
        else:
            scores = scoring.softcap * torch.tanh(grouped @ keys.transpose(2, 3) * scoring.scale / scoring.softcap)
            attended = (scores + mask).softmax(dim=-1, dtype=torch.float32).to(values.dtype) @ values
        return attended.reshape(query.shape)


class ReplayedStep:
    """A decoding step that runs as it is once after its tensors have moved, and is recorded the second time. `step`
    reads and writes the same tensors at every call; `record` returns a replay of it."""

    def __init__(self, step: Step, record: Recorder) -> None:
        self._step, self._record = step, record
        self._moves = -1
        self._replay: Step | None = None

    def __call__(self, moves: int) -> None:
        """Run the step; `moves` counts how often its tensors were replaced."""
        if moves != self._moves:
            # In this step libraries make their plans, and autocast its copies of weights, which no graph may hold.
            self._moves, self._replay = moves, None
            self._step()
            return
        self._replay = self._replay or self._record(self._step)
        self._replay()


def run_eagerly(step: Step) -> Step:
    """Return the step itself: the recorder of a device without graphs."""
    return step


def record_graph(step: Step) -> Step:
    """Return a replay of the step on the tensors that it uses now, as a CUDA graph. Recording runs nothing."""
    graph = torch.cuda.CUDAGraph()
    # One recording at a time, without the collection of garbage, which is on or off for all threads: a graph among it,
    # freed in this thread, would end the recording. Other engines continue in their threads meanwhile. torch records on
    # a stream of the GPU that was current when the first graph was recorded, which may be another.
    with _recording:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            device = torch.cuda.current_device()
            if device not in _streams:
                _streams[device] = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            with torch.cuda.graph(graph, stream=_streams[device], capture_error_mode="thread_local"):
                step()
        finally:
            if was_enabled:
                gc.enable()
    return graph.replay


_recording = threading.Lock()
_streams: dict[int, Any] = {}  # by the number of the GPU: cuBLAS keeps memory for each stream that it has run on
