"""The published algorithms as points in the four axes: what the configuration names becomes a shape and a credit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cadre import shape as shapes
from cadre.algorithms import (
    ActorCritic,
    Algorithm,
    AtGrpo,
    Custom,
    DrMas,
    Grpo,
    Ippo,
    Joint,
    Magrpo,
    MagrpoCentral,
    Mappo,
    MaReinforce,
    MaRemax,
    MaRloo,
    Rlhf,
    Spiral,
)
from cadre.algorithms import Tree as Family
from cadre.config import Config, nearest
from cadre.credit import Baseline, Credit
from cadre.critic import Critic, Reads, heads
from cadre.errors import ConfigError
from cadre.sections import CreditConfig, LossConfig, PolicyConfig
from cadre.shape import Shape

# PPO's clipped ratio over the tokens of the whole batch.
CLIPPED = LossConfig()
# The policy gradient as MAGRPO writes it (arXiv 2508.04652, eq. 5): the sum over a completion's tokens, no ratio.
POLICY_GRADIENT = LossConfig(ratio="none", aggregate="sequence_sum")

# Every sample is learned from, whatever its role or length.
ALL = CreditConfig()
# The baselines under which a group without spread has no gradient.
OF_THE_GROUP = ("mean", "leave_one_out", "max")


@dataclass(frozen=True)
class Plan:
    """How an experiment samples, what its samples are worth, and how that becomes a gradient.

    With a `critic` the samples are worth what they earned beyond its values, else what `credit` makes of their groups;
    `kl` weighs the penalty k1 in the reward; `reward_model` is the folder of the model that pays in place of the task.
    `selection` says which samples are learned from, and how much.
    """

    shape: Shape
    credit: Credit
    loss: LossConfig = CLIPPED
    critic: Critic | None = None
    kl: float = 0.0
    reward_model: str | None = None
    selection: CreditConfig = ALL


def at_grpo(chosen: AtGrpo) -> Plan:
    """Siblings at every decision, `(r - mean) / std` among them, the argmax goes on (arXiv 2510.11062, algorithm 1)."""
    return Plan(shapes.greedy(chosen.k, chosen.carry), Credit("step", "node", "mean", chosen.scale, chosen.alpha))


def grpo(chosen: Grpo) -> Plan:
    """k whole episodes, `(R - mean) / std` over them by task and role (arXiv 2402.03300, equation 3)."""
    return Plan(shapes.independent(chosen.k), Credit("episode", "task_role", "mean", chosen.scale, chosen.alpha))


def family(baseline: Baseline) -> Callable[[Family], Plan]:
    """The MAGRPO family: the same tree, return and loss; only the baseline differs (arXiv 2508.04652)."""

    def preset(chosen: Family) -> Plan:
        credit = Credit("reward_to_go", "node", baseline, "none", chosen.alpha, chosen.gamma, depths_alike=True)
        joint = chosen.joint if isinstance(chosen, Joint) else "aligned"
        return Plan(shapes.full(chosen.k, joint, chosen.stop_at), credit, POLICY_GRADIENT)

    return preset


def dr_mas(chosen: DrMas) -> Plan:
    """`(R - mean_role) / std_role` over all decisions of a role on a task (arXiv 2602.08847, section 4)."""
    credit = Credit("episode", "task_role", "mean", "std", chosen.alpha, count="decisions")
    return Plan(shapes.independent(chosen.k), credit)


def spiral(chosen: Spiral) -> Plan:
    """`R - b_role` with an exponential running mean b (arXiv 2506.24119, section 3)."""
    credit = Credit("episode", "role", "running", "none", chosen.alpha, decay=chosen.decay)
    return Plan(shapes.independent(chosen.k), credit, LossConfig(ratio="none", aggregate="sequence_mean"))


def actor_critic(reads: Reads) -> Callable[[ActorCritic], Plan]:
    """k whole episodes, advantages from value heads (arXiv 1506.02438, equation 16), PPO's clipped ratio."""

    def preset(chosen: ActorCritic) -> Plan:
        _check_estimate(chosen)
        rule = Critic(
            reads,
            chosen.critic,
            gae_lambda=1.0 if chosen.estimate == "reward_to_go" else chosen.gae_lambda,
            token_gamma=chosen.token_gamma,
            whiten=chosen.whiten,
        )
        credit = Credit("reward_to_go", "role", "critic", "none", chosen.alpha, chosen.gamma)
        return Plan(shapes.independent(chosen.k), credit, critic=rule)

    return preset


def rlhf(chosen: Rlhf) -> Plan:
    """PPO on one agent: the score on the last token, a KL penalty on every token (arXiv 2203.02155, equation 2)."""
    return replace(actor_critic("own")(chosen), reward_model=chosen.reward_model)


