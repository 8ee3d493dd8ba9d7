"""The torch engine: one base model that samples one or more policies in this process, and that a learner may train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from torch import nn

from cadre.engines.chat_template import Prompt
from cadre.engines.model_text import ModelText
from cadre.engines.stop_strings import StopStrings
from cadre.engines.torch.base import device_memory, loading, malloc, storage
from cadre.engines.torch.sampling import batch_memory
from cadre.engines.torch.sampling.batch_memory import SequenceMemory
from cadre.engines.torch.sampling.decode import Keeping, decode
from cadre.engines.torch.sampling.forms import forms, replays
from cadre.engines.torch.sampling.generation import GenerationRequest, Listener, Stamped
from cadre.engines.torch.sampling.request_batcher import RequestBatcher
from cadre.engines.torch.sampling.turn_cache import TurnCache
from cadre.errors import EngineError
from cadre.settings import PolicyConfig
from cadre.team import Weights
from cadre.types import Message, Request, Sample

# What keys and values of earlier turns may take beside a batch, as a part of what the batch may take.
OF_TURNS = 4

P = ParamSpec("P")
T = TypeVar("T")


class TorchEngine:
    """A `Sampler` of policies on one base model. Lives as long as the run; `close` ends its thread.

    `model` is "seed", a folder or a hub name. `policies` is either one policy that has the model to itself, or any
    number of adapters and frozen policies, which share the base; fresh adapters are drawn by `seed`. A `TorchLearner`
    trains them in place and in the same thread, so that its weights need no handing over. `versions` has, by policy,
    how many updates its weights have had. Raises EngineError where the model cannot be used.

    `memory` is what keys, values and scores of one batch may take, in bytes; None for what is usual on a device that
    has so many engines as `sharing` says. With `graphs` decoding steps are replayed as CUDA graphs
    (`graphs_for` says when that is usual).
    """

    def __init__(
        self,
        model: str | Path,
        policies: Mapping[str, PolicyConfig],
        seed: int,
        memory: int | None = None,
        sharing: int = 1,
    ) -> None:
        source = loading.locate(model)
        _check(policies)
        target = loading.pick_device(next(iter(policies.values())).device)
        if target.type == "cpu":
            malloc.keep_freed()
        self.policies = dict(policies)
        self.seed = seed
        self.dtype = loading.DTYPES[next(iter(policies.values())).dtype]
        self.versions = dict.fromkeys(policies, 0)
        self._batcher = RequestBatcher(self._decode)
        self.loaded = self._batcher.work(loading.load, source, policies, target, seed)
        self.tokenizer = self.loaded.tokenizer
        self._forms = self._batcher.work(forms, self.loaded, self.dtype)
        if self._forms.longest is not None:
            self.loaded = replace(self.loaded, context=self._forms.longest)
        rows = self.loaded.model.get_input_embeddings().weight.shape[0]
        self._text = ModelText(self.loaded.templates, self.loaded.stops, self.loaded.context, rows)
        self.memory = memory or device_memory.for_sampling(target, self._taken(), sharing)
        # Ids alone do not tell pictures apart, so nothing is known of earlier turns where there may be some.
        self.turns = TurnCache(0 if self.loaded.pictures else self.memory // OF_TURNS)
        self.graphs = False

    async def sample(self, request: Request) -> list[Sample]:
        """`request.count` siblings, drawn in one batch with whatever else is asked for at the time."""
        self._check_held(request.policy, f"Role {request.role!r} asks for")
        prompt = self._text.prompt(request)
        completions = await self._batcher.submit(self._generation(request, prompt))
        return [self._text.sample(request, prompt, completion) for completion in completions]

    async def load(self, weights: Weights) -> None:
        """Take a policy's weights, after the batch that is being drawn: those of a folder, or a learner's tensors.

        The tensors of a learner on this engine are the engine's own, of which nothing is copied. Raises EngineError
        where the policy is not held or is frozen, or the weights are another model's.
        """
        await self.run(self._take, weights)

    def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in the engine's thread, after the batch that it has, and wait for it."""
        return self._batcher.work(function, *args, **kwargs)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same without keeping the event loop waiting."""
        return await self._batcher.run(function, *args, **kwargs)

    def encode(self, policy: str, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids of a conversation that the policy would answer next."""
        return self.loaded.templates[policy].prompt_ids(messages, None, self.loaded.stops)

    def parameters(self, policy: str) -> dict[str, nn.Parameter]:
        """What training the policy changes."""
        return self.loaded.parameters(policy)

    def restore(self, policy: str, folder: Path) -> None:
        """Read a policy's weights from what `export` wrote. Raises EngineError where they are another model's."""
        if policy in self.loaded.adapters.pairs:
            storage.load_adapter(self.parameters(policy), folder)
        else:
            loading.load_model(self.loaded.model, loading.locate(folder), self.policies[policy])

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write a policy for use without Cadre: a Hugging Face folder, or for an adapter a PEFT folder.

        `merge` adds the adapter to its base and writes a Hugging Face folder. Raises EngineError where there is none.
        """
        pairs, model = self.loaded.adapters.pairs.get(policy), self.loaded.model
        if merge and pairs is None:
            raise EngineError(
                f"Policy {policy!r} has no adapter to merge; it is a whole model. Export it without merge."
            )
        tokenizer = self.loaded.templates[policy].tokenizer_to_save()
        if pairs is None:
            storage.save_model(model, tokenizer, folder)
        elif merge:
            storage.save_merged(model, pairs, tokenizer, folder)
        else:
            config = self.loaded.adapters.configs[policy]
            storage.save_adapter(self.parameters(policy), config, self.loaded.source, tokenizer, folder)
        if self.loaded.pictures is not None:
            self.loaded.pictures.save(folder)

    def close(self) -> None:
        """End the thread that samples and learns, and give the memory that is free now back to the system."""
        self._batcher.close()
        malloc.give_back()

    def _taken(self) -> int:
        """Bytes of the weights, and of gradients and moments should all policies be trained that are not frozen."""
        weights = sum(weight.numel() * weight.element_size() for weight in self.loaded.model.parameters())
        trained = (self.parameters(name) for name, policy in self.policies.items() if not policy.frozen)
        return weights + 12 * sum(weight.numel() for named in trained for weight in named.values())

    def _take(self, weights: Weights) -> None:
        """Make these the policy's weights."""
        policy = weights.policy
        self._check_held(policy, "Got weights of")
        if self.policies[policy].frozen:
            raise EngineError(f"Got weights of policy {policy!r}, which is frozen; expected one that is trained.")
        if weights.tensors is not None:
            storage.copy_tensors(weights.tensors, self.parameters(policy))
        elif weights.folder is not None:
            self.restore(policy, weights.folder)
        else:
            raise EngineError(
                f"Got weights of policy {policy!r} without tensors, which stay in the process that has them; expected "
                "a folder. Have the learner write one."
            )
        self.versions[policy] = weights.version
        self.turns.clear()

    def _check_held(self, policy: str, what: str) -> None:
        if policy not in self.policies:
            raise EngineError(
                f"{what} policy {policy!r}, which this engine does not hold; it holds {', '.join(self.policies)}. Fix "
                "team.roles."
            )

    def _generation(self, request: Request, prompt: Prompt) -> GenerationRequest:
        """The request in token ids."""
        template, sampling = self.loaded.templates[request.policy], request.sampling
        return GenerationRequest(
            policy=request.policy,
            prompt_ids=prompt.ids,
            count=request.count,
            limit=self._text.limit(request, len(prompt.ids)),
            sampling=sampling,
            key=request.key,
            ends=StopStrings(sampling.stop, template.decode) if sampling.stop else None,
            images=prompt.images,
        )

    def _decode(self, requests: Sequence[GenerationRequest], listener: Listener, scope: object) -> None:
        memory, stamped = (
            SequenceMemory.of(self.loaded.model.config.get_text_config(), self.dtype),
            Stamped(listener, dict(self.versions)),
        )
        loading.check_defaults()
        self.turns.enter(scope)
        keeping = self._keeping()
        for batch in batch_memory.split(requests, memory, self.memory):
            decode(self.loaded, batch, self.dtype, stamped, keeping)

    def _keeping(self) -> Keeping:
        """How keys are held, as is right for the model."""
        turns = self.turns if self._forms.turns else TurnCache(0)
        if self._forms.recompute:
            return Keeping(turns, share=False, recompute=True)
        return Keeping(turns, self._forms.share, self.graphs and replays(self.loaded, self.dtype))


