"""Refusals of what is learned from, and how: sampling, learners, credit and replacement tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from cadre.advantages.baselines import BASELINES, GroupReturns, of_the_group
from cadre.advantages.credit import Credit
from cadre.errors import ConfigError, nearest
from cadre.experiment.bases import engines_of
from cadre.experiment.experiment import Experiment
from cadre.rollout.tree_shape import Shape
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


# Returns that every sample of one episode shares, but for what its role earns by itself.
OF_WHOLE_EPISODES = ("episode", "passed")
# How deep a tree is looked at for decisions with more than one sample.
DEPTHS = 50


def algorithm_k_of_one(experiment: Experiment) -> None:
    """A sample that is compared with itself alone has no advantage: a baseline of the group needs two."""
    plan, config = experiment.plan, experiment.config
    if plan.critic is not None or not _has_one_sample_everywhere(plan.shape, list(experiment.trained_roles)):
        return
    name = config.algorithm.name
    if plan.preference is not None:
        raise ConfigError(
            f"algorithm.k: got 1 with {name}, which prefers one of the samples of a decision to another; expected 2 or "
            "more. Raise it."
        )
    credits = [plan.credit, *([plan.credit.second] if plan.credit.second else [])]
    if all(_compares_nothing(credit, config.train.tasks_per_step) for credit in credits):
        alone = " and train.tasks_per_step=1" if plan.credit.group == "role" else ""
        raise ConfigError(
            f"algorithm.k: got 1{alone} with {name}, whose baseline ({plan.credit.baseline}) is made of the samples of "
            "a group, here one each, so that every advantage is 0 and nothing is learned; expected 2 or more. Raise "
            "it, or use an algorithm with another baseline, such as spiral (a running mean) or ippo (a critic)."
        )


def _has_one_sample_everywhere(shape: Shape, roles: Sequence[str]) -> bool:
    """Whether a tree is one episode, with one sample at each of its decisions."""
    places = [(turn, depth) for depth in range(DEPTHS) for turn in range(depth + 1)]
    return shape.grower is None and all(shape.count(role, *place) == 1 for role in roles for place in places)


def _compares_nothing(credit: Credit, tasks: int) -> bool:
    """Whether groups of one episode a task have one sample each, or equal returns, under a baseline made of them."""
    shares_return = credit.returns in OF_WHOLE_EPISODES
    compares_one = {
        "node": True,
        "role_turn_task": True,
        "task": shares_return,
        "task_role": shares_return,
        "subtree": shares_return,
        "role": shares_return and tasks == 1,
    }
    if not compares_one.get(credit.group, False):
        return False
    baseline = load_function("algorithm.baseline", credit.baseline, BASELINES)
    alone = [list(baseline(GroupReturns((value,), (1.0,), (0.0,)))) == [value] for value in (1.0, 2.0)]
    return of_the_group(baseline) and all(alone)
