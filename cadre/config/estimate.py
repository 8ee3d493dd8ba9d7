"""Estimate what an experiment would take, without loading weights: `cadre train RECIPE --dry-run`.

The configuration and the environment are validated, the data are read, one training task is rolled out with a sampler
that answers in spaces, and every model is measured on tensors that have shapes alone. What a run chooses by the memory
that it finds free (larger micro-batches, vLLM's keys and values) is left out, as are CUDA's own memory (half a GiB a
process) and graphs: the sums are the least that a step takes. `cadre check` renders the first prompts of an environment
here.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadre import random_keys
from cadre.concurrency import run_coroutine
from cadre.config.engines import GIB, count_memory_sharers, sampling_memory_setting
from cadre.config.experiment import Config, Experiment
from cadre.config.resolve import SMALL_MODEL, resolve, weight_bytes
from cadre.engines.scripted import ScriptedSampler
from cadre.env import GeneratedTasks
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, ContractError, EngineError, NoSourceError
from cadre.rollout import episodes
from cadre.rollout.shapes import Shape, independent
from cadre.settings.objective import needs_reference
from cadre.settings.team import PolicyConfig
from cadre.team import Team
from cadre.types import Message, Request, Sampling, Task, Tool, media_of

if TYPE_CHECKING:
    from cadre.engines.text.model import PromptPreview

# About what English and code have; other languages have fewer.
CHARACTERS_PER_TOKEN = 3
CHECKED_EPISODES = 16  # whose prompts are compared with the context of a model
# GiB that torch finds on a GPU.
GPU_GIB = {"B200": 178, "H200": 139, "H100": 79, "A100": 79, "L40S": 44, "RTX4090": 23, "L4": 22}


@dataclass(frozen=True)
class EngineEstimate:
    """One base model with its policies, in bytes unless said.

    names       of the policies
    model       as the settings name it
    device      such as "cuda:0"
    precision   the data type of the forward and what another would cost, in words; "" for a small model
    parameters  count of the base model
    trained     count of those that are trained, adapters of all policies together
    reach       how much of the model gets adapters, in words
    resident    weights, gradients, the optimiser's state, and a copy from before training if the plan needs one
    vllm        the weights that vLLM has of its own; 0 if torch samples
    cache       keys and values in sampling, as far as a setting or the torch engine's rule gives them
    asleep      of vLLM's, what it holds while the learner works
    microbatch  tokens of the smallest micro-batch; 0 if nothing is trained
    learning    what an update takes beside `resident`: such a micro-batch, and weights in the precision of the forward
    """

    names: Sequence[str]
    model: str
    device: str
    precision: str
    parameters: int
    trained: int
    reach: str
    resident: int
    vllm: int
    cache: int
    asleep: int
    microbatch: int
    learning: int


@dataclass(frozen=True)
class ResourceEstimate:
    """The resources of an experiment.

    env           by name
    tasks         training and held-out tasks; None if the settings do not say where the data are
    samples       completions that each role samples in one step, if all answers are empty
    tokens        the most tokens that they can have together
    characters    of the longest prompt
    offers_tools  whether a role is offered tools, whose calls are turns that are not counted
    long_prompts  by policy, (episodes with a prompt that fills its model's context, episodes, that context)
    engines       one per base model
    totals        by device: its name for people, and its bytes
    is_divided    whether processes of a cluster, ranks or several GPUs divide the engines, so that no device need hold
                  them whole
    divided       for other GPUs than those of this machine: how many the divided engines take of how many, the bytes on
                  the fullest, and the bytes that it has
    """

    env: str
    tasks: tuple[int, int] | None
    samples: Mapping[str, int]
    tokens: int
    characters: int
    offers_tools: bool
    long_prompts: Mapping[str, tuple[int, int, int]]
    engines: Sequence[EngineEstimate]
    totals: Mapping[str, tuple[str, int]]
    is_divided: bool
    divided: tuple[int, int, int, int] | None = None

    def peaks(self, device: str) -> tuple[int, int]:
        """Return the bytes in use on a device while sampling, and while learning, where engines learn in turn."""
        engines = [engine for engine in self.engines if engine.device == device]
        resident = sum(engine.resident for engine in engines)
        sampling = resident + sum(engine.vllm + engine.cache for engine in engines)
        learning = resident + sum(engine.asleep for engine in engines) + max(engine.learning for engine in engines)
        return sampling, learning


def parse_gpus(text: str) -> tuple[int, int]:
    """Return the count and the bytes of each of "2x8 H100": nodes, GPUs of each, and their name or GiB."""
    match = re.fullmatch(r"(?:(\d+)x)?(\d+) (?:(\d+)GiB|(\w+))", text)
    gib = match and (match[3] or GPU_GIB.get(match[4]))
    if not match or not gib:
        expected = f'expected one such as "2x8 H100" or "4 40GiB". Names are {", ".join(GPU_GIB)}.'
        raise ConfigError(f"--gpus: got {text!r}; {expected}")
    return int(match[1] or 1) * int(match[2]), int(gib) * GIB


def estimate_resources(config: Config, typed: Collection[str] = (), gpus: str | None = None) -> ResourceEstimate:
    """Validate an experiment and estimate its resources, here or on other `gpus` ("2x8 H100"). Raises what training
    would raise before it loads a model, except for data whose source is not set: an invented task replaces them."""
    example: Mapping[str, Any] = {}
    count, size = parse_gpus(gpus) if gpus else (0, 0)
    try:
        EnvSpec(config.env, config.settings).tasks("train")
    except NoSourceError as error:
        example = error.example
    policies = dict(config.team.policies)
    for name, policy in policies.items() if gpus else ():
        if policy.dtype == "auto" and policy.device != "cpu":
            policies[name] = policy.model_copy(update={"dtype": "bfloat16"})  # what `auto` stands for on a GPU
    team = config.team.model_copy(update={"policies": policies})
    changes = {"settings": {**config.settings, **example}, "team": team}
    experiment = resolve(config.model_copy(update=changes), typed=typed)
    split = experiment.training_tasks
    period = split.period if isinstance(split, GeneratedTasks) else 1  # of a mixture, tasks of all environments
    block = split[: min(period, CHECKED_EPISODES)]
    requests = [request for task in block for request in collect_requests(experiment, task)]
    totals_by_role: Counter[str] = Counter()
    for request in requests:
        totals_by_role[request.role] += request.count * config.train.tasks_per_step
    samples = {role: math.ceil(total / len(block)) for role, total in totals_by_role.items()}
    engines, totals, shares = _estimate_engines(experiment, requests, size)
    # Engines of one process are on the same GPUs, those of a cluster on others.
    numbers, fullest = zip(*shares, strict=True)
    is_divided = experiment.config.cluster is not None
    taken = (math.ceil(sum(numbers)), max(fullest)) if is_divided else (max(numbers), sum(fullest))
    held_out = len(experiment.held_out_tasks) if config.evaluate.tasks else 0
    return ResourceEstimate(
        env=config.env,
        tasks=None if example else (len(experiment.training_tasks), held_out),
        samples=samples,
        tokens=sum(count * experiment.sampling[role].max_tokens for role, count in samples.items()),
        characters=max(map(_count_characters, requests)),
        offers_tools=any(request.tools for request in requests),
        long_prompts=check_prompts(experiment, requests),
        engines=engines,
        totals=totals,
        is_divided=is_divided
        or any(experiment.ranks(names) > 1 for names in experiment.engines)
        or (bool(experiment.vllm_policies) and config.vllm.gpus > 1),
        divided=(taken[0], count, taken[1], size) if size else None,
    )


def format_estimate(estimate: ResourceEstimate) -> Iterator[str]:
    """Yield the estimate as lines to print."""
    if estimate.tasks is None:
        yield f"{estimate.env}: data not read, as settings.source is unset; what follows is of an invented task"
    else:
        yield f"{estimate.env}: {estimate.tasks[0]:,} training and {estimate.tasks[1]:,} held-out tasks"
    by_role = ", ".join(f"{count:,} by {role}" for role, count in estimate.samples.items())
    yield (f"a step: {sum(estimate.samples.values()):,} samples ({by_role}), at most {estimate.tokens:,} tokens")
    if estimate.offers_tools:
        yield "tools are offered: every call of one is a turn more, which is not counted"
    yield f"the longest prompt that was met: {estimate.characters:,} characters"
    for name, (over, played, context) in estimate.long_prompts.items():
        fault = f"in {over} of {played} episodes a prompt of {name} fills the {context:,} tokens that its model reads"
        yield f"warning: {fault}. Show less, or take a model that reads more."
    for engine in estimate.engines:
        reach = f"; {engine.reach}" if engine.reach else ""
        count = f"{engine.parameters:,} parameters, {engine.trained:,} trained"
        yield f"{', '.join(engine.names)} ({engine.model}): {count}{reach}"
        yield f"  weights, and gradients and optimiser where it is trained: {engine.resident / GIB:.1f} GiB"
        if engine.precision:
            yield f"  {engine.precision}"
        if engine.vllm:
            size = f"{engine.cache / GIB:.1f} GiB of keys and values" if engine.cache else "keys and values in the rest"
            yield f"  sampled by vLLM with weights of its own ({engine.vllm / GIB:.1f} GiB), {size}"
        elif engine.cache:
            yield f"  sampled by torch, {engine.cache / GIB:.1f} GiB of keys, values and scores"
        if engine.microbatch:
            more = f"{engine.learning / GIB:.1f} GiB more"
            yield f"  an update with micro-batches of {engine.microbatch:,} tokens: {more}"
    if estimate.is_divided and estimate.divided:
        taken, there, fullest, total = estimate.divided
        verdict = "they fit" if taken <= there and fullest <= total else "they do NOT fit"
        of_fullest = f"at least {fullest / GIB:.1f} of {total / GIB:.0f} GiB on the fullest"
        yield f"the engines are divided among {taken} of {there} GPUs, with {of_fullest}: {verdict}"
        return
    if estimate.is_divided:
        yield "the engines are divided among processes, so that it is not said whether a device holds them"
        return
    for device, (name, total) in estimate.totals.items():
        sampling, learning = estimate.peaks(device)
        use = f"{sampling / GIB:.1f} GiB while sampling, {learning / GIB:.1f} while learning"
        if max(sampling, learning) <= total:
            yield f"it fits {name} ({total / GIB:.0f} GiB): at least {use}"
            continue
        remedies = ["lower sampling.memory"] if sampling > total else []
        if learning > total:
            remedies.append("set learner.gradient_checkpointing=true, or train adapters (team.policies.*.lora)")
        yield f"it does NOT fit {name} ({total / GIB:.0f} GiB): {use}; {'; '.join(remedies)}"


# ---- The requests of one tree, sampled with spaces


def collect_requests(experiment: Experiment, task: Task, shape: Shape | None = None) -> list[Request]:
    """Return the requests of one tree over a task, whose siblings are different numbers of spaces; with a `shape` of
    such a tree without what the algorithm adds. Raises ContractError if the environment accepts no answer of spaces."""
    requests: list[Request] = []
    roles = experiment.roles

    def answer(request: Request) -> list[str]:
        if request.role in roles:  # no judge's
            requests.append(request)
        return [" " * (sibling + 1) for sibling in range(request.count)]

    team = Team(roles, dict.fromkeys(experiment.playing, ScriptedSampler(answer)), dict.fromkeys(roles, Sampling()))
    rollout = experiment.rollout(team)
    if shape is not None:
        rollout = replace(rollout, shape=shape, ablation="none", signs=False)
    run_coroutine(episodes.grow_many([task], rollout, random_keys.key("dry")))
    return requests


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
            played.append(collect_requests(experiment, tasks[index], independent(1)))
    overlong = {}
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
            longest = max(texts, key=_count_characters)
            template.check_kept(longest.messages, longest.tools)
            return len(template.prompt(longest.messages, None, (), longest.tools).ids)

        count_tokens(requests)
        lengths = [length for length in map(count_tokens, played) if length]
        if context is not None and (over := sum(length >= context for length in lengths)):
            overlong[name] = (over, len(lengths), context)
    return overlong


def _count_characters(request: Request) -> int:
    """Return the characters of a prompt: of its messages, and of its tools, which a chat template writes as JSON."""
    offered = ((tool.name, tool.description, dict(tool.parameters)) for tool in request.tools)
    return sum(len(message.content) for message in request.messages) + sum(len(json.dumps(tool)) for tool in offered)


# ---- The memory of each engine


def _estimate_engines(
    experiment: Experiment, requests: Sequence[Request], gpu_size: int
) -> tuple[list[EngineEstimate], dict[str, tuple[str, int]], list[tuple[float, int]]]:
    """Return the engines, the name and bytes of each device that they are on, and of each engine the GPUs that it is
    divided among with the bytes on the fullest. `gpu_size` is that of GPUs that are not here, or 0."""
    import torch

    from cadre.engines.torch.forward import DEFAULT_TOKENS, MIN_TOKENS
    from cadre.engines.torch.memory import choose_sampling_memory, total_and_free
    from cadre.engines.torch.model import DTYPES, is_fully_trained, pick_device, with_number
    from cadre.engines.torch.sizes import measure

    plan = experiment.plan
    needs_copy = plan.kl > 0.0 or needs_reference(plan.loss) or plan.preference is not None
    needs_copy |= plan.teacher is not None and plan.teacher.is_reference
    engines: list[EngineEstimate] = []
    totals: dict[str, tuple[str, int]] = {}
    shares: list[tuple[float, int]] = []
    for names in experiment.engines:
        policy = experiment.policies[names[0]]
        is_elsewhere = bool(gpu_size) and policy.device != "cpu"
        device = with_number(torch.device("cuda") if is_elsewhere else pick_device(policy.device))
        is_gpu = device.type == "cuda"
        if is_elsewhere:
            totals[str(device)] = "one of these GPUs", gpu_size
        else:
            name = torch.cuda.get_device_properties(device).name if is_gpu else "the memory of this machine"
            totals[str(device)] = name, total_and_free(device)[0]

        # The base is held once, and a copy of it where a model that is trained whole needs one as its reference.
        sizes = {name: measure(experiment.models[name], experiment.policies[name]) for name in names}
        first, itemsize = sizes[names[0]], DTYPES[policy.dtype].itemsize
        training = sum(size.training for name, size in sizes.items() if name in experiment.learners)
        is_trained_whole = is_fully_trained(policy) and not {*names}.isdisjoint(experiment.trained_roles.values())
        copy = 4 * first.parameters if needs_copy and is_trained_whole else 0

        # Sampling: the memory that is set, or by the torch engine's rule. vLLM takes what is left of its share.
        on_vllm = [name for name in names if name in experiment.vllm_policies]
        cache = sampling_memory_setting(experiment, on_vllm or names) or 0
        if not on_vllm and not cache and not {*names}.isdisjoint(experiment.playing):
            sharers = count_memory_sharers(experiment)
            cache = choose_sampling_memory(device, first.base + training, sharers, gpu_size if is_elsewhere else 0)
        vllm = first.parameters * itemsize if on_vllm else 0
        sleeps = experiment.colocated and experiment.config.vllm.sleep != "none"

        # Learning: one micro-batch of the largest policy, its activations and its scores of the vocabulary.
        # A sequence that is longer than a micro-batch is one by itself. A policy that is only a critic, or does not act
        # in the task that was rolled out, is taken to read all prompts.
        learners = {name: experiment.learners[name] for name in names if name in experiment.learners}
        tokens = learning = copies = 0
        if learners:
            longest = max(
                -(-_count_characters(request) // CHARACTERS_PER_TOKEN) + experiment.sampling[request.role].max_tokens
                for request in [request for request in requests if request.policy in names] or requests
            )
            limits = [learner.tokens_per_microbatch for learner in learners.values()]
            default = MIN_TOKENS if is_gpu else DEFAULT_TOKENS
            tokens = max(longest, min([limit for limit in limits if limit != "auto"], default=default))
            activations = [sizes[name].activations(bool(one.gradient_checkpointing)) for name, one in learners.items()]
            copies = first.parameters * itemsize if is_fully_trained(policy) and itemsize < 4 else 0
            learning = tokens * (max(activations) + itemsize * first.vocabulary) + copies

        # Divided: FSDP2 shards all but adapters and rounds one layer at a time, and every sampler has the weights.
        held, ranks = first.base + copy + training, experiment.ranks(names) or 1
        tensor_parallel = experiment.config.vllm.gpus if on_vllm else 1
        on_sampler = int((vllm or first.base) / tensor_parallel) + cache
        on_learner = int(held / ranks if is_trained_whole else first.base / ranks + training) + learning
        on_learner -= copies if ranks > 1 else 0
        if experiment.config.cluster is None:
            shares.append((max(ranks, tensor_parallel), on_sampler + on_learner))
        else:
            placed = experiment.config.cluster.place(names, bool(learners))
            taken = placed.samplers * placed.sampler_gpus + placed.learner_gpus
            shares.append((taken, (sum if placed.together else max)((on_sampler, on_learner))))
        engines.append(
            EngineEstimate(
                names=names,
                model=policy.model,
                device=str(device),
                precision=_precision(policy, experiment.models[names[0]], first.parameters),
                parameters=first.parameters,
                trained=sum(size.trained for name, size in sizes.items() if name in experiment.learners),
                reach="; ".join(dict.fromkeys(size.reach for size in sizes.values() if size.reach)),
                resident=held,
                vllm=vllm,
                cache=cache,
                asleep=0 if sleeps or not on_vllm else vllm + cache,
                microbatch=tokens,
                learning=learning,
            )
        )
    return engines, totals, shares


def _precision(policy: PolicyConfig, model: str, parameters: int) -> str:
    """Return the data type of the forward and what the other one would cost; "" for a small model."""
    if weight_bytes(model) < SMALL_MODEL:
        return ""
    if policy.dtype == "float32":
        return "computes in float32; bfloat16 would be faster on a GPU, or with instructions for it and adapters"
    held = f" and {2 * parameters / GIB:.1f} GiB of weights more" if policy.shares_base else ""
    return f"computes in bfloat16; float32 would take about twice the time{held}"


# ---- The first prompts of an environment: `cadre check`


def render_first_prompts(
    prompts: Mapping[str, Sequence[Message]], source: str, name: str, tools: Mapping[str, Sequence[Tool]] | None = None
) -> tuple[dict[str, PromptPreview], list[str]]:
    """Return the first prompt of every role, with its tools, and a paragraph for every fault. `source` is the folder or
    the hub name of the model that is called `name`. Loads a tokenizer, no weights."""
    from cadre.engines.text.model import Previewer

    previewer, faults = Previewer(source), []
    first_prompts: dict[str, PromptPreview] = {}
    for role, messages in prompts.items():
        try:
            preview = first_prompts[role] = previewer.preview(messages, (tools or {}).get(role, ()))
        except EngineError as error:
            faults.append(f"{role}: {error}")
            continue
        for lost in (messages[index] for index in preview.dropped):
            got = f"the template of {name} leaves out the message by {lost.role} that begins {lost.content[:40]!r}"
            faults.append(f"{role}: {got}; expected every message. Give it to another speaker, such as user.")
        if previewer.context is not None and preview.tokens >= previewer.context:
            expected = f"expected fewer than the {previewer.context:,} that {name} reads"
            faults.append(f"{role}: the first prompt has {preview.tokens:,} tokens; {expected}. Show less.")
    return first_prompts, faults
