"""Refusals of who judges: critics, reward models, and algorithms that judge one agent only."""

from __future__ import annotations

from pathlib import Path

from cadre.env import Env
from cadre.errors import ConfigError
from cadre.experiment.experiment import Experiment


def algorithm_single_agent(experiment: Experiment) -> None:
    """Some algorithms train one agent only."""
    config, roles = experiment.config, experiment.env_spec.roles
    if config.algorithm.single_agent and len(roles) > 1:
        raise ConfigError(
            f"algorithm: {config.algorithm.name} trains a single agent, and {config.env} has the roles "
            f"{', '.join(roles)}; expected one. Use ippo with critic.level=token, or an environment with one role."
        )


def algorithm_reward_model(experiment: Experiment) -> None:
    """The folder of the reward model is there."""
    folder = experiment.plan.reward_model
    if folder is not None and not Path(folder).expanduser().is_dir():
        raise ConfigError(
            f"algorithm.reward_model: got {folder!r}, which is no folder; expected that of a trained reward "
            "model. Fix the path, or remove it to train on the environment's reward."
        )


def algorithm_critic_privileged(experiment: Experiment) -> None:
    """There is something that only critics see."""
    critic, env = experiment.plan.critic, experiment.env_spec.env_class
    if critic and critic.config.privileged and env.privileged is Env.privileged:
        raise ConfigError(
            f"algorithm.critic.privileged: {experiment.config.env} shows nothing to critics only; expected an "
            "environment with a privileged() of its own. Remove the option, or write the method."
        )


def algorithm_critic_policy(experiment: Experiment) -> None:
    """One critic for several policies needs a model of its own, and a critic's own policy a name of its own."""
    critic, policies = experiment.plan.critic, list(dict.fromkeys(experiment.trained_roles.values()))
    if critic is None:
        return
    if critic.config.policy is None:
        if critic.reads == "joint" and len(policies) > 1:
            raise ConfigError(
                f"algorithm.critic.policy: unset, with {len(policies)} policies that are trained "
                f"({', '.join(policies)}) and one critic for all of them; expected a model of "
                "its own for the critic. Set algorithm.critic.policy=seed or the model that you train."
            )
        return
    for name in experiment.heads:
        if name in experiment.config.team.policies:
            raise ConfigError(
                f"team.policies.{name}: the critic's own policy has that name; expected another. Rename the policy."
            )


def algorithm_critic_level(experiment: Experiment) -> None:
    """A critic of its own that judges tokens has the vocabulary of the model that sampled them."""
    critic = experiment.plan.critic
    if critic is None or critic.config.policy is None or critic.config.level != "token":
        return
    model_of_critic = critic.config.policy.model
    for role, policy in experiment.trained_roles.items():
        if (model := experiment.policies[policy].model) != model_of_critic:
            raise ConfigError(
                f"algorithm.critic.policy.model: got {model_of_critic!r} for a critic that reads the tokens of {role}, "
                f"which {model!r} sampled; expected the same model. Set it, or algorithm.critic.level=decision."
            )
