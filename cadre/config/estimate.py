"""Estimate what an experiment would take, without loading weights: `cadre train RECIPE --dry-run`.

The configuration and the environment are validated, the data are read, one training task is rolled out with a sampler
that answers in spaces, and every model is measured on tensors that have shapes alone. The choices that a run leaves to
the engines (micro-batches, the memory to sample in, how deep vLLM sleeps) follow their rules; a run measures what is
estimated here, so its numbers differ. CUDA's own memory (half a GiB a process) and graphs are left out. `cadre check`
renders the first prompts of an environment here.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadre import random_keys
from cadre.concurrency import run_coroutine
from cadre.config.engines import GIB, count_memory_sharers, sampling_memory_setting
from cadre.config.experiment import Config, Experiment
from cadre.config.resolve import find_model, resolve
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, ContractError, EngineError, NoSourceError
from cadre.rollout import batching, episodes
from cadre.rollout.shapes import Shape, independent
from cadre.settings import PolicyConfig
from cadre.settings.objective import needs_reference
from cadre.team import Team, Weights
from cadre.types import Message, Request, Sample, Sampling, Task, Tool, media_of

if TYPE_CHECKING:
    from cadre.engines.torch.sizes import Sizes

# About what English and code have; other languages have fewer.
CHARACTERS_PER_TOKEN = 3
CHECKED_EPISODES = 16  # whose prompts are compared with the context of a model


@dataclass(frozen=True)
class EngineEstimate:
    """One base model with its policies, in bytes unless said.

    names        of the policies
    model        as the settings name it
    parameters   count of the base model
    trained      count of those that are trained, adapters of all policies together
    reach        how much of the model gets adapters, in words
    weights      of the learner and of torch's sampling, which are the same
    reference    a copy of the model from before any training, if the plan needs one
    training     gradients and the optimiser's state
    copies       of the weights in the precision of the forward, during an update
    token        activations and scores that a token of a micro-batch keeps
    microbatch   tokens of a micro-batch; 0 if nothing is trained
    is_set       True if the settings say how many tokens
    vllm         the weights that vLLM has of its own; 0 if torch samples
    cache        keys and values in sampling; 0 if nothing is sampled
    sleep        how deep a colocated vLLM sleeps while the learner works; "" if it does not share the GPU
    """

    names: Sequence[str]
    model: str
    parameters: int
    trained: int
    reach: str
    weights: int
    reference: int
    training: int
    copies: int
    token: int
    microbatch: int
    is_set: bool
    vllm: int
    cache: int
    sleep: str = ""

    @property
    def held(self) -> int:
        """Bytes in use in every phase, after the first update."""
        return self.weights + self.reference + self.training

    @property
    def asleep(self) -> int:
        """Bytes that vLLM holds while the learner works; torch's keys and values are free then."""
        memory = {"": self.vllm + self.cache, "none": self.vllm + self.cache, "cache": self.vllm}
        return memory.get(self.sleep, 0) if self.vllm else 0


@dataclass(frozen=True)
class DeviceEstimate:
    """A device with all that runs on it: "cpu" or "cuda:0", its name for people, its bytes, and the engines."""

    device: str
    name: str
    total: int
    engines: Sequence[EngineEstimate]

    @property
    def sampling(self) -> int:
        """The most bytes in use while sampling."""
        return sum(engine.held + engine.vllm + engine.cache for engine in self.engines)

    @property
    def learning(self) -> int:
        """The most bytes in use while learning; engines learn in turn."""
        microbatch = max((engine.copies + engine.token * engine.microbatch for engine in self.engines), default=0)
        return microbatch + sum(engine.held + engine.asleep for engine in self.engines)

    @property
    def fits(self) -> bool:
        return max(self.sampling, self.learning) <= self.total


