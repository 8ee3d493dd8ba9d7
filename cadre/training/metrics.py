"""The metrics of a step: one flat dictionary of numbers, by role and by policy, in SI units; and what of a GPU's peak
rates a step reaches."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cadre.advantages.batch import Plan, TrainingBatch
from cadre.advantages.groups import AdvantageGroup, groups_of_roles, no_signal_fractions
from cadre.advantages.returns import role_reward
from cadre.evaluation.evaluate import mean_parts
from cadre.rollout import walk
from cadre.rollout.episodes import SampledTrees
from cadre.rollout.failures import REASONS
from cadre.team import Metrics
from cadre.types import Node, Sample, TrainingSequence, Tree

if TYPE_CHECKING:
    from cadre.config.experiment import Experiment
    from cadre.settings import LossConfig


def compute_step_metrics(
    sampled: SampledTrees, batch: TrainingBatch, updates: Mapping[str, Metrics], plan: Plan, trained: Container[str]
) -> Metrics:
    """Return all metrics of a step but its seconds; `trained` are the roles whose policies learn."""
    return (
        tree_metrics(sampled.trees, plan.credit.alpha)
        | failure_metrics(sampled)
        | {"rollout/replaced": sampled.replaced}
        | group_metrics(groups_of_roles(batch.groups, trained), plan.selection.without_std)
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
    """Return rewards and lengths by role, and the success of the episodes that were rolled out to the end. A reward
    part is the mean over the steps that name it (`mean_parts`), branches that were not selected included."""
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
    if ablated := sum(map(count_ablated_steps, nodes)):
        metrics["rollout/ablated_steps"] = ablated

    # How turns continue an earlier turn: with the ids that were sampled, with them although the template would write
    # them differently, or in a new sequence. Nothing if no prompt follows another.
    histories = Counter(siblings[0].history for node in nodes for siblings in node.samples.values())
    if sum(histories.values()) > histories["first"]:
        metrics |= {f"rollout/history_{name}": histories[name] for name in ("clean", "realigned", "new")}

    # A role's reward is the mean over the branches of its own decisions, plus the local rewards at decisions of others:
    # of each of these the mean over its branches, per own decision, both with the weights of decisions side by side.
    rewards: dict[str, list[float]] = defaultdict(list)
    while_absent: dict[str, float] = defaultdict(float)
    decisions: dict[str, float] = defaultdict(float)
    samples: dict[str, list[Sample]] = defaultdict(list)
    for node in nodes:
        for role, siblings in node.samples.items():
            samples[role] += siblings
            decisions[role] += node.weight
            rewards[role] += [role_reward(branch, role, alpha) for branch in node.branches]
        for branch in node.branches:
            for role in branch.reward.local.keys() - node.samples.keys():
                while_absent[role] += node.weight * branch.reward.local[role] / len(node.branches)
    for role, role_samples in samples.items():
        metrics[f"{role}/reward"] = sum(rewards[role]) / len(rewards[role]) + while_absent[role] / decisions[role]
        metrics[f"{role}/tokens"] = fmean(len(sample.token_ids) for sample in role_samples)
        metrics[f"{role}/tokens_max"] = max(len(sample.token_ids) for sample in role_samples)
        metrics[f"{role}/truncated"] = fmean(sample.finish == "length" for sample in role_samples)
    return metrics


def count_ablated_steps(node: Node) -> int:
    """Return the number of different joint actions without some roles that were stepped for the credit."""
    steps = set()
    for branch in node.branches:
        for absent in branch.ablated:
            present = [choice for choice in branch.choice.items() if choice[0] not in absent.split()]
            steps.add((absent, *(node.samples[role][index].text for role, index in present)))
    return len(steps)


def group_metrics(groups: Sequence[AdvantageGroup], without_std: str = "keep") -> Metrics:
    """Return the fraction of zero-variance groups: of all, of those that hold a role's samples, and of those by the
    number of the role's decision in its episode. Those that `credit.without_std=drop` leaves out for equal rewards
    before length penalties count too. Empty if nothing is compared, as with a critic."""
    flat: dict[str, list[bool]] = defaultdict(list)
    for group in groups:
        for name in {"rollout", *(scored.sample.role for scored in group.samples)}:
            flat[name].append(not group.is_learned(without_std))
    by_decision = no_signal_fractions(groups, without_std).items()
    fractions = {f"{name}/zero_variance_groups": fmean(flags) for name, flags in sorted(flat.items())}
    return fractions | {f"{role}/zero_variance_groups/{number}": fraction for (role, number), fraction in by_decision}


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
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


def update_metrics(updates: Mapping[str, Metrics]) -> Metrics:
    """Return the learners' metrics by policy, and by role where they are of one: `loss` of planner as `planner/loss`,
    `logprob_diff/tool` as `tool/logprob_diff`. Metrics of a loss of the user's stay `planner/loss/NAME`."""
    flat: Metrics = {}
    for policy, metrics in updates.items():
        for name, value in metrics.items():
            metric, _, role = name.partition("/")
            flat[f"{policy}/{name}" if metric == "loss" else f"{role or policy}/{metric}"] = value
    return flat


