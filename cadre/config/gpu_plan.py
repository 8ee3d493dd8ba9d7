"""Estimate of what a training takes of the GPU of this machine, and whether it fits: a part of `--dry-run`.

The choices follow the rules of the engines: micro-batches by free memory (`MicroBatchRunner.choose_tokens`), the KV
cache of a sampler with weights of its own and how deep it sleeps (`cadre.engines.factory.GpuUse`). A run measures what
is estimated here, so its numbers differ. CUDA's own memory (half a GiB a process), graphs and what compiled kernels do
not keep are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from cadre.config.experiment import Experiment
from cadre.engines.factory import SamplerKind

if TYPE_CHECKING:
    from cadre.engines.torch.estimate import Sizes

GIB = 1 << 30


class SizedPolicy(Protocol):
    """The estimate of a policy, as `cadre.config.dry_run` has it, in bytes: its sizes, a torch sampler's memory for
    keys, values and scores, and a copy of the model from before any training."""

    @property
    def sizes(self) -> Sizes: ...

    @property
    def memory(self) -> int: ...

    @property
    def reference(self) -> int: ...


@dataclass(frozen=True)
class EngineOnGpu:
    """One base model on the GPU with its policies, in bytes unless said.

    names        of the policies
    copy         the weights that a sampler has of its own; 0 if the torch engine samples
    cache        for keys and values in sampling
    sleep        how deep a colocated sampler sleeps while the learner works; "" if it does not share the GPU
    held         weights of the learner and a reference, and of a torch sampler, which are the same
    training     gradients and the optimiser's state
    copies       of the weights in the precision of the forward, during an update
    token        activations and scores that a token of a micro-batch keeps
    tokens       of a micro-batch; 0 if nothing is trained
    is_set       True if the settings say how many tokens
    kind         of the sampler that has weights of its own, None if the torch engine samples
    """

    names: Sequence[str]
    copy: int
    cache: int
    sleep: str
    held: int
    training: int
    copies: int
    token: int
    tokens: int
    is_set: bool
    kind: SamplerKind | None = None

    @property
    def asleep(self) -> int:
        """The bytes that the sampler holds while the learner works; torch's keys and values are free then."""
        if not self.copy:
            return 0
        return {"": self.copy + self.cache, "none": self.copy + self.cache, "cache": self.copy}.get(self.sleep, 0)


@dataclass(frozen=True)
class GpuPlan:
    """The engines on one GPU: its name and its bytes."""

    name: str
    total: int
    engines: Sequence[EngineOnGpu]

    @property
    def sampling(self) -> int:
        """The most bytes in use while sampling, after the first update."""
        return sum(engine.held + engine.training + engine.copy + engine.cache for engine in self.engines)

    @property
    def learning(self) -> int:
        """The most bytes in use while learning."""
        microbatch = max((engine.copies + engine.token * engine.tokens for engine in self.engines), default=0)
        return microbatch + sum(engine.held + engine.training + engine.asleep for engine in self.engines)

    @property
    def fits(self) -> bool:
        return max(self.sampling, self.learning) <= self.total


def plan_gpu(experiment: Experiment, estimates: Mapping[str, SizedPolicy]) -> GpuPlan | None:
    """Return the plan for the GPU that the models are on; None if they are on a CPU, on several GPUs, in a
    cluster, where each process has its own, or sampled by an engine whose memory is unknown here."""
    import torch

    from cadre.engines.torch import memory
    from cadre.engines.torch.model import pick_device, with_number

    devices = {with_number(pick_device(experiment.policies[name].device)) for name in experiment.models}
    kinds = experiment.separately_sampled.values()
    is_divided = any(experiment.ranks(names) > 1 for names in experiment.engines) or any(
        experiment.sampler_settings(kind).gpus > 1 for kind in kinds
    )
    is_known = all(kind.gpu is not None for kind in kinds)
    if len(devices) != 1 or experiment.cluster is not None or is_divided or not is_known:
        return None
    (device,) = devices
    if device.type != "cuda":
        return None
    total = memory.total_and_free(device)[0]
    engines = [_size_engine(experiment, names, estimates, total) for names in experiment.engines]

    # A colocated sampler sleeps as deep as it takes to leave half of the GPU free before the first update.
    held = sum(engine.held for engine in engines)
    planned = []
    for engine in engines:
        kind, sleep = engine.kind, ""
        if kind is not None and kind.gpu is not None and experiment.colocated:
            sleep = getattr(experiment.sampler_settings(kind), kind.gpu.sleep)
        if sleep == "auto":
            whole = any(experiment.policies[name].lora is None for name in engine.names)
            depths = {"none": engine.copy + engine.cache, "cache": engine.copy}
            sleep = next(
                (depth for depth, kept in depths.items() if held + kept <= total / 2), "discard" if whole else "offload"
            )
        planned.append(replace(engine, sleep=sleep))

    # Micro-batches take a fraction of what is free then.
    busy = sum(engine.held + engine.asleep for engine in planned)
    return GpuPlan(
        torch.cuda.get_device_properties(device).name,
        total,
        [replace(engine, tokens=_choose_tokens(engine, total - busy)) for engine in planned],
    )


