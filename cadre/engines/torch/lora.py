"""Low-rank adapters (LoRA, arXiv 2106.09685) of several policies on one frozen base, in one forward and backward.

The rows of a batch are ordered by policy. Every adapted linear layer adds to each segment of rows the output of that
policy's adapter, and nothing to the rows of a policy without one. The base is held once and never written: adapters are
forward hooks, so its own parameters, names and files are as if they were not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor, nn

from cadre import random_keys
from cadre.errors import EngineError
from cadre.learn.tensors import to_device
from cadre.settings import LoraConfig

# Of a model's weights: the rest is then no more than routers, convolutions and the like.
FULL_REACH = 0.95

Segments = Sequence[tuple[str, int]]  # a policy, and how many consecutive rows belong to it


def segments(policies: Sequence[str]) -> Segments:
    """Return run lengths: `("a", "a", "b")` gives `[("a", 2), ("b", 1)]`."""
    return [(policy, len(list(rows))) for policy, rows in groupby(policies)]


@dataclass(frozen=True)
class Pair:
    """One layer's adapter: `down` [rank, inputs] and `up` [outputs, rank], float32; adds `scale * up @ down`."""

    down: nn.Parameter
    up: nn.Parameter
    scale: float

    @classmethod
    def initialise(cls, linear: nn.Linear, config: LoraConfig, key: tuple[int, str, str]) -> Pair:
        """Return PEFT's initial values: `down` uniform within 1 / sqrt(inputs), `up` zero, so that training starts at
        the base. The random key ends with the layer's name: the draw does not depend on which other adapters exist."""
        generator = torch.Generator().manual_seed(random_keys.key("lora", *key))
        bound = 1.0 / math.sqrt(linear.in_features)
        down = torch.empty(config.rank, linear.in_features).uniform_(-bound, bound, generator=generator)
        up = torch.zeros(linear.out_features, config.rank)
        device = linear.weight.device
        return Pair(nn.Parameter(down.to(device)), nn.Parameter(up.to(device)), config.alpha / config.rank)

    def delta(self, inputs: Tensor) -> Tensor:
        """Return what the adapter adds to the layer's output, computed in the precision of `inputs`."""
        hidden = nn.functional.linear(inputs, self.down.to(inputs.dtype)) * self.scale
        return nn.functional.linear(hidden, self.up.to(inputs.dtype))

    def narrowed(self, dtype: torch.dtype) -> Pair:
        """Return a copy in another precision, without gradients."""
        down, up = (nn.Parameter(part.detach().to(dtype), False) for part in (self.down, self.up))
        return Pair(down, up, self.scale)

    def weight(self) -> Tensor:
        """Return the change of the layer's weight [outputs, inputs]."""
        return self.scale * (self.up @ self.down)


