"""TRL's trainers as objects that have what the compared methods read and no more.

Their "models" are tables of log-probabilities, and what they generate has the lengths of the inputs.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

from bench.parity.shared import Inputs

LONGEST = 7  # the completion that dr_grpo divides by
ACCELERATOR = SimpleNamespace(
    device="cpu",
    num_processes=1,
    process_index=0,
    sync_gradients=False,
    gather=lambda value: value,
    reduce=lambda value, reduction: value,
)
ARGUMENTS = {
    "delta": None,
    "use_bias_correction_kl": False,
    "steps_per_generation": 1,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing_kwargs": None,
    "per_device_train_batch_size": None,
}
# What both trainers read of themselves; `num_iterations` 2 lets GRPO keep the log-probabilities before the update.
TRAINER: dict[str, Any] = {
    "accelerator": ACCELERATOR,
    "_tokenizer": SimpleNamespace(pad_token_id=0),
    "environment_factories": None,
    "environments": None,
    "tools": None,
    "pad_to_multiple_of": None,
    "mask_truncated_completions": False,
    "num_iterations": 2,
    "reward_weights": torch.ones(1),
    "reward_funcs": [None],
    "reward_func_names": ["score"],
    "multi_objective_aggregation": "sum_then_normalize",
    "scale_rewards": "group",
    "reward_clip_range": None,
    "normalize_advantages": False,
    "_pending_extra_logs": {},
    "_pending_metrics": {},
    "log_multimodal": False,
    "aux_loss_enabled": False,
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "importance_sampling_level": "token",
    "loss_type": "grpo",
    "beta": 0.0,
    "epsilon_low": 0.2,
    "epsilon_high": 0.28,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_clip_min": None,
    "vllm_importance_sampling_clip_max": 2.0,
    "current_gradient_accumulation_steps": 1,
    "max_completion_length": LONGEST,
    "_entropy_bonus_enabled": False,
    "use_adaptive_entropy": False,
    "entropy_coef": 0.3,
}


def model_of(logprobs: Tensor) -> Any:
    return SimpleNamespace(logprobs=logprobs, training=True, is_gradient_checkpointing=False)


def trainer_of(inputs: Inputs, kind: Any, **options: Any) -> Any:
    """A trainer whose policy is at `old`, and that generates and rewards as the inputs say; `rewards` are [B, parts] in
    place of the scores."""
    rewards = options.pop("rewards", inputs.scores.unsqueeze(1))
    arguments = {name: options.pop(name, value) for name, value in ARGUMENTS.items()}
    completion_ids = [[1] * length for length in inputs.lengths.tolist()]
    prompt_ids = [[1] for _ in completion_ids]
    sampled_logprobs = [row[: len(ids)].tolist() for row, ids in zip(inputs.sampled, completion_ids, strict=True)]
    generated: tuple[Any, ...] = (prompt_ids, completion_ids, None, completion_ids, sampled_logprobs, {}, None, None)
    if kind is RLOOTrainer:
        generated = prompt_ids, completion_ids, completion_ids
    return SimpleNamespace(
        **TRAINER | options,
        args=SimpleNamespace(**arguments),
        model=model_of(inputs.old),
        ref_model=model_of(inputs.reference),
        num_generations=inputs.group.count(0),
        _generate=lambda prompts: generated,
        _calculate_rewards=lambda *arguments: rewards,
        _get_per_token_logps_and_entropies=lambda model, *arguments, **named: (
            model.logprobs,
            model.logprobs.square(),
            None,
        ),
        _metrics={"train": defaultdict(list)},
        _logs={name: [] for name in ("prompt", "completion", "advantages")}
        | {name: defaultdict(list) for name in ("rewards", "extra")},
    )


def scored(inputs: Inputs, kind: Any = GRPOTrainer, **options: Any) -> dict[str, Any]:
    """Return the output of TRL's own scoring of the rewards, the input of its loss."""
    return kind._generate_and_score_completions(
        trainer_of(inputs, kind, **options), [{"prompt": "p"} for _ in inputs.group]
    )