def _check_estimate(chosen: ActorCritic) -> None:
    """Refuse what the chosen estimate or level would ignore."""
    level, plain = chosen.critic.level, type(chosen).model_fields
    if chosen.estimate == "reward_to_go" and chosen.gae_lambda != plain["gae_lambda"].default:
        raise ConfigError(
            f"algorithm.gae_lambda: got {chosen.gae_lambda} with estimate reward_to_go, which ignores it; expected it "
            "unset. Remove it or set algorithm.estimate=gae."
        )
    if level == "decision" and chosen.token_gamma != plain["token_gamma"].default:
        raise ConfigError(
            f"algorithm.token_gamma: got {chosen.token_gamma} with a critic of level decision, which ignores it; "
            "expected it unset. Remove it or set algorithm.critic.level=token."
        )


def custom(chosen: Custom) -> Plan:
    """The axes named one by one. What the chosen shape would ignore is refused."""
    for option, owner in (("carry", "greedy"), ("joint", "full")):
        if getattr(chosen, option) is not None and chosen.shape != owner:
            raise ConfigError(
                f"algorithm.{option}: got {getattr(chosen, option)!r} with shape {chosen.shape}, which ignores it; "
                f"only {owner} has a {option} rule. Remove the option or set algorithm.shape={owner}."
            )
    if chosen.shape == "greedy" and chosen.returns != "step":
        raise ConfigError(
            f"algorithm.returns: got {chosen.returns} with shape greedy, where siblings left behind have no future to "
            "sum; expected step. Set algorithm.returns=step, or a shape that plays every branch out."
        )
    if chosen.gamma != 1.0 and chosen.returns != "reward_to_go":
        raise ConfigError(
            f"algorithm.gamma: got {chosen.gamma} with returns {chosen.returns}, which ignores it; expected 1. "
            "Remove it or set algorithm.returns=reward_to_go."
        )
    if chosen.shape == "independent" and not isinstance(chosen.k, int):
        raise ConfigError(
            f"algorithm.k: got {chosen.k} with shape independent, where whole episodes are played side by side; "
            "expected one number. Set it, or a shape that samples siblings at every decision."
        )
    shape = {
        "independent": lambda: shapes.independent(chosen.k),  # type: ignore[arg-type]
        "greedy": lambda: shapes.greedy(chosen.k, chosen.carry or "argmax"),
        "full": lambda: shapes.full(chosen.k, chosen.joint or "aligned"),
    }[chosen.shape]()
    return Plan(shape, Credit(chosen.returns, chosen.group, chosen.baseline, chosen.scale, chosen.alpha, chosen.gamma))


PRESETS: dict[type, Callable[[Any], Plan]] = {
    AtGrpo: at_grpo,
    Grpo: grpo,
    Magrpo: family("mean"),
    MaReinforce: family("none"),
    MaRloo: family("leave_one_out"),
    MaRemax: family("max"),
    MagrpoCentral: family("mean"),
    DrMas: dr_mas,
    Spiral: spiral,
    Ippo: actor_critic("own"),
    Mappo: actor_critic("joint"),
    Rlhf: rlhf,
    Custom: custom,
}


def preset(algorithm: Algorithm) -> Plan:
    """The shape, the credit and the loss that a name stands for."""
    return replace(PRESETS[type(algorithm)](algorithm), kl=algorithm.kl)


def plan(config: Config) -> Plan:
    """The preset of an experiment with the loss settings that the experiment names itself."""
    named = preset(config.algorithm)
    own = {name: getattr(config.loss, name) for name in config.loss.model_fields_set}
    loss = named.loss.model_copy(update=own)
    _check_loss(loss, own, config)
    if named.critic is not None:
        _check_critic(named.critic, config)
    _check_overlong(config)
    _check_role_weights(config)
    _check_spread(named.credit, config)
    return replace(named, loss=loss, selection=config.credit)


def _check_overlong(config: Config) -> None:
    """Refuse a penalty that would not be paid, or that would begin before the first token."""
    chosen = config.credit
    if chosen.overlong_factor is not None and not chosen.overlong_buffer:
        raise ConfigError(
            f"credit.overlong_factor: got {chosen.overlong_factor} without credit.overlong_buffer, which would ignore "
            "it; expected it unset. Remove it, or set the buffer to the tokens in which the penalty should grow."
        )
    for role, policy in _trained(config).items():
        most = config.sampling_of(policy).max_tokens
        if chosen.overlong_buffer > most:
            raise ConfigError(
                f"credit.overlong_buffer: got {chosen.overlong_buffer} tokens, and {role} says at most {most}; "
                "expected no more than that. Lower it or raise sampling.max_tokens."
            )


