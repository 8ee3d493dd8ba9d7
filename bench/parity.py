"""Our advantages, aggregations and losses against verl's on random inputs in float64.

    make parity        in an environment of its own, .venv-parity-verl

A difference is not hidden by a tolerance: where two functions differ on purpose, ours is also computed by the other's
equation, and the input counts as explained if that agrees. docs/parity.md says who is right and why. With --write it
appends `parity.functions`, `.inputs`, `.disagreements` and `.unexplained` to results/parity.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))
from cadre.advantages.credit import Credit
from cadre.advantages.group_relative import compare
from cadre.advantages.samples import samples_of
from cadre.learn.aggregation import AGGREGATES, Denominators
from cadre.learn.loss import Tokens, policy_loss
from cadre.learn.value_heads import value_loss
from cadre.settings import LossConfig
from cadre.types import Task, Tree
from common import record
from tests.advantages import critics
from tests.advantages.trees import leaf, node

COMMAND = "make parity"
CLOSE = 1e-9
# One comparison: (ours, theirs, ours by their equation), each one tensor.
Compared = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Inputs:
    """A batch of B sequences of at most T tokens, as verl has them: float64 [B, T], the mask by length, `group` [B]."""

    mask: Tensor
    advantages: Tensor
    old: Tensor
    now: Tensor
    scores: Tensor
    group: list[int]


def drawn(generator: torch.Generator) -> Inputs:
    """Lengths from 1, groups of 1 to 6 of which some have equal scores, ratios far beyond the clip."""
    sizes = torch.randint(1, 7, (3,), generator=generator).tolist()
    rows, width = sum(sizes), 6
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = torch.arange(width) < lengths.unsqueeze(1)

    def normal() -> Tensor:
        return torch.randn(rows, width, generator=generator, dtype=torch.float64)

    scores = torch.randint(0, 4, (rows,), generator=generator).double()
    if torch.rand((), generator=generator) < 0.3:
        scores[: sizes[0]] = 1.0
    old = normal() - 2.0
    group = [number for number, size in enumerate(sizes) for _ in range(size)]
    return Inputs(mask, normal() * mask, old, old + 0.4 * normal(), scores, group)


def ours_by_group(inputs: Inputs, baseline: str, scale: str) -> Tensor:
    """[B] advantages as `cadre.advantages` makes them: one tree a group, its siblings the sequences."""
    answers: list[float] = []
    for number in dict.fromkeys(inputs.group):
        pays = [float(score) for score, at in zip(inputs.scores, inputs.group, strict=True) if at == number]
        root = node(0, {"a": len(pays)}, [leaf({"a": i}, pay) for i, pay in enumerate(pays)])
        (judged,) = compare(samples_of([Tree(Task("t", {}), root)]), Credit("step", "node", baseline, scale))
        answers += [scored.advantages[0] for scored in judged.samples]
    return torch.tensor(answers, dtype=torch.float64)


def sizes_of(inputs: Inputs) -> Tensor:
    return torch.tensor([inputs.group.count(number) for number in inputs.group], dtype=torch.float64)


def rewards_of(inputs: Inputs) -> Tensor:
    """The score on the last token, as verl's estimators take it."""
    rewards = torch.zeros(inputs.mask.shape, dtype=torch.float64)
    return rewards.scatter(1, (inputs.mask.sum(1) - 1).unsqueeze(1), inputs.scores.unsqueeze(1))


def estimator(name: str, baseline: str, scale: str, **options: bool) -> Callable[[Inputs], Compared]:
    def compared(inputs: Inputs) -> Compared:
        from verl.trainer.ppo.core_algos import get_adv_estimator_fn

        index = np.array(inputs.group)
        theirs = get_adv_estimator_fn(name)(rewards_of(inputs), inputs.mask.double(), index=index, **options)[0][:, 0]
        ours = ours_by_group(inputs, baseline, scale)
        return ours, theirs, by_their_equation(inputs, ours, name, scale)

    return compared


def by_their_equation(inputs: Inputs, ours: Tensor, name: str, scale: str) -> Tensor:
    """Their own choices: a group of one keeps its raw score (but not in the vectorised RLOO); the deviation is that of
    a sample (K - 1), with 1e-6 added."""
    sizes = sizes_of(inputs)
    changed = ours.clone()
    if scale == "std":
        mean_off = ours_by_group(inputs, "mean", "none")
        squares = torch.stack([(mean_off[torch.tensor(inputs.group) == g] ** 2).sum() for g in inputs.group])
        changed = mean_off / ((squares / (sizes - 1).clamp(min=1)).sqrt() + 1e-6)
        single = inputs.scores / float(torch.tensor(1.0) + 1e-6)  # a sum in float32
    else:
        single = inputs.scores
    return torch.where(sizes == 1, torch.zeros_like(single) if name == "rloo_vectorized" else single, changed)


