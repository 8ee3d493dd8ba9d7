"""Refusals of which policies play: those that an algorithm asks for, and policies that exchange their roles."""

from __future__ import annotations

from cadre.errors import ConfigError
from cadre.experiment.experiment import Experiment


def algorithm_policies(experiment: Experiment) -> None:
    """Some algorithms are about one model for all roles, a model a role, or one trained role beside frozen ones."""
    name, kind = experiment.config.algorithm.name, experiment.config.algorithm.policies
    trained = experiment.trained_roles
    policies = set(trained.values())
    wrong = {
        "shared": len(policies) > 1,
        "one_role": len(trained) > 1,
        "by_role": len(policies) < len(trained),
    }
    if wrong.get(kind):
        raise ConfigError(f"algorithm: {name} {EXPECTED[kind]}; got {_shown(trained)}. {ADVICE[kind]}")


EXPECTED = {
    "shared": "trains one policy that plays all roles which are trained",
    "one_role": "trains one role and leaves the others as they are",
    "by_role": "trains a policy of its own for each role",
}
ADVICE = {
    "shared": "Let one policy play them, or use grpo.",
    "one_role": "Set frozen: true for the policies of the others, or use grpo_by_role.",
    "by_role": "Give each role its policy, or use grpo_by_role.",
}


def team_exchange_every(experiment: Experiment) -> None:
    """Only policies that are trained alike and are several have something to exchange."""
    team = experiment.config.team
    if not team.exchange_every:
        return
    wrong = {
        "one policy, which plays all roles": len(set(team.roles.values())) < 2,
        "a policy that is not trained": set(team.roles.values()) != set(experiment.learners),
        "a critic, whose heads belong to roles": experiment.plan.critic is not None,
        "policies that are sampled differently": len(set(experiment.sampling.values())) > 1,
    }
    for what, there in wrong.items():
        if there:
            raise ConfigError(
                f"team.exchange_every: got {team.exchange_every} with {what}; expected several policies, all of them "
                "trained and sampled alike, under an algorithm without a critic. Set it to 0, or change the team."
            )


def somebody_is_trained(experiment: Experiment) -> None:
    """A training changes some weights."""
    trained, weights = experiment.trained_roles, experiment.config.credit.role_weights
    if not trained:
        raise ConfigError(
            f"team.policies: got {', '.join(experiment.policies)} frozen, so that nobody is trained; expected one "
            "policy at least that learns. Remove its frozen: true, or use cadre eval, which plays the team as it is."
        )
    if all(weights.get(role) == 0.0 for role in trained):
        raise ConfigError(
            f"credit.role_weights: got 0 for {', '.join(trained)}, so that nobody is trained; expected a weight above "
            "0 for one role at least. Raise one, or use cadre eval, which plays the team as it is."
        )


def _shown(trained: dict[str, str]) -> str:
    return ", ".join(f"{role}: {policy}" for role, policy in trained.items()) or "none that is trained"