@dataclass(frozen=True)
class ResourceEstimate:
    """The resources of an experiment.

    env           by name
    tasks         training and held-out tasks; None if the settings do not say where the data are
    batches       generation batches in one step, as many as the first training task's tree is deep
    samples       completions that each role samples in one step, if all answers are empty
    tokens        the most tokens that they can have together
    characters    of the longest prompt
    offers_tools  whether a role is offered tools, whose calls are turns that are not counted
    long_prompts  by policy, (episodes with a prompt that fills its model's context, episodes, that context)
    devices       with the engines on them, one per base model
    is_divided    whether processes of a cluster, ranks or several GPUs divide the engines, so that no device need hold
                  them whole
    """

    env: str
    tasks: tuple[int, int] | None
    batches: int
    samples: Mapping[str, int]
    tokens: int
    characters: int
    offers_tools: bool
    long_prompts: Mapping[str, tuple[int, int, int]]
    devices: Sequence[DeviceEstimate]
    is_divided: bool

    @property
    def engines(self) -> list[EngineEstimate]:
        return [engine for device in self.devices for engine in device.engines]


def estimate_resources(config: Config, typed: Collection[str] = ()) -> ResourceEstimate:
    """Validate an experiment and estimate its resources.

    Raises what training would raise before it loads a model, except for data whose source is not set: an invented task
    replaces them.
    """
    example: Mapping[str, Any] = {}
    try:
        EnvSpec(config.env, config.settings).tasks("train")
    except NoSourceError as error:
        example = error.example
    experiment = resolve(config.model_copy(update={"settings": {**config.settings, **example}}), typed=typed)
    batches = collect_requests(experiment, experiment.training_tasks[0])
    requests = [request for batch in batches for request in batch]
    samples: Counter[str] = Counter()
    for request in requests:
        samples[request.role] += request.count * config.train.tasks_per_step
    on_vllm = bool(experiment.vllm_policies)
    return ResourceEstimate(
        env=config.env,
        tasks=None if example else (len(experiment.training_tasks), len(experiment.held_out_tasks)),
        batches=len(batches),
        samples=dict(samples),
        tokens=sum(count * experiment.sampling[role].max_tokens for role, count in samples.items()),
        characters=max(map(_count_characters, requests)),
        offers_tools=any(request.tools for request in requests),
        long_prompts=check_prompts(experiment, requests),
        devices=_estimate_devices(experiment, requests),
        is_divided=experiment.cluster is not None
        or any(experiment.ranks(names) > 1 for names in experiment.engines)
        or (on_vllm and config.vllm.gpus > 1),
    )


def format_estimate(estimate: ResourceEstimate) -> Iterator[str]:
    """Yield the estimate as lines to print."""
    if estimate.tasks is None:
        yield f"{estimate.env}: data not read, as settings.source is unset; what follows is of an invented task"
    else:
        yield f"{estimate.env}: {estimate.tasks[0]:,} training and {estimate.tasks[1]:,} held-out tasks"
    by_role = ", ".join(f"{count:,} by {role}" for role, count in estimate.samples.items())
    batches = "1 batch" if estimate.batches == 1 else f"{estimate.batches} batches"
    yield (
        f"a step: {sum(estimate.samples.values()):,} samples ({by_role}) in {batches}, at most {estimate.tokens:,} "
        "tokens"
    )
    if estimate.offers_tools:
        yield "tools are offered: every call of one is a turn more, which is not counted"
    yield f"the longest prompt that was met: {estimate.characters:,} characters"
    for name, (over, played, context) in estimate.long_prompts.items():
        yield (
            f"warning: in {over} of {played} episodes a prompt of {name} fills the {context:,} tokens that its model "
            "reads, so that they fail. Show less, or take a model that reads more."
        )
    for engine in estimate.engines:
        yield from _format_engine(engine)
    if estimate.is_divided:
        yield "the engines are divided among processes, so that it is not said whether a device holds them"
        return
    for device in estimate.devices:
        use = f"{device.sampling / GIB:.1f} GiB while sampling, {device.learning / GIB:.1f} while learning"
        device_name = f"{device.name} ({device.total / GIB:.0f} GiB)"
        if device.fits:
            yield f"it fits {device_name}: {use}"
            continue
        remedies = []
        if device.sampling > device.total:
            on_vllm = any(engine.vllm for engine in device.engines)
            remedies.append("lower sampling.memory" + (" or vllm.context" if on_vllm else ""))
        if device.learning > device.total:
            remedies.append("set learner.gradient_checkpointing=true, or train adapters (team.policies.*.lora)")
        yield f"it does NOT fit {device_name}: {use}; {'; '.join(remedies)}"


