"""Advantages by value heads: what samples earned beyond their values, and what the heads should have said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from cadre.advantages.credit import Credit
from cadre.advantages.critic_inputs import Critic, CriticInput, critic_datum, critic_inputs, values_of
from cadre.advantages.gae import Estimate, Values, compute_gae, critic_metrics, whitened, without_rounding
from cadre.advantages.samples import ScoredSample
from cadre.team import Metrics, Team
from cadre.types import Targets, TrainingSequence


def judged_by_critic(
    samples: Sequence[ScoredSample], credit: Credit, critic: Critic, team: Team
) -> tuple[list[ScoredSample], list[TrainingSequence], Metrics]:
    """The samples that somebody trains with their advantages, the sequences that only a critic reads, and metrics.

    The critic's targets go with a sample where the critic reads the sample's own sequence.
    """
    trained = [scored for scored in samples if scored.sample.token_ids and team.trains(scored.sample.policy)]
    inputs = critic_inputs(trained, critic, team)
    values = values_of(inputs, team)
    estimates = compute_gae(trained, values, credit, critic)
    advantages = whitened(trained, estimates) if critic.whiten else list(map(without_rounding, estimates))
    targets = [
        Targets(read.head, read.at, estimate.returns, value) if read.in_sample else None
        for read, estimate, value in zip(inputs, estimates, values, strict=True)
    ]
    judged = [
        replace(scored, advantages=beyond, targets=target, returns=estimate.returns[0], values=value)
        for scored, beyond, target, estimate, value in zip(trained, advantages, targets, estimates, values, strict=True)
    ]
    return judged, _critic_data(trained, inputs, estimates, values), critic_metrics(trained, values, estimates)


def _critic_data(
    samples: Sequence[ScoredSample], inputs: Sequence[CriticInput], estimates: Sequence[Estimate], values: Values
) -> list[TrainingSequence]:
    """The sequences that only a critic reads, once each, with a target for every sample that is read so."""
    readers: dict[CriticInput, list[int]] = defaultdict(list)
    for number, read in enumerate(inputs):
        if not read.in_sample:
            readers[read].append(number)
    data = []
    for read, numbers in readers.items():
        returns = tuple(value for number in numbers for value in estimates[number].returns)
        before = tuple(value for number in numbers for value in values[number])
        first = samples[numbers[0]].sample
        datum = critic_datum(read, Targets(read.head, read.at * len(numbers), returns, before))
        data.append(replace(datum, role=first.role, version=first.version))
    return data
