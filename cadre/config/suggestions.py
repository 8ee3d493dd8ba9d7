"""What a user probably meant by a setting that does not exist: a sentence for the end of an error message."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cadre.errors import nearest

# Our settings, and their names in TRL, verl, OpenRLHF and transformers. They need not have the same units or defaults.
FOREIGN_NAMES: Mapping[str, str] = {
    "algorithm.k": "num_generations group_size rollout_n n n_samples_per_prompt",
    "evaluate.every": "eval_steps test_freq",
    "kl.reference": "ref_model",
    "learner.epochs": "num_iterations ppo_epochs max_epochs",
    "learner.learning_rate": "lr actor_learning_rate",
    "learner.max_grad_norm": "grad_clip max_norm",
    "learner.minibatch_size": "ppo_mini_batch_size mini_batch_size",
    "learner.schedule": "lr_scheduler lr_scheduler_type",
    "learner.tokens_per_microbatch": "per_device_train_batch_size micro_train_batch_size ppo_micro_batch_size_per_gpu "
    "micro_batch_size gradient_accumulation_steps",
    "learner.warmup_steps": "warmup_ratio lr_warmup_steps",
    "loss.aggregate": "loss_type loss_agg_mode",
    "loss.clip_high": "epsilon_high clip_ratio_high eps_clip_high",
    "loss.clip_low": "epsilon clip_ratio clip_ratio_low eps_clip eps_clip_low cliprange",
    "loss.entropy": "entropy_coeff entropy_coef entropy_loss_coef",
    "loss.kl": "beta kl_coef kl_loss_coef init_kl_coef",
    "loss.ratio": "importance_sampling_level",
    "sampling.max_tokens": "max_tokens max_completion_length max_response_length max_new_tokens generate_max_len",
    "settings.reward": "reward_funcs reward_fn custom_reward_function",
    "team": "model model_name model_name_or_path pretrain",
    "trackers.names": "report_to logger",
    "train.checkpoint_every": "save_steps save_freq",
    "train.steps": "max_steps total_training_steps num_train_epochs total_epochs num_episodes",
    "train.tasks_per_step": "train_batch_size rollout_batch_size batch_size",
    "vllm.context": "max_model_len vllm_max_model_length",
}
OUR_NAMES = {name: setting for setting, names in FOREIGN_NAMES.items() for name in names.split()}


def suggest(name: str, names: Collection[str], sections: Mapping[str, Collection[str]]) -> str:
    """Return " Did you mean SETTING?" for an unknown `name` in a place that takes `names`, or "".

    In this order: the setting that another library calls so; the setting of that name in another of the `sections`
    (`train`, or the only one that has it); the nearest of `names`.
    """
    homes = [section for section, keys in sections.items() if name in keys]
    intended = OUR_NAMES.get(name)
    if intended is None and homes and ("train" in homes or len(homes) == 1):
        intended = f"{'train' if 'train' in homes else homes[0]}.{name}"
    if intended is None:
        return nearest(name, names)
    section, _, leaf = intended.rpartition(".")
    is_here = leaf in names and set(names) <= set(sections.get(section, ()))
    return f" Did you mean {leaf if is_here else intended}?"
