"""The loss functions of Tinker's `forward_backward` (tinker-docs.thinkingmachines.ai/tinker/losses).

Each returns the loss of every target token, which are summed. `logprobs` are the log-probabilities of the targets now,
`inputs` what the client sends for each: `weights`, or `advantages` and the sampler's `logprobs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cadre.errors import EngineError
from cadre_tinker.wire import Datum

Inputs = Mapping[str, Tensor]
Config = Mapping[str, float]


def cross_entropy(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return `-w log p`; without weights each is 1."""
    return -logprobs * inputs.get("weights", torch.ones_like(logprobs))


def importance_sampling(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return `-r A` with the ratio `r = p / q` of now to the sampler."""
    return -(logprobs - inputs["logprobs"]).exp() * inputs["advantages"]


def ppo(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return `-min(r A, clip(r, low, high) A)` (PPO, arXiv 1707.06347, eq. 7)."""
    ratio = (logprobs - inputs["logprobs"]).exp()
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -(ratio * inputs["advantages"]).minimum(clipped * inputs["advantages"])


def cispo(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return `-clip(r, low, high) A log p`, where the ratio has no gradient (CISPO, arXiv 2506.13585, eq. 4)."""
    ratio = (logprobs - inputs["logprobs"]).exp().clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -ratio.detach() * inputs["advantages"] * logprobs


def dro(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return `-(A log p - beta / 2 (log r)^2)` (DRO, arXiv 2405.19107)."""
    return -logprobs * inputs["advantages"] + config["beta"] / 2 * (logprobs - inputs["logprobs"]) ** 2


SAMPLED = ("logprobs", "advantages")


@dataclass(frozen=True)
class Loss:
    """A loss function, the `inputs` that it needs beside `target_tokens` and may have (`optional`), and the defaults of
    its settings; NaN for one that the client has to give."""

    function: Callable[[Tensor, Inputs, Config], Tensor]
    inputs: tuple[str, ...] = SAMPLED
    optional: tuple[str, ...] = ()
    config: Config = field(default_factory=dict)


LOSSES = {
    "cross_entropy": Loss(cross_entropy, (), ("weights",)),
    "importance_sampling": Loss(importance_sampling),
    "ppo": Loss(ppo, config={"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    "cispo": Loss(cispo, config={"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
    "dro": Loss(dro, config={"beta": math.nan}),
}


def find_loss(name: str, config: Config) -> tuple[Loss, Config]:
    """Return a loss function and its settings. Raises EngineError for others than there are."""
    if name not in LOSSES:
        raise EngineError(f"loss_fn: got {name[:80]!r}; expected one of {', '.join(LOSSES)}. Take one of these.")
    loss = LOSSES[name]
    if unknown := config.keys() - loss.config.keys():
        names = ", ".join(loss.config) or "none"
        raise EngineError(f"loss_fn_config of {name}: got {min(unknown)[:80]!r}; expected {names}. Remove it.")
    merged = {**loss.config, **config}
    for key, value in merged.items():
        if not math.isfinite(value):
            raise EngineError(f"loss_fn_config.{key} of {name}: got {config.get(key)}; expected a number. Give one.")
    return loss, merged


def check_datum(datum: Datum, name: str, loss: Loss, tokens: int, context: int) -> None:
    """Raise EngineError if a datum does not fit its loss or a model of so many tokens."""

    def fail(subject: str, got: str, expected: str) -> None:
        raise EngineError(f"{subject}: got {got}; expected {expected}. Fix the datum.")

    length, inputs = len(datum.tokens), datum.inputs
    if not 0 < length <= context:
        fail("model_input", f"{length} tokens", f"1 to {context}, the model's context")
    needed, allowed = {"target_tokens", *loss.inputs}, {"target_tokens", *loss.inputs, *loss.optional}
    if needed - inputs.keys() or inputs.keys() - allowed:
        expected = f"{', '.join(sorted(needed))}{''.join(f', and perhaps {more}' for more in loss.optional)}"
        fail(f"loss_fn_inputs of {name}", ", ".join(sorted(inputs))[:200] or "none", expected)
    targets = inputs["target_tokens"]
    if targets.dim() not in (1, 2) or len(targets) != length or not targets.numel():
        fail("target_tokens", f"the shape {list(targets.shape)}", f"[{length}] or [{length}, K], one row a token")
    for subject, ids in (("model_input", datum.tokens), ("target_tokens", targets)):
        if ids.dtype != torch.int64 or int(ids.min()) < 0 or int(ids.max()) >= tokens:
            fail(subject, f"{ids.dtype} from {ids.min()} to {ids.max()}", f"int64 ids from 0 to {tokens - 1}")
    for key in inputs.keys() - {"target_tokens"}:
        if inputs[key].shape != targets.shape or not bool(inputs[key].isfinite().all()):
            got = f"the shape {list(inputs[key].shape)}" + ("" if inputs[key].isfinite().all() else " and NaN or inf")
            fail(key, got, f"finite numbers of the shape {list(targets.shape)}, that of target_tokens")
