"""What a sample's tokens cost: distance from the reference model, and answers that are too long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from cadre.advantages.samples import ScoredSample
from cadre.advantages.sequences import datum
from cadre.settings import CreditConfig
from cadre.team import Metrics, Team, narrowed
from cadre.types import Sample, Sampling


def with_reference(samples: Sequence[ScoredSample], team: Team) -> list[ScoredSample]:
    """The samples with the log-probabilities of the reference model, where a policy is trained on their tokens."""
    asked = [scored for scored in samples if scored.sample.token_ids and team.trains(scored.sample.policy)]
    data = [datum(scored.sample, 0.0, team.sampling[scored.sample.role].temperature) for scored in asked]
    answers = iter(team.reference_logprobs(data))
    return [
        replace(scored, reference=next(answers)[len(scored.sample.prompt_ids) :])
        if scored.sample.token_ids and team.trains(scored.sample.policy)
        else scored
        for scored in samples
    ]


def gaps(scored: ScoredSample) -> tuple[float, ...]:
    """`log pi - log reference` of every token, the estimator k1 of their divergence; none without a reference.

    Its sum is that of the sequence, http://joschu.net/blog/kl-approx.html; a positive one says that the policy has
    become surer of what it said than it was before any training.
    """
    if not scored.reference:
        return ()
    return tuple(now - then for now, then in zip(scored.sample.logprobs, scored.reference, strict=True))


def charged_for_distance(samples: Sequence[ScoredSample], kl: float) -> list[ScoredSample]:
    """The samples with `kl` times the gap as the penalty of every token."""
    return [replace(scored, penalties=tuple(kl * gap for gap in gaps(scored))) for scored in samples]


def mean_gaps(samples: Sequence[ScoredSample]) -> Metrics:
    """The mean gap a token, by role."""
    by_role: dict[str, list[float]] = defaultdict(list)
    for scored in samples:
        by_role[scored.sample.role] += gaps(scored)
    return {f"{role}/kl_penalty": fmean(tokens) for role, tokens in by_role.items() if tokens}


def overlong(sample: Sample, most: int, buffer: int) -> float:
    """The penalty of a completion of at most `most` tokens, from 0 to -1 over the last `buffer` of them, or all of them
    where they are fewer.

    DAPO's soft overlong punishment (arXiv 2503.14476, equation 13). A completion that was cut off has all of it.
    """
    if sample.finish == "length":
        return -1.0
    buffer = min(buffer, most)
    return -max(0.0, len(sample.token_ids) - (most - buffer)) / buffer


def charged_for_length(
    samples: Sequence[ScoredSample], chosen: CreditConfig, sampling: Mapping[str, Sampling]
) -> list[ScoredSample]:
    """The samples with what their length costs, by the most tokens that they might have had: the role's, or the fewer
    that their observation allowed."""
    if not chosen.overlong_buffer:
        return list(samples)
    factor = 1.0 if chosen.overlong_factor is None else chosen.overlong_factor

    def cost(scored: ScoredSample) -> float:
        role = scored.sample.role
        most = narrowed(sampling[role], scored.tree_sample.node.observations[role]).max_tokens
        return -factor * overlong(scored.sample, most, chosen.overlong_buffer)

    return [replace(scored, overlong=cost(scored)) if scored.sample.token_ids else scored for scored in samples]


def mean_overlong(samples: Sequence[ScoredSample], chosen: CreditConfig) -> Metrics:
    """What a sample loses for its length, on average."""
    costs = [scored.overlong for scored in samples if scored.sample.token_ids]
    return {"rollout/overlong": fmean(costs)} if costs and chosen.overlong_buffer else {}
