"""From sequences to gradients: forward, loss and backward of all policies of a model, micro-batch by micro-batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cadre.engines.torch.learning.forward import Forward, Scores
from cadre.engines.torch.learning.metrics import UpdateMetrics
from cadre.engines.torch.learning.token_logprobs import ALL
from cadre.errors import ContractError
from cadre.learn.aggregation import AGGREGATES, Aggregate, Denominators
from cadre.learn.batch import Batch
from cadre.learn.loss import Tokens, annealed, policy_loss
from cadre.learn.token_notes import TokenNotes
from cadre.learn.value_heads import value_loss
from cadre.settings import CriticConfig, LossConfig
from cadre.settings.user_code import load_function
from cadre.types import TrainingSequence


@dataclass(frozen=True)
class Share:
    """What of a forward is one policy's: of the B sequences, and of the N values that heads are trained on."""

    policy: str
    batch: Batch
    scores: Scores

    def tokens(self) -> Tokens:
        """All tokens of the batch, [B, T], of which the policy's are in the mask."""
        batch, scores = self.batch, self.scores
        mine = torch.tensor([policy == self.policy for policy in batch.policies], device=batch.mask.device)
        return Tokens(
            logprobs=scores.logprobs,
            old=batch.old,
            rollout_logprobs=batch.rollout_logprobs,
            advantages=batch.advantages,
            mask=batch.mask & mine.unsqueeze(1),
            entropy=scores.entropy,
            reference=batch.reference,
        )

    def mismatches(self, tokens: Tokens) -> Iterator[tuple[str, float, int]]:
        """By role: the sum of |learner's - sampler's log-probability| over its tokens, and their number."""
        gap = torch.where(tokens.mask, tokens.logprobs.detach() - tokens.rollout_logprobs, 0.0).abs().sum(dim=1)
        counts = tokens.mask.sum(dim=1)
        for role in dict.fromkeys(self.batch.roles):
            rows = torch.tensor([other == role for other in self.batch.roles], device=gap.device)
            yield role, float(gap[rows].sum()), int(counts[rows].sum())

    def token_weights(self, aggregate: Aggregate, denominators: Denominators) -> Tensor:
        """What a token of each sequence weighs, float32 [B]; nothing where the sequence is another policy's."""
        each = zip(self.batch.policies, self.batch.lengths, strict=True)
        weights = [aggregate(length, denominators) if policy == self.policy else 0.0 for policy, length in each]
        return torch.tensor(weights, device=self.batch.mask.device)

    def values(self) -> Tensor:
        """Which values the policy's heads say, boolean [N]."""
        heads = self.batch.targets.heads
        return torch.tensor([policy == self.policy for policy, _ in heads], device=self.scores.values.device)


class Gradients:
    """Adds up the gradients of a model's policies; no policy's loss reaches another's weights. Owned by the trainer.

    `progress` says of a policy which share of its updates is done.
    """

    def __init__(
        self,
        forward: Forward,
        loss: LossConfig,
        critic: CriticConfig,
        notes: TokenNotes,
        progress: Callable[[str], float],
    ) -> None:
        self._forward = forward
        self._loss = loss
        self._critic = critic
        self._notes = notes
        self._progress = progress
        self._entropy_tokens = (loss.entropy_tokens or ALL) if loss.entropy else 0
        self._aggregate = load_aggregate(loss.aggregate)

    def add(
        self,
        data: Sequence[TrainingSequence],
        denominators: Mapping[str, Denominators],
        metrics: Mapping[str, UpdateMetrics],
    ) -> dict[str, float]:
        """Backward of the losses of some sequences, and the losses by policy; the `metrics` are told of them.

        A sequence weighs as a part of what the policy's `denominators` count, which is the whole minibatch, whoever
        has the rest of it. In a group every rank is given all of the data, runs its part, and has the sum of all ranks'
        gradients and losses; the metrics are told of its part.
        """
        losses = dict.fromkeys((datum.policy for datum in data), 0.0)
        for micro in self._forward.cut(data):
            batch = self._forward.collated(micro)
            with self._forward.adapted(batch):
                scores = self._forward.scores(batch, self._entropy_tokens)
                self._note(micro.data, scores)
                total = scores.logprobs.new_zeros(())
                for policy in dict.fromkeys(batch.policies):
                    loss = self._loss_of(Share(policy, batch, scores), denominators[policy], metrics[policy])
                    losses[policy] += float(loss.detach())
                    total = total + loss
                if total.requires_grad:
                    torch.autograd.backward(total)
        if not any(any(datum.mask) for datum in data):
            self._forward.forget_projection()
        totals = self._forward.ranks.total(list(losses.values()))
        return dict(zip(losses, totals, strict=True))

    def _note(self, data: Sequence[TrainingSequence], scores: Scores) -> None:
        for row, datum in enumerate(data):
            if self._notes.wants(datum):
                self._notes.add(datum, scores.logprobs[row].tolist(), scores.entropy[row].tolist())

    def _loss_of(self, share: Share, denominators: Denominators, metrics: UpdateMetrics) -> Tensor:
        """The loss of a policy's tokens and of its value heads."""
        tokens, weights = share.tokens(), share.token_weights(self._aggregate, denominators)
        of_tokens, sums = policy_loss(tokens, weights, annealed(self._loss, self._progress(share.policy)))
        metrics.add_tokens(float(of_tokens.detach()), int(tokens.mask.sum()), sums)
        for role, mismatch, count in share.mismatches(tokens):
            metrics.add_gap(role, mismatch, count)

        judged, targets = share.values(), share.batch.targets
        weights = judged.float() * (self._critic.coefficient / denominators.values)
        of_values = value_loss(share.scores.values, targets.values, targets.returns, weights, self._critic.clip)
        metrics.add_values(float(of_values.detach()), int(judged.sum()))
        return of_tokens + of_values


def load_aggregate(name: str) -> Aggregate:
    """Return the function of that name. Raises ContractError where one of the user's returns no finite number."""
    aggregate = load_function("loss.aggregate", name, AGGREGATES)
    if name in AGGREGATES:
        return aggregate

    def checked(length: int, whole: Denominators) -> float:
        weight: object = aggregate(length, whole)
        if not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ContractError(
                f"loss.aggregate: {name} returned {weight!r} for a sequence of {length} tokens; expected a finite "
                "number. Return that."
            )
        return weight

    return checked
