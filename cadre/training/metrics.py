"""The metrics of a step: one flat dictionary of numbers, by role and by policy, in SI units."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from cadre.advantages.batch import TrainingBatch
from cadre.advantages.groups import AdvantageGroup, groups_of_roles, no_signal_fractions
from cadre.advantages.returns import role_reward
from cadre.evaluation.evaluate import mean_parts
from cadre.rollout import walk
from cadre.rollout.episodes import SampledTrees
from cadre.rollout.failures import REASONS
from cadre.team import Metrics
from cadre.types import Sample, Tree


def compute_step_metrics(
    sampled: SampledTrees, batch: TrainingBatch, updates: Mapping[str, Metrics], alpha: float, trained: Container[str]
) -> Metrics:
    """Return all metrics of a step but its seconds; `trained` are the roles whose policies learn."""
    return (
        tree_metrics(sampled.trees, alpha)
        | failure_metrics(sampled)
        | {"rollout/replaced": sampled.replaced}
        | group_metrics(groups_of_roles(batch.groups, trained))
        | batch.metrics
        | update_metrics(updates)
    )


def failure_metrics(sampled: SampledTrees) -> Metrics:
    """Return how many of the step's tasks were dropped, the fraction by reason, how many branches failed in the
    remaining trees, and how often programs diverged."""
    tasks = len(sampled.trees) + len(sampled.failures)
    counts = Counter(failure.reason for failure in sampled.failures)
    fractions = {f"rollout/failed/{reason}": counts[reason] / tasks for reason in REASONS}
    failed = len(sampled.failures)
    # Tasks are counted once, whether dropped or not; retries are further episodes of the same tasks.
    counted = {"rollout/failures": failed, "rollout/failed": failed / tasks, "rollout/retried": sampled.retried}
    branches: Metrics = {"rollout/failed_branches": sum(sampled.failed_branches.values())}
    branches |= {f"rollout/failed_branches/{reason}": number for reason, number in sampled.failed_branches.items()}
    return {**counted, **fractions, **branches, "rollout/divergence_rate": sampled.diverged / (tasks + sampled.retried)}


def tree_metrics(trees: Sequence[Tree], alpha: float) -> Metrics:
    """Return rewards and lengths by role, and the success of the episodes that were rolled out to the end.

    A reward part is the mean over the steps that report it (`mean_parts`), branches that were not selected included.
    """
    nodes = [node for tree in trees for node in walk.nodes(tree.root)]
    paths = [path for tree in trees for path in walk.episodes(tree.root)]
    branches = [branch for node in nodes for branch in node.branches]
    metrics: Metrics = {
        "rollout/success": fmean(path[-1][1].success for path in paths) if paths else 0.0,
        "rollout/episodes": len(paths),
        "rollout/decisions": fmean(len(path) for path in paths) if paths else 0.0,
        "rollout/tokens": sum(len(sample.token_ids) for tree in trees for sample in walk.samples(tree.root)),
        "rollout/env_steps": len(branches),
    }
    metrics |= {f"parts/{name}": value for name, value in mean_parts([branches]).items()}

    # How turns continue an earlier turn: with the ids that were sampled, with them although the template would write
    # them differently, or in a new sequence. Nothing if no prompt follows another.
    histories = Counter(siblings[0].history for node in nodes for siblings in node.samples.values())
    if sum(histories.values()) > histories["first"]:
        metrics |= {f"rollout/history_{name}": histories[name] for name in ("clean", "realigned", "new")}

    # A role's reward is the mean over the branches of its own decisions, plus local rewards at decisions of others.
    rewards: dict[str, list[float]] = defaultdict(list)
    while_absent: dict[str, float] = defaultdict(float)
    samples: dict[str, list[Sample]] = defaultdict(list)
    for node in nodes:
        for role, siblings in node.samples.items():
            samples[role] += siblings
            rewards[role] += [role_reward(branch, role, alpha) for branch in node.branches]
        for branch in node.branches:
            for role in branch.reward.local.keys() - node.samples.keys():
                while_absent[role] += branch.reward.local[role]
    for role, role_samples in samples.items():
        metrics[f"{role}/reward"] = (sum(rewards[role]) + while_absent[role]) / len(rewards[role])
        metrics[f"{role}/tokens"] = fmean(len(sample.token_ids) for sample in role_samples)
        metrics[f"{role}/tokens_max"] = max(len(sample.token_ids) for sample in role_samples)
        metrics[f"{role}/truncated"] = fmean(sample.finish == "length" for sample in role_samples)
    return metrics


def group_metrics(groups: Sequence[AdvantageGroup]) -> Metrics:
    """Return the fraction of zero-variance groups: of all, of those that hold a role's samples, and of those by the
    number of the role's decision in its episode.

    Empty if nothing is compared, as with a critic.
    """
    flat: dict[str, list[bool]] = defaultdict(list)
    for group in groups:
        for name in {"rollout", *(scored.sample.role for scored in group.samples)}:
            flat[name].append(not group.has_signal)
    by_decision = no_signal_fractions(groups).items()
    return {
        **{f"{name}/zero_variance_groups": fmean(flags) for name, flags in sorted(flat.items())},
        **{f"{role}/zero_variance_groups/{number}": fraction for (role, number), fraction in by_decision},
    }


def staleness_metrics(trees: Sequence[Tree], versions: Mapping[str, int]) -> Metrics:
    """Return by how many updates the samples are behind the policies that learn from them, in `versions`: the mean by
    role of trained policies, and the maximum."""
    behind: dict[str, list[int]] = defaultdict(list)
    for sample in (sample for tree in trees for sample in walk.samples(tree.root)):
        if sample.policy in versions:
            behind[sample.role].append(versions[sample.policy] - sample.version)
    maximum = max((max(updates) for updates in behind.values()), default=0)
    return {f"{role}/staleness": fmean(updates) for role, updates in behind.items()} | {
        "rollout/staleness_max": maximum
    }


def sync_seconds(samplers: Iterable[Any]) -> Metrics:
    """Return the seconds that weight syncs, falling asleep and waking took since the last call, of samplers that count
    them: `time/sync_s`, `time/sleep_s`, `time/wake_s`."""
    counters = {id(sampler): sampler for sampler in samplers if hasattr(sampler, "take_seconds")}
    return add_metrics(*(counter.take_seconds() for counter in counters.values()))


def add_metrics(*parts: Metrics) -> Metrics:
    """Return the sum of each metric over the parts that have it."""
    total: Metrics = defaultdict(float)
    for part in parts:
        for name, value in part.items():
            total[name] += value
    return dict(total)


def update_metrics(updates: Mapping[str, Metrics]) -> Metrics:
    """Return the learners' metrics by policy, and by role where they are of one: `loss` of planner as `planner/loss`,
    `logprob_diff/tool` as `tool/logprob_diff`."""
    flat: Metrics = {}
    for policy, metrics in updates.items():
        for name, value in metrics.items():
            metric, _, role = name.partition("/")
            flat[f"{role or policy}/{metric}"] = value
    return flat
