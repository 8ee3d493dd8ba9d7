"""The torch engine: one base model that samples and trains one or more policies in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cadre.engines.torch import memory, storage
from cadre.engines.torch import model as models
from cadre.engines.torch.decode import Completion, Job, by_memory, column_bytes, decode
from cadre.engines.torch.front import Front
from cadre.engines.torch.learner import Trainer
from cadre.errors import EngineError
from cadre.learn.critic import ValueHeads
from cadre.learn.optimiser import Optimiser
from cadre.sections import CriticConfig, LearnerConfig, LossConfig, PolicyConfig
from cadre.team import Metrics
from cadre.types import Datum, Message, Request, Sample

CACHE_BYTES = 2 << 30


class TorchEngine:
    """A `Sampler` and a `Learner` for policies on one base model. Lives as long as the run; `close` ends its thread.

    `model` is "seed", a folder or a hub name. `policies` is either one policy that is trained whole, or any number of
    adapters and frozen policies, which share the base; `learners` tells how those that are trained learn; `total_steps`
    is the length of the schedules. `heads` names the value heads of each policy that has some, which learn as `critic`
    says. Raises EngineError where the model cannot be used.
    """

    def __init__(
        self,
        model: str | Path,
        policies: Mapping[str, PolicyConfig],
        learners: Mapping[str, LearnerConfig],
        loss: LossConfig,
        total_steps: int,
        seed: int,
        device: str = "auto",
        heads: Mapping[str, Sequence[str]] | None = None,
        critic: CriticConfig | None = None,
    ) -> None:
        source = models.locate(model)
        whole = _check(policies)
        target = models.pick_device(device)
        _check_flex(learners, target)
        if target.type == "cpu":
            memory.keep_freed()
        example = next(iter(policies.values()))
        self._policies = dict(policies)
        self._dtype = models.DTYPES[example.dtype]
        # A model that is trained whole keeps float32 masters; a frozen base is held in the precision of its forward.
        held = torch.float32 if whole else self._dtype
        loras = {name: policy.lora for name, policy in policies.items() if policy.lora}
        self._front = Front(self._decode)
        self._loaded = self._front.work(models.load, source, example, held, target, loras, seed)
        self._loaded.model.requires_grad_(whole is not None)
        self.tokenizer = self._loaded.tokenizer
        self._optimisers = {
            name: Optimiser(self._parameters(name), learners[name], total_steps)
            for name, policy in policies.items()
            if not policy.frozen
        }
        critic = critic or CriticConfig()
        named = {name: tuple(own) for name, own in (heads or {}).items()}
        self._heads = ValueHeads(
            named, self._loaded.model.config.get_text_config().hidden_size, self._loaded.model.device
        )
        self._head_optimisers = {
            name: Optimiser(self._heads.parameters(name), _head_learner(learners[name], critic), total_steps)
            for name in named
        }
        self._trainer = Trainer(
            self._loaded, self._heads, self._optimisers, self._head_optimisers, loss, critic, self._dtype, seed
        )
        self._reference: Any = None

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that are trained here; frozen ones are sampled from only."""
        return tuple(self._optimisers)

    @property
    def diverged_folder(self) -> Path | None:
        """Where the sequence at fault goes if training diverges; a temporary folder where None."""
        return self._trainer.diverged_folder

    @diverged_folder.setter
    def diverged_folder(self, folder: Path | None) -> None:
        self._trainer.diverged_folder = folder

    async def sample(self, request: Request) -> list[Sample]:
        """`request.count` siblings, drawn in one batch with whatever else is asked for at the time."""
        if request.policy not in self._policies:
            raise EngineError(
                f"Role {request.role!r} asks for policy {request.policy!r}, which this engine does not hold; it holds "
                f"{', '.join(self._policies)}. Mend team.roles."
            )
        loaded = self._loaded
        prompt_ids = loaded.template.prompt_ids(request.messages, request.said, loaded.stops)
        limit = self._limit(request, len(prompt_ids))
        completions = await self._front.submit(
            request.policy, prompt_ids, request.count, limit, request.sampling, request.key
        )
        return [self._sample(request, prompt_ids, completion) for completion in completions]

    def update(self, data: Sequence[Datum]) -> dict[str, Metrics]:
        """One update of every policy that has data; figures by policy. Raises DivergedError."""
        return self._front.work(self._trainer.update, data)

    def reference_logprobs(self, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        """Log-probabilities of the masked tokens under the policies as they were before any training; T a datum.

        The base with its adapters off, or a frozen copy of a model that is trained whole, loaded when first asked for.
        """
        if self._reference is None:
            self._reference = self._loaded.model if self._loaded.adapters.pairs else self._front.work(self._original)
        return self._front.work(self._trainer.logprobs, self._reference, data)

    def encode(self, policy: str, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids of a conversation that the policy would answer next."""
        return self._loaded.template.prompt_ids(messages, None, self._loaded.stops)

    def values(self, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        """What the heads named in `targets` say at their places, a tuple a datum."""
        return self._front.work(self._trainer.values, data)

    def save(self, folder: Path) -> None:
        """`folder/POLICY` for each trained policy: what `export` writes, `optimiser/`, and `heads/` if it has some."""
        for name, optimiser in self._optimisers.items():
            self.export(name, folder / name)
            optimiser.save(folder / name / "optimiser")
        for name, optimiser in self._head_optimisers.items():
            storage.save_heads(self._heads.parameters(name), folder / name / "heads")
            optimiser.save(folder / name / "heads")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, exactly."""
        for name, optimiser in self._optimisers.items():
            if name in self._loaded.adapters.pairs:
                storage.load_adapter(self._parameters(name), folder / name)
            else:
                saved = models.load_weights(models.locate(folder / name), self._policies[name], torch.float32)
                storage.copy_weights(saved, self._loaded.model)
            optimiser.load(folder / name / "optimiser")
        for name, optimiser in self._head_optimisers.items():
            storage.load_heads(self._heads.parameters(name), folder / name / "heads")
            optimiser.load(folder / name / "heads")

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write a policy for use without Cadre: a Hugging Face folder, or for an adapter a PEFT folder.

        `merge` adds the adapter to its base and writes a Hugging Face folder. Raises EngineError where there is none.
        """
        pairs, model = self._loaded.adapters.pairs.get(policy), self._loaded.model
        if merge and pairs is None:
            raise EngineError(
                f"Policy {policy!r} has no adapter to merge; it is a whole model. Export it without merge."
            )
        if pairs is None:
            storage.save_model(model, self.tokenizer, folder)
        elif merge:
            storage.save_merged(model, pairs, self.tokenizer, folder)
        else:
            config = self._loaded.adapters.configs[policy]
            storage.save_adapter(self._parameters(policy), config, self._loaded.source, self.tokenizer, folder)

    def close(self) -> None:
        """End the thread that samples and learns, and give the memory that is free now back to the system."""
        self._front.close()
        memory.give_back()

    def _parameters(self, policy: str) -> dict[str, nn.Parameter]:
        """What training the policy changes."""
        adapters = self._loaded.adapters
        return adapters.parameters(policy) if policy in adapters.pairs else dict(self._loaded.model.named_parameters())

    def _original(self) -> Any:
        policy = next(iter(self._policies.values()))
        return models.load_weights(self._loaded.source, policy, torch.float32).to(self._loaded.model.device)

    def _limit(self, request: Request, prompt: int) -> int:
        """The longest completion that fits the context."""
        room = self._loaded.context - prompt
        if room < 1:
            raise EngineError(
                f"Role {request.role!r}: its prompt has {prompt} tokens, and the model's context holds "
                f"{self._loaded.context} with the completion. Shorten what observe() returns, or take another model."
            )
        return min(request.sampling.max_tokens, room)

    def _sample(self, request: Request, prompt_ids: tuple[int, ...], completion: Completion) -> Sample:
        ended = completion.finish == "stop"
        text = self._loaded.template.decode(completion.token_ids[:-1] if ended else completion.token_ids)
        optimiser = self._optimisers.get(request.policy)
        return Sample(
            role=request.role,
            policy=request.policy,
            text=text,
            prompt_ids=prompt_ids,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            finish=completion.finish,
            version=optimiser.applied if optimiser else 0,
        )

    def _decode(self, jobs: Sequence[Job], stopped: Callable[[], bool]) -> None:
        most = CACHE_BYTES // column_bytes(self._loaded.model.config, self._dtype)
        for batch in by_memory(jobs, lambda job: len(job.prompt_ids) + job.limit, most):
            decode(self._loaded, batch, self._dtype, stopped)


def _head_learner(policy: LearnerConfig, critic: CriticConfig) -> LearnerConfig:
    """How heads learn: as their policy does, with the critic's own changes."""
    return LearnerConfig.model_validate({**policy.model_dump(), **critic.learner})


def _check_flex(learners: Mapping[str, LearnerConfig], device: torch.device) -> None:
    """Raise EngineError where FlexAttention is asked for and cannot be, or would not be used."""
    for name, learner in learners.items():
        if learner.flex_attention and device.type == "cpu":
            raise EngineError(
                f"Policy {name!r} has learner.flex_attention on, but its model is on the processor, where that has no "
                "backward pass; expected a graphics card. Leave it off here."
            )
        if learner.flex_attention and learner.pack == "padded":
            raise EngineError(
                f"Policy {name!r} has learner.flex_attention on, which is for tries, but learner.pack is padded; "
                "expected trie or auto. Change one of the two."
            )


def _check(policies: Mapping[str, PolicyConfig]) -> str | None:
    """The policy that is trained whole, if there is one. Raises EngineError where the policies cannot share a base."""
    whole = [name for name, policy in policies.items() if policy.lora is None and not policy.frozen]
    if whole and len(policies) > 1:
        raise EngineError(
            f"Policy {whole[0]!r} trains the whole model, so it cannot share it; got {', '.join(policies)} on one. "
            "Give each its own engine, or make it a lora or frozen."
        )
    idle = [name for name, policy in policies.items() if policy.lora is not None and policy.frozen]
    if idle:
        raise EngineError(
            f"Policy {idle[0]!r} is frozen and has a lora, which would stay at zero; expected one of the two. Remove "
            "lora to play the plain base."
        )
    if len({policy.dtype for policy in policies.values()}) != 1:
        raise EngineError(
            f"The policies {', '.join(policies)} share a base but differ in dtype. Set the same dtype for all of them."
        )
    return whole[0] if whole else None
