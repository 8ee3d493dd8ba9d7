"""Shared parts of `make parity`: random batches, Cadre's results on them, and gradients.

Shapes: B sequences of at most T tokens, padded on the right, the last dimension as long as the longest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from bench.parity import critics
from bench.parity.trees import leaf, node
from cadre.advantages.critic import Estimate, whitened
from cadre.advantages.groups import compare_samples, comparison_of
from cadre.advantages.returns import Credit, samples_of
from cadre.learn.loss import Tokens, policy_loss
from cadre.learn.loss_functions import AGGREGATES, Denominators
from cadre.settings import LossConfig
from cadre.types import Reward, Task, Tree

# One comparison: (ours, theirs, ours by their equation), each one tensor.
Compared = tuple[Tensor, Tensor, Tensor]
Loss = Callable[[Tensor], Tensor]
T = TypeVar("T")


@dataclass(frozen=True)
class Inputs:
    """A batch, all float64 [B, T] but for the boolean mask, `scores` [B] and the number of each one's group.

    `now` are log-probabilities of the policy that learns, `old` of what it was, `sampled` those that the sampler told
    and `reference` those of a reference model.
    """

    mask: Tensor
    advantages: Tensor
    old: Tensor
    now: Tensor
    scores: Tensor
    group: list[int]
    reference: Tensor
    sampled: Tensor

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(1)

    @property
    def sizes(self) -> Tensor:
        """[B] how many the group of each sequence has."""
        return torch.tensor([self.group.count(number) for number in self.group])


def drawn(generator: torch.Generator) -> Inputs:
    """Lengths from 1, groups of 1 to 6 of which some have equal scores, ratios far beyond the clip."""
    return drawn_in(torch.randint(1, 7, (3,), generator=generator).tolist(), generator)


def drawn_in(sizes: Sequence[int], generator: torch.Generator) -> Inputs:
    """The same in groups of these sizes."""
    rows = sum(sizes)
    lengths = torch.randint(1, 7, (rows,), generator=generator)
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)

    def normal() -> Tensor:
        return torch.randn(mask.shape, generator=generator)

    scores = torch.randint(0, 4, (rows,), generator=generator).double()
    if torch.rand((), generator=generator) < 0.3:
        scores[: sizes[0]] = 1.0
    old = normal() - 2.0
    group = [number for number, size in enumerate(sizes) for _ in range(size)]
    advantages, now = normal() * mask, old + 0.4 * normal()
    return Inputs(mask, advantages, old, now, scores, group, old + 0.3 * normal(), old + 0.5 * normal())


def on(
    draw: Callable[[torch.Generator], T], functions: Mapping[str, Callable[[T], Compared]]
) -> dict[str, Callable[[torch.Generator], Compared]]:
    """The functions as functions of the generator that their inputs are drawn by."""

    def drawing(compared: Callable[[T], Compared]) -> Callable[[torch.Generator], Compared]:
        return lambda generator: compared(draw(generator))

    return {name: drawing(compared) for name, compared in functions.items()}


# Advantages.


def ours_among(scores: Sequence[float], baseline: str, scale: str) -> Tensor:
    """[K] advantages as `cadre.advantages` makes them: the siblings of one decision, each paid its score."""
    root = node(0, {"a": len(scores)}, [leaf({"a": i}, pay) for i, pay in enumerate(scores)])
    (judged,) = compare_samples(
        samples_of([Tree(Task("t", {}), root)]), Credit.of(comparison_of("step", "node", baseline, scale))
    )
    return torch.tensor([scored.advantages[0] for scored in judged.samples])


def by_group(inputs: Inputs, values: Tensor, judge: Callable[[list[float]], Tensor]) -> Tensor:
    """[B] what a judge says of the values of each group."""
    numbers = torch.tensor(inputs.group)
    return torch.cat([judge(values[numbers == number].tolist()) for number in dict.fromkeys(inputs.group)])


def ours_by_group(inputs: Inputs, baseline: str, scale: str) -> Tensor:
    return by_group(inputs, inputs.scores, lambda scores: ours_among(scores, baseline, scale))


# Of the parts of a reward that GDPO is compared on.
PART_WEIGHTS = (1.0, 0.4)


def parts_of(inputs: Inputs) -> dict[str, Tensor]:
    """Return two parts of a reward, [B] each: the scores, and normal numbers."""
    return {"score": inputs.scores, "other": inputs.now[:, 0]}


def ours_by_parts(inputs: Inputs, parts: Mapping[str, Tensor]) -> Tensor:
    """[B] GDPO's advantages as `cadre.advantages` makes them: a group is the completions of one decision."""
    trees = []
    for number in dict.fromkeys(inputs.group):
        rows = [row for row, group in enumerate(inputs.group) if group == number]
        rewards = [Reward(parts={name: float(part[row]) for name, part in parts.items()}) for row in rows]
        branches = [replace(leaf({"a": index}), reward=reward) for index, reward in enumerate(rewards)]
        trees.append(Tree(Task(f"{number}", {}), node(0, {"a": len(rows)}, branches)))
    credit = Credit.of_parts(comparison_of("step", "node", "mean", "std"), dict(zip(parts, PART_WEIGHTS, strict=True)))
    groups = compare_samples(samples_of(trees), credit)
    return torch.tensor([judged.advantages[0] for group in groups for judged in group.samples])