def _format_engine(engine: EngineEstimate) -> Iterator[str]:
    yield (
        f"{', '.join(engine.names)} ({engine.model}): {engine.parameters:,} parameters, {engine.trained:,} trained"
        + (f"; {engine.reach}" if engine.reach else "")
    )
    reference = f", a copy from before training {engine.reference / GIB:.1f} GiB" if engine.reference else ""
    training = f", gradients and optimiser {engine.training / GIB:.1f} GiB" if engine.training else ""
    yield f"  weights {engine.weights / GIB:.1f} GiB{reference}{training}"
    if engine.vllm:
        freed = f"; while the learner works vllm.sleep is {engine.sleep}" if engine.sleep else ""
        yield (
            f"  sampled by vLLM with weights of its own ({engine.vllm / GIB:.1f} GiB), {engine.cache / GIB:.1f} GiB of "
            f"keys and values{freed}"
        )
    elif engine.cache:
        yield f"  sampled by torch, {engine.cache / GIB:.1f} GiB of keys, values and scores"
    if engine.microbatch:
        yield (
            f"  micro-batches of {engine.microbatch:,} tokens, {engine.token / 1e6:.1f} MB a token: "
            f"{engine.token * engine.microbatch / GIB:.1f} GiB"
        )


# ---- The requests of one tree, sampled with spaces


PendingRequest = tuple[Request, asyncio.Future[list[Sample]]]


@dataclass
class SpaceSampler:
    """A sampler whose siblings are different numbers of spaces; it records the requests of each generation batch."""

    batches: list[list[Request]] = field(default_factory=list)

    async def sample(self, request: Request) -> list[Sample]:
        pending: PendingRequest = (request, asyncio.get_running_loop().create_future())
        with batching.wait_for_batch(self._answer, pending):
            return await pending[1]

    async def _answer(self, batch: Sequence[PendingRequest]) -> None:
        self.batches.append([request for request, _ in batch])
        for request, future in batch:
            texts = (" " * (k + 1) for k in range(request.count))
            future.set_result(
                [
                    Sample(
                        *(request.role, request.policy, text, (0,), (0,), (0.0,), "stop", 0),
                        message=Message("assistant", text) if request.tools else None,
                    )
                    for text in texts
                ]
            )

    async def load(self, weights: Weights) -> None:
        raise NotImplementedError("a dry run has no weights")

    def close(self) -> None:
        """Nothing to close."""


def collect_requests(experiment: Experiment, task: Task, shape: Shape | None = None) -> list[list[Request]]:
    """Return the requests of one tree over a task by generation batch; with a `shape` of such a tree without what the
    algorithm adds. Raises ContractError if the environment accepts no answer of spaces."""

    async def grow() -> list[list[Request]]:
        sampler, roles = SpaceSampler(), experiment.roles
        team = Team(roles, dict.fromkeys(roles.values(), sampler), dict.fromkeys(roles, Sampling()))
        rollout = experiment.rollout(team)
        if shape is not None:
            rollout = replace(rollout, shape=shape, ablation="none", signs=False)
        await episodes.grow_many([task], rollout, random_keys.key("dry"))
        return sampler.batches

    return run_coroutine(grow())


