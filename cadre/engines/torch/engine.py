"""The torch engine: one base model that samples one or more policies in this process, and that a learner may train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from torch import nn

from cadre.engines.text.model import Completion, ModelText
from cadre.engines.text.template import Prompt
from cadre.engines.text.tokens import StopStrings
from cadre.engines.torch import memory as memory_limits
from cadre.engines.torch import storage
from cadre.engines.torch.compute import ComputeThread, use_threads
from cadre.engines.torch.decode import CacheOptions, Form, start_batch
from cadre.engines.torch.forward import MicroBatchRunner
from cadre.engines.torch.kv_cache import Recorder, record_graph
from cadre.engines.torch.llama_step import PackedLinears
from cadre.engines.torch.memory import SequenceMemory
from cadre.engines.torch.model import (
    DTYPES,
    autocast,
    check_torch_defaults,
    export_policy,
    load,
    locate,
    narrow_weights,
    pick_device,
    restore_policy,
)
from cadre.engines.torch.prefix_cache import PrefixCache
from cadre.engines.torch.request_batcher import GenerationRequest, Listener, RequestBatcher
from cadre.engines.torch.trials import choose_recorder, choose_sampling_form, limit_context
from cadre.errors import EngineError
from cadre.learn.loss import ValueHeads
from cadre.settings import LearnerConfig, PolicyConfig
from cadre.team import Weights
from cadre.types import Choice, Message, Request, Sample, Sampling, Tool, TrainingSequence

# Keys and values of earlier turns may take this fraction of a batch's memory, beside it.
PREFIX_CACHE_FRACTION = 4
# Settings for scoring listed answers, which are short and many.
ANSWER_BATCHES = LearnerConfig(pack="padded", tokens_per_microbatch=16_384)

P = ParamSpec("P")
T = TypeVar("T")


class TorchEngine:
    """A `Sampler` of policies on one base model. Lives as long as the run.

    `model` is "seed", a folder or a hub name. `policies` is either one policy that has the model to itself, or any
    number of adapters and frozen policies, which share the base; fresh adapters are drawn by `seed`. A `TorchLearner`
    trains them in place and in the same thread, so that its weights need no sync. `versions` has, by policy, the number
    of updates of its weights. Raises EngineError if the model cannot be used.

    `memory` are the bytes that keys, values and scores of one batch may take; None for the default of a device with
    `sharing` engines. `record` makes a replay of a decoding step: a CUDA graph on a GPU, the step itself by
    `run_eagerly`; None for the forms of a CPU, which run every step anew.
    """

    def __init__(
        self,
        model: str | Path,
        policies: Mapping[str, PolicyConfig],
        seed: int,
        memory: int | None = None,
        sharing: int = 1,
        is_trained: bool = True,
    ) -> None:
        source = locate(model)
        device = pick_device(next(iter(policies.values())).device)
        if device.type == "cpu":
            memory_limits.keep_freed_memory()
        self.policies = dict(policies)
        self.seed = seed
        self.dtype = DTYPES[next(iter(policies.values())).dtype]
        self.versions = dict.fromkeys(policies, 0)
        self.thread = ComputeThread(device)
        self.batcher = RequestBatcher(self._decode, self.thread)
        if device.type == "cuda" and device.index is not None:
            self.work(torch.cuda.set_device, device)  # of this thread; decoding steps are recorded on its current GPU
        self.loaded = limit_context(self.work(load, source, policies, device, seed))
        self.tokenizer = self.loaded.tokenizer
        self._form: Form = self.work(choose_sampling_form, self.loaded, self.dtype)
        rows = self.loaded.model.get_input_embeddings().weight.shape[0]
        self._text = ModelText(self.loaded.templates, self.loaded.stops, self.loaded.context, rows)

        # Bytes of the weights, and of gradients and two moments (float32) of all policies that can be trained.
        weights = sum(weight.numel() * weight.element_size() for weight in self.loaded.model.parameters())
        trained = [self.parameters(name) for name, policy in self.policies.items() if is_trained and not policy.frozen]
        reserved = weights + 12 * sum(weight.numel() for parameters in trained for weight in parameters.values())
        self.memory = memory or memory_limits.choose_sampling_memory(device, reserved, sharing)
        # Token ids alone do not distinguish images, so prompts with images are not cached.
        self.prefix_cache = PrefixCache(0 if self.loaded.pictures else self.memory // PREFIX_CACHE_FRACTION)
        self.packed = PackedLinears(self.loaded.model, self.dtype)
        self.record: Recorder | None = record_graph if device.type == "cuda" else None
        self.sampled_tokens = 0  # drawn so far, those of completions that have not ended included

    async def sample(self, request: Request) -> list[Sample]:
        """Return `request.count` samples, drawn in one batch with the other requests of the round."""
        self._text.check_policy(request.policy, f"Role {request.role!r} asks for")
        prompt = self._text.prompt(request)
        if request.answers:
            return await self._given_samples(request, prompt)
        template, sampling = self.loaded.templates[request.policy], request.sampling
        generation = GenerationRequest(
            policy=request.policy,
            prompt_ids=prompt.ids,
            count=request.count,
            limit=self._text.limit(request, len(prompt.ids)),
            sampling=sampling,
            key=request.key,
            ends=StopStrings(sampling.stop, template.decode) if sampling.stop else None,
            images=prompt.images,
        )
        completions = await self.batcher.submit(generation)
        return [self._text.sample(request, prompt, completion) for completion in completions]

    async def load(self, weights: Weights) -> None:
        """Load a policy's weights, after the batch that is being drawn: those of a folder, or a learner's tensors.

        The tensors of a learner on this engine are the engine's own, of which nothing is copied. Raises EngineError if
        the policy is not held or is frozen, or the weights belong to a different model.
        """
        await self.run(self._load, weights)

    def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in the engine's thread, after the batch that it has, and wait for it."""
        return self.thread.work(function, *args, **kwargs)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the same without blocking the event loop."""
        return await self.thread.run(function, *args, **kwargs)

    def answer_probabilities(self, policy: str, choices: Sequence[Choice]) -> list[tuple[float, ...]]:
        """Return the probabilities of every choice's answers among each other, at temperature 1; they sum to 1.

        For games whose every legal answer can be listed. An answer is its text as the tokenizer writes it, without
        tokens that end turns, followed by the end of the turn.
        """
        requests = [
            Request(shown.role, policy, shown.messages, len(answers), Sampling(), 0, answers=answers)
            for shown, answers in ((choice.observation, choice.answers) for choice in choices)
        ]
        sequences = [one for request in requests for one in self._answer_sequences(request, self._text.prompt(request))]
        totals = iter([sum(logprobs) for logprobs in self.work(self._compute_logprobs, sequences)])
        logprobs = [torch.tensor([next(totals) for _ in choice.answers], dtype=torch.float64) for choice in choices]
        return [tuple(of_choice.softmax(0).tolist()) for of_choice in logprobs]

    async def _given_samples(self, request: Request, prompt: Prompt) -> list[Sample]:
        """Return the request's own answers as samples; where one is asked for, the most probable."""
        sequences, length, samples = self._answer_sequences(request, prompt), len(prompt.ids), list[Sample]()
        self._text.limit(request, max(len(sequence.token_ids) for sequence in sequences) - 1)
        scored, version = await self.run(self._compute_logprobs, sequences), self.versions[request.policy]
        for answer, sequence, logprobs in zip(request.answers, sequences, scored, strict=True):
            completion = Completion(sequence.token_ids[length:], logprobs[length:], "stop", version)
            samples.append(replace(self._text.sample(request, prompt, completion), text=answer, message=None))
        return samples if request.count > 1 else [max(samples, key=lambda sample: sum(sample.logprobs))]

    def _answer_sequences(self, request: Request, prompt: Prompt) -> list[TrainingSequence]:
        """Return the prompt with each of the request's answers, followed by the end of the turn."""
        template, sequences = self.loaded.templates[request.policy], []
        end = self.loaded.stops[0] if template.end_of_turn is None else template.end_of_turn
        temperature = request.sampling.temperature or 1.0
        for answer in request.answers:
            ids = (*prompt.ids, *template.answer_ids(answer), end)
            mask, zeros = tuple(n >= len(prompt.ids) for n in range(len(ids))), (0.0,) * len(ids)
            sequence = TrainingSequence(request.policy, request.role, ids, mask, zeros, zeros, 0, temperature)
            sequences.append(replace(sequence, images=prompt.images))
        return sequences

    def _compute_logprobs(self, sequences: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        no_heads = ValueHeads({}, 0, torch.device("cpu"))
        return MicroBatchRunner(self.loaded, self.dtype, no_heads, [ANSWER_BATCHES]).compute_logprobs(sequences)

    def encode(self, policy: str, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Return the token ids of a conversation that the policy would answer next."""
        return self.loaded.encode(policy, messages, tools)

    def parameters(self, policy: str) -> dict[str, nn.Parameter]:
        """Return the weights that training the policy changes."""
        return self.loaded.parameters(policy)

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write a policy for use without Cadre, as `export_policy` does."""
        export_policy(self.loaded, policy, self.policies[policy].model, folder, merge)

    def close(self) -> None:
        """Wait for the call that computes, and return memory that is free now to the system."""
        self.thread.close()
        memory_limits.release_freed_memory()

    def _load(self, weights: Weights) -> None:
        policy = weights.policy
        self._text.check_policy(policy, "Got weights of")
        if self.policies[policy].frozen:
            raise EngineError(f"Got weights of policy {policy!r}, which is frozen; expected one that is trained.")
        if weights.tensors is not None:
            storage.copy_tensors(weights.tensors, self.parameters(policy))
        else:
            restore_policy(self.loaded, policy, self.policies[policy], storage.weights_folder(weights))
        self.versions[policy] = weights.version
        self.prefix_cache.clear()

    def _decode(self, requests: Sequence[GenerationRequest], listener: Listener, scope: object) -> None:
        """Complete the requests of a scope, in batches that fit into memory, and pass completions to the listener. Ends
        early once the listener is gone."""
        check_torch_defaults()
        self.prefix_cache.enter_scope(scope)
        record: Recorder | None = None
        if self.record is not None and self._form != "plain":
            record = choose_recorder(self.loaded, self.dtype, self.record)
        options = CacheOptions(self.prefix_cache, self._form, record)
        sequence = SequenceMemory.from_config(self.loaded.model.config.get_text_config(), self.dtype)
        versions = dict(self.versions)
        for fitting in memory_limits.split_batches(requests, sequence, self.memory):
            with (
                torch.inference_mode(),
                autocast(self.loaded.model, self.dtype),
                self.packed.used(),
                narrow_weights(self.loaded, self.dtype),
            ):
                batch = start_batch(self.loaded, fitting, options)
                while len(batch) and not listener.gone():
                    with use_threads(1 if batch.is_small else torch.get_num_threads()):
                        self.sampled_tokens += len(batch)
                        for request, completions in batch.sample():
                            version = versions[request.policy]
                            listener.finished(request, [replace(sample, version=version) for sample in completions])
                        batch.forward()
            del batch  # free its keys and values before the next one has its own


def graphs_for(policies: Mapping[str, PolicyConfig], setting: bool | None) -> bool:
    """Return True if the decoding steps of these policies are replayed as CUDA graphs; the default is True on a GPU.
    Raises EngineError if `setting` is True on a CPU, before the model is loaded."""
    is_gpu = pick_device(next(iter(policies.values())).device).type == "cuda"
    if setting and not is_gpu:
        raise EngineError(
            f"sampling.graphs: got true, and {', '.join(policies)} would be on the CPU, where there are no CUDA "
            "graphs; expected a GPU. Leave it unset."
        )
    return is_gpu if setting is None else setting