def _check_role_weights(config: Config) -> None:
    """Refuse weights of roles that are not there, or that nobody trains."""
    for role, weight in config.credit.role_weights.items():
        if role not in config.team.roles:
            known = config.team.roles
            raise ConfigError(
                f"credit.role_weights.{role}: there is no such role; expected one of {', '.join(known)}. "
                f"Remove it.{nearest(role, known)}"
            )
        if role not in _trained(config):
            raise ConfigError(
                f"credit.role_weights.{role}: got {weight}, and the policy that plays {role} is frozen; expected a "
                "role that is trained. Remove it."
            )


def _check_spread(credit: Credit, config: Config) -> None:
    """Refuse to drop what has a gradient, and to refill what is not dropped."""
    drops = config.credit.without_spread == "drop"
    if drops and credit.baseline not in OF_THE_GROUP:
        raise ConfigError(
            f"credit.without_spread: got drop with the baseline {credit.baseline} of {config.algorithm.name}, under "
            "which a group without spread has a gradient; expected keep. Remove it, or take a baseline made of the "
            f"group: {', '.join(OF_THE_GROUP)}."
        )
    if config.train.refill and not drops:
        raise ConfigError(
            f"train.refill: got {config.train.refill} with credit.without_spread=keep, which leaves nothing to refill; "
            "expected 0. Set credit.without_spread=drop, or remove train.refill."
        )


def critic_policies(config: Config) -> dict[str, PolicyConfig]:
    """The policies that only a critic is, by name; none where the critic sits on the policies that it judges."""
    critic = plan(config).critic
    if critic is None or critic.config.policy is None:
        return {}
    return dict.fromkeys(critic_heads(config), critic.config.policy)


def critic_heads(config: Config) -> dict[str, tuple[str, ...]]:
    """The value heads of every policy that has some."""
    critic = plan(config).critic
    return {} if critic is None else heads(critic, _trained(config))


def _trained(config: Config) -> dict[str, str]:
    """The policy of each role that is trained."""
    policies = config.team.policies
    return {role: policy for role, policy in config.team.roles.items() if not policies[policy].frozen}


def _check_critic(critic: Critic, config: Config) -> None:
    """Refuse a critic that cannot be built, or that could not read what it is to judge."""
    own, trained = critic.config.policy, _trained(config)
    if own is None:
        if critic.reads == "joint" and len(set(trained.values())) > 1:
            raise ConfigError(
                f"algorithm.critic.policy: unset, with {len(set(trained.values()))} policies that are trained "
                f"({', '.join(dict.fromkeys(trained.values()))}) and one critic for all of them; expected a model of "
                "its own for the critic. Set algorithm.critic.policy=seed or the model that you train."
            )
        return
    for option in ("frozen", "url", "sampling"):
        if getattr(own, option):
            raise ConfigError(
                f"algorithm.critic.policy.{option}: got {getattr(own, option)!r}; a critic is trained here and samples "
                "nothing, so expected it unset. Remove it."
            )
    for name in heads(critic, trained):
        if name in config.team.policies:
            raise ConfigError(
                f"team.policies.{name}: the critic's own policy has that name; expected another. Rename the policy."
            )
    for role, policy in trained.items():
        if critic.config.level == "token" and config.team.policies[policy].model != own.model:
            raise ConfigError(
                f"algorithm.critic.policy.model: got {own.model!r} for a critic that reads the tokens of {role}, "
                f"which {config.team.policies[policy].model!r} sampled; expected the same model. Set it, or "
                "algorithm.critic.level=decision."
            )


def _check_loss(loss: LossConfig, own: dict[str, Any], config: Config) -> None:
    """Refuse loss settings that the loss would ignore, and several steps on data that no ratio corrects."""
    ignored = {
        "clip_low": loss.ratio == "none",
        "clip_high": loss.ratio == "none",
        "dual_clip": loss.ratio in ("none", "cispo"),
        "divisor": loss.aggregate != "sequence_sum",
        "correction_level": loss.correction == "none",
        "correction_low": loss.correction != "mask",
        "correction_high": loss.correction == "none",
    }
    for option, unused in ignored.items():
        if option in own and own[option] is not None and unused:
            raise ConfigError(
                f"loss.{option}: got {own[option]}, which a loss with ratio {loss.ratio}, aggregate {loss.aggregate} "
                f"and correction {loss.correction} ignores; expected it unset. Remove it or change what ignores it."
            )
    for name, policy in config.team.policies.items():
        learner = config.learner_of(name)
        if loss.ratio == "none" and not policy.frozen and learner.epochs * learner.minibatches > 1:
            raise ConfigError(
                f"learner: got {learner.epochs} epochs of {learner.minibatches} minibatches for policy {name} under a "
                "loss without a ratio, whose data would be stale after the first optimiser step; expected 1 of 1. "
                "Lower them or set loss.ratio=token."
            )