def weights_of(inputs: Inputs, aggregate: str, divisor: float = 1.0) -> Tensor:
    """[B] what a token of each sequence weighs by ours."""
    lengths = inputs.mask.sum(1).tolist()
    whole = Denominators(len(lengths), sum(lengths), 1, divisor)
    return torch.tensor([AGGREGATES[aggregate](length, whole) for length in lengths], dtype=torch.float64)


def aggregation(mode: str, aggregate: str) -> Callable[[Inputs], Compared]:
    def compared(inputs: Inputs) -> Compared:
        from verl.trainer.ppo.core_algos import agg_loss

        divisor = float(inputs.mask.shape[1]) if mode.endswith("norm") else 1.0
        ours = (weights_of(inputs, aggregate, divisor).unsqueeze(1) * inputs.now * inputs.mask).sum()
        theirs = agg_loss(inputs.now, inputs.mask.double(), mode)
        by_token = inputs.mask.sum(1).double() / (
            inputs.mask.sum(1).double() + 1e-8
        )  # they add 1e-8 to a length that they divide by
        means = (weights_of(inputs, aggregate, divisor) * by_token).unsqueeze(1)
        return ours, theirs, (means * inputs.now * inputs.mask).sum() if mode == "seq-mean-token-mean" else ours

    return compared


def loss(name: str, ratio: str, mode: str, aggregate: str, **options: float) -> Callable[[Inputs], Compared]:
    """The loss and its gradient by log-probability, one after the other."""

    def compared(inputs: Inputs) -> Compared:
        from verl.trainer.ppo.core_algos import get_policy_loss_fn
        from verl.workers.config import ActorConfig

        settings = LossConfig(ratio=ratio, clip_low=0.2, clip_high=0.28, **options)
        now = inputs.now.clone().requires_grad_()
        zeros = torch.zeros_like(now)
        tokens = Tokens(now, inputs.old, inputs.old, inputs.advantages, inputs.mask, zeros, inputs.old)
        mine, _ = policy_loss(tokens, weights_of(inputs, aggregate), settings)
        (gradient,) = torch.autograd.grad(mine, now)
        other = inputs.now.clone().requires_grad_()
        actor = ActorConfig(
            strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=0.2, clip_ratio_high=0.28
        )
        theirs, _ = get_policy_loss_fn(name)(inputs.old, other, inputs.advantages, inputs.mask.double(), mode, actor)
        (of_theirs,) = torch.autograd.grad(theirs, other)
        ours = torch.cat([mine.detach().view(1), gradient.flatten()])
        lengths = inputs.mask.sum(1).double()
        changed = ours
        if aggregate == "sequence_mean":
            weights = weights_of(inputs, aggregate) * lengths / (lengths + 1e-8)
            again, _ = policy_loss(replace(tokens, logprobs=other), weights, settings)
            changed = torch.cat([again.detach().view(1), torch.autograd.grad(again, other)[0].flatten()])
        return ours, torch.cat([theirs.detach().view(1), of_theirs.flatten()]), changed

    return compared


def divergence(kind: str, ours: Callable[[Tensor], Tensor]) -> Callable[[Inputs], Compared]:
    def compared(inputs: Inputs) -> Compared:
        from verl.trainer.ppo.core_algos import kl_penalty_forward

        mine = ours(inputs.now - inputs.old)
        # they cut k3 at 10, that is where log pi is below the reference by more than 2.6 nats
        return mine, kl_penalty_forward(inputs.now, inputs.old, kind), mine.clamp(-10, 10) if kind == "k3" else mine

    return compared


def clipped_values(inputs: Inputs) -> Compared:
    from verl.trainer.ppo.core_algos import compute_value_loss

    count = inputs.mask.sum()
    flat = [part[inputs.mask] for part in (inputs.now, inputs.old, inputs.advantages)]
    mine = value_loss(*flat, torch.full((int(count),), 1.0 / float(count), dtype=torch.float64), 0.2)
    theirs, _ = compute_value_loss(inputs.now, inputs.advantages, inputs.old, inputs.mask.double(), 0.2)
    return mine, theirs, mine


