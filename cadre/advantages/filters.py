"""Which samples an update learns from, and how much: what lies between advantages and training sequences.

Completions that were cut off, groups in which everybody earned the same, roles that should weigh more than others,
trees that fan out. The same for every algorithm.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from cadre.advantages.group_relative import AdvantageGroup
from cadre.advantages.returns import part_of_episodes
from cadre.advantages.samples import ScoredSample
from cadre.learn.aggregation import AGGREGATES, Aggregate, Denominators
from cadre.settings import CreditConfig, LossConfig, TreeWeight
from cadre.settings.user_code import load_function


def selected(groups: Sequence[AdvantageGroup], chosen: CreditConfig) -> list[ScoredSample]:
    """What is learned from; advantages were made of all that was sampled."""
    kept = [group for group in groups if chosen.without_std == "keep" or group.differs]
    return [scored for group in kept for scored in group.samples if not cut_off(scored, chosen)]


def cut_off(scored: ScoredSample, chosen: CreditConfig) -> bool:
    """Whether a completion reached its limit, where such ones are not trained."""
    return chosen.truncated == "mask" and scored.sample.finish == "length"


def weighed_by_role(samples: Sequence[ScoredSample], chosen: CreditConfig) -> list[ScoredSample]:
    """The samples with their weight times that of their role."""
    return [
        replace(scored, weight=scored.weight * chosen.role_weights.get(scored.sample.role, 1.0)) for scored in samples
    ]


def weighed_by_tree(samples: Sequence[ScoredSample], rule: TreeWeight, loss: LossConfig) -> list[ScoredSample]:
    """The samples with what they weigh beside the others of their update, 1 on average over those of a policy.

    A decision weighs its share, which its siblings have between them. `by_decision` leaves it at that; `alike` gives
    every tree the same weight in the update of each policy; `by_episode` lets the decisions of a role in an episode
    share the weight of one. An average over tokens where that is what the loss takes; where it adds them up
    (sequence_sum) no length is taken into account.
    """
    if rule == "by_sample":
        return list(samples)
    share = part_of_episode if rule == "by_episode" else part_of_decision

    def block(scored: ScoredSample) -> tuple[str, int]:
        return scored.sample.policy, scored.tree_sample.tree if rule == "alike" else 0

    blocks: dict[tuple[str, int], float] = defaultdict(float)
    wholes: dict[str, float] = defaultdict(float)
    for scored, part in zip(samples, parts_of_loss(samples, loss), strict=True):
        blocks[block(scored)] += share(scored) * part
        wholes[scored.sample.policy] += part
    counts = Counter(policy for (policy, _), weight in blocks.items() if weight)  # of a tree that is cut off nothing
    each = {key: wholes[key[0]] / counts[key[0]] / weight if weight else 0.0 for key, weight in blocks.items()}
    return [replace(scored, weight=share(scored) * each[block(scored)]) for scored in samples]


def part_of_episode(scored: ScoredSample) -> float:
    """A sample's part in what its role does in its episodes."""
    return part_of_episodes(scored.tree_sample)


def part_of_decision(scored: ScoredSample) -> float:
    """A sample's part in what its decision counts in the tree."""
    node = scored.tree_sample.node
    return node.weight / len(node.samples[scored.tree_sample.role])


def parts_of_loss(samples: Sequence[ScoredSample], loss: LossConfig) -> list[float]:
    """What the loss would take of each sample in the update of its policy, were all weights 1: of a loss that adds up
    tokens, and averages nothing over them, the same of each."""
    aggregate = load_function("loss.aggregate", loss.aggregate, AGGREGATES)
    places = [(scored.sample.policy, len(scored.sample.token_ids) if scored.trains else 0) for scored in samples]
    tokens, sequences = Counter[str](), Counter[str]()
    for policy, length in places:
        tokens[policy] += length
        sequences[policy] += length > 0
    adds_up = _per_token(aggregate, 1, loss) == _per_token(aggregate, 2, loss)

    def part(policy: str, length: int) -> float:
        token = aggregate(length, Denominators(sequences[policy], tokens[policy], 1, loss.divisor))
        return token if adds_up else length * token

    return [part(policy, length) if length else 0.0 for policy, length in places]


def _per_token(aggregate: Aggregate, length: int, loss: LossConfig) -> float:
    """What a token weighs where an update is one sequence of that length."""
    return aggregate(length, Denominators(1, length, 1, loss.divisor))
