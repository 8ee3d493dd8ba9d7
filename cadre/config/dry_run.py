"""Estimate what an experiment would take, without loading weights: `cadre train RECIPE --dry-run`.

The configuration and the environment are validated, the data are read, one training task is rolled out with a sampler
that answers in spaces, and every model is measured on tensors that have shapes alone. `cadre check` renders first
prompts here.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadre import random_keys
from cadre.config.engines import GIB, count_memory_sharers, sampling_memory_setting
from cadre.config.experiment import Config, Experiment, group_policies
from cadre.config.resolve import find_model, resolve
from cadre.envs.from_data import with_example
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, ContractError, EngineError
from cadre.rollout import batching, episodes
from cadre.settings import LearnerConfig, PolicyConfig
from cadre.team import Team, Weights
from cadre.types import Message, Request, Sample, Sampling, Tool, ToolCall, images_of

if TYPE_CHECKING:
    from cadre.engines.torch.estimate import Sizes


@dataclass(frozen=True)
class PolicyLoad:
    """What a policy does in one step, in tokens at most.

    sequences   completions that it draws at once, by round
    completion  of one completion
    longest     of one completion with its prompt
    learned     of all prompts and completions of the step
    """

    sequences: tuple[int, ...]
    completion: int
    longest: int
    learned: int


@dataclass(frozen=True)
class PolicyEstimate:
    """What one policy with weights here takes. Bytes and seconds.

    settings     as the experiment has them
    sizes        of its weights
    reference    of a copy of the whole model as it was before any training, where something is measured from that
    memory       for keys, values and scores in sampling
    activations  that a micro-batch keeps for its backward pass
    scores       of the vocabulary, and what they become, in learning
    load         what it does in one step
    sampling     a guess of how long that takes, in sampling
    learning     and in learning
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
    """What an experiment would take.

    env          by name
    tasks        training and held-out tasks; None where nobody has said where the data are
    rounds       of sampling in one step, as deep as the first training task's tree is
    tool_calls   in a row, with which a role that is offered tools is counted; 0 where none are
    samples      completions that each role would draw in one step, where nobody has anything to say
    tokens       the most tokens that they can have together
    characters   of the longest prompt that was met
    policies     every policy with weights here
    devices      that these are on, and how many bytes each has
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


def format_estimate(outlook: ResourceEstimate) -> Iterator[str]:
    """The outlook as lines to print. Policies that share a frozen base are counted with it once."""
    if outlook.tasks is None:
        yield f"{outlook.env}: data not read, as settings.source is unset; what follows is of an invented task"
    else:
        yield f"{outlook.env}: {outlook.tasks[0]:,} training and {outlook.tasks[1]:,} held-out tasks"
    drawn = ", ".join(f"{count:,} by {role}" for role, count in outlook.samples.items())
    yield f"a step: {sum(outlook.samples.values()):,} samples ({drawn}), at most {outlook.tokens:,} tokens"
    if outlook.tool_calls:
        yield f"tools are offered: counted with up to {outlook.tool_calls} calls in a row, each a turn of its own"
    yield f"the longest prompt that was met: {outlook.characters:,} characters"
    for name, policy in outlook.policies.items():
        yield from _format_policy(name, policy)
    there = " and ".join(f"{memory / GIB:.0f} on {device}" for device, memory in outlook.devices.items())
    yield f"in all {total_bytes(outlook) / GIB:.1f} GiB of weights, gradients and moments; there are {there}"
    yield _format_duration(outlook)


def _format_policy(name: str, policy: PolicyEstimate) -> Iterator[str]:
    sizes, load = policy.sizes, policy.load
    yield (
        f"{name} ({policy.settings.model}): {sizes.parameters:,} parameters, {sizes.trained:,} trained; "
        f"weights {sizes.base / GIB:.1f} GiB, training {sizes.training / GIB:.1f} GiB"
        + (f", a copy from before it {policy.reference / GIB:.1f} GiB" if policy.reference else "")
    )
    if load.sequences:
        yield (
            f"  sampling: {policy.memory / GIB:g} GiB for keys and values ({sizes.sequence.slot / 1024:,.0f} KiB a "
            f"token) and scores: {policy.at_once:,} at once, of {load.longest:,} tokens"
        )
    if sizes.trained:
        yield f"  learning: {policy.activations / GIB:.1f} GiB of activations, {policy.scores / GIB:.1f} of scores"


def _format_duration(outlook: ResourceEstimate) -> str:
    """How long a step takes, said as the guess that it is."""
    sampling = format_seconds(sum(policy.sampling for policy in outlook.policies.values()))
    learning = format_seconds(sum(policy.learning for policy in outlook.policies.values()))
    return (
        f"a guess of a step here: {sampling} of sampling in {outlook.rounds} rounds and {learning} of learning, were "
        "all completions as long as they may be (products with weights alone, as fast as just measured)"
    )


def total_bytes(outlook: ResourceEstimate) -> int:
    """Bytes of weights, gradients and moments; adapters and frozen policies of one model share their base."""
    policies = outlook.policies.values()
    shared = {
        (each.settings.model, each.settings.dtype, each.settings.device): each.sizes.base
        for each in policies
        if each.settings.shares_base
    }
    whole = sum(each.sizes.base for each in policies if not each.settings.shares_base)
    return sum(shared.values()) + whole + sum(each.sizes.training + each.reference for each in policies)


# Of English and code, about; fewer in other languages.
CHARACTERS_PER_TOKEN = 3


# Calls in a row that a role is taken to make where tools are offered, and samples of a tree after which it makes none.
TOOL_CALLS, MAX_SAMPLES = 8, 4096


PendingRequest = tuple[Request, asyncio.Future[list[Sample]]]


@dataclass
class SpaceSampler:
    """A sampler whose siblings are so many spaces each, all different; it remembers what each round asks for.

    Where a role is offered tools it calls one of them, up to `calls` times in a conversation: each call is a turn more,
    that of the answer to the tool's result. Past `MOST_SAMPLES` it calls no more, as some trees grow with every turn.
    """

    calls: int = 0
    rounds: list[list[Request]] = field(default_factory=list)
    drawn: int = 0

    async def sample(self, request: Request) -> list[Sample]:
        asked: PendingRequest = (request, asyncio.get_running_loop().create_future())
        with batching.wait_for_batch(self._answer, asked):
            return await asked[1]

    async def _answer(self, batch: Sequence[PendingRequest]) -> None:
        self.rounds.append([request for request, _ in batch])
        for request, future in batch:
            self.drawn += request.count
            texts = (" " * (k + 1) for k in range(request.count))
            calls = self._calls(request)
            future.set_result(
                [
                    Sample(
                        *(request.role, request.policy, text, (0,), (0,), (0.0,), "stop", 0),
                        message=Message("assistant", text, calls) if request.tools else None,
                    )
                    for text in texts
                ]
            )

    def _calls(self, request: Request) -> tuple[ToolCall, ...]:
        """The call that a role makes here; none where it made enough in this conversation."""
        made = sum(bool(message.tool_calls) for message in request.messages)
        if not request.tools or made >= self.calls or self.drawn > MAX_SAMPLES:
            return ()
        tool = request.tools[made % len(request.tools)]
        return (ToolCall(f"call_{made}", tool.name, json.dumps(example_value(tool.parameters))),)

    async def load(self, weights: Weights) -> None:
        raise NotImplementedError("a dry run has no weights")

    def close(self) -> None:
        """Nothing is held."""


def estimate_resources(config: Config) -> ResourceEstimate:
    """Check an experiment and measure it. Raises what training would raise before it loads a model, but for data that
    nobody has said where to find: an invented task stands in for them."""
    example = with_example(EnvSpec(config.env, config.settings).env_class, config.settings)
    experiment = resolve(config if example is None else config.model_copy(update={"settings": example}))
    env_spec = experiment.env_spec
    asked, calls = count_requests(experiment)
    each = [request for requests in asked for request in requests]
    check_templates(experiment, each)
    samples: Counter[str] = Counter()
    for request in each:
        samples[request.role] += request.count * config.train.tasks_per_step
    return ResourceEstimate(
        env=config.env,
        tasks=None if example else (len(env_spec.tasks("train")), len(experiment.held_out.tasks("test"))),
        rounds=len(asked),
        tool_calls=calls,
        samples=dict(samples),
        tokens=sum(count * experiment.sampling[role].max_tokens for role, count in samples.items()),
        characters=max(_count_characters(request) for request in each),
        policies=_estimate_policies(experiment, asked),
        devices=_device_memory(experiment),
    )


def count_requests(experiment: Experiment) -> tuple[list[list[Request]], int]:
    """What one tree over a training task asks of its samplers, by round, and how many tool calls in a row it is counted
    with; none where no tools are offered, or where the task cannot be played with calls that mean nothing."""
    asked = asyncio.run(_count_rounds(experiment, 0))
    if not any(request.tools for requests in asked for request in requests):
        return asked, 0
    try:
        return asyncio.run(_count_rounds(experiment, TOOL_CALLS)), TOOL_CALLS
    except ContractError:
        return asked, 0


def check_templates(experiment: Experiment, requests: Sequence[Request]) -> None:
    """Raise EngineError where the chat template of a model that is here leaves out parts of these prompts, or refuses
    them. Loads tokenizers, no weights."""
    from cadre.engines.torch.model import load_tokenizer, make_templates

    for name, source in experiment.models.items():
        own = [request for request in requests if request.policy == name]
        # Of each kind of conversation the longest.
        longest = {
            (bool(request.tools), len(request.messages)): request for request in own if not images_of(request.messages)
        }
        if not longest or not any(Path(source).glob("tokenizer*")):
            continue
        policy = experiment.policies[name]
        template = make_templates(load_tokenizer(source, policy), {name: policy})[name]
        for request in longest.values():
            template.check_kept(request.messages, request.tools)
            template.render(request.messages, generation=True, tools=request.tools)


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


async def _count_rounds(experiment: Experiment, calls: int) -> list[list[Request]]:
    """What one tree over a training task asks of its samplers, by round."""
    silent = SpaceSampler(calls)
    roles = experiment.config.team.roles
    team = Team(roles, dict.fromkeys(roles.values(), silent), dict.fromkeys(roles, Sampling()))
    task = experiment.env_spec.tasks("train")[0]
    await episodes.grow_many([task], experiment.rollout(team), random_keys.key("dry"))
    return silent.rounds


def _policy_load(experiment: Experiment, name: str, asked: Sequence[Sequence[Request]]) -> PolicyLoad:
    """What the policy does in a step. One that only a critic is reads what everybody sampled."""
    tasks, plays = experiment.config.train.tasks_per_step, experiment.config.team.roles
    played = [[request for request in requests if plays[request.role] == name] for requests in asked]
    if name in plays.values() and not any(played):  # it acts now and then, and not in the task that was tried
        played = [list(requests) for requests in asked]
    read = [request for requests in (played if name in plays.values() else asked) for request in requests]
    longest = {role: experiment.sampling[role].max_tokens for role in plays}
    return PolicyLoad(
        sequences=tuple(tasks * sum(request.count for request in requests) for requests in played if requests),
        completion=max(longest[request.role] for request in read),
        longest=max(_estimate_tokens(request) + longest[request.role] for request in read),
        learned=tasks * sum(_estimate_tokens(request) + request.count * longest[request.role] for request in read),
    )


def _count_characters(request: Request) -> int:
    return sum(len(message.content) for message in request.messages)


def _estimate_tokens(request: Request) -> int:
    """Of the prompt, about."""
    return -(-_count_characters(request) // CHARACTERS_PER_TOKEN)


def _estimate_policies(experiment: Experiment, asked: Sequence[Sequence[Request]]) -> dict[str, PolicyEstimate]:
    """What each policy with weights here takes, and how long it is at work in a step."""
    from cadre.engines.torch.estimate import measure

    sizes = {name: measure(model, experiment.policies[name]) for name, model in experiment.models.items()}
    memory = _sampling_memory(experiment, sizes)
    return {
        name: _estimate_policy(experiment, name, sizes[name], memory[name], _policy_load(experiment, name, asked))
        for name in sizes
    }


def _estimate_policy(experiment: Experiment, name: str, sizes: Sizes, memory: int, load: PolicyLoad) -> PolicyEstimate:
    from cadre.engines.torch.estimate import measure_activations, measure_scores

    policy, learner = experiment.policies[name], experiment.learners.get(name)
    tokens = max(learner.tokens_per_microbatch, load.longest) if learner else 0  # what is longer stands alone
    sampling, learning = _estimate_seconds(sizes, memory, load, policy, learner)
    return PolicyEstimate(
        settings=policy,
        sizes=sizes,
        reference=_reference_bytes(experiment, name, sizes),
        memory=memory,
        activations=measure_activations(experiment.models[name], policy, learner.gradient_checkpointing, tokens)
        if learner
        else 0,
        scores=measure_scores(sizes.vocabulary, tokens, experiment.plan.loss.entropy > 0.0),
        load=load,
        sampling=sampling,
        learning=learning,
    )


def _reference_bytes(experiment: Experiment, name: str, sizes: Sizes) -> int:
    """Bytes of the copy of a whole model that log-probabilities from before any training are asked of, if they are."""
    from cadre.engines.torch.model import is_fully_trained

    plan = experiment.plan
    asked = plan.kl > 0.0 or plan.loss.kl > 0.0 or plan.preference is not None
    learns = name in experiment.trained_roles.values() and is_fully_trained(experiment.policies[name])
    return 4 * sizes.parameters if asked and learns else 0


def _device_memory(experiment: Experiment) -> dict[str, int]:
    from cadre.engines.torch.memory import total_and_free
    from cadre.engines.torch.model import pick_device

    devices = [pick_device(experiment.policies[name].device) for name in experiment.models]
    return {str(device): total_and_free(device)[0] for device in devices}


def _sampling_memory(experiment: Experiment, sizes: Mapping[str, Sizes]) -> dict[str, int]:
    """Bytes that each policy may be sampled in."""
    from cadre.engines.torch.memory import choose_sampling_memory
    from cadre.engines.torch.model import pick_device

    memory: dict[str, int] = {}
    for names in group_policies(experiment):
        taken = sizes[names[0]].base + sum(sizes[name].training for name in names)
        device = pick_device(experiment.policies[names[0]].device)
        most = sampling_memory_setting(experiment, names) or choose_sampling_memory(
            device, taken, count_memory_sharers(experiment)
        )
        memory |= dict.fromkeys(names, most)
    return memory


def _estimate_seconds(
    sizes: Sizes, memory: int, load: PolicyLoad, policy: PolicyConfig, learner: LearnerConfig | None
) -> tuple[float, float]:
    """A guess of the seconds that the policy is sampled from in a step, and learned in."""
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
    passes = 2 + (policy.lora is None) + learner.gradient_checkpointing
    return sampling, learning_seconds(products, sizes.parameters, learner.epochs * load.learned, passes)


@dataclass(frozen=True)
class FirstPrompt:
    """What `role` sees first, in the model's own template: its text and its length in tokens."""

    role: str
    text: str
    tokens: int


