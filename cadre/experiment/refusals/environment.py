"""Refusals of the environment, its settings, and who plays in it."""

from __future__ import annotations

from cadre.envs import declarations
from cadre.errors import ConfigError, ContractError, nearest
from cadre.experiment.experiment import Experiment


def env(experiment: Experiment) -> None:
    """The class declares what an episode needs. Raises ContractError, unlike the others."""
    faults = declarations.faults(experiment.env_spec)
    if faults:
        more = f" ({len(faults) - 1} more: cadre check {experiment.config.env})" if len(faults) > 1 else ""
        raise ContractError(faults[0].paragraph + more)


def team_roles(experiment: Experiment) -> None:
    """Every role of the environment has a policy, and nobody else has one."""
    config, roles = experiment.config, experiment.env_spec.roles
    played = f"{config.env} under {config.algorithm.name}"
    missing = [role for role in roles if role not in config.team.roles]
    for role in config.team.roles:
        if role not in roles:
            remedy = f"Rename it to {missing[0]}" if len(missing) == 1 else "Rename it" if missing else "Remove it"
            raise ConfigError(
                f"team.roles.{role}: {played} has no such role; expected {', '.join(roles)}. "
                f"{remedy}.{nearest(role, missing or roles)}"
            )
    for role in missing:
        raise ConfigError(
            f"team.roles: role {role!r} of {played} has no policy; expected a policy for each of "
            f"{', '.join(roles)}. Add `{role}: {next(iter(config.team.policies))}`."
        )


def evaluate_settings(experiment: Experiment) -> None:
    """What is changed on held-out tasks leaves the roles and the training data as they are."""
    changes, roles, others = experiment.config.evaluate.settings, experiment.env_spec.roles, experiment.held_out.roles
    for name in ("train", "data", "held_out"):
        if name in changes:
            raise ConfigError(
                f"evaluate.settings.{name}: got {changes[name]!r}, which would change what is trained on; expected "
                "changes to held-out tasks alone. Name another set with evaluate.settings.test."
            )
    if others != roles:
        raise ConfigError(
            f"evaluate.settings: got {changes}, with which {experiment.config.env} has the roles {', '.join(others)}; "
            f"expected those that are trained, {', '.join(roles)}. Remove what changes them."
        )


def settings(experiment: Experiment) -> None:
    """Every setting without a default is given."""
    if missing := experiment.env_spec.missing:
        raise ConfigError(
            f"settings.{missing[0]}: missing, and {experiment.config.env} has no default for it; expected a value. "
            "Add it under settings, or give it a default in the environment's __init__."
        )


def settings_of_tasks(experiment: Experiment) -> None:
    """A folder that is not there, or settings that exclude each other, show when the training split is asked for."""
    config = experiment.config
    if not len(experiment.env_spec.tasks("train")):
        raise ConfigError(
            f"{config.env}: got no training tasks; expected at least one. Make tasks('train') return some, or change "
            "its settings."
        )


def evaluate_tasks(experiment: Experiment) -> None:
    """There are held-out tasks where some are to be played."""
    wanted, env = experiment.config.evaluate, experiment.config.env
    if wanted.tasks and (count := len(experiment.held_out.tasks("test"))) <= wanted.first:
        raise ConfigError(
            f"evaluate.tasks: got {wanted.tasks} from number {wanted.first} on, but {env} has {count} held-out tasks; "
            "expected more. Make tasks('test') return some, start earlier (evaluate.first), or set evaluate.tasks=0 to "
            "train without measuring."
        )