def check_prompts(experiment: Experiment, requests: Sequence[Request]) -> dict[str, tuple[int, int, int]]:
    """Return, by policy, (episodes with a prompt that fills the context of its model, episodes, that context), of
    policies that have any: in single episodes of the first training tasks, with answers of spaces.

    Raises EngineError if the chat template of a local model refuses these prompts or the `requests`, or leaves out
    parts of them. Loads tokenizers, no weights.
    """
    from cadre.engines.model_folder import context_length
    from cadre.engines.torch.model import load_tokenizer, make_templates
    from cadre.engines.torch.sizes import load_configuration

    played: list[list[Request]] = []
    tasks = experiment.training_tasks
    for index in range(min(CHECKED_EPISODES, len(tasks))):
        with suppress(ContractError):  # an answer without meaning may be no legal step
            batches = collect_requests(experiment, tasks[index], independent(1))
            played.append([request for batch in batches for request in batch])
    over_limit = {}
    for name, source in experiment.models.items():
        if not any(Path(source).glob("tokenizer*")):
            continue
        policy = experiment.policies[name]
        template = make_templates(load_tokenizer(source, policy), {name: policy})[name]
        context = context_length(load_configuration(source, policy))

        def count_tokens(of_episode: Sequence[Request], name: str = name, template: Any = template) -> int:
            texts = [request for request in of_episode if request.policy == name and not media_of(request.messages)]
            if not texts:
                return 0
            request = max(texts, key=_count_characters)
            template.check_kept(request.messages, request.tools)
            return len(template.prompt(request.messages, None, (), request.tools).ids)

        count_tokens(requests)
        lengths = [length for length in map(count_tokens, played) if length]
        if context is not None and (over := sum(length >= context for length in lengths)):
            over_limit[name] = (over, len(lengths), context)
    return over_limit


def _count_characters(request: Request) -> int:
    """Return the characters of a prompt: of its messages, and of its tools, which a chat template writes as JSON."""
    offered = ((tool.name, tool.description, dict(tool.parameters)) for tool in request.tools)
    return sum(len(message.content) for message in request.messages) + sum(len(json.dumps(tool)) for tool in offered)


# ---- The memory of each engine


def _estimate_devices(experiment: Experiment, requests: Sequence[Request]) -> list[DeviceEstimate]:
    """Return the devices that models are on, with their engines."""
    import torch

    from cadre.engines.torch import memory, model

    by_device: dict[Any, list[Sequence[str]]] = {}
    for names in experiment.engines:
        device = model.with_number(model.pick_device(experiment.policies[names[0]].device))
        by_device.setdefault(device, []).append(names)
    estimates = []
    for device, engines in by_device.items():
        total = memory.total_and_free(device)[0]
        is_gpu = device.type == "cuda"
        measured = [_estimate_engine(experiment, names, requests, device, total) for names in engines]
        if is_gpu:
            measured = _choose_by_free_memory(experiment, measured, total)
        name = torch.cuda.get_device_properties(device).name if is_gpu else "the memory of this machine"
        estimates.append(DeviceEstimate(str(device), name, total, measured))
    return estimates