# ---- Metrics of a run on GPUs. A run on CPUs, or with learners in other processes, has none of them.
#
# MFU (model FLOP utilisation) of learning is the arithmetic of the distinct tokens that are trained on, over what the
# GPUs could compute in the seconds of the update: 6 operations per weight and token, 4 with adapters, as frozen weights
# have no gradient. Neither attention nor what is computed twice counts.
#
# The bandwidth fraction of sampling is the least time in which the GPUs' memory could deliver what decoding reads, over
# the seconds of sampling. Every token reads the keys and values of those before it. Every decoding step reads the
# weights once for all sequences; there are at least as many steps as the longest chain of answers that follow one
# another has tokens, and no more sequences at once than the sampler takes.


@dataclass(frozen=True)
class PolicyCost:
    """What a policy's tokens cost.

    engine          index of the engine, whose policies share weights in sampling
    learning_flops  arithmetic of training on a token, all epochs together; 0 if it is frozen
    weight_bytes    read in every decoding step
    slot_bytes      keys and values of a token over all layers
    sequences       decoded at once at most; None if that is not bounded
    """

    engine: int
    learning_flops: float
    weight_bytes: float
    slot_bytes: float
    sequences: int | None = None


@dataclass(frozen=True)
class GpuMeter:
    """Computes the metrics of each step; `peaks` are None for unknown GPUs. Lives as long as the training. `devices`
    are the GPUs of this process that hold weights, by torch's names."""

    costs: Mapping[str, PolicyCost]
    loss: LossConfig
    peaks: GpuPeaks | None
    gpus: int = 1
    devices: tuple[str, ...] = ("cuda",)

    def reset_peak(self) -> None:
        """Begin a phase of which `peak_gb` will be the memory."""
        import torch

        for device in self.devices:
            torch.cuda.reset_peak_memory_stats(device)

    def peak_gb(self) -> float:
        """Return the most memory that tensors of this process took since then, in GB, without other processes; of
        several GPUs, that of the fullest."""
        import torch

        return max(torch.cuda.max_memory_allocated(device) for device in self.devices) / 1e9

    def sampling_metrics(self, trees: Sequence[Tree], seconds: float) -> Metrics:
        """Return the metrics of sampling these trees in so many seconds."""
        samples = [sample for tree in trees for sample in walk.samples(tree.root)]
        tokens = sum(len(sample.token_ids) for sample in samples)
        metrics: Metrics = {"gpu/sampling_tokens_per_s": tokens / seconds}
        if self.peaks is not None:
            read = self.bytes_read(trees, samples)
            metrics["gpu/sampling_bandwidth_fraction"] = read / (self.peaks.bandwidth * self.gpus * seconds)
        return metrics

    def learning_metrics(self, sequences: Sequence[TrainingSequence], seconds: float) -> Metrics:
        """Return the metrics of an update with these sequences in so many seconds."""
        tokens = self.trained_tokens(sequences)
        metrics: Metrics = {"gpu/learning_tokens_per_s": sum(tokens.values()) / seconds}
        if self.peaks is not None:
            flops = sum(self.costs[policy].learning_flops * count for policy, count in tokens.items())
            metrics["gpu/learning_mfu"] = flops / (self.peaks.flops * self.gpus * seconds)
        return metrics

    def trained_tokens(self, sequences: Iterable[TrainingSequence]) -> dict[str, int]:
        """Return the number of distinct tokens of every policy that has a gradient: those of its prefix tree."""
        from cadre.learn.batching import has_gradient
        from cadre.learn.prefix_tree import computed_length, shared_length

        by_policy: dict[str, list[TrainingSequence]] = defaultdict(list)
        for sequence in sequences:
            if sequence.policy in self.costs and has_gradient(sequence, self.loss):
                by_policy[sequence.policy].append(sequence)
        counts: dict[str, int] = {}
        for policy, part in by_policy.items():
            ordered = sorted(part, key=lambda sequence: sequence.token_ids)
            shared = sum(shared_length(first, second) for first, second in pairwise(ordered))
            counts[policy] = sum(map(computed_length, ordered)) - shared
        return counts

    def bytes_read(self, trees: Sequence[Tree], samples: Iterable[Sample]) -> float:
        """Return the bytes of weights, keys and values that decoding these samples reads at least."""
        read, tokens = 0.0, dict.fromkeys({cost.engine for cost in self.costs.values()}, 0)
        for sample in samples:
            if (cost := self.costs.get(sample.policy)) is not None:
                prompt_length, count = len(sample.prompt_ids), len(sample.token_ids)
                # Token t of the completion reads the prompt and t tokens: count * before + (0 + ... + count - 1).
                read += cost.slot_bytes * (count * prompt_length + count * (count - 1) / 2)
                tokens[cost.engine] += count
        for engine, count in tokens.items():
            costs = {name: cost for name, cost in self.costs.items() if cost.engine == engine}
            steps = max((longest_chain(tree.root, costs) for tree in trees), default=0)
            if (at_once := min((cost.sequences or math.inf for cost in costs.values()), default=math.inf)) < math.inf:
                steps = max(steps, math.ceil(count / at_once))
            read += steps * max(cost.weight_bytes for cost in costs.values())
        return read


