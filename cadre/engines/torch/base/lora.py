"""Low-rank adapters (LoRA, arXiv 2106.09685) of several policies on one frozen base, in one forward and backward.

The rows of a batch are ordered by policy; every adapted linear layer adds to each segment of rows what that policy's
adapter says, and nothing to the rows of a policy without one. The base is held once and never written: adapters hang
on it as forward hooks, so its own parameters, names and files are as if they were not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from cadre import random_keys
from cadre.engines import host_memory
from cadre.errors import EngineError
from cadre.file_limits import size_of
from cadre.settings import LoraConfig

Segments = Sequence[tuple[str, int]]  # a policy and how many rows in a row are its


def segments(policies: Sequence[str]) -> Segments:
    """`("a", "a", "b")` as `[("a", 2), ("b", 1)]`."""
    return [(policy, len(list(rows))) for policy, rows in groupby(policies)]


def _check_memory(policy: str, config: LoraConfig, layers: Mapping[str, Any]) -> None:
    """Raise EngineError where an adapter takes more than this machine has, before it is allocated."""
    sides = sum(linear.in_features + linear.out_features for linear in layers.values())
    needed, there = 4 * config.rank * sides, host_memory.total()
    if needed > there:
        raise EngineError(
            f"team.policies.{policy}.lora.rank: got {config.rank:,}, with which the adapter takes {size_of(needed)}, "
            f"and this machine has {size_of(there)} of memory; expected a rank such as 16. Lower it."
        )


@dataclass(frozen=True)
class Pair:
    """One layer's adapter: `down` [rank, inputs] and `up` [outputs, rank], float32; adds `scale * up @ down`."""

    down: nn.Parameter
    up: nn.Parameter
    scale: float

    def delta(self, inputs: Tensor) -> Tensor:
        """What the adapter adds to the layer's output; computed in the precision of `inputs`."""
        hidden = nn.functional.linear(inputs, self.down.to(inputs.dtype)) * self.scale
        return nn.functional.linear(hidden, self.up.to(inputs.dtype))

    def weight(self) -> Tensor:
        """The change of the layer's weight [outputs, inputs]."""
        return self.scale * (self.up @ self.down)


class Adapters:
    """All adapters on one model, by policy; empty for a model that is trained whole. Lives as long as its model.

    `pairs[policy][module]` is the adapter of one layer. A batch must be run within `rows`.
    """

    def __init__(self, model: Any, configs: Mapping[str, LoraConfig], seed: int) -> None:
        self.configs = dict(configs)
        self.pairs: dict[str, dict[str, Pair]] = {}
        self._segments: Segments = ()
        self._fewer: Segments = ()
        for policy, config in configs.items():
            chosen = targeted_layers(model, config, policy)
            _check_memory(policy, config, chosen)
            self.pairs[policy] = {name: _fresh(linear, config, (seed, policy, name)) for name, linear in chosen.items()}
        for name in {name: None for pairs in self.pairs.values() for name in pairs}:
            model.get_submodule(name).register_forward_hook(self._hook(name))

    def parameters(self, policy: str) -> dict[str, nn.Parameter]:
        """The trained weights of one policy, under PEFT's names without their prefix."""
        named = self.pairs[policy].items()
        downs = {f"{name}.lora_A.weight": pair.down for name, pair in named}
        return downs | {f"{name}.lora_B.weight": pair.up for name, pair in named}

    @contextmanager
    def rows(self, segments: Segments = (), fewer: Segments = ()) -> Iterator[None]:
        """Within it, the rows of every batch belong to the policies as `segments` says.

        A layer that goes on with some of the rows has them as `fewer` says, and is known by their number. A backward
        pass that recomputes activations needs the same context as its forward.
        """
        before, self._segments, self._fewer = (self._segments, self._fewer), segments, fewer
        try:
            yield
        finally:
            self._segments, self._fewer = before

    def _hook(self, name: str) -> Any:
        def adapt(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            return self._adapted(name, inputs[0], output)

        return adapt

    def _adapted(self, name: str, inputs: Tensor, output: Tensor) -> Tensor:
        """The layer's output with every segment's adapter added."""
        fewer = bool(self._fewer) and inputs.shape[0] == sum(count for _, count in self._fewer)
        rows = self._fewer if fewer else self._segments
        sizes = [count for _, count in rows]
        pairs = [self.pairs.get(policy, {}).get(name) for policy, _ in rows]
        if not any(pairs):
            return output
        if sum(sizes) != inputs.shape[0]:
            raise EngineError(
                f"Layer {name!r} got {inputs.shape[0]} rows of {sum(sizes)} in the batch, so its adapters cannot tell "
                "whose they are; such layers (of experts, say) take no adapter. Leave it out of lora.targets."
            )
        split = zip(pairs, torch.split(inputs, sizes), torch.split(output, sizes), strict=True)
        # Split and concatenate, as writing into slices would cost the backward a full-size copy a segment.
        parts = [plain if pair is None else plain + pair.delta(part).to(plain.dtype) for pair, part, plain in split]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def linear_layers(model: Any) -> dict[str, nn.Linear]:
    """The linear layers that may take an adapter: all but the vocabulary projection and what reads pictures, whose
    rows are not those of the batch."""
    head = model.get_output_embeddings()
    within = set(model.get_decoder().modules()) if model.config.get_text_config() is not model.config else None
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and (within is None or module in within)
    }


def targeted_layers(model: Any, config: LoraConfig, policy: str) -> dict[str, nn.Linear]:
    """The layers that the targets mean, by name: a target matches the end of a name, as in PEFT.

    Raises EngineError where a target is no linear layer, or the model has none.
    """
    linears = linear_layers(model)
    if not linears:
        raise EngineError(
            f"Policy {policy!r} has a lora, and the model, of type {model.config.model_type!r}, no linear layer to "
            f"hang it on: got layers of {', '.join(_kinds(model))}; expected torch's Linear beside the vocabulary "
            "projection. Take another model, or leave lora out, which trains the model whole."
        )
    if config.targets == "all-linear":
        return linears
    for target in config.targets:
        if not any(_ends_with(name, target) for name in linears):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linears}))
            raise EngineError(
                f"Policy {policy!r}: lora.targets names {target!r}, which is no linear layer of the model (the "
                f"vocabulary projection takes no adapter). Expected 'all-linear' or some of {known}."
            )
    return {name: each for name, each in linears.items() if any(_ends_with(name, end) for end in config.targets)}


def _kinds(model: Any) -> list[str]:
    """The kinds of layers that have a matrix of their own, but for embeddings and the vocabulary projection."""
    others = [each for each in model.modules() if not isinstance(each, nn.Embedding | nn.Linear)]
    return sorted({type(each).__name__ for each in others if any(p.dim() > 1 for p in each.parameters(recurse=False))})


def _ends_with(name: str, target: str) -> bool:
    return f".{name}".endswith(f".{target}")


def _fresh(linear: nn.Linear, config: LoraConfig, named: tuple[int, str, str]) -> Pair:
    """PEFT's initial values: `down` uniform within 1 / sqrt(inputs), `up` zero, so that the policy starts as the base.

    The draw is named by seed, policy and layer: it does not depend on which other adapters there are.
    """
    generator = torch.Generator().manual_seed(random_keys.key("lora", *named))
    bound = 1.0 / math.sqrt(linear.in_features)
    down = torch.empty(config.rank, linear.in_features).uniform_(-bound, bound, generator=generator)
    up = torch.zeros(linear.out_features, config.rank)
    device = linear.weight.device
    return Pair(nn.Parameter(down.to(device)), nn.Parameter(up.to(device)), config.alpha / config.rank)