def _estimate_engine(
    experiment: Experiment, names: Sequence[str], requests: Sequence[Request], device: Any, total: int
) -> EngineEstimate:
    """Return the sizes of an engine, before it is known what else is on its GPU."""
    from cadre.engines.torch.forward import DEFAULT_TOKENS, MIN_TOKENS
    from cadre.engines.torch.logprobs import CHUNK, KEPT
    from cadre.engines.torch.memory import choose_sampling_memory
    from cadre.engines.torch.model import DTYPES, is_fully_trained
    from cadre.engines.torch.sizes import measure

    plan, policy, is_gpu = experiment.plan, experiment.policies[names[0]], device.type == "cuda"
    sizes = [measure(experiment.models[name], experiment.policies[name]) for name in names]
    (first, *_), itemsize = sizes, DTYPES[policy.dtype].itemsize
    weights, training = first.parameters * itemsize, sum(size.training for size in sizes)
    needs_copy = plan.kl > 0.0 or needs_reference(plan.loss) or plan.preference is not None
    needs_copy |= plan.teacher is not None and plan.teacher.is_reference
    is_copied = needs_copy and is_fully_trained(policy) and any(n in experiment.trained_roles.values() for n in names)

    # A policy that is only a critic, or does not act in the task that was rolled out, is taken to read all prompts.
    engine_requests = [request for request in requests if request.policy in names] or requests
    longest = max(
        -(-_count_characters(request) // CHARACTERS_PER_TOKEN) + experiment.sampling[request.role].max_tokens
        for request in engine_requests
    )

    # Sampling: what is set, or what the engines' rules leave of the device.
    on_vllm = [name for name in names if name in experiment.vllm_policies]
    cache = 0
    if on_vllm:
        cache = sampling_memory_setting(experiment, on_vllm) or _vllm_cache(
            experiment, names[0], first, total if is_gpu else None
        )
    elif any(name in experiment.roles.values() for name in names):
        cache = sampling_memory_setting(experiment, names) or choose_sampling_memory(
            device, first.base + training, count_memory_sharers(experiment)
        )

    # Learning: the activations of the largest policy, as all share a forward, and the vocabulary's scores, of which a
    # CPU keeps so many and a GPU all. A sequence that is longer than a micro-batch is one by itself.
    learners = {name: experiment.learners[name] for name in names if name in experiment.learners}
    limits = [learner.tokens_per_microbatch for learner in learners.values()]
    numbers = [limit for limit in limits if limit != "auto"]
    tokens = max(min(numbers, default=MIN_TOKENS if is_gpu else DEFAULT_TOKENS), longest)
    scores = first.vocabulary * tokens
    score_bytes = scores * itemsize if is_gpu else 4 * (min(scores, KEPT) + 3 * min(scores, CHUNK))
    checkpointing = {name: bool(learner.gradient_checkpointing) for name, learner in learners.items()}
    activations = [
        size.activations(checkpointing[name]) for name, size in zip(names, sizes, strict=True) if name in learners
    ]
    return EngineEstimate(
        names=names,
        model=policy.model,
        parameters=first.parameters,
        trained=sum(size.trained for size in sizes),
        reach="; ".join(dict.fromkeys(size.reach for size in sizes if size.reach)),
        weights=first.base,
        reference=4 * first.parameters if is_copied else 0,
        training=training,
        copies=weights if is_fully_trained(policy) and itemsize < 4 and learners else 0,
        token=max(activations) + score_bytes // tokens if learners else 0,
        microbatch=tokens if learners else 0,
        is_set=bool(numbers) and "auto" not in limits,
        vllm=weights if on_vllm else 0,
        cache=cache,
    )


def _vllm_cache(experiment: Experiment, name: str, sizes: Sizes, total: int | None) -> int:
    """Return the bytes of a KV cache that no setting gives, on a GPU of `total` bytes or on a CPU: that of as many
    sequences as are decoded at once, or what is left of vLLM's fraction of the GPU beside the weights."""
    from cadre.engines.model_folder import context_length
    from cadre.engines.torch.model import DTYPES
    from cadre.engines.torch.sizes import load_configuration
    from cadre.engines.vllm.engine import CPU_CACHE_BYTES, GPU_FRACTION, full_cache_bytes

    if total is None:
        return CPU_CACHE_BYTES
    policy, config = experiment.policies[name], experiment.config.vllm
    longest = context_length(load_configuration(experiment.models[name], policy)) or 1 << 20
    cache = full_cache_bytes(config.sequences, min(longest, config.context or longest), sizes.sequence.slot)
    available = int(GPU_FRACTION * total) - sizes.parameters * DTYPES[policy.dtype].itemsize
    return cache if cache <= available else max(available, 0)


def _choose_by_free_memory(
    experiment: Experiment, engines: Sequence[EngineEstimate], total: int
) -> list[EngineEstimate]:
    """Return the engines of a GPU with what they choose by its free memory: how deep a colocated vLLM sleeps, and the
    tokens of a micro-batch (`MicroBatchRunner.choose_tokens`)."""
    from cadre.engines.torch.forward import MAX_TOKENS, MICROBATCH_FRACTION, MIN_TOKENS

    # vLLM sleeps as deep as it takes to leave half of the GPU free before the first update.
    weights = sum(engine.weights + engine.reference for engine in engines)
    awake = []
    for engine in engines:
        sleep: str = experiment.config.vllm.sleep if engine.vllm and experiment.colocated else ""
        if sleep == "auto":
            is_whole = any(experiment.policies[name].lora is None for name in engine.names)
            depths = {"none": engine.vllm + engine.cache, "cache": engine.vllm}
            fitting = (depth for depth, size in depths.items() if weights + size <= total / 2)
            sleep = next(fitting, "discard" if is_whole else "offload")
        awake.append(replace(engine, sleep=sleep))

    free = total - weights - sum(engine.asleep for engine in awake)
    chosen = []
    for engine in awake:
        if engine.microbatch and not engine.is_set:
            fitting_tokens = int(MICROBATCH_FRACTION * (free - engine.training - engine.copies) / engine.token)
            tokens = min(MAX_TOKENS, max(MIN_TOKENS, fitting_tokens // 1_024 * 1_024))
            engine = replace(engine, microbatch=max(tokens, engine.microbatch))
        chosen.append(engine)
    return chosen


# ---- The first prompts of an environment: `cadre check`


@dataclass(frozen=True)
class FirstPrompt:
    """The first prompt of `role`, in the model's own template: its text and its length in tokens."""

    role: str
    text: str
    tokens: int


def find_tokenizer(model: str) -> str:
    """Return the folder or the hub name of the model whose tokenizer writes the prompts. Raises ConfigError or
    EngineError if there is none, before torch is imported."""
    source = find_model("--model", PolicyConfig(model=model))
    folder = Path(source)
    if not folder.is_dir():
        from cadre.engines import model_folder

        return model_folder.find_hub_model(source)
    if not any(folder.glob("*token*")) and not any(folder.glob("vocab*")):
        raise ConfigError(
            f"--model: got {model!r}, but {folder} holds no tokenizer; expected tokenizer.json beside config.json. "
            "Save the model's tokenizer there, or name another model."
        )
    return source


def render_first_prompts(
    prompts: Mapping[str, Sequence[Message]], source: str, name: str, tools: Mapping[str, Sequence[Tool]] | None = None
) -> tuple[list[FirstPrompt], list[str]]:
    """Return the first prompt of every role, with its tools, and a paragraph for every fault.

    `source` is the folder or the hub name of the model that is called `name`. Loads a tokenizer, no weights.
    """
    from cadre.engines.text.model import Previewer

    previewer, first_prompts, faults = Previewer(source), [], []
    for role, messages in prompts.items():
        try:
            preview = previewer.preview(messages, (tools or {}).get(role, ()))
        except EngineError as error:
            faults.append(f"{role}: {error}")
            continue
        first_prompts.append(FirstPrompt(role, preview.text, preview.tokens))
        for index in preview.dropped:
            faults.append(
                f"{role}: the template of {name} leaves out the message by {messages[index].role} that begins "
                f"{messages[index].content[:40]!r}; expected every message in the prompt. Give it to another speaker, "
                "such as user."
            )
        if previewer.context is not None and preview.tokens >= previewer.context:
            faults.append(
                f"{role}: the first prompt has {preview.tokens:,} tokens; expected fewer than the "
                f"{previewer.context:,} that {name} reads, with room for an answer. Show less, or take a model that "
                "reads more."
            )
    return first_prompts, faults
