"""Estimate what an experiment would take, without loading weights: `cadre train RECIPE --dry-run`.

The configuration and the environment are validated, the data are read, one training task is rolled out with a sampler
that answers in spaces, and every model is measured on tensors that have shapes alone. `cadre check` renders the first
prompts of an environment here.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadre import random_keys
from cadre.concurrency import run_coroutine
from cadre.config.engines import GIB, count_memory_sharers, sampling_memory_setting
from cadre.config.experiment import Config, Experiment
from cadre.config.gpu_plan import GpuPlan, format_gpu_plan, plan_gpu
from cadre.config.resolve import find_model, resolve
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, ContractError, EngineError, NoSourceError
from cadre.rollout import batching, episodes
from cadre.rollout.shapes import independent
from cadre.settings import LearnerConfig, PolicyConfig
from cadre.settings.objective import needs_reference
from cadre.team import Team, Weights
from cadre.types import Message, Request, Sample, Sampling, Task, Tool, ToolCall, media_of

if TYPE_CHECKING:
    from cadre.engines.torch.estimate import Sizes

# About what English and code have; other languages have fewer.
CHARACTERS_PER_TOKEN = 3
# Tool calls in a row that a role with tools is assumed to make, and samples of a tree after which it makes none.
TOOL_CALLS, MAX_SAMPLES = 8, 4096
CHECKED_EPISODES = 16  # whose prompts are compared with the context of a model


@dataclass(frozen=True)
class PolicyLoad:
    """The work of one policy in one step, in tokens at most.

    sequences   completions that it samples at once, by generation batch
    completion  tokens of one completion
    longest     tokens of one completion with its prompt
    learned     tokens of all prompts and completions of the step
    """

    sequences: tuple[int, ...]
    completion: int
    longest: int
    learned: int


@dataclass(frozen=True)
class PolicyEstimate:
    """The resources of one policy with weights on this machine, in bytes and seconds.

    settings     as the experiment has them
    sizes        of its weights
    reference    of a copy of the whole model as it was before any training, if the plan needs one
    memory       for keys, values and scores in sampling
    activations  of a micro-batch, kept for its backward pass
    scores       of the vocabulary, and what is computed from them, in learning
    load         its work in one step
    sampling     estimated seconds of sampling in one step
    learning     estimated seconds of learning in one step
    """

    settings: PolicyConfig
    sizes: Sizes
    reference: int
    memory: int
    activations: int
    scores: int
    load: PolicyLoad
    sampling: float
    learning: float

    @property
    def at_once(self) -> int:
        """Sequences of the longest kind that are sampled at once."""
        return self.sizes.sequence.max_sequences(self.memory, self.load.longest)


@dataclass(frozen=True)
class ResourceEstimate:
    """The resources of an experiment.

    env          by name
    tasks        training and held-out tasks; None if the settings do not say where the data are
    rounds       generation batches in one step, as many as the first training task's tree is deep
    tool_calls   calls in a row that a role with tools is assumed to make; 0 if none has tools
    samples      completions that each role samples in one step, if all answers are empty
    tokens       the most tokens that they can have together
    characters   of the longest prompt
    long_prompts by policy, (episodes with a prompt that fills its model's context, episodes, that context)
    policies     every policy with weights on this machine
    devices      their devices, with the bytes of each
    gpu          what a run would choose on the GPU; None unless all policies are on one
    """

    env: str
    tasks: tuple[int, int] | None
    rounds: int
    samples: dict[str, int]
    tokens: int
    characters: int
    policies: dict[str, PolicyEstimate]
    devices: dict[str, int]
    tool_calls: int = 0
    gpu: GpuPlan | None = None
    long_prompts: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)


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
    batches, tool_calls = count_requests(experiment)
    requests = [request for batch in batches for request in batch]
    check_templates(experiment, requests)
    samples: Counter[str] = Counter()
    for request in requests:
        samples[request.role] += request.count * config.train.tasks_per_step
    policies = _estimate_policies(experiment, batches)
    return ResourceEstimate(
        env=config.env,
        tasks=None if example else (len(experiment.training_tasks), len(experiment.held_out_tasks)),
        rounds=len(batches),
        tool_calls=tool_calls,
        samples=dict(samples),
        tokens=sum(count * experiment.sampling[role].max_tokens for role, count in samples.items()),
        characters=max(_count_characters(request) for request in requests),
        long_prompts=count_long_prompts(experiment),
        policies=policies,
        devices=_device_memory(experiment),
        gpu=plan_gpu(experiment, policies),
    )


def format_estimate(estimate: ResourceEstimate) -> Iterator[str]:
    """Yield the estimate as lines to print. Policies that share a frozen base count it once."""
    if estimate.tasks is None:
        yield f"{estimate.env}: data not read, as settings.source is unset; what follows is of an invented task"
    else:
        yield f"{estimate.env}: {estimate.tasks[0]:,} training and {estimate.tasks[1]:,} held-out tasks"
    by_role = ", ".join(f"{count:,} by {role}" for role, count in estimate.samples.items())
    yield f"a step: {sum(estimate.samples.values()):,} samples ({by_role}), at most {estimate.tokens:,} tokens"
    if estimate.tool_calls:
        yield f"tools are offered: counted with up to {estimate.tool_calls} calls in a row, each a turn of its own"
    yield f"the longest prompt that was met: {estimate.characters:,} characters"
    for name, (over, played, context) in estimate.long_prompts.items():
        yield (
            f"warning: in {over} of {played} episodes a prompt of {name} fills the {context:,} tokens that its model "
            "reads, so that they fail. Show less, or take a model that reads more."
        )
    for name, policy in estimate.policies.items():
        sizes, load = policy.sizes, policy.load
        yield (
            f"{name} ({policy.settings.model}): {sizes.parameters:,} parameters, {sizes.trained:,} trained; "
            f"weights {sizes.base / GIB:.1f} GiB, training {sizes.training / GIB:.1f} GiB"
            + (f", a copy from before it {policy.reference / GIB:.1f} GiB" if policy.reference else "")
        )
        if sizes.reach:
            yield f"  {sizes.reach}"
        if load.sequences:
            yield (
                f"  sampling: {policy.memory / GIB:g} GiB for keys and values ({sizes.sequence.slot / 1024:,.0f} KiB a "
                f"token) and scores: {policy.at_once:,} at once, of {load.longest:,} tokens"
            )
        if sizes.trained:
            yield f"  learning: {policy.activations / GIB:.1f} GiB of activations, {policy.scores / GIB:.1f} of scores"
    devices = " and ".join(f"{memory / GIB:.0f} GiB on {device}" for device, memory in estimate.devices.items())
    yield f"in all {total_bytes(estimate) / GIB:.1f} GiB of weights, gradients and moments; this machine has {devices}"
    if estimate.gpu is not None:
        yield from format_gpu_plan(estimate.gpu)
    sampling = format_seconds(sum(policy.sampling for policy in estimate.policies.values()))
    learning = format_seconds(sum(policy.learning for policy in estimate.policies.values()))
    batches = "1 batch" if estimate.rounds == 1 else f"{estimate.rounds} batches"
    yield (
        f"estimated time of a step on this machine: {sampling} of sampling in {batches}, {learning} of learning, if "
        "all completions are as long as allowed (from the speed of matrix products that was just measured)"
    )


def total_bytes(estimate: ResourceEstimate) -> int:
    """Return the bytes of weights, gradients and moments; adapters and frozen policies of one model share their
    base."""
    policies = estimate.policies.values()
    shared = {
        (policy.settings.model, policy.settings.dtype, policy.settings.device): policy.sizes.base
        for policy in policies
        if policy.settings.shares_base
    }
    separate = sum(policy.sizes.base for policy in policies if not policy.settings.shares_base)
    return sum(shared.values()) + separate + sum(policy.sizes.training + policy.reference for policy in policies)


def format_seconds(seconds: float) -> str:
    """Return `40 s`, `12 min`, `3.5 h` or `4,300 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.{1 if seconds < 360_000 else 0}f} h"


# ---- The requests of one tree, sampled with spaces


PendingRequest = tuple[Request, asyncio.Future[list[Sample]]]


@dataclass
class SpaceSampler:
    """A sampler whose siblings are different numbers of spaces; it records the requests of each generation batch.

    A role with tools calls one of them, up to `calls` times in a conversation: each call adds a turn, that of the
    answer to the tool's result. Past `MAX_SAMPLES` it calls no more, as some trees grow with every turn.
    """

    calls: int = 0
    batches: list[list[Request]] = field(default_factory=list)
    samples: int = 0
    most_calls: int = 0  # that were made in a conversation

    async def sample(self, request: Request) -> list[Sample]:
        pending: PendingRequest = (request, asyncio.get_running_loop().create_future())
        with batching.wait_for_batch(self._answer, pending):
            return await pending[1]

    async def _answer(self, batch: Sequence[PendingRequest]) -> None:
        self.batches.append([request for request, _ in batch])
        for request, future in batch:
            self.samples += request.count
            texts = (" " * (k + 1) for k in range(request.count))
            calls = self._tool_calls(request)
            future.set_result(
                [
                    Sample(
                        *(request.role, request.policy, text, (0,), (0,), (0.0,), "stop", 0),
                        message=Message("assistant", text, calls) if request.tools else None,
                    )
                    for text in texts
                ]
            )

    def _tool_calls(self, request: Request) -> tuple[ToolCall, ...]:
        calls = sum(bool(message.tool_calls) for message in request.messages)
        if not request.tools or calls >= self.calls or self.samples > MAX_SAMPLES:
            return ()
        self.most_calls = max(self.most_calls, calls + 1)
        tool = request.tools[calls % len(request.tools)]
        return (ToolCall(f"call_{calls}", tool.name, json.dumps(example_value(tool.parameters))),)

    async def load(self, weights: Weights) -> None:
        raise NotImplementedError("a dry run has no weights")

    def close(self) -> None:
        """Nothing to close."""


def example_value(schema: Mapping[str, Any]) -> Any:
    """Return a value of a JSON schema's type: of an object its required properties."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema or not schema else "string")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    properties = schema.get("properties", {})
    if kind == "object":
        return {name: example_value(properties.get(name, {"type": "string"})) for name in schema.get("required", ())}
    return {"integer": 1, "number": 1.0, "boolean": True, "array": [], "null": None}.get(str(kind), "x")


def count_requests(experiment: Experiment) -> tuple[list[list[Request]], int]:
    """Return the requests of one tree over a training task, by generation batch, and the number of tool calls in a row
    that are assumed; 0 if no tools are offered, or if the task cannot be played with calls that mean nothing."""

    async def grow(calls: int) -> SpaceSampler:
        sampler = SpaceSampler(calls)
        roles = experiment.roles
        team = Team(roles, dict.fromkeys(roles.values(), sampler), dict.fromkeys(roles, Sampling()))
        await episodes.grow_many([experiment.training_tasks[0]], experiment.rollout(team), random_keys.key("dry"))
        return sampler

    batches = run_coroutine(grow(0)).batches
    if not any(request.tools for batch in batches for request in batch):
        return batches, 0
    try:
        sampler = run_coroutine(grow(TOOL_CALLS))
    except ContractError:  # a tool call without meaning may be no legal step
        return batches, 0
    return sampler.batches, sampler.most_calls


def count_long_prompts(experiment: Experiment) -> dict[str, tuple[int, int, int]]:
    """Return, by policy, (episodes with a prompt that fills the context of its model, episodes, that context), of
    policies that have any. The episodes are of the first training tasks, with answers of spaces. Loads tokenizers."""
    from cadre.engines.model_text import Previewer

    roles, longest = experiment.roles, defaultdict[str, list[Request]](list)

    async def play(task: Task) -> SpaceSampler:
        sampler = SpaceSampler()
        team = Team(roles, dict.fromkeys(roles.values(), sampler), dict.fromkeys(roles, Sampling()))
        rollout = replace(experiment.rollout(team), shape=independent(1), ablation="none", signs=False)
        await episodes.grow_many([task], rollout, random_keys.key("dry"))
        return sampler

    tasks = experiment.training_tasks
    for index in range(min(CHECKED_EPISODES, len(tasks))):
        try:
            requests = [request for batch in asyncio.run(play(tasks[index])).batches for request in batch]
        except ContractError:  # an answer without meaning may be no legal step
            continue
        for name in {request.policy for request in requests}:
            longest[name].append(max((one for one in requests if one.policy == name), key=_count_characters))
    found = {}
    for name, source in experiment.models.items():
        if not longest[name] or not any(Path(source).glob("tokenizer*")):
            continue
        previewer = Previewer(source)
        texts = [request for request in longest[name] if not media_of(request.messages)]
        if previewer.context is not None:
            tokens = [previewer.preview(request.messages, request.tools).tokens for request in texts]
            if over := sum(count >= previewer.context for count in tokens):
                found[name] = (over, len(texts), previewer.context)
    return found


def check_templates(experiment: Experiment, requests: Sequence[Request]) -> None:
    """Raise EngineError if the chat template of a local model leaves out parts of these prompts, or refuses them. Loads
    tokenizers, no weights."""
    from cadre.engines.torch.model import load_tokenizer, make_templates

    for name, source in experiment.models.items():
        # The longest conversation of each kind.
        longest = {
            (bool(request.tools), len(request.messages)): request
            for request in requests
            if request.policy == name and not media_of(request.messages)
        }
        if not longest or not any(Path(source).glob("tokenizer*")):
            continue
        policy = experiment.policies[name]
        template = make_templates(load_tokenizer(source, policy), {name: policy})[name]
        for request in longest.values():
            template.check_kept(request.messages, request.tools)
            template.render(request.messages, generation=True, tools=request.tools)


def _count_characters(request: Request) -> int:
    """Return the characters of a prompt: of its messages, and of its tools, which a chat template writes as JSON."""
    offered = ((tool.name, tool.description, dict(tool.parameters)) for tool in request.tools)
    return sum(len(message.content) for message in request.messages) + sum(len(json.dumps(tool)) for tool in offered)


def _estimate_tokens(request: Request) -> int:
    return -(-_count_characters(request) // CHARACTERS_PER_TOKEN)


# ---- The resources of each policy


def _estimate_policies(experiment: Experiment, batches: Sequence[Sequence[Request]]) -> dict[str, PolicyEstimate]:
    from cadre.engines.torch.estimate import measure, measure_activations, measure_scores
    from cadre.engines.torch.forward import DEFAULT_TOKENS
    from cadre.engines.torch.memory import choose_sampling_memory
    from cadre.engines.torch.model import is_fully_trained, pick_device

    measured = {name: measure(model, experiment.policies[name]) for name, model in experiment.models.items()}

    # Memory to sample in: what is set, or what the engine's weights and their training leave of the device.
    memory: dict[str, int] = {}
    for names in experiment.engines:
        occupied = measured[names[0]].base + sum(measured[name].training for name in names)
        device = pick_device(experiment.policies[names[0]].device)
        setting = sampling_memory_setting(experiment, names)
        available = setting or choose_sampling_memory(device, occupied, count_memory_sharers(experiment))
        memory |= dict.fromkeys(names, available)

    plan = experiment.plan
    has_reference = plan.kl > 0.0 or needs_reference(plan.loss) or plan.preference is not None
    has_reference |= plan.teacher is not None and plan.teacher.is_reference
    estimates = {}
    for name, size in measured.items():
        policy, learner = experiment.policies[name], experiment.learners.get(name)
        load = _policy_load(experiment, name, batches)
        # A sequence that is longer than a micro-batch is one by itself.
        limit = learner.tokens_per_microbatch if learner else 0
        tokens = max(DEFAULT_TOKENS if limit == "auto" else limit, load.longest) if learner else 0
        sampling, learning = _estimate_seconds(size, memory[name], load, policy, learner)
        is_copied = has_reference and name in experiment.trained_roles.values() and is_fully_trained(policy)
        estimates[name] = PolicyEstimate(
            settings=policy,
            sizes=size,
            reference=4 * size.parameters if is_copied else 0,
            memory=memory[name],
            activations=measure_activations(
                experiment.models[name], policy, bool(learner.gradient_checkpointing), tokens
            )
            if learner
            else 0,
            scores=measure_scores(size.vocabulary, tokens, plan.loss.entropy > 0.0),
            load=load,
            sampling=sampling,
            learning=learning,
        )
    return estimates


def _policy_load(experiment: Experiment, name: str, batches: Sequence[Sequence[Request]]) -> PolicyLoad:
    """Return the work of a policy in a step. A policy that is only a critic reads all samples."""
    tasks, roles = experiment.train.tasks_per_step, experiment.roles
    played = [[request for request in batch if roles[request.role] == name] for batch in batches]
    if name in roles.values() and not any(played):  # it acts now and then, and not in the task that was rolled out
        played = [list(batch) for batch in batches]
    read = [request for batch in (played if name in roles.values() else batches) for request in batch]
    max_tokens = {role: experiment.sampling[role].max_tokens for role in roles}
    return PolicyLoad(
        sequences=tuple(tasks * sum(request.count for request in batch) for batch in played if batch),
        completion=max(max_tokens[request.role] for request in read),
        longest=max(_estimate_tokens(request) + max_tokens[request.role] for request in read),
        learned=tasks * sum(_estimate_tokens(request) + request.count * max_tokens[request.role] for request in read),
    )


def _estimate_seconds(
    sizes: Sizes, memory: int, load: PolicyLoad, policy: PolicyConfig, learner: LearnerConfig | None
) -> tuple[float, float]:
    """Return the estimated seconds of sampling and of learning in a step."""
    from cadre.engines.torch.estimate import ProductSpeed, learning_seconds, sampling_seconds
    from cadre.engines.torch.model import DTYPES, pick_device

    products = ProductSpeed(pick_device(policy.device), DTYPES[policy.dtype])
    at_once = sizes.sequence.max_sequences(memory, load.longest)
    sampling = sum(
        sampling_seconds(products, sizes.parameters, sequences, at_once, load.completion)
        for sequences in load.sequences
    )
    if learner is None:
        return sampling, 0.0
    # Forward, backward to the states, and to the weights where they are trained; layers that are recomputed once more.
    passes = 2 + (policy.lora is None) + bool(learner.gradient_checkpointing)
    return sampling, learning_seconds(products, sizes.parameters, learner.epochs * load.learned, passes)


def _device_memory(experiment: Experiment) -> dict[str, int]:
    from cadre.engines.torch.memory import total_and_free
    from cadre.engines.torch.model import pick_device, with_number

    devices = [with_number(pick_device(experiment.policies[name].device)) for name in experiment.models]
    return {str(device): total_and_free(device)[0] for device in devices}


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
    from cadre.engines.model_text import Previewer

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
