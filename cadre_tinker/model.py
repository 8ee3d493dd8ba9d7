"""What the server computes: one base model, with an adapter of each training run and of each snapshot to sample from.

All of it but `sample` runs in the engine's thread, one call after the other. A sampler's adapter never changes, so that
samples are those of the weights that were saved. Letters: T tokens of a sequence, K targets a token.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cadre import random_keys
from cadre.engines.factory import TorchSpec
from cadre.engines.text.model import Completion
from cadre.engines.text.tokens import StopStrings
from cadre.engines.torch import storage
from cadre.engines.torch.forward import MicroBatchRunner
from cadre.engines.torch.logprobs import LogprobQuery, check_projection, compute_token_logprobs
from cadre.engines.torch.lora import linear_layers
from cadre.engines.torch.model import autocast
from cadre.engines.torch.prefix_tree import TreeForm, compute_states
from cadre.engines.torch.request_batcher import GenerationRequest
from cadre.errors import EngineError
from cadre.file_limits import read_json
from cadre.files import publish_atomically
from cadre.learn import tensor_files
from cadre.learn.loss import ValueHeads
from cadre.rollout.batching import gather
from cadre.settings import LearnerConfig, LoraConfig, PolicyConfig
from cadre.types import Sampling, TrainingSequence
from cadre_tinker.losses import check_datum, find_loss
from cadre_tinker.requests import AdamParams
from cadre_tinker.wire import Datum, TrainingRequest

BASE = "base"  # the policy without an adapter
ALPHA = 32.0  # Tinker's, of every rank
MAX_RANK = 256
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class TrainingRun:
    """A client's adapter and its optimiser, and whether there is a gradient since its last step."""

    id: str
    lora: LoraConfig
    adam: torch.optim.AdamW
    has_gradient: bool = False