def find_tokenizer(model: str) -> str:
    """The folder or the hub name of the model whose tokenizer writes the prompts. Raises ConfigError or EngineError
    where there is none, before torch is imported."""
    source = find_model("--model", PolicyConfig(model=model))
    folder = Path(source)
    if not folder.is_dir():
        from cadre.engines import hub

        return hub.available(source)
    if not any(folder.glob("*token*")) and not any(folder.glob("vocab*")):
        raise ConfigError(
            f"--model: got {model!r}, but {folder} holds no tokenizer; expected tokenizer.json beside config.json. "
            "Save the model's tokenizer there, or name another model."
        )
    return source


def render_first_prompts(
    prompts: Mapping[str, Sequence[Message]], source: str, name: str, tools: Mapping[str, Sequence[Tool]] | None = None
) -> tuple[list[FirstPrompt], list[str]]:
    """The first prompt of every role, with the tools that it is offered, and a paragraph for every fault. `source` is
    the folder or the hub name of the model that is called `name`. Loads a tokenizer, no weights."""
    from cadre.engines.prompt_preview import Previewer

    previewer, shown, faults = Previewer(source), [], []
    for role, messages in prompts.items():
        try:
            preview = previewer.preview(messages, (tools or {}).get(role, ()))
        except EngineError as error:
            faults.append(f"{role}: {error}")
            continue
        shown.append(FirstPrompt(role, preview.text, preview.tokens))
        faults += [_describe_dropped_message(role, messages[place], name) for place in preview.left_out]
        if previewer.context is not None and preview.tokens >= previewer.context:
            faults.append(
                f"{role}: the first prompt has {preview.tokens:,} tokens; expected fewer than the "
                f"{previewer.context:,} that {name} reads, with room for an answer. Show less, or take a model that "
                "reads more."
            )
    return shown, faults


def _describe_dropped_message(role: str, message: Message, name: str) -> str:
    return (
        f"{role}: the template of {name} leaves out the message by {message.role} that begins "
        f"{message.content[:40]!r}; expected every message in the prompt. Give it to another speaker, such as user."
    )


def format_seconds(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