def generalised_advantages(inputs: Inputs) -> Compared:
    """Token-level GAE of one sequence, before anything is whitened (they whiten in the same function)."""
    from verl.trainer.ppo import core_algos

    length, score = int(inputs.mask[0].sum()), float(inputs.scores[0])
    values = inputs.now[0, :length]
    tree = critics.one_answer(score)
    (said,) = tree.root.samples["a"]
    said = replace(said, token_ids=(7,) * length, logprobs=(-1.0,) * length)
    tree = replace(tree, root=replace(tree.root, samples={"a": (said,)}))
    start = len(said.prompt_ids) - 1
    learner = critics.Learner(says=lambda datum, place: float(values[place - start]))
    rule = critics.rule(gae_lambda=0.9, level="token", token_gamma=0.97)
    credit = Credit("reward_to_go", "node", "none", "none")
    (datum,), _ = critics.judged(tree.root, credit, rule, critics.team_of(learner))
    ours = torch.tensor(datum.advantages[start + 1 :], dtype=torch.float64)
    whiten, core_algos.verl_F = core_algos.verl_F, SimpleNamespace(masked_whiten=lambda advantages, mask: advantages)
    try:
        rewards = torch.zeros(1, length, dtype=torch.float64)
        rewards[0, -1] = score
        ones = torch.ones(1, length, dtype=torch.float64)
        theirs, _ = core_algos.compute_gae_advantage_return(rewards, values.unsqueeze(0), ones, 0.97, 0.9)
    finally:
        core_algos.verl_F = whiten
    return ours, theirs[0], ours


FUNCTIONS: dict[str, Callable[[Inputs], Compared]] = {
    "grpo": estimator("grpo", "mean", "std"),
    "grpo without std": estimator("grpo", "mean", "none", norm_adv_by_std_in_grpo=False),
    "rloo": estimator("rloo", "leave_one_out", "none"),
    "rloo vectorised": estimator("rloo_vectorized", "leave_one_out", "none"),
    "gae": generalised_advantages,
    "token mean": aggregation("token-mean", "token_mean"),
    "sequence mean": aggregation("seq-mean-token-mean", "sequence_mean"),
    "sequence sum": aggregation("seq-mean-token-sum", "sequence_sum"),
    "sequence sum by divisor": aggregation("seq-mean-token-sum-norm", "sequence_sum"),
    "ppo, dual clip": loss("vanilla", "token", "token-mean", "token_mean", dual_clip=3.0),
    "gspo": loss("gspo", "sequence", "seq-mean-token-mean", "sequence_mean"),
    "cispo": loss("cispo", "cispo", "token-mean", "token_mean"),
    "k1": divergence("k1", lambda gap: gap),
    "k2": divergence("k2", lambda gap: 0.5 * gap.square()),
    "k3": divergence("k3", lambda gap: (-gap).exp() - 1.0 + gap),
    "clipped value loss": clipped_values,
}


def differs(first: Tensor, second: Tensor) -> bool:
    return not torch.allclose(first.double(), second.double(), rtol=CLOSE, atol=CLOSE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--inputs", type=int, default=1000, help="random batches a function")
    parser.add_argument("--write", action="store_true", help="append to results/parity.jsonl")
    chosen = parser.parse_args()
    console, disagreements, unexplained = Console(soft_wrap=True), 0, 0
    for number, (name, compared) in enumerate(FUNCTIONS.items()):
        generator = torch.Generator().manual_seed(number)
        found = [compared(drawn(generator)) for _ in range(chosen.inputs)]
        apart = [differs(ours, theirs) for ours, theirs, _ in found]
        left = [differs(changed, theirs) for _, theirs, changed in found]
        disagreements, unexplained = disagreements + sum(apart), unexplained + sum(left)
        console.print(f"{name}: {chosen.inputs} inputs, {sum(apart)} disagree, {sum(left)} unexplained")
    figures = {
        "functions": len(FUNCTIONS),
        "inputs": len(FUNCTIONS) * chosen.inputs,
        "disagreements": disagreements,
        "unexplained": unexplained,
    }
    for name, value in figures.items():
        console.print(f"parity.{name}: {value}")
        if chosen.write:
            record("parity", f"parity.{name}", [value], "count", COMMAND, chosen.inputs)


if __name__ == "__main__":
    main()
