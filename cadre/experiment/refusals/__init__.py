"""What an experiment is refused for that only roles, policies, learners and the environment together show.

Each function is named after its setting and raises ConfigError. What a section can tell alone stands in it, in
`cadre.settings` and `cadre.algorithms`.
"""

from cadre.experiment.refusals import cluster, critics, environment, learning, programs, team, trackers, trees, vllm

# In the order in which they are asked; those that play an episode come last.
VLLM = (
    vllm.sampling_engine_of_remote,
    vllm.sampling_engine_of_vision,
    vllm.vllm,
    vllm.vllm_device,
    vllm.vllm_adapter,
    vllm.vllm_rank,
    vllm.sampling_engine,
)
EVALUATION = (
    environment.settings,
    environment.env,
    environment.team_roles,
    environment.evaluate_settings,
    *VLLM,
)
TRAINING = (
    environment.settings,
    environment.env,
    environment.team_roles,
    environment.evaluate_settings,
    trackers.trackers_names,
    *VLLM,
    cluster.cluster_environments,
    cluster.cluster_policies,
    cluster.cluster_vllm,
    environment.settings_of_tasks,
    environment.evaluate_tasks,
    trees.algorithm_k,
    trees.algorithm_k_size,
    programs.settings_replayable,
    critics.algorithm_single_agent,
    team.algorithm_policies,
    team.team_exchange_every,
    critics.algorithm_reward_model,
    critics.algorithm_critic_privileged,
    critics.algorithm_critic_policy,
    critics.algorithm_critic_level,
    learning.sampling,
    learning.learner_pack,
    learning.learner_ranks,
    learning.preference,
    learning.only_positive,
    learning.learner_epochs,
    learning.train_max_staleness,
    learning.credit_overlong_buffer,
    learning.credit_role_weights,
    learning.credit_without_std,
    learning.credit_tree_weight,
    learning.train_replacements,
    trees.algorithm_k_leaves,
)
