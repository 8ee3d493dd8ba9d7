"""On-policy distillation: the advantage of a token by what a teacher thinks of it.

    A_t <- A_t - coefficient * (log pi(a_t) - log teacher(a_t))        with `alone`: A_t = 0 before

This is the reverse KL, token by token and without what follows: its expected gradient is -coefficient times that of
KL(pi || teacher) at the token (https://thinkingmachines.ai/blog/on-policy-distillation). It is added after samples are
compared, so that no deviation of rewards scales it. log pi is the sampler's, and both sides are of the distribution
that was sampled from, temperature applied.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from cadre.advantages.critic import add_privileged
from cadre.advantages.returns import ScoredSample, sequence_of
from cadre.errors import EngineError
from cadre.settings import TeacherConfig
from cadre.team import Metrics, Team
from cadre.types import TrainingSequence


def add_distillation(
    samples: Sequence[ScoredSample], config: TeacherConfig, team: Team
) -> tuple[list[ScoredSample], Metrics]:
    """Return the samples with a teacher's part in the advantage of every token, and the mean divergence by role.

    Samples of policies that do not learn, and of the policy that teaches, stay as they are. Raises EngineError if the
    teacher's log-probabilities are not finite.
    """
    taught = [
        number
        for number, scored in enumerate(samples)
        if scored.trains and scored.sample.token_ids and team.trains(scored.sample.policy)
        if scored.sample.policy != config.policy
    ]
    queries = [teacher_query(samples[number], config, team) for number in taught]
    source = team.reference_logprobs if config.is_reference else team.logprobs
    scores = source(queries) if team.teacher is None else team.teacher.logprobs(queries)

    changed, divergences = list(samples), defaultdict[str, list[float]](list)
    for number, numbers in zip(taught, scores, strict=True):
        scored, sample = samples[number], samples[number].sample
        teacher = numbers[len(numbers) - len(sample.token_ids) :]
        if not math.isfinite(sum(teacher)):
            raise EngineError(
                f"Role {sample.role!r}: the teacher's log-probabilities of a completion are not finite; expected "
                "numbers. Its weights are broken, or it has not the tokenizer of the policy."
            )
        diffs = [logprob - target for logprob, target in zip(sample.logprobs, teacher, strict=True)]
        divergences[sample.role] += diffs
        bound = math.inf if config.clip is None else config.clip
        advantages = (0.0,) if config.alone else scored.advantages
        if len(advantages) == 1:
            advantages *= len(diffs)
        advantages = tuple(
            advantage - config.coefficient * max(-bound, min(bound, diff))
            for advantage, diff in zip(advantages, diffs, strict=True)
        )
        changed[number] = replace(scored, advantages=advantages)
    return changed, {f"{role}/kl_to_teacher": fmean(diffs) for role, diffs in divergences.items()}


def teacher_query(scored: ScoredSample, config: TeacherConfig, team: Team) -> TrainingSequence:
    """Return the sequence that the teacher scores: the tokens that were sampled, after the prompt that they were
    sampled from, or with a hint after that conversation with the environment's text at its end."""
    sample, node = scored.sample, scored.tree_sample.node
    if config.hint and node.privileged:
        observation = node.observations[sample.role]
        messages = add_privileged(observation.messages, node.privileged)
        sample = replace(sample, prompt_ids=team.encode(sample.policy, messages, observation.tools))
    query = sequence_of(sample, 0.0, team.sampling[sample.role].temperature)
    return replace(query, policy=config.policy or sample.policy)