def longest_chain(node: Node, policies: Iterable[str]) -> int:
    """Return the most tokens of these policies that follow one another in the tree, the longest sample of each
    decision."""
    longest, pending = 0, [(node, 0)]
    while pending:
        node, depth = pending.pop()
        samples = (sample for siblings in node.samples.values() for sample in siblings)
        length = depth + max((len(sample.token_ids) for sample in samples if sample.policy in policies), default=0)
        longest = max(longest, length)
        pending += [(branch.child, length) for branch in node.branches if branch.child is not None]
    return longest


def make_gpu_meter(experiment: Experiment) -> GpuMeter | None:
    """Return the meter of a training in this process on GPUs; None if a policy is on a CPU, or for a cluster."""
    if experiment.config.cluster is not None or not experiment.models:
        return None
    import torch

    from cadre.engines.torch.model import pick_device, with_number

    picked = [pick_device(experiment.policies[names[0]].device) for names in experiment.engines]
    if any(device.type != "cuda" for device in picked):
        return None
    devices = [str(with_number(device)) for device in picked]
    # An engine that ranks train together has a GPU for each; others may share one.
    ranks: dict[str, int] = {}
    for names, device in zip(experiment.engines, devices, strict=True):
        ranks[device] = max(ranks.get(device, 1), experiment.ranks(names), 1)
    peaks = find_peaks(torch.cuda.get_device_name(devices[0]))
    return GpuMeter(policy_costs(experiment), experiment.plan.loss, peaks, sum(ranks.values()), tuple(ranks))


def policy_costs(experiment: Experiment) -> dict[str, PolicyCost]:
    """Return the costs of every policy with weights on this machine, by the configurations of their models."""
    from cadre.engines.torch.model import DTYPES
    from cadre.engines.torch.sizes import load_configuration, measure

    costs: dict[str, PolicyCost] = {}
    for engine, names in enumerate(experiment.engines):
        for name in names:
            policy, source = experiment.policies[name], experiment.models[name]
            sizes, text = measure(source, policy), load_configuration(source, policy).get_text_config()
            # The embeddings of the input are looked up; they are multiplied only where they are the head's, too.
            tied = getattr(text, "tie_word_embeddings", False)
            weights = sizes.parameters - (0 if tied else sizes.vocabulary * text.hidden_size)
            learner = experiment.learners.get(name)
            operations = 0 if learner is None else learner.epochs * (6 if policy.lora is None else 4)
            costs[name] = PolicyCost(
                engine=engine,
                learning_flops=operations * weights,
                weight_bytes=weights * DTYPES[policy.dtype].itemsize,
                slot_bytes=sizes.sequence.slot,
                sequences=experiment.config.vllm.sequences if name in experiment.vllm_policies else None,
            )
    return costs


# ---- Peak rates of known GPUs: the denominators of MFU and of the bandwidth fraction


@dataclass(frozen=True)
class GpuPeaks:
    """What a GPU can do at most: `bandwidth` of its memory in bytes per second, and `flops`, bfloat16 FLOP per second
    without sparsity."""

    bandwidth: float
    flops: float


# By words that must all be in the name torch has for a GPU; the first match counts, so variants come before the rest.
# From the data sheets of NVIDIA.
PEAKS: tuple[tuple[tuple[str, ...], GpuPeaks], ...] = (
    (("B200",), GpuPeaks(8.0e12, 2.25e15)),
    (("GH200", "144G"), GpuPeaks(4.9e12, 0.989e15)),
    (("GH200",), GpuPeaks(4.0e12, 0.989e15)),
    (("H200", "NVL"), GpuPeaks(4.8e12, 0.835e15)),
    (("H200",), GpuPeaks(4.8e12, 0.989e15)),
    (("H100", "PCIe"), GpuPeaks(2.0e12, 0.756e15)),
    (("H100", "NVL"), GpuPeaks(3.9e12, 0.835e15)),
    (("H100",), GpuPeaks(3.35e12, 0.989e15)),
    (("A100", "40GB"), GpuPeaks(1.555e12, 0.312e15)),
    (("A100",), GpuPeaks(2.0e12, 0.312e15)),
    (("L40S",), GpuPeaks(0.864e12, 0.362e15)),
    (("RTX 4090",), GpuPeaks(1.008e12, 0.165e15)),
)


def find_peaks(name: str) -> GpuPeaks | None:
    """Return the peaks of the GPU with this name, or None for an unknown one."""
    return next((peaks for words, peaks in PEAKS if all(word in name for word in words)), None)
