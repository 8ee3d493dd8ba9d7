"""Metrics of a run on GPUs: what learning and sampling reach of the GPU's peak rates, and the memory of each phase.

MFU (model FLOP utilisation) of learning is the arithmetic of the distinct tokens that are trained on, over what the
GPUs could compute in the seconds of the update: 6 operations per weight and token, 4 with adapters, as frozen weights
have no gradient. Neither attention nor what is computed twice counts.

The bandwidth fraction of sampling is the least time in which the GPUs' memory could deliver what decoding reads, over
the seconds of sampling. Every token reads the keys and values of those before it. Every decoding step reads the weights
once for all sequences; there are at least as many steps as the longest chain of answers that follow one another has
tokens, and no more sequences at once than the sampler takes.

A run on CPUs, or with learners in other processes, has none of these metrics.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from cadre.engines.gpu_peaks import GpuPeaks, find_peaks
from cadre.rollout import walk
from cadre.team import Metrics
from cadre.types import Node, Sample, TrainingSequence, Tree

if TYPE_CHECKING:
    from cadre.config.experiment import Experiment
    from cadre.settings import LossConfig


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
    """Computes the metrics of each step; `peaks` are None for unknown GPUs. Lives as long as the training."""

    costs: Mapping[str, PolicyCost]
    loss: LossConfig
    peaks: GpuPeaks | None
    gpus: int = 1

    def reset_peak(self) -> None:
        """Begin a phase of which `peak_gb` will be the memory."""
        import torch

        torch.cuda.reset_peak_memory_stats()

    def peak_gb(self) -> float:
        """Return the most memory that tensors of this process took since then, in GB; that of vLLM is not in it."""
        import torch

        return torch.cuda.max_memory_allocated() / 1e9

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
            shared = sum(shared_length(one, other) for one, other in pairwise(ordered))
            counts[policy] = sum(map(computed_length, ordered)) - shared
        return counts

    def bytes_read(self, trees: Sequence[Tree], samples: Iterable[Sample]) -> float:
        """Return the bytes of weights, keys and values that decoding these samples reads at least."""
        read, tokens = 0.0, dict.fromkeys({cost.engine for cost in self.costs.values()}, 0)
        for sample in samples:
            if (cost := self.costs.get(sample.policy)) is not None:
                before, count = len(sample.prompt_ids), len(sample.token_ids)
                # Token t of the completion reads the prompt and t tokens: count * before + (0 + ... + count - 1).
                read += cost.slot_bytes * (count * before + count * (count - 1) / 2)
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
        node, before = pending.pop()
        lengths = (
            len(sample.token_ids)
            for samples in node.samples.values()
            for sample in samples
            if sample.policy in policies
        )
        here = before + max(lengths, default=0)
        longest = max(longest, here)
        pending += [(branch.child, here) for branch in node.branches if branch.child is not None]
    return longest


def make_gpu_meter(experiment: Experiment) -> GpuMeter | None:
    """Return the meter of a training in this process on GPUs; None if a policy is on a CPU, or for a cluster."""
    if experiment.cluster is not None or not experiment.models:
        return None
    import torch

    from cadre.engines.torch.model import pick_device

    devices = [pick_device(experiment.policies[names[0]].device) for names in experiment.engines]
    if any(device.type != "cuda" for device in devices):
        return None
    # An engine that ranks train together has a GPU for each; others may share one.
    ranks: dict[str, int] = {}
    for names, device in zip(experiment.engines, devices, strict=True):
        ranks[str(device)] = max(ranks.get(str(device), 1), experiment.ranks(names), 1)
    name = torch.cuda.get_device_properties(devices[0]).name
    return GpuMeter(policy_costs(experiment), experiment.plan.loss, find_peaks(name), sum(ranks.values()))


def _decoded_at_once(experiment: Experiment, name: str) -> int | None:
    """Return how many sequences a policy's sampler decodes at once; None if its batches say so."""
    kind = experiment.separately_sampled.get(name)
    return None if kind is None else experiment.sampler_settings(kind).sequences


def policy_costs(experiment: Experiment) -> dict[str, PolicyCost]:
    """Return the costs of every policy with weights on this machine, by the configurations of their models."""
    from cadre.engines.torch.estimate import load_configuration, measure
    from cadre.engines.torch.model import DTYPES

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
                sequences=_decoded_at_once(experiment, name),
            )
    return costs
