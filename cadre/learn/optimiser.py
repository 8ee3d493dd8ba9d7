"""AdamW with gradient clipping, a schedule, and steps that are refused when the numbers are not finite.

The state is safetensors and JSON, and restoring it is exact to the bit. Nothing here knows what the parameters mean;
where they are shards of a group of ranks, all ranks call all of this alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, NonNegativeInt
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cadre.errors import EngineError, first_line
from cadre.file_limits import read_json
from cadre.learn import tensor_files
from cadre.settings import LearnerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


def learning_rate(config: LearnerConfig, update: int, total: int) -> float:
    """The rate of update number `update` (from 0) of `total`.

    Linear warm-up reaches the peak at update `warmup_steps - 1`; cosine then falls so as to be 0 when all `total`
    updates are done: `peak / 2 * (1 + cos(pi * progress))`.
    """
    if update < config.warmup_steps:
        return config.learning_rate * (update + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    progress = (update - config.warmup_steps) / max(1, total - config.warmup_steps)
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


class Counters(BaseModel):
    """`optimiser.json`: how many updates and steps were made, and the steps of each weight."""

    updates: NonNegativeInt
    applied: NonNegativeInt
    skips: NonNegativeInt
    skipped: NonNegativeInt
    steps: dict[str, NonNegativeInt]


def _counters(path: Path) -> dict[str, Any]:
    """Raises EngineError where the file does not hold them."""
    try:
        return Counters.model_validate(read_json(path), strict=True).model_dump()
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(
            f"{path} is damaged ({first_line(error)}); expected the counters of an optimiser, as a run writes them. "
            "Restore it, or go on from another checkpoint."
        ) from None


class Optimiser:
    """AdamW on one policy's parameters. Lives as long as the policy; `updates` counts calls of the learner.

    `skips` counts optimiser steps refused in a row, `skipped` all of them.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: LearnerConfig, total: int) -> None:
        self.config = config
        self.total = total
        self.updates = 0
        self.applied = 0
        self.skips = 0
        self.skipped = 0
        self._parameters = dict(parameters)
        self._adam = torch.optim.AdamW(
            list(self._parameters.values()),
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            foreach=True,
        )

    @property
    def rate(self) -> float:
        """The learning rate of the update that comes next."""
        return learning_rate(self.config, self.updates, self.total)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is moved."""
        return list(self._parameters.values())

    def step(self, loss: float) -> float:
        """Clip the gradients to the global norm, step, and clear them; returns the norm before clipping.

        Where the loss or the norm is not finite nothing moves: neither weights nor moments.
        """
        norm = self.norm()
        if norm > self.config.max_grad_norm:
            self._scale_gradients(self.config.max_grad_norm / norm)
        if math.isfinite(norm) and math.isfinite(loss):
            self._adam.param_groups[0]["lr"] = self.rate
            self._adam.step()
            self.applied += 1
            self.skips = 0
        else:
            self.skips += 1
            self.skipped += 1
        self.clear()
        return norm

    def norm(self) -> float:
        """The global L2 norm of the gradients as they stand."""
        norm = nn.utils.get_total_norm(self._gradients(), foreach=True)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def clear(self) -> None:
        """Forget the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def moments(self) -> dict[str, Tensor]:
        """Adam's moments by name, `WEIGHT.exp_avg` and `WEIGHT.exp_avg_sq`, for weights that have moved."""
        state = self._adam.state
        named = [(name, state[weight]) for name, weight in self._parameters.items() if weight in state]
        return {f"{name}.{kind}": entry[kind] for name, entry in named for kind in MOMENTS}

    def save(self, folder: Path, counters: bool = True) -> None:
        """Write `optimiser.safetensors` (the moments, or a file a rank) and `optimiser.json` (the `counters`)."""
        folder.mkdir(parents=True, exist_ok=True)
        tensor_files.write(self.moments(), folder, "optimiser")
        if counters:
            self._save_counters(folder)

    def _save_counters(self, folder: Path) -> None:
        steps = {name: int(self._adam.state[weight]["step"]) for name, weight in self._moved().items()}
        counters = {"updates": self.updates, "applied": self.applied, "skips": self.skips, "skipped": self.skipped}
        (folder / "optimiser.json").write_text(json.dumps({**counters, "steps": steps}, indent=1))

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises EngineError where it belongs to other parameters."""
        counters = _counters(folder / "optimiser.json")
        self._check(set(counters["steps"]), folder)
        self._adam.state.clear()
        for name, step in counters["steps"].items():
            weight = self._parameters[name]
            blank = {kind: torch.zeros_like(weight, requires_grad=False) for kind in MOMENTS}
            self._adam.state[weight] = {"step": torch.tensor(float(step)), **blank}
        tensor_files.read(self.moments(), folder, "optimiser")
        self.updates, self.applied = counters["updates"], counters["applied"]
        self.skips, self.skipped = counters["skips"], counters["skipped"]

    def _gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self._parameters.values() if weight.grad is not None]

    def _scale_gradients(self, factor: float) -> None:
        torch._foreach_mul_(self._gradients(), factor)

    def _moved(self) -> dict[str, nn.Parameter]:
        return {name: weight for name, weight in self._parameters.items() if weight in self._adam.state}

    def _check(self, saved: set[str], folder: Path) -> None:
        unknown = sorted(saved - set(self._parameters))
        if unknown:
            raise EngineError(
                f"The optimiser state in {folder} has moments for {unknown[0]!r} and {len(unknown) - 1} more weights "
                "that this policy does not train; expected the same weights. Load it into the policy that wrote it."
            )
