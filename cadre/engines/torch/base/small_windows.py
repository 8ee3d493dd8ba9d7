"""A copy of a model that forgets after a few tokens, to try on it what a long window would hide.

Layers that attend to a window, to chunks or to the best few keys are the same as plain ones until a sequence is longer
than that. Real windows have thousands of tokens, which no trial runs. So the model's class is built again from its
configuration with every such length cut to `WINDOW`. The copy shares the model's weights: it costs a forward, and
next to no memory.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from cadre.engines.torch.base.layer_attention import LayerAttention
from cadre.engines.torch.base.loading import ONE_AT_A_TIME, Loaded
from cadre.engines.torch.base.lora import Adapters

WINDOW = 18
# Settings that count tokens, by their names; and those among them that count layers, experts or ids, or are a rotary
# base.
LENGTHS = re.compile(
    r"window|chunk|local|stride|span|keep|block_?(size|len)|sparse|sink|index_?top_?k|mem_?len|lookback|horizon|bucket"
    r"|segment|recent|dilat|receptive|floor|original_max|compress"
)
OTHERS = re.compile(r"layer|expert|theta|base|freq|_ids?$|head|dim|rank|conv|vocab|pattern|every|interval|step")
# What sizes are called. Any other number may be a window of a type that nobody knows here, unless weights change shape
# with it.
SIZES = re.compile(
    r"size|hidden|intermediate|head|layer|dim|rank|position|vocab|embd|d_model|d_ff|ffn|inner|expert|_ids?$|token|theta|base"
    r"|freq|group|channel|width|depth|conv|state|max_seq|n_ctx|context|label|groups|seed|patch"
)


def with_small_windows(loaded: Loaded) -> Loaded | None:
    """A copy of the model with every window cut to `WINDOW`, and no adapters; None where it has no longer one, or the
    model's context is within all of them.

    Raises whatever the model's class raises over such a configuration.
    """
    model = loaded.model
    config = copy.deepcopy(model.config)
    lengths = _cut(config) + _cut_unknown(model, config)
    if not lengths or loaded.context <= min(lengths):
        return None
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]), _default_dtype(model.dtype), _parameters_without_data():
        shrunk = type(model)(config).eval()
    for name, weight in model.named_parameters(remove_duplicate=False):
        _set(shrunk, name, weight)
    # Some weights are buffers (the biases of a router). A mask, which the window makes, is not of floating point.
    saved = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    for name, buffer in list(shrunk.named_buffers()):
        parent, _, leaf = name.rpartition(".")
        shrunk.get_submodule(parent)._buffers[leaf] = saved[name] if name in saved else buffer.to(model.device)
    attention = LayerAttention.of(config.get_text_config())
    return replace(loaded, model=shrunk, adapters=Adapters(shrunk, {}, 0), attention=attention)


def shortest_window(config: Any) -> int | None:
    """The shortest window, chunk or the like in a configuration that is longer than `WINDOW`."""
    return min(_cut(copy.deepcopy(config)), default=None)


def _cut(config: Any) -> list[int]:
    """Cut every length in a configuration and those within it; the lengths that were cut."""
    cut: list[int] = []
    values = config if isinstance(config, dict) else vars(config)
    for name, value in list(values.items()):
        if isinstance(value, PreTrainedConfig | dict):
            cut += _cut(value)
        elif LENGTHS.search(str(name)) and not OTHERS.search(str(name)):
            if isinstance(value, list | tuple):
                cut += [each for each in value if _is_long(each)]
                values[name] = type(value)(WINDOW if _is_long(each) else each for each in value)
            elif _is_long(value):
                cut.append(value)
                values[name] = WINDOW
    return cut


def _cut_unknown(model: Any, config: Any) -> list[int]:
    """Cut the numbers of a configuration whose names say nothing, and which no weight's shape depends on."""
    cut = []
    for name, value in list(vars(config).items()):
        known = (
            LENGTHS.search(name) or SIZES.search(name) or name.startswith("_") or name in PreTrainedConfig().to_dict()
        )
        if known or not _is_long(value):
            continue
        changed = copy.deepcopy(config)
        vars(changed)[name] = WINDOW
        try:
            with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]), torch.device("meta"):
                shapes = {key: weight.shape for key, weight in type(model)(changed).named_parameters()}
        except Exception:  # noqa: BLE001 - then it is a size
            continue
        if shapes == {key: weight.shape for key, weight in model.named_parameters()}:
            vars(config)[name] = WINDOW
            cut.append(value)
    return cut


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > WINDOW


def _set(model: Any, name: str, weight: nn.Parameter) -> None:
    """Put the weight in the place of the copy's own. Raises ValueError where that has another shape."""
    parent, _, leaf = name.rpartition(".")
    parameters = model.get_submodule(parent)._parameters
    if parameters[leaf].shape != weight.shape:
        raise ValueError(f"with small windows {name} has another shape")
    parameters[leaf] = weight


@contextmanager
def _parameters_without_data() -> Iterator[None]:
    """Within it modules hold their parameters without data, but compute their buffers."""
    register = nn.Module.register_parameter

    def without_data(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None:
            param = nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = without_data  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
