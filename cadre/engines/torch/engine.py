"""The torch engine: one base model that samples and trains one or more policies in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from cadre.config import LearnerConfig, LossConfig, PolicyConfig
from cadre.engines.torch import model as models
from cadre.engines.torch.decode import Completion, Job, by_memory, column_bytes, decode
from cadre.engines.torch.front import Front
from cadre.engines.torch.learner import Trainer
from cadre.errors import EngineError
from cadre.learn.optimiser import Optimiser
from cadre.team import Metrics
from cadre.types import Datum, Request, Sample

CACHE_BYTES = 2 << 30


class TorchEngine:
    """A `Sampler` and a `Learner` for policies on one base model. Lives as long as the run; `close` ends its thread.

    `model` is "seed", a folder or a hub name; `policies` names the weights that it holds, `learners` how those that are
    trained learn; `total_steps` is the length of the schedules. Raises EngineError where the model cannot be used.
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
    ) -> None:
        source = models.locate(model)
        name, policy = _only(policies)
        self._policies = dict(policies)
        self._dtype = models.DTYPES[policy.dtype]
        self._loaded = models.load(source, policy, torch.float32, models.pick_device(device))
        self.tokenizer = self._loaded.tokenizer
        self._optimisers: dict[str, Optimiser] = {}
        if not policy.frozen:
            self._optimisers[name] = Optimiser(dict(self._loaded.model.named_parameters()), learners[name], total_steps)
        self._trainer = Trainer(self._loaded.model, self._optimisers, loss, self._dtype, seed)
        self._front = Front(self._decode)
        # The weights must not move while a batch is being decoded.
        self._using = threading.Lock()

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
        completions = await self._front.submit(prompt_ids, request.count, limit, request.sampling, request.key)
        return [self._sample(request, prompt_ids, completion) for completion in completions]

    def update(self, data: Sequence[Datum]) -> dict[str, Metrics]:
        """One update of every policy that has data; figures by policy. Raises DivergedError."""
        with self._using:
            return self._trainer.update(data)

    def save(self, folder: Path) -> None:
        """A Hugging Face folder `folder/POLICY` for each trained policy, with its optimiser state in `optimiser/`."""
        for name, optimiser in self._optimisers.items():
            self._loaded.model.save_pretrained(folder / name)
            self.tokenizer.save_pretrained(folder / name)
            optimiser.save(folder / name / "optimiser")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, exactly."""
        for name, optimiser in self._optimisers.items():
            saved = models.load_weights(models.locate(folder / name), self._policies[name], torch.float32)
            with torch.no_grad():
                for weight, value in zip(self._loaded.model.parameters(), saved.parameters(), strict=True):
                    weight.copy_(value)
            optimiser.load(folder / name / "optimiser")

    def close(self) -> None:
        """End the decode thread."""
        self._front.close()

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
        with self._using:
            for batch in by_memory(jobs, lambda job: len(job.prompt_ids) + job.limit, most):
                decode(self._loaded, batch, self._dtype, stopped)


def _only(policies: Mapping[str, PolicyConfig]) -> tuple[str, PolicyConfig]:
    if len(policies) == 1:
        ((name, policy),) = policies.items()
        if policy.lora is None:
            return name, policy
    raise EngineError(
        f"The torch engine got the policies {', '.join(policies)}; expected exactly one full model. Give each role "
        "its own engine."
    )