def over_sample_deviation(inputs: Inputs, epsilon: float) -> Tensor:
    """[B] `(r - mean) / (std + epsilon)`, std that of a sample (K - 1); 0 in a group of one."""

    def judge(scores: list[float]) -> Tensor:
        differences = ours_among(scores, "mean", "none")
        return differences / ((differences.square().sum() / max(1, len(scores) - 1)).sqrt() + epsilon)

    return by_group(inputs, inputs.scores, judge)


def over_mean(inputs: Inputs, epsilon: float) -> Tensor:
    """[B] `(r - mean) / (mean + epsilon)`."""

    def judge(scores: list[float]) -> Tensor:
        return ours_among(scores, "mean", "none") / (sum(scores) / len(scores) + epsilon)

    return by_group(inputs, inputs.scores, judge)


def with_raw_score(inputs: Inputs, cadre_value: Tensor, scale: str) -> Tensor:
    """Our advantages by two choices of verl, which SkyRL took over: 1e-6 is added to what is divided by, for `std` the
    deviation of a sample, and a group of one keeps its score."""
    if scale == "std":
        return torch.where(inputs.sizes == 1, inputs.scores / (1 + 1e-6), over_sample_deviation(inputs, 1e-6))
    return torch.where(inputs.sizes == 1, inputs.scores, over_mean(inputs, 1e-6) if scale == "mean" else cadre_value)


def ours_white(advantages: Tensor) -> Tensor:
    """[N] whitened as those of one policy, whose samples are siblings."""
    count = len(advantages)
    root = node(0, {"a": count}, [leaf({"a": i}) for i in range(count)])
    estimates = [Estimate((value,), (0.0,)) for value in advantages.tolist()]
    return torch.tensor([value for (value,) in whitened(samples_of([Tree(Task("t", {}), root)]), estimates)])


def rewards_of(inputs: Inputs) -> Tensor:
    """The score on the last token."""
    return torch.zeros(inputs.mask.shape).scatter(1, (inputs.lengths - 1).unsqueeze(1), inputs.scores.unsqueeze(1))


def estimator(
    library_function: Callable[..., tuple[Tensor, Tensor]],
    baseline: str,
    scale: str,
    single: str = "raw",
    **options: bool,
) -> Callable[[Inputs], Compared]:
    """An estimator of verl, or of SkyRL, which took over how they are called; `options` are its own. `alone` says what
    it makes of a group of one: its raw score, or 0."""

    def compared(inputs: Inputs) -> Compared:
        batch = {"token_level_rewards": rewards_of(inputs), "response_mask": inputs.mask.double()}
        advantages, _ = library_function(**batch, index=np.array(inputs.group), **options)
        cadre_value = ours_by_group(inputs, baseline, scale)
        return (
            cadre_value,
            advantages[:, 0],
            with_raw_score(inputs, cadre_value, scale) if single == "raw" else cadre_value,
        )

    return compared


GAMMA, LAMBDA = 0.97, 0.9


def token_gae(library_function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Inputs], Compared]:
    """Token-level GAE of the first sequence, before anything is whitened; theirs of rewards, values and mask [1, T]."""

    def compared(inputs: Inputs) -> Compared:
        length = int(inputs.lengths[0])
        values = inputs.now[:1, :length]
        cadre_value = ours_gae(values[0], float(inputs.scores[0]))
        return (
            cadre_value,
            library_function(rewards_of(inputs)[:1, :length], values, torch.ones(1, length))[0],
            cadre_value,
        )

    return compared