def graphs_for(policies: Mapping[str, PolicyConfig], asked: bool | None) -> bool:
    """Whether the decoding steps of these policies are replayed as CUDA graphs; where nobody says, if they are on a
    card. Raises EngineError where they cannot be, before the model is loaded."""
    on_card = loading.pick_device(next(iter(policies.values())).device).type == "cuda"
    if asked and not on_card:
        raise EngineError(
            f"sampling.graphs: got true, and {', '.join(policies)} would be on the CPU, where there are no CUDA "
            "graphs; expected a card. Leave it unset."
        )
    return on_card if asked is None else asked


def _check(policies: Mapping[str, PolicyConfig]) -> None:
    """Raise EngineError where the policies cannot share a base."""
    whole = [name for name, policy in policies.items() if loading.trains_whole(policy)]
    if whole and len(policies) > 1:
        raise EngineError(
            f"Policy {whole[0]!r} trains the whole model, so it cannot share it; got {', '.join(policies)} on one. "
            "Give each its own engine, or make it a lora or frozen."
        )
    for setting in ("dtype", "device"):
        if len({getattr(policy, setting) for policy in policies.values()}) != 1:
            raise EngineError(
                f"The policies {', '.join(policies)} share a base but differ in {setting}. Set the same {setting} for "
                "all of them."
            )
