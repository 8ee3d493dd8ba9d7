"""Builds everything of an experiment but the weights, and finds what it would take: `cadre train RECIPE --dry-run`.

The configuration and the environment are checked, its data are read where they are, one training task is played out
by a sampler that has nothing to say, and every model is run on tensors that have shapes alone.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadre import random_keys
from cadre.envs.from_data import with_example
from cadre.envs.spec import EnvSpec
from cadre.errors import ContractError
from cadre.experiment.bases import engines_of, memory_setting, sharing_of
from cadre.experiment.config import Config
from cadre.experiment.experiment import Experiment
from cadre.experiment.outlook import Load, Outlook, PolicyOutlook
from cadre.experiment.resolve import resolve
from cadre.rollout import episodes, rounds
from cadre.settings import LearnerConfig, PolicyConfig
from cadre.team import Team, Weights
from cadre.types import Message, Request, Sample, Sampling, ToolCall, images_of

if TYPE_CHECKING:
    from cadre.engines.torch.estimate.sizes import Sizes

# Of English and code, about; fewer in other languages.
CHARACTERS_A_TOKEN = 3

# Calls in a row that a role is taken to make where tools are offered, and samples of a tree after which it makes none.
TOOL_CALLS, MOST_SAMPLES = 8, 4096

Asked = tuple[Request, asyncio.Future[list[Sample]]]


@dataclass
class Silent:
    """A sampler whose siblings are so many spaces each, all different; it remembers what each round asks for.

    Where a role is offered tools it calls one of them, up to `calls` times in a conversation: each call is a turn more,
    that of the answer to the tool's result. Past `MOST_SAMPLES` it calls no more, as some trees grow with every turn.
    """

    calls: int = 0
    rounds: list[list[Request]] = field(default_factory=list)
    drawn: int = 0

    async def sample(self, request: Request) -> list[Sample]:
        asked: Asked = (request, asyncio.get_running_loop().create_future())
        with rounds.turn(self._answer, asked):
            return await asked[1]

    async def _answer(self, batch: Sequence[Asked]) -> None:
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
        if not request.tools or made >= self.calls or self.drawn > MOST_SAMPLES:
            return ()
        tool = request.tools[made % len(request.tools)]
        return (ToolCall(f"call_{made}", tool.name, json.dumps(example_of(tool.parameters))),)

    async def load(self, weights: Weights) -> None:
        raise NotImplementedError("a dry run has no weights")

    def close(self) -> None:
        """Nothing is held."""


def look(config: Config) -> Outlook:
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
    return Outlook(
        env=config.env,
        tasks=None if example else (len(env_spec.tasks("train")), len(experiment.held_out.tasks("test"))),
        rounds=len(asked),
        tool_calls=calls,
        samples=dict(samples),
        tokens=sum(count * experiment.sampling[role].max_tokens for role, count in samples.items()),
        characters=max(_characters(request) for request in each),
        policies=_policies(experiment, asked),
        devices=_devices(experiment),
    )


def count_requests(experiment: Experiment) -> tuple[list[list[Request]], int]:
    """What one tree over a training task asks of its samplers, by round, and how many tool calls in a row it is counted
    with; none where no tools are offered, or where the task cannot be played with calls that mean nothing."""
    asked = asyncio.run(_count(experiment, 0))
    if not any(request.tools for requests in asked for request in requests):
        return asked, 0
    try:
        return asyncio.run(_count(experiment, TOOL_CALLS)), TOOL_CALLS
    except ContractError:
        return asked, 0


def check_templates(experiment: Experiment, requests: Sequence[Request]) -> None:
    """Raise EngineError where the chat template of a model that is here leaves out parts of these prompts, or refuses
    them. Loads tokenizers, no weights."""
    from cadre.engines.torch.base.loading import load_tokenizer, templates_of

    for name, source in experiment.models.items():
        own = [request for request in requests if request.policy == name]
        # Of each kind of conversation the longest.
        longest = {
            (bool(request.tools), len(request.messages)): request for request in own if not images_of(request.messages)
        }
        if not longest or not any(Path(source).glob("tokenizer*")):
            continue
        policy = experiment.policies[name]
        template = templates_of(load_tokenizer(source, policy), {name: policy})[name]
        for request in longest.values():
            template.check_kept(request.messages, request.tools)
            template.render(request.messages, generation=True, tools=request.tools)


def example_of(schema: Mapping[str, Any]) -> Any:
    """Return a value of a JSON schema's type: of an object its required properties."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema or not schema else "string")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    properties = schema.get("properties", {})
    if kind == "object":
        return {name: example_of(properties.get(name, {"type": "string"})) for name in schema.get("required", ())}
    return {"integer": 1, "number": 1.0, "boolean": True, "array": [], "null": None}.get(str(kind), "x")


async def _count(experiment: Experiment, calls: int) -> list[list[Request]]:
    """What one tree over a training task asks of its samplers, by round."""
    silent = Silent(calls)
    roles = experiment.config.team.roles
    team = Team(roles, dict.fromkeys(roles.values(), silent), dict.fromkeys(roles, Sampling()))
    task = experiment.env_spec.tasks("train")[0]
    await episodes.grow_many([task], experiment.rollout(team), random_keys.key("dry"))
    return silent.rounds


