"""The metrics of a step: one flat dictionary of numbers, by role and by policy, in SI units."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from statistics import fmean

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
    """All that a step is logged with but how long it took; `trained` are the roles whose policies learn."""
    return (
        tree_metrics(sampled.trees, alpha)
        | failure_metrics(sampled)
        | {"rollout/replaced": sampled.replaced}
        | group_metrics(groups_of_roles(batch.groups, trained))
        | batch.metrics
        | update_metrics(updates)
    )


def failure_metrics(sampled: SampledTrees) -> Metrics:
    """How many of the step's tasks were dropped, what share for which reason, how many branches failed in the trees
    that were kept, and how often programs diverged."""
    tasks = len(sampled.trees) + len(sampled.failures)
    counts = Counter(failure.reason for failure in sampled.failures)
    shares = {f"rollout/failed/{reason}": counts[reason] / tasks for reason in REASONS}
    failed = len(sampled.failures)
    counted = {"rollout/failures": failed, "rollout/failed": failed / tasks, "rollout/retried": sampled.retried}
    branches: Metrics = {"rollout/failed_branches": sum(sampled.failed_branches.values())}
    branches |= {f"rollout/failed_branches/{reason}": number for reason, number in sampled.failed_branches.items()}
    return {**counted, **shares, **branches, "rollout/divergence_rate": sampled.diverged / (tasks + sampled.retried)}


def tree_metrics(trees: Sequence[Tree], alpha: float) -> Metrics:
    """What was sampled: rewards and lengths by role, success of the episodes that were played out.

    A reward part is the mean over the steps that say it (`mean_parts`), siblings that were left behind included.
    """
    paths = [path for tree in trees for path in walk.episodes(tree.root)]
    branches = [branch for tree in trees for node in walk.nodes(tree.root) for branch in node.branches]
    parts = mean_parts([branches])
    metrics: Metrics = {
        "rollout/success": fmean(path[-1][1].success for path in paths) if paths else 0.0,
        "rollout/episodes": len(paths),
        "rollout/decisions": fmean(len(path) for path in paths) if paths else 0.0,
        "rollout/tokens": sum(len(sample.token_ids) for tree in trees for sample in walk.samples(tree.root)),
        "rollout/env_steps": len(branches),
    }
    parted = {f"parts/{name}": value for name, value in parts.items()}
    return metrics | parted | _history_metrics(trees) | _role_metrics(trees, alpha)


def _history_metrics(trees: Sequence[Tree]) -> Metrics:
    """How many decisions go on from a turn before: with the ids that were sampled, with them although the template
    would write them in another way, or in a new sequence. Empty where no prompt followed another."""
    decisions = [
        siblings[0].history for tree in trees for node in walk.nodes(tree.root) for siblings in node.samples.values()
    ]
    later = Counter(history for history in decisions if history != "first")
    return {f"rollout/history_{name}": later[name] for name in ("clean", "realigned", "new")} if later else {}


def _role_metrics(trees: Sequence[Tree], alpha: float) -> Metrics:
    rewards: dict[str, list[float]] = defaultdict(list)
    while_absent: dict[str, float] = defaultdict(float)
    samples: dict[str, list[Sample]] = defaultdict(list)
    for node in (node for tree in trees for node in walk.nodes(tree.root)):
        for role, siblings in node.samples.items():
            samples[role] += siblings
            rewards[role] += [role_reward(branch, role, alpha) for branch in node.branches]
        for branch in node.branches:
            for role in branch.reward.local.keys() - node.samples.keys():
                while_absent[role] += branch.reward.local[role]
    metrics: Metrics = {}
    for role, drawn in samples.items():
        metrics[f"{role}/reward"] = (sum(rewards[role]) + while_absent[role]) / len(rewards[role])
        metrics[f"{role}/tokens"] = fmean(len(sample.token_ids) for sample in drawn)
        metrics[f"{role}/tokens_max"] = max(len(sample.token_ids) for sample in drawn)
        metrics[f"{role}/truncated"] = fmean(sample.finish == "length" for sample in drawn)
    return metrics


def group_metrics(groups: Sequence[AdvantageGroup]) -> Metrics:
    """The share of groups that teach nothing as all their samples were worth the same: of all, of those that hold a
    role's samples, and of those by the number of the role's decision in its episode.

    Empty where nothing is compared, as under a critic.
    """
    flat: dict[str, list[bool]] = defaultdict(list)
    for group in groups:
        for name in {"rollout", *(scored.sample.role for scored in group.samples)}:
            flat[name].append(not group.has_signal)
    by_decision = no_signal_fractions(groups).items()
    return {
        **{f"{name}/groups_without_std": fmean(shares) for name, shares in sorted(flat.items())},
        **{f"{role}/groups_without_std/{number}": share for (role, number), share in by_decision},
    }


def staleness_metrics(trees: Sequence[Tree], versions: Mapping[str, int]) -> Metrics:
    """By how many updates the samples are behind the policies that learn from them, in `versions`: the mean by role of
    trained policies, and the most."""
    behind: dict[str, list[int]] = defaultdict(list)
    for sample in (sample for tree in trees for sample in walk.samples(tree.root)):
        if sample.policy in versions:
            behind[sample.role].append(versions[sample.policy] - sample.version)
    most = max((max(updates) for updates in behind.values()), default=0)
    return {f"{role}/staleness": fmean(updates) for role, updates in behind.items()} | {"rollout/staleness_max": most}


def update_metrics(updates: Mapping[str, Metrics]) -> Metrics:
    """What the learners say, by policy, and by role what they say of one."""
    said = [(policy, name, value) for policy, metrics in updates.items() for name, value in metrics.items()]
    return {_metric_name(policy, name): value for policy, name, value in said}


def _metric_name(policy: str, name: str) -> str:
    """`loss` of planner as `planner/loss`, `mismatch/tool` as `tool/mismatch`."""
    what, _, role = name.partition("/")
    return f"{role}/{what}" if role else f"{policy}/{what}"