class TinkerModel:
    """The model and its adapters. Lives as long as the server. Raises EngineError if the model cannot be used.

    `names` are what clients may call it; the first is what it calls itself. Checkpoints lie below `state`.
    """

    def __init__(self, policy: PolicyConfig, names: Sequence[str], state: Path) -> None:
        self.engine = TorchSpec(policy.model, {BASE: policy}, seed=0, is_trained=True).make()
        self.loaded, self.state = self.engine.loaded, state
        self.names = tuple(dict.fromkeys([*names, policy.model, self.loaded.source]))
        heads = ValueHeads({}, 0, torch.device("cpu"))
        learners = [LearnerConfig(pack="padded")]
        self._runner = self.engine.work(MicroBatchRunner, self.loaded, self.engine.dtype, heads, learners)
        self.engine.work(check_projection, self.loaded.model)
        embeddings = (self.loaded.model.get_input_embeddings(), self.loaded.model.get_output_embeddings())
        self.tokens = min(int(embedding.weight.shape[0]) for embedding in embeddings)

    # ---- Training runs

    def select_lora(self, rank: int, attention: bool, mlp: bool) -> LoraConfig:
        """Return the adapter that a client asks for. The vocabulary projection has none here."""
        layers = [name for name in linear_layers(self.loaded.model) if (attention if "attn" in name else mlp)]
        if not layers or not 0 < rank <= MAX_RANK:
            got = f"rank {rank}, train_attn {attention} and train_mlp {mlp}"
            raise EngineError(
                f"lora_config: got {got}; expected a rank from 1 to {MAX_RANK} and layers of attention or an MLP, as "
                "the vocabulary projection takes no adapter here. Set train_attn or train_mlp."
            )
        targets = tuple(sorted({name.rpartition(".")[2] for name in layers}))
        return LoraConfig(rank=rank, alpha=ALPHA, targets="all-linear" if attention and mlp else targets)

    def create_run(self, run_id: str, lora: LoraConfig, seed: int) -> TrainingRun:
        """Return a run with a fresh adapter."""
        self._add_adapter(run_id, lora, seed)
        return TrainingRun(run_id, lora, torch.optim.AdamW(self._parameters(run_id)))

    def load_run(self, run_id: str, folder: Path, with_moments: bool) -> TrainingRun:
        """Return a run with saved weights."""
        run = self.create_run(run_id, self.read_lora(folder), seed=0)
        self.load(run_id, folder, run if with_moments else None)
        return run

    def _add_adapter(self, policy: str, lora: LoraConfig, seed: int) -> None:
        """Hold one more adapter on the base, drawn by the seed alone, under a name that no other has had."""
        self.loaded.adapters.add(self.loaded.model, policy, lora, (seed, ""))
        self.engine.versions[policy] = 0

    def remove_adapter(self, policy: str) -> None:
        """Forget an adapter. The hooks of its layers stay, and add nothing."""
        del self.loaded.adapters.configs[policy], self.loaded.adapters.pairs[policy], self.engine.versions[policy]

    def _parameters(self, policy: str) -> list[nn.Parameter]:
        return list(self.loaded.adapters.parameters(policy).values())

    def forward_backward(self, run: TrainingRun, request: TrainingRequest) -> tuple[list[Tensor], dict[str, float]]:
        """Return the log-probabilities of every datum's targets and the sum of the loss; add its gradient to the run's
        unless the request is for a forward pass alone. Raises EngineError for bad data, before anything is computed,
        and for a loss that is not finite."""
        loss, config = find_loss(request.loss, request.config)
        for datum in request.data:
            check_datum(datum, request.loss, loss, self.tokens, self.loaded.context)
        outputs: dict[int, Tensor] = {}
        total = 0.0
        try:
            with torch.set_grad_enabled(not request.forward_only):
                for index, logprobs in self._forward([(run.id, datum) for datum in request.data]):
                    losses = []
                    for number, row in zip(index, logprobs, strict=True):
                        inputs = {name: value.to(row.device) for name, value in request.data[number].inputs.items()}
                        losses.append(loss.function(row, inputs, config).sum())
                        outputs[number] = row.detach().cpu()
                    part = torch.stack(losses).sum()
                    total += float(part.detach())
                    if part.requires_grad:
                        part.backward()  # type: ignore[no-untyped-call]
                        run.has_gradient = True
            if not math.isfinite(total):
                raise EngineError(
                    f"loss_fn {request.loss}: the loss is {total}; expected a finite number. The gradient since the "
                    "last optim_step is cleared. Check logprobs and advantages, or go on from an earlier checkpoint."
                )
        except BaseException:  # a part of the gradient would be counted twice when the client sends the data again
            self._clear_gradient(run)
            raise
        return [outputs[number] for number in range(len(request.data))], {"loss:sum": total}

    def _clear_gradient(self, run: TrainingRun) -> None:
        run.adam.zero_grad()
        run.has_gradient = False

    def _forward(self, data: Sequence[tuple[str, Datum]]) -> Iterator[tuple[tuple[int, ...], list[Tensor]]]:
        """Yield the indices of a micro-batch of (policy, datum), and the log-probabilities of each one's targets."""
        sequences = []
        for policy, datum in data:
            zeros = (0.0,) * len(datum.tokens)
            ids, mask = tuple(datum.tokens.tolist()), (True,) * len(zeros)
            sequences.append(TrainingSequence(policy, "", ids, mask, zeros, zeros, version=0))
        for micro in self._runner.split(sequences):
            batch = self._runner.collate(micro)
            with self._runner.use_adapters(batch), autocast(self.loaded.model, self.engine.dtype):
                states, indices = compute_states(self.loaded.model, batch, TreeForm())
                targets = [data[index][1].inputs["target_tokens"] for index in micro.indices]
                predicting = [
                    row[: len(target)].repeat_interleave(target.numel() // len(target))
                    for row, target in zip(indices, targets, strict=True)
                ]
                tokens = torch.cat([target.flatten() for target in targets])
                query = LogprobQuery.make(torch.cat(predicting), torch.ones(len(tokens)), tokens)
                logprobs, _ = compute_token_logprobs(self.loaded.model, states, query)
                parts = torch.split(logprobs, [target.numel() for target in targets])
                yield micro.indices, [part.view(target.shape) for part, target in zip(parts, targets, strict=True)]

    def optim_step(self, run: TrainingRun, params: AdamParams) -> dict[str, float]:
        """Make a step of AdamW with the gradient so far, and clear it. Returns its norm before clipping. Raises
        EngineError, and moves nothing, if there is none, or it is not finite."""
        if not run.has_gradient:
            raise EngineError("optim_step: got no forward_backward since the last one; expected one. Call it before.")
        norm = float(nn.utils.clip_grad_norm_(self._parameters(run.id), params.grad_clip_norm or math.inf))
        if math.isfinite(norm):
            betas = (params.beta1, params.beta2)
            settings = {"lr": params.learning_rate, "betas": betas, "eps": params.eps}
            run.adam.param_groups[0].update(settings, weight_decay=params.weight_decay)
            run.adam.step()
        self._clear_gradient(run)
        if not math.isfinite(norm):
            raise EngineError(
                f"optim_step: the norm of the gradient is {norm}; expected a finite number. Nothing moved, and the "
                "gradient is cleared. Go on from an earlier checkpoint with a lower learning rate."
            )
        return {"unclipped_grad_l2:mean": norm}

    # ---- Samplers

    def take_snapshot(self, run: TrainingRun, sampler: str) -> None:
        """Hold the run's weights as they are under the name of a sampler."""
        self._add_adapter(sampler, run.lora, 0)
        adapters = self.loaded.adapters
        storage.copy_tensors(adapters.parameters(run.id), adapters.parameters(sampler))

    def open_sampler(self, sampler: str, folder: Path) -> None:
        """Hold saved weights under the name of a sampler."""
        self._add_adapter(sampler, self.read_lora(folder), 0)
        self.load(sampler, folder)

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise EngineError if nothing can follow a prompt."""
        if not 0 < len(prompt) < self.loaded.context or not 0 <= min(prompt) <= max(prompt) < self.tokens:
            raise EngineError(
                f"prompt: got {len(prompt)} tokens; expected 1 to {self.loaded.context - 1} ids from 0 to "
                f"{self.tokens - 1}. Shorten it, or use the model's own tokenizer."
            )

    def prompt_logprobs(self, policy: str, prompt: Sequence[int]) -> list[float]:
        """Return the log-probabilities of a prompt's tokens at temperature 1, NaN for the first."""
        tokens = torch.tensor(prompt)
        datum = Datum(tokens[:-1], {"target_tokens": tokens[1:]})
        with torch.inference_mode():
            parts = [part for _, parts in self._forward([(policy, datum)] if len(prompt) > 1 else []) for part in parts]
        return [math.nan, *(number for part in parts for number in part.tolist())]

    async def sample(
        self,
        sampler: str,
        prompt: Sequence[int],
        count: int,
        sampling: Sampling,
        stops: Sequence[int],
        key: int,
    ) -> list[Completion]:
        """Return completions with their log-probabilities in the distribution that they are drawn from.

        They end at one of the ids `stops`, at one of the model's own, and at a text of `sampling.stop`, all of which
        they include. Requests that are made at once, within `gather`, are drawn in one batch.
        """
        text_ends = StopStrings(sampling.stop, self.loaded.templates[BASE].decode) if sampling.stop else None

        def ends(ids: Sequence[int]) -> bool:
            return ids[-1] in stops or (text_ends is not None and text_ends(ids))

        requests = [
            GenerationRequest(
                policy=sampler,
                prompt_ids=tuple(prompt),
                count=1,  # each by itself, so that batches fit into memory
                limit=min(sampling.max_tokens, self.loaded.context - len(prompt)),
                sampling=sampling,
                key=random_keys.fold(key, number),
                ends=ends if stops or sampling.stop else None,
            )
            for number in range(count)
        ]
        return [completion for (completion,) in await gather(*map(self.engine.batcher.submit, requests))]

    # ---- Files

    def save(self, run: TrainingRun, folder: Path, with_moments: bool, overwrite: bool) -> None:
        """Write a PEFT folder, with the optimiser's moments if they are asked for. Raises RunError if it is there."""
        for parent in (folder.parent.parent, folder.parent):
            parent.mkdir(mode=0o700, exist_ok=True)
        with publish_atomically(folder) as (built,):
            storage.write_adapter(self.loaded.adapters.parameters(run.id), run.lora, self.loaded.source, built)
            if with_moments:
                tensor_files.write(self._moments(run), built, "optimizer")
            if overwrite:
                shutil.rmtree(folder, ignore_errors=True)

    def _moments(self, run: TrainingRun) -> dict[str, Tensor]:
        """Return the moments and the count of steps of every weight, in the optimiser itself; zeros before a step."""
        moments: dict[str, Tensor] = {}
        for name, weight in self.loaded.adapters.parameters(run.id).items():
            fresh = {"step": torch.zeros(())} | {kind: torch.zeros_like(weight) for kind in MOMENTS[:2]}
            state = run.adam.state[weight] = run.adam.state[weight] or fresh
            moments |= {f"{name}.{kind}": state[kind] for kind in MOMENTS}
        return moments

    def read_lora(self, folder: Path) -> LoraConfig:
        """Return the adapter that a checkpoint describes. Raises EngineError if it is another model's, or no
        checkpoint."""
        try:
            config: dict[str, Any] = read_json(folder / "adapter_config.json")
            rank, alpha, base = config["r"], config["lora_alpha"], config["base_model_name_or_path"]
            lora = LoraConfig(rank=rank, alpha=alpha, targets=tuple(config["target_modules"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{folder.name}: got no checkpoint here ({error}); expected one. Fix the path.") from None
        if base not in self.names:
            raise EngineError(
                f"{folder.name}: got weights of {base}, and this server has {self.names[0]}; expected those of its own "
                "model. Serve that one; if it was moved or renamed, start the server with its former name as --name."
            )
        return lora

    def load(self, policy: str, folder: Path, run: TrainingRun | None = None) -> None:
        """Read weights into an adapter, and with `run` the moments into its optimiser. Raises EngineError if they do
        not fit."""
        storage.load_adapter(self.loaded.adapters.parameters(policy), folder)
        if run is not None:
            tensor_files.read(self._moments(run), folder, "optimizer")
