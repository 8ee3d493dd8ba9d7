"""Dr. MAMR's causal influence (arXiv 2511.02303): how much likelier a step makes the next one.

    dl(s_t) = log pi(s_t+1 | its prompt) - log pi(s_t+1 | its prompt without the text of s_t)
    CI(s)   = mean of dl over the equal steps of the role in the task's episodes
    A       = (R - mean) / std + weight * (CI - mean) / std        over the role's samples of the task

The paper suppresses the attention to the step's tokens; here its text is cut out of the messages that the next role is
shown. A step that these do not quote has no influence. A last step has no next one, and stays as it is.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from cadre.advantages.groups import AdvantageGroup, GroupReturns, action_of
from cadre.advantages.returns import Key, sequence_of
from cadre.errors import EngineError
from cadre.rollout.walk import TreeSample
from cadre.team import Metrics, Team
from cadre.types import Node, Sample, SamplePosition


def add_influence(groups: Sequence[AdvantageGroup], weight: float, team: Team) -> tuple[list[AdvantageGroup], Metrics]:
    """Return the groups with the normalised influence of each sample in its advantage, and the mean influence by role
    in nats a completion."""
    samples = [scored.tree_sample for group in groups for scored in group.samples]
    measured = measure_influence(samples, team)
    by_action: dict[Key, list[TreeSample]] = defaultdict(list)
    for sample in samples:
        if sample.position in measured:
            by_action[(sample.tree, sample.role, *action_of(sample.sample))].append(sample)

    # CI of every measured sample, and its deviation from the others of the role on the task.
    by_role: dict[Key, dict[SamplePosition, float]] = defaultdict(dict)
    for (tree, role, *_), equal in by_action.items():
        influence = fmean(measured[sample.position] for sample in equal)
        by_role[tree, role] |= {sample.position: influence for sample in equal}
    gains: dict[SamplePosition, float] = {}
    for influences in by_role.values():
        values = tuple(influences.values())
        compared = GroupReturns(values, (1.0,) * len(values), (0.0,) * len(values))
        if compared.std:
            mean, std = compared.mean, compared.std
            gains |= {position: (value - mean) / std for position, value in influences.items()}

    changed = []
    for group in groups:
        added = [weight * gains.get(scored.tree_sample.position, 0.0) for scored in group.samples]
        members = tuple(
            replace(scored, advantages=tuple(advantage + gain for advantage in scored.advantages))
            for scored, gain in zip(group.samples, added, strict=True)
        )
        changed.append(replace(group, samples=members, std=max(group.std, *map(abs, added))))
    by_name: dict[str, list[float]] = defaultdict(list)
    for (_, name), influences in by_role.items():
        by_name[str(name)] += influences.values()
    return changed, {f"{name}/influence": fmean(values) for name, values in by_name.items()}


def measure_influence(samples: Sequence[TreeSample], team: Team) -> dict[SamplePosition, float]:
    """Return dl of every sample after which a trained policy acts, the mean over what follows it. Raises EngineError if
    a policy's log-probabilities are not finite."""
    diffs: dict[SamplePosition, list[float]] = defaultdict(list)
    queries, positions = [], []
    for sample in samples:
        for node, following in next_samples(sample):
            if not following.token_ids or not team.trains(following.policy):
                continue
            observation, text = node.observations[following.role], sample.sample.text.strip()
            # Words are cut out whole: the answer "1" is not cut out of "10".
            quoted = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
            messages = [replace(message, content=quoted.sub("", message.content)) for message in observation.messages]
            if not text or messages == list(observation.messages):
                diffs[sample.position].append(0.0)
                continue
            prompt = team.encode(following.policy, messages, observation.tools)
            temperature = team.sampling[following.role].temperature
            queries.append(sequence_of(replace(following, prompt_ids=prompt), 0.0, temperature))
            positions.append((sample.position, sum(following.logprobs)))
    for (position, logprob), query, masked in zip(positions, queries, team.logprobs(queries), strict=True):
        if not math.isfinite(sum(masked)):
            raise EngineError(
                f"Role {query.role!r}: log-probabilities of a completion without the step before it are not finite; "
                "expected numbers. The weights of its policy are broken."
            )
        diffs[position].append(logprob - sum(masked))
    return {position: fmean(numbers) for position, numbers in diffs.items()}


def next_samples(sample: TreeSample) -> Iterator[tuple[Node, Sample]]:
    """Yield the decisions after a sample, each with the completions that were executed there."""
    for branch in sample.branches:
        if branch.child is not None:
            for following in branch.child.branches:
                for role, index in following.choice.items():
                    yield branch.child, branch.child.samples[role][index]