class Adapters:
    """The adapters on one model, by policy; empty for a model whose own weights are trained. Lives with its model.
    `pairs[policy][module]` is the adapter of one layer. A batch must be run within `rows`."""

    def __init__(self, model: Any, configs: Mapping[str, LoraConfig], seed: int) -> None:
        self.configs: dict[str, LoraConfig] = {}
        self.pairs: dict[str, dict[str, Pair]] = {}
        self._segments: Segments = ()
        self._narrowed_segments: Segments = ()
        self._computed_pairs: Mapping[str, Mapping[str, Pair]] = self.pairs  # those that layers compute with
        self._modules: dict[str, Any] = {}
        for policy, config in configs.items():
            self.add(model, policy, config, (seed, policy))

    def add(self, model: Any, policy: str, config: LoraConfig, key: tuple[int, str]) -> None:
        """Add a fresh adapter, drawn by a random key. Raises EngineError if its layers are not the model's."""
        layers = targeted_layers(model, config, policy)
        self.configs[policy] = config
        self.pairs[policy] = {name: Pair.initialise(linear, config, (*key, name)) for name, linear in layers.items()}
        for name, module in layers.items():
            if name not in self._modules:
                self._modules[name] = module
                module.joined_adapter = None  # type: ignore[assignment]
                module.register_forward_hook(self._make_hook(name))

    def parameters(self, policy: str) -> dict[str, nn.Parameter]:
        """Return the trained weights of one policy, under PEFT's names without their prefix."""
        pairs = self.pairs[policy].items()
        downs = {f"{name}.lora_A.weight": pair.down for name, pair in pairs}
        return downs | {f"{name}.lora_B.weight": pair.up for name, pair in pairs}

    @contextmanager
    def replaced(self, weights: Mapping[str, Mapping[str, Tensor]]) -> Iterator[None]:
        """Compute with other weights of these policies within the block; they are named as in `parameters`."""
        named = [(policy, *item) for policy in weights for item in self.parameters(policy).items()]
        own_data = [parameter.data for *_, parameter in named]
        try:
            for policy, name, parameter in named:
                parameter.data = weights[policy][name]
            yield
        finally:
            for (*_, parameter), data in zip(named, own_data, strict=True):
                parameter.data = data

    @contextmanager
    def narrowed(self, dtype: torch.dtype) -> Iterator[None]:
        """Compute with copies of all adapters in this precision within the block, without gradients."""
        self._computed_pairs = {
            policy: {name: pair.narrowed(dtype) for name, pair in pairs.items()} for policy, pairs in self.pairs.items()
        }
        try:
            yield
        finally:
            self._computed_pairs = self.pairs

    @contextmanager
    def rows(self, segments: Segments = (), narrowed: Segments = ()) -> Iterator[None]:
        """Assign the rows of every batch that is run within it to policies, as `segments` lists them.

        A layer that continues with some of the rows (`prefix_tree.narrow_last_layer`) has them as `narrowed` lists
        them; it is recognised by the number of rows. A backward pass that recomputes activations needs the same context
        as its forward.
        """
        previous = self._segments, self._narrowed_segments
        self._segments, self._narrowed_segments = segments, narrowed
        try:
            yield
        finally:
            self._segments, self._narrowed_segments = previous

    @contextmanager
    def joined(self, segments: Segments, dtype: torch.dtype) -> Iterator[None]:
        """Do what `rows` does, for compiled layers: the adapters of all policies are one product for all rows.

        The ranks of a layer's adapters lie side by side, and each row keeps those of its policy. So a layer has two
        products however many policies there are, and nothing in it depends on where one's rows begin. The rows of one
        policy meet zeros times the adapter of another; that one's weights have to be finite.
        """
        policies = [policy for policy in dict.fromkeys(policy for policy, _ in segments) if policy in self.pairs]
        for module in self._modules.values():
            module.joined_adapter = ()  # none of these rows has an adapter
        if policies:
            self._join(policies, segments, dtype)
        try:
            yield
        finally:
            for module in self._modules.values():
                module.joined_adapter = None

    def _join(self, policies: Sequence[str], segments: Segments, dtype: torch.dtype) -> None:
        any_pair = next(iter(self.pairs[policies[0]].values()))
        ranks = [self.configs[policy].rank for policy in policies]
        columns = dict(zip(policies, accumulate(ranks, initial=0), strict=False))
        scales = torch.zeros(sum(count for _, count in segments), 1, sum(ranks))
        start = 0
        for policy, count in segments:
            if policy in columns:
                scale = self.configs[policy].alpha / self.configs[policy].rank
                scales[start : start + count, :, columns[policy] : columns[policy] + self.configs[policy].rank] = scale
            start += count
        scales = to_device(scales.to(dtype), any_pair.down.device)
        torch._dynamo.maybe_mark_dynamic(scales, 0)
        for name, module in self._modules.items():
            pairs = [self.pairs[policy].get(name) for policy in policies]
            downs, ups = [], []
            for rank, pair in zip(ranks, pairs, strict=True):
                downs.append(scales.new_zeros(rank, module.in_features) if pair is None else pair.down.to(dtype))
                ups.append(scales.new_zeros(module.out_features, rank) if pair is None else pair.up.to(dtype))
            module.joined_adapter = torch.cat(downs), torch.cat(ups, dim=1), scales

    def can_join(self, layers: Sequence[nn.Module]) -> bool:
        """Return True if all layers have adapters at the same places, as layers that share one compiled form need."""
        names = {id(module) for module in self._modules.values()}
        names_of = [tuple(name for name, module in layer.named_modules() if id(module) in names) for layer in layers]
        return len(set(names_of)) <= 1 and sum(map(len, names_of)) == len(self._modules)

    def _make_hook(self, name: str) -> Any:
        def add_adapters(module: Any, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            inputs = arguments[0]
            if module.joined_adapter is not None:
                if not module.joined_adapter:
                    return output
                down, up, scales = module.joined_adapter
                hidden = nn.functional.linear(inputs.to(down.dtype), down) * scales
                return output + nn.functional.linear(hidden, up).to(output.dtype)
            narrowed_rows = sum(count for _, count in self._narrowed_segments)
            is_narrowed = bool(self._narrowed_segments) and inputs.shape[0] == narrowed_rows
            rows = self._narrowed_segments if is_narrowed else self._segments
            sizes = [count for _, count in rows]
            pairs = [self._computed_pairs.get(policy, {}).get(name) for policy, _ in rows]
            if not any(pairs):
                return output
            if sum(sizes) != inputs.shape[0]:
                raise EngineError(
                    f"Layer {name!r} got {inputs.shape[0]} rows of {sum(sizes)} in the batch, so its adapters cannot "
                    "tell whose they are; such layers (of experts, say) take no adapter. Leave it out of lora.targets."
                )
            split = zip(pairs, torch.split(inputs, sizes), torch.split(output, sizes), strict=True)
            # Split and concatenate, as writing into slices would cost the backward a full-size copy a segment.
            parts = [plain if pair is None else plain + pair.delta(part).to(plain.dtype) for pair, part, plain in split]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return add_adapters


def linear_layers(model: Any) -> dict[str, nn.Linear]:
    """Return the linear layers that may take an adapter, by name. Left out are the vocabulary projection and the image
    encoder, whose rows are not those of the batch."""
    head = model.get_output_embeddings()
    decoder = set(model.get_decoder().modules()) if model.config.get_text_config() is not model.config else None
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and (decoder is None or module in decoder)
    }