def _load(experiment: Experiment, name: str, asked: Sequence[Sequence[Request]]) -> Load:
    """What the policy does in a step. One that only a critic is reads what everybody sampled."""
    tasks, plays = experiment.config.train.tasks_per_step, experiment.config.team.roles
    played = [[request for request in requests if plays[request.role] == name] for requests in asked]
    if name in plays.values() and not any(played):  # it acts now and then, and not in the task that was tried
        played = [list(requests) for requests in asked]
    read = [request for requests in (played if name in plays.values() else asked) for request in requests]
    longest = {role: experiment.sampling[role].max_tokens for role in plays}
    return Load(
        sequences=tuple(tasks * sum(request.count for request in requests) for requests in played if requests),
        completion=max(longest[request.role] for request in read),
        longest=max(_tokens(request) + longest[request.role] for request in read),
        learned=tasks * sum(_tokens(request) + request.count * longest[request.role] for request in read),
    )


def _characters(request: Request) -> int:
    return sum(len(message.content) for message in request.messages)


def _tokens(request: Request) -> int:
    """Of the prompt, about."""
    return -(-_characters(request) // CHARACTERS_A_TOKEN)


def _policies(experiment: Experiment, asked: Sequence[Sequence[Request]]) -> dict[str, PolicyOutlook]:
    """What each policy with weights here takes, and how long it is at work in a step."""
    from cadre.engines.torch.estimate.sizes import measure

    sizes = {name: measure(model, experiment.policies[name]) for name, model in experiment.models.items()}
    memory = _memory(experiment, sizes)
    return {
        name: _policy(experiment, name, sizes[name], memory[name], _load(experiment, name, asked)) for name in sizes
    }


def _policy(experiment: Experiment, name: str, sizes: Sizes, memory: int, load: Load) -> PolicyOutlook:
    from cadre.engines.torch.estimate.activations import activations, scores

    policy, learner = experiment.policies[name], experiment.learners.get(name)
    tokens = max(learner.tokens_per_microbatch, load.longest) if learner else 0  # what is longer stands alone
    sampling, learning = _seconds(sizes, memory, load, policy, learner)
    return PolicyOutlook(
        settings=policy,
        sizes=sizes,
        reference=_reference(experiment, name, sizes),
        memory=memory,
        activations=activations(experiment.models[name], policy, learner.gradient_checkpointing, tokens)
        if learner
        else 0,
        scores=scores(sizes.vocabulary, tokens, experiment.plan.loss.entropy > 0.0),
        load=load,
        sampling=sampling,
        learning=learning,
    )


def _reference(experiment: Experiment, name: str, sizes: Sizes) -> int:
    """Bytes of the copy of a whole model that log-probabilities from before any training are asked of, if they are."""
    from cadre.engines.torch.base.loading import trains_whole

    plan = experiment.plan
    asked = plan.kl > 0.0 or plan.loss.kl > 0.0 or plan.preference is not None
    learns = name in experiment.trained_roles.values() and trains_whole(experiment.policies[name])
    return 4 * sizes.parameters if asked and learns else 0


def _devices(experiment: Experiment) -> dict[str, int]:
    from cadre.engines.torch.base.device_memory import total_and_free
    from cadre.engines.torch.base.loading import pick_device

    devices = [pick_device(experiment.policies[name].device) for name in experiment.models]
    return {str(device): total_and_free(device)[0] for device in devices}


def _memory(experiment: Experiment, sizes: Mapping[str, Sizes]) -> dict[str, int]:
    """Bytes that each policy may be sampled in."""
    from cadre.engines.torch.base.device_memory import for_sampling
    from cadre.engines.torch.base.loading import pick_device

    memory: dict[str, int] = {}
    for names in engines_of(experiment):
        taken = sizes[names[0]].base + sum(sizes[name].training for name in names)
        device = pick_device(experiment.policies[names[0]].device)
        most = memory_setting(experiment, names) or for_sampling(device, taken, sharing_of(experiment))
        memory |= dict.fromkeys(names, most)
    return memory


def _seconds(
    sizes: Sizes, memory: int, load: Load, policy: PolicyConfig, learner: LearnerConfig | None
) -> tuple[float, float]:
    """A guess of the seconds that the policy is sampled from in a step, and learned in."""
    from cadre.engines.torch.base.loading import DTYPES, pick_device
    from cadre.engines.torch.estimate.speed import Products, learning_seconds, sampling_seconds

    products = Products(pick_device(policy.device), DTYPES[policy.dtype])
    at_once = sizes.sequence.at_once(memory, load.longest)
    sampling = sum(
        sampling_seconds(products, sizes.parameters, sequences, at_once, load.completion)
        for sequences in load.sequences
    )
    if learner is None:
        return sampling, 0.0
    # Forward, backward to the states, and to the weights where they are trained; layers that are recomputed once more.
    passes = 2 + (policy.lora is None) + learner.gradient_checkpointing
    return sampling, learning_seconds(products, sizes.parameters, learner.epochs * load.learned, passes)
