"""Refusals of what is learned from, and how: sampling, learners, credit and replacement tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from cadre.advantages.baselines import BASELINES, of_the_group
from cadre.errors import ConfigError, nearest
from cadre.experiment.bases import engines_of
from cadre.experiment.experiment import Experiment
from cadre.settings.user_code import load_function
from cadre.settings.vision import VISION_MODELS, model_type


def sampling(experiment: Experiment) -> None:
    """What is trained is drawn from the full softmax."""
    for role, policy in experiment.trained_roles.items():
        drawn = experiment.sampling[role]
        if drawn.top_p < 1.0 or drawn.top_k > 0:
            raise ConfigError(
                f"sampling: got top_p={drawn.top_p}, top_k={drawn.top_k} for policy {policy}, which is trained; "
                "expected top_p=1 and top_k=0, since the loss uses the full softmax and its ratio would be wrong. "
                "Remove both, or freeze the policy."
            )


def learner_ranks(experiment: Experiment) -> None:
    """The policies of one model are trained by as many ranks each, and every rank may have a card of its own."""
    for names in engines_of(experiment):
        ranks = {name: experiment.learners[name].ranks for name in names if name in experiment.learners}
        if len(set(ranks.values())) > 1:
            told = ", ".join(f"{name}: {count}" for name, count in ranks.items())
            raise ConfigError(
                f"learner.ranks: got {told} for policies on one model, which are trained in one forward; expected the "
                "same for all of them. Set learner.ranks for the experiment."
            )
        device = experiment.policies[names[0]].device
        if max(ranks.values(), default=1) > 1 and ":" in device:
            raise ConfigError(
                f"team.policies.{names[0]}.device: got {device} with learner.ranks={max(ranks.values())}, of which "
                "each takes a card of its own; expected cuda, cpu or auto. Remove the number, or set learner.ranks=1."
            )


def learner_pack(experiment: Experiment) -> None:
    """Sequences with pictures are trained padded, by one rank: in a prefix tree equal ids with other pictures would be
    one node, and places in a picture are no depths."""
    for name in experiment.learners:
        refuse_of_vision(experiment, name, partial(model_type, Path(experiment.models[name])))


def refuse_of_vision(experiment: Experiment, name: str, find: Callable[[], str]) -> None:
    """Refuse what the learner of a policy cannot do if its model reads pictures; `find` says of what type the model is,
    and is asked only where that matters."""
    learner = experiment.learners[name]
    if learner.pack == "prefix_tree" or learner.flex_attention:
        setting = "learner.flex_attention=true" if learner.flex_attention else "learner.pack=prefix_tree"
        got = f"{setting}: got it"
        why = (
            ": these take places in two directions, and stand for other things under equal ids, which a prefix tree "
            "cannot tell apart; expected padded or auto, and no flex_attention. Set learner.pack=padded."
        )
    elif learner.ranks > 1:
        got = f"learner.ranks: got {learner.ranks}"
        why = "; expected 1, as ranks share models of text alone. Remove it."
    else:
        return
    if (kind := find()) in VISION_MODELS:
        raise ConfigError(f"{got} for policy {name}, whose model of type {kind} reads pictures{why}")


def preference(experiment: Experiment) -> None:
    """Pairs have a distance of their own from the reference, and know neither length nor groups."""
    plan = experiment.plan
    if plan.preference is None:
        return
    ignored = "which learns from pairs and would ignore it"
    stale = "whose margins are of the policies that sampled, and whose gradient is that of its loss at these alone"
    options: dict[str, tuple[object, object, str]] = {
        "algorithm.kl": (plan.kl, 0.0, ignored),
        "credit.overlong_buffer": (plan.selection.overlong_buffer, 0, ignored),
        "credit.without_std": (plan.selection.without_std, "keep", ignored),
        "train.max_staleness": (experiment.config.train.max_staleness, 0, stale),
        "loss.ratio": (plan.loss.ratio, "none", stale),
        "loss.correction": (plan.loss.correction, "none", stale),
    }
    for option, (got, expected, why) in options.items():
        if got != expected:
            name = experiment.config.algorithm.name
            raise ConfigError(f"{option}: got {got} with {name}, {why}; expected {expected}. Remove it.")


def only_positive(experiment: Experiment) -> None:
    """What failed is left out by its reward, which a penalty would turn around."""
    if experiment.plan.only_positive and experiment.plan.kl:
        raise ConfigError(
            f"algorithm.kl: got {experiment.plan.kl:g} with {experiment.config.algorithm.name}, which learns from what "
            "passed alone, and a penalty would change what that is; expected 0. Set loss.kl in its place."
        )
    if experiment.plan.only_positive and (buffer := experiment.plan.selection.overlong_buffer):
        raise ConfigError(
            f"credit.overlong_buffer: got {buffer} with {experiment.config.algorithm.name}, which learns from what "
            "passed alone, and a penalty would change what that is; expected 0. Remove it."
        )


def learner_epochs(experiment: Experiment) -> None:
    """Without a ratio nothing corrects for data that the first optimiser step has made stale."""
    for name in dict.fromkeys(experiment.trained_roles.values()):
        learner = experiment.learners[name]
        if experiment.plan.loss.ratio == "none" and learner.epochs * learner.minibatches > 1:
            raise ConfigError(
                f"learner: got {learner.epochs} epochs of {learner.minibatches} minibatches for policy {name} under a "
                "loss without a ratio, whose data would be stale after the first optimiser step; expected 1 of 1. "
                "Lower them or set loss.ratio=token."
            )


def train_max_staleness(experiment: Experiment) -> None:
    """Without a ratio or a correction nothing corrects for samples of earlier weights."""
    loss, most = experiment.plan.loss, experiment.config.train.max_staleness
    if most and loss.ratio == "none" and loss.correction == "none":
        raise ConfigError(
            f"train.max_staleness: got {most} under a loss without a ratio or a correction, which takes samples of "
            "earlier weights for samples of its own; expected 0. Add loss.correction=truncate, or lower it."
        )


def credit_overlong_buffer(experiment: Experiment) -> None:
    """A penalty does not begin before the first token."""
    buffer = experiment.config.credit.overlong_buffer
    for role in experiment.trained_roles:
        if buffer > (most := experiment.sampling[role].max_tokens):
            raise ConfigError(
                f"credit.overlong_buffer: got {buffer} tokens, and {role} says at most {most}; "
                "expected no more than that. Lower it or raise sampling.max_tokens."
            )


def credit_role_weights(experiment: Experiment) -> None:
    """Roles that have a weight are there, and are trained."""
    roles = experiment.config.team.roles
    for role, weight in experiment.config.credit.role_weights.items():
        if role not in roles:
            raise ConfigError(
                f"credit.role_weights.{role}: there is no such role; expected one of {', '.join(roles)}. "
                f"Remove it.{nearest(role, roles)}"
            )
        if role not in experiment.trained_roles:
            raise ConfigError(
                f"credit.role_weights.{role}: got {weight}, and the policy that plays {role} is frozen; expected a "
                "role that is trained. Remove it."
            )


def credit_without_std(experiment: Experiment) -> None:
    """What is dropped has no gradient."""
    config, credit = experiment.config, experiment.plan.credit
    if config.credit.without_std == "keep":
        return
    for baseline in (credit.baseline, *([credit.second.baseline] if credit.second else [])):
        if not of_the_group(load_function("algorithm.baseline", baseline, BASELINES)):
            known = ", ".join(name for name, function in BASELINES.items() if of_the_group(function))
            raise ConfigError(
                f"credit.without_std: got drop with the baseline {baseline} of {config.algorithm.name}, under which a "
                f"group without std has a gradient; expected keep. Remove it, or take a baseline made of the group: "
                f"{known}."
            )


def credit_tree_weight(experiment: Experiment) -> None:
    """What was left behind is of no episode."""
    shape = experiment.plan.shape
    if experiment.config.credit.tree_weight == "by_episode" and not shape.plays_all:
        raise ConfigError(
            f"credit.tree_weight: got by_episode with shape {shape.name}, where siblings that were left behind are of "
            "no whole episode, and would weigh more than the one that went on; expected by_decision. Set that, or a "
            "shape that plays every branch out."
        )


def train_replacements(experiment: Experiment) -> None:
    """Nothing is replaced that is not dropped."""
    rounds = experiment.config.train.replacements
    if rounds and experiment.config.credit.without_std == "keep":
        raise ConfigError(
            f"train.replacements: got {rounds} with credit.without_std=keep, which leaves nothing to replace; "
            "expected 0. Set credit.without_std=drop, or remove train.replacements."
        )