def weights_without_adapters(model: Any) -> dict[str, int]:
    """Return the sizes of the decoder's other matrices by name, without layer numbers; embeddings are left out. Such
    are experts, whose weights transformers holds as one tensor of all of them."""
    taking = {id(linear) for linear in linear_layers(model).values()} | {id(model.get_output_embeddings())}
    decoder = model.get_decoder() if model.config.get_text_config() is not model.config else model
    sizes: dict[str, int] = {}
    for name, module in decoder.named_modules():
        if id(module) in taking or isinstance(module, nn.Embedding):
            continue
        for leaf, weight in module.named_parameters(recurse=False):
            if weight.dim() > 1:
                key = ".".join(part for part in [*name.split("."), leaf][-3:] if not part.isdigit())
                sizes[key] = sizes.get(key, 0) + weight.numel()
    return sizes


def describe_reach(model: Any, layers: Iterable[nn.Linear]) -> tuple[str, bool]:
    """Return how much of the decoder's matrices these layers are, and True if many of them take no adapter. Embeddings
    are not counted."""

    missing = weights_without_adapters(model)
    taking = sum(linear.in_features * linear.out_features for linear in linear_layers(model).values())
    total, adapted = taking + sum(missing.values()), sum(linear.in_features * linear.out_features for linear in layers)
    reach = f"adapters on {adapted / total:.0%} of the weights of the model's layers"
    if taking >= FULL_REACH * total:
        return reach, False
    return f"{reach}; {', '.join(missing)} are no linear layers and take none", True


def targeted_layers(model: Any, config: LoraConfig, policy: str) -> dict[str, nn.Linear]:
    """Return the layers that `lora.targets` selects, by name: a target matches the end of a name, as in PEFT. Raises
    EngineError if a target is no linear layer, or the model has none."""
    linears = linear_layers(model)
    if not linears:
        raise EngineError(
            f"Policy {policy!r} has a lora, and the model, of type {model.config.model_type!r}, no linear layer to "
            "hang it on; expected torch's Linear beside the vocabulary projection. Take another model, or leave lora "
            "out, which trains the model whole."
        )
    if config.targets == "all-linear":
        return linears

    for target in config.targets:
        if not any(f".{name}".endswith(f".{target}") for name in linears):
            names = ", ".join(sorted({name.rpartition(".")[2] for name in linears}))
            excluded = ", ".join(["the vocabulary projection", *weights_without_adapters(model)])
            raise EngineError(
                f"Policy {policy!r}: lora.targets names {target!r}, and no layer that takes an adapter ends with that "
                f"(these take none: {excluded}). Expected 'all-linear', or some of {names}."
            )
    endings = tuple(f".{target}" for target in config.targets)
    return {name: linear for name, linear in linears.items() if f".{name}".endswith(endings)}
