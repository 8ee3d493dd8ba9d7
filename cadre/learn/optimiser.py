"""AdamW with gradient clipping, a schedule, and no step if the loss or the gradients are not finite.

The state is saved as safetensors and JSON, and restoring it is exact to the bit. If the parameters are shards of a
group of ranks, all ranks make the same calls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cadre.errors import EngineError
from cadre.files import Count, OpenRecord, read_record
from cadre.learn import tensor_files
from cadre.settings import LearnerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


def learning_rate(config: LearnerConfig, update: int, total: int) -> float:
    """Return the learning rate of update number `update` (from 0) of `total`.

    Linear warm-up reaches the peak at update `warmup_steps - 1`; cosine then falls so as to be the fraction f of the
    peak when all `total` updates are done: `peak * (f + (1 - f) / 2 * (1 + cos(pi * progress)))`.
    """
    if update < config.warmup_steps:
        return config.learning_rate * (update + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    progress = (update - config.warmup_steps) / max(1, total - config.warmup_steps)
    fallen = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return config.learning_rate * (config.final_rate_fraction + (1.0 - config.final_rate_fraction) * fallen)


class Counters(OpenRecord):
    """The counters in `optimiser.json`: updates and steps made, and the steps of each weight."""

    updates: Count
    applied: Count
    skips: Count
    skipped: Count
    steps: dict[str, Count]


class Optimiser:
    """AdamW on one policy's parameters. Lives as long as the policy. `updates` counts calls of the learner, `applied`
    optimiser steps, `skips` steps skipped in a row, `skipped` all of these."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: LearnerConfig, total: int) -> None:
        self.config = config
        self.total = total
        self.updates = 0
        self.applied = 0
        self.skips = 0
        self.skipped = 0
        self._parameters = dict(parameters)
        # The fused form reads and writes everything once.
        weights = list(self._parameters.values())
        self._fused = all(weight.device.type == "cuda" for weight in weights)
        # Scales of norms and biases, which are vectors, do not decay, as in transformers' Trainer.
        vectors = [weight for weight in weights if weight.dim() < 2] if config.weight_decay else []
        matrices = [weight for weight in weights if not vectors or weight.dim() >= 2]
        groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            foreach=not self._fused,
            fused=self._fused,
        )

    @property
    def rate(self) -> float:
        """Return the learning rate of the next update."""
        return learning_rate(self.config, self.updates, self.total)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters."""
        return list(self._parameters.values())

    def step(self, loss: float, norm: float | None = None) -> float:
        """Clip the gradients to the global norm, step, and clear them; returns the norm before clipping.

        `norm` is `Optimiser.norm` if it was read already. Where the loss or the norm is not finite nothing moves:
        neither weights nor moments.
        """
        if norm is None:
            norm = float(self.norm())
        if norm > self.config.max_grad_norm:
            torch._foreach_mul_(self._gradients(), self.config.max_grad_norm / norm)
        if math.isfinite(norm) and math.isfinite(loss):
            for group in self._adam.param_groups:
                group["lr"] = self.rate
            self._adam.step()
            self.applied += 1
            self.skips = 0
        else:
            self.skips += 1
            self.skipped += 1
        self.clear()
        return norm

    def norm(self) -> Tensor:
        """Return the global L2 norm of the present gradients, a tensor of one number on their device."""
        gradients = self._gradients()
        if not gradients:
            return torch.zeros((), device=self.parameters[0].device)
        norm = nn.utils.get_total_norm(gradients, foreach=True)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def missing_bytes(self) -> int:
        """Return the bytes that a step will allocate here: gradients, and moments of weights that never moved."""
        return sum(
            (weight.to_local() if isinstance(weight, DTensor) else weight).nbytes
            * ((weight.grad is None) + len(MOMENTS) * (weight not in self._adam.state))
            for weight in self._parameters.values()
        )

    def clear(self) -> None:
        """Clear the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def moments(self) -> dict[str, Tensor]:
        """Return Adam's moments by name, `WEIGHT.exp_avg` and `WEIGHT.exp_avg_sq`, of weights that have moved."""
        state = self._adam.state
        named = [(name, state[weight]) for name, weight in self._parameters.items() if weight in state]
        return {f"{name}.{kind}": entry[kind] for name, entry in named for kind in MOMENTS}

    def save(self, folder: Path, counters: bool = True) -> None:
        """Write `optimiser.safetensors` (the moments, or a file a rank) and `optimiser.json` (the `counters`)."""
        folder.mkdir(parents=True, exist_ok=True)
        moments = self.moments()
        if self.config.saved_moments == "bfloat16":
            moments = {name: moment.to(torch.bfloat16) for name, moment in moments.items()}
        tensor_files.write(moments, folder, "optimiser")
        if counters:
            state = self._adam.state
            steps = {name: int(state[weight]["step"]) for name, weight in self._parameters.items() if weight in state}
            totals = {"updates": self.updates, "applied": self.applied, "skips": self.skips, "skipped": self.skipped}
            (folder / "optimiser.json").write_text(json.dumps({**totals, "steps": steps}, indent=1))

    def load(self, folder: Path) -> None:
        """Restore the state that `save` wrote. Raises EngineError if it belongs to other parameters."""
        counters = read_record(folder / "optimiser.json", Counters)
        unknown = sorted(set(counters.steps) - set(self._parameters))
        if unknown:
            raise EngineError(
                f"The optimiser state in {folder} has moments for {unknown[0]!r} and {len(unknown) - 1} more weights "
                "that this policy does not train; expected the same weights. Load it into the policy that wrote it."
            )
        self._adam.state.clear()
        for name, step in counters.steps.items():
            weight = self._parameters[name]
            blank = {kind: torch.zeros_like(weight, requires_grad=False) for kind in MOMENTS}
            # The fused form counts steps where it runs.
            steps = torch.tensor(float(step), device=weight.device if self._fused else None)
            self._adam.state[weight] = {"step": steps, **blank}
        tensor_files.read(self.moments(), folder, "optimiser")
        self.updates, self.applied = counters.updates, counters.applied
        self.skips, self.skipped = counters.skips, counters.skipped

    def _gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self._parameters.values() if weight.grad is not None]
