"""Scored samples become training sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cadre.advantages.samples import ScoredSample
from cadre.types import Sample, Sampling, TrainingSequence


def sequences(samples: Sequence[ScoredSample], sampling: Mapping[str, Sampling]) -> list[TrainingSequence]:
    """One training sequence a sample that has token ids, as a remote model's has not, and that somebody learns from."""
    return [
        sequence(scored, sampling[scored.sample.role].temperature)
        for scored in samples
        if scored.sample.token_ids and (scored.trains or scored.targets is not None)
    ]


def sequence(scored: ScoredSample, temperature: float) -> TrainingSequence:
    """The prompt, untrained, and the completion with its advantages; nothing is trained but a critic where the sample
    does not train its policy."""
    sample, before = scored.sample, (0.0,) * len(scored.sample.prompt_ids)
    plain = datum(sample, 0.0, temperature)
    if not scored.trains:
        return replace(plain, mask=(False,) * len(plain.mask), targets=scored.targets)
    advantages = tuple(scored.weight * advantage for advantage in scored.advantages)
    if len(advantages) == 1:
        advantages *= len(sample.token_ids)
    reference = before + scored.reference if scored.reference else ()
    return replace(
        plain,
        advantages=before + advantages,
        reference=reference,
        targets=scored.targets,
        position=scored.tree_sample.position,
    )


def datum(sample: Sample, advantage: float, temperature: float) -> TrainingSequence:
    """The training sequence of one sample with the same advantage on every token of its completion."""
    before, after = len(sample.prompt_ids), len(sample.token_ids)
    return TrainingSequence(
        policy=sample.policy,
        role=sample.role,
        token_ids=sample.prompt_ids + sample.token_ids,
        mask=(False,) * before + (True,) * after,
        logprobs=(0.0,) * before + sample.logprobs,
        advantages=(0.0,) * before + (advantage,) * after,
        version=sample.version,
        temperature=temperature,
        images=sample.images,
    )