def unwhitened_gae(library: Any, whitening: Any) -> Callable[[Inputs], Compared]:
    """The same of verl or SkyRL, which whiten in the same function by the `masked_whiten` of `whitening`."""

    def theirs(rewards: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        with mock.patch.object(whitening, "masked_whiten", lambda advantages, mask: advantages):
            return library.compute_gae_advantage_return(rewards, values, mask, GAMMA, LAMBDA)[0]

    return token_gae(theirs)


def ours_gae(values: Tensor, score: float) -> Tensor:
    """[T] of one sequence that is paid at its end."""
    tree = critics.one_answer(score)
    (answer,) = tree.root.samples["a"]
    answer = replace(answer, token_ids=(7,) * len(values), logprobs=(-1.0,) * len(values))
    start = len(answer.prompt_ids) - 1
    learner = critics.Learner(says=lambda datum, position: float(values[position - start]))
    rule = critics.rule(gae_lambda=LAMBDA, level="token", token_gamma=GAMMA)
    root = replace(tree.root, samples={"a": (answer,)})
    (datum,), _ = critics.judged(
        root, comparison_of("reward_to_go", "node", "none", "none"), rule, critics.team_of(learner)
    )
    return torch.tensor(datum.advantages[start + 1 :])


# Aggregations and losses.


def weights_of(inputs: Inputs, aggregate: str, divisor: float = 1.0) -> Tensor:
    """[B] what a token of each sequence weighs by ours."""
    lengths = inputs.lengths.tolist()
    denominators = Denominators(len(lengths), sum(lengths), 1, divisor)
    return torch.tensor([AGGREGATES[aggregate](length, denominators) for length in lengths])


def policy(settings: LossConfig, weights: Callable[[Inputs], Tensor] | None = None) -> Callable[[Inputs], Loss]:
    """Our loss of a batch by `now`; the settings say the weights [B] where none are given.

    The square of `now` stands in for the entropy, so that its gradient is seen in the same place.
    """

    def of(inputs: Inputs) -> Loss:
        weighed = weights(inputs) if weights else weights_of(inputs, settings.aggregate, settings.divisor)
        inputs_of_loss = (inputs.old, inputs.sampled, inputs.advantages, inputs.mask)
        return lambda now: policy_loss(Tokens(now, *inputs_of_loss, now.square(), inputs.reference), weighed, settings)[
            0
        ]

    return of


def summed(inputs: Inputs, aggregate: str, values: Tensor) -> Tensor:
    """Aggregate the values [B, T] with one of Cadre's aggregates."""
    return (weights_of(inputs, aggregate).unsqueeze(1) * torch.where(inputs.mask, values, 0.0)).sum()


def with_gradient(loss: Loss, at: Tensor) -> Tensor:
    """The loss and its gradient there, one after the other."""
    point = at.clone().requires_grad_()
    value = loss(point)
    (gradient,) = torch.autograd.grad(value, point, materialize_grads=True)
    return torch.cat([value.detach().double().view(1), gradient.flatten()])


def losses(
    cadre_loss: Callable[[Inputs], Loss],
    library_loss: Callable[[Inputs], Loss],
    by_theirs: Callable[[Inputs], Loss] | None = None,
) -> Callable[[Inputs], Compared]:
    """Losses with their gradients by log-probability."""

    def compared(inputs: Inputs) -> Compared:
        first, second, third = (
            with_gradient(of(inputs), inputs.now) for of in (cadre_loss, library_loss, by_theirs or cadre_loss)
        )
        return first, second, third

    return compared


def gradients(
    cadre_loss: Callable[[Inputs], Loss],
    library_loss: Callable[[Inputs], Loss],
) -> Callable[[Inputs], Compared]:
    """The gradients alone, of losses that differ by what has none."""

    def compared(inputs: Inputs) -> Compared:
        first, second, third = losses(cadre_loss, library_loss)(inputs)
        return first[1:], second[1:], third[1:]

    return compared


# Divergences.


def divergences(library_function: Callable[[Tensor, Tensor, str], Tensor]) -> dict[str, Callable[[Inputs], Compared]]:
    """k1, k2 and k3, theirs of log-probabilities, those of the reference and the name; they cut k3 at 10.

    The reference is eight times as far away as the old policy, so that the cut is reached.
    """

    def of(name: str, divergence: Loss) -> Callable[[Inputs], Compared]:
        def compared(inputs: Inputs) -> Compared:
            far = inputs.now - 8.0 * (inputs.now - inputs.old)
            cadre_value = divergence(inputs.now - far)
            return (
                cadre_value,
                library_function(inputs.now, far, name),
                cadre_value.clamp(-10, 10) if name == "k3" else cadre_value,
            )

        return compared

    return {
        "k1": of("k1", lambda gap: gap),
        "k2": of("k2", lambda gap: 0.5 * gap.square()),
        "k3": of("k3", lambda gap: (-gap).exp() - 1.0 + gap),
    }