def _size_engine(
    experiment: Experiment, names: Sequence[str], estimates: Mapping[str, SizedPolicy], total: int
) -> EngineOnGpu:
    """Return the sizes of an engine, before it is known what else is on the GPU."""
    from cadre.engines.torch.estimate import measure_activations
    from cadre.engines.torch.forward import DEFAULT_TOKENS
    from cadre.engines.torch.model import DTYPES, is_fully_trained

    policy, estimate = experiment.policies[names[0]], estimates[names[0]]
    sizes, itemsize = estimate.sizes, DTYPES[policy.dtype].itemsize
    learners = {name: experiment.learners[name] for name in names if name in experiment.learners}
    limits = [learner.tokens_per_microbatch for learner in learners.values()]
    numbers = [limit for limit in limits if limit != "auto"]
    is_set = bool(numbers) and "auto" not in limits

    # Activations of the largest policy, as all share a forward; scores are held in the precision of the projection.
    token = 0
    for name, learner in learners.items():
        tokens = min(numbers, default=DEFAULT_TOKENS)
        settings = experiment.policies[name]
        kept = measure_activations(experiment.models[name], settings, bool(learner.gradient_checkpointing), tokens)
        token = max(token, kept // tokens + sizes.vocabulary * itemsize)

    # Policies of one base model that name different samplers are refused before.
    kind = next((kind for name, kind in experiment.separately_sampled.items() if name in names), None)
    weights = sizes.parameters * itemsize
    return EngineOnGpu(
        names=names,
        copy=weights if kind else 0,
        cache=estimate.memory if kind is None else _cache_bytes(experiment, names, kind, sizes, total),
        sleep="",
        held=sizes.base + sum(estimates[name].reference for name in names),
        training=sum(estimates[name].sizes.training for name in names),
        copies=weights if is_fully_trained(policy) and itemsize < 4 and learners else 0,
        token=token,
        tokens=min(numbers, default=0),
        is_set=is_set,
        kind=kind,
    )


def _cache_bytes(experiment: Experiment, names: Sequence[str], kind: SamplerKind, sizes: Sizes, total: int) -> int:
    """Return the bytes of a sampler's KV cache: what is set, or what the sampler would take of a GPU of `total`
    bytes."""
    from cadre.config.engines import sampling_memory_setting
    from cadre.engines.model_folder import context_length
    from cadre.engines.torch.estimate import load_configuration
    from cadre.engines.torch.model import DTYPES

    if setting := sampling_memory_setting(
        experiment, [name for name in names if name in experiment.separately_sampled]
    ):
        return setting
    policy, model = experiment.policies[names[0]], experiment.models[names[0]]
    longest = context_length(load_configuration(model, policy)) or 1 << 20
    weights = sizes.parameters * DTYPES[policy.dtype].itemsize
    assert kind.gpu is not None  # else nothing is planned
    return kind.gpu.cache_bytes(experiment.sampler_settings(kind), longest, sizes.sequence.slot, weights, total)


def _choose_tokens(engine: EngineOnGpu, free: int) -> int:
    """Return the tokens of a micro-batch that fit into `free` bytes beside gradients and the optimiser's state."""
    from cadre.engines.torch.forward import MAX_TOKENS, MICROBATCH_FRACTION, MIN_TOKENS

    if not engine.token or engine.is_set:
        return engine.tokens
    fitting = int(MICROBATCH_FRACTION * (free - engine.training - engine.copies) / engine.token)
    return min(MAX_TOKENS, max(MIN_TOKENS, fitting // 1_024 * 1_024))


def format_gpu_plan(plan: GpuPlan) -> Iterator[str]:
    """Yield the plan as lines to print."""
    yield f"on {plan.name} ({plan.total / GIB:.0f} GiB), as a run would choose it:"
    for engine in plan.engines:
        names = ", ".join(engine.names)
        kind = engine.kind
        sampler = f"{kind.title} with weights of its own ({engine.copy / GIB:.1f} GiB)" if kind else "torch"
        line = f"  {names}: sampled by {sampler}, {engine.cache / GIB:.1f} GiB of keys and values"
        yield line + (
            f"; while learning it frees {SLEEPS[engine.sleep]} ({kind.section}.{kind.gpu.sleep}: {engine.sleep})"
            if kind and kind.gpu and engine.sleep
            else ""
        )
        if engine.tokens:
            how = "as set" if engine.is_set else "by free memory"
            yield (
                f"  {names}: micro-batches of {engine.tokens:,} tokens ({how}), {engine.token / 1e6:.1f} MB a token: "
                f"{engine.token * engine.tokens / GIB:.1f} GiB"
            )
    use = f"{plan.sampling / GIB:.0f} GiB while sampling, {plan.learning / GIB:.0f} while learning"
    if plan.fits:
        yield f"it fits: {use}, of {plan.total / GIB:.0f}"
        return
    remedies = []
    if plan.sampling > plan.total:
        uses = [engine.kind.gpu for engine in plan.engines if engine.kind and engine.kind.gpu]
        settings = dict.fromkeys(["sampling.memory", *(use.to_shrink for use in uses)])
        remedies.append(f"lower {' or '.join(settings)}")
    if plan.learning > plan.total:
        remedies.append("set learner.gradient_checkpointing=true, or train adapters (team.policies.*.lora)")
    yield f"it does NOT fit: {use}, of {plan.total / GIB:.0f}; {'; '.join(remedies)}"


# What a colocated sampler frees, by how deep it sleeps.
SLEEPS = {
    "none": "nothing",
    "cache": "its KV cache",
    "offload": "all, with its weights on the CPU",
    "discard": "all, and gets its weights anew",
}
