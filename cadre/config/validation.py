"""Validation of what only roles, policies, learners and the environment together show.

Each function checks one setting and raises ConfigError. What a section can check alone is in `cadre.settings` and
`cadre.algorithms`; what concerns engines is in `cadre.config.engine_validation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from cadre.advantages.groups import BASELINES
from cadre.advantages.returns import Comparison, required_ablation
from cadre.algorithms.schedules import SCHEDULES
from cadre.concurrency import run_coroutine
from cadre.config.conditions import check_all_read
from cadre.config.engine_validation import (
    check_cluster,
    check_learner_ranks,
    check_quantization,
    check_samplers,
    check_vision_learners,
)
from cadre.config.experiment import Experiment
from cadre.config.unused import CONDITIONS, TRAINING_CONDITIONS
from cadre.declare import declared
from cadre.env import Env
from cadre.envs import validation as env_validation
from cadre.errors import ConfigError, ContractError, nearest
from cadre.plugins import install_command
from cadre.rollout import shapes
from cadre.rollout.deadlines import TimedEnv
from cadre.rollout.grow import Ablation, Rollout, is_rewarded, step_ablated
from cadre.rollout.shapes import Shape
from cadre.settings.objective import makes_several_steps
from cadre.settings.user_code import describe_error, load_function
from cadre.team import Team
from cadre.types import Sample

# ---- The environment and its tasks


def check_environment(experiment: Experiment) -> None:
    """The environment has its settings, its class is complete, and every role has a policy."""
    env, algorithm, policies = experiment.env, experiment.algorithm.name, experiment.policies

    # Every setting without a default is given.
    if unset := experiment.env_spec.missing:
        raise ConfigError(
            f"settings.{unset[0]}: missing, and {env} has no default for it; expected a value. "
            "Add it under settings, or give it a default in the environment's __init__."
        )

    # The class declares what an episode needs. This raises ContractError, unlike all others.
    faults = env_validation.declaration_faults(experiment.env_spec)
    if faults:
        more = f" ({len(faults) - 1} more: cadre check {env})" if len(faults) > 1 else ""
        raise ContractError(faults[0].paragraph + more)

    # Every role of the environment has a policy, and there are no other roles.
    roles = experiment.env_spec.roles
    played = f"{env} under {algorithm}"
    missing = [role for role in roles if role not in experiment.roles]
    for role in experiment.roles:
        if role not in roles:
            remedy = f"Rename it to {missing[0]}" if len(missing) == 1 else "Rename it" if missing else "Remove it"
            raise ConfigError(
                f"team.roles.{role}: {played} has no such role; expected {', '.join(roles)}. "
                f"{remedy}.{nearest(role, missing or roles)}"
            )
    for role in missing:
        raise ConfigError(
            f"team.roles: role {role!r} of {played} has no policy; expected a policy for each of "
            f"{', '.join(roles)}. Add `{role}: {next(iter(policies))}`."
        )

    # Changes on held-out tasks leave the roles and the training data as they are.
    changes, held_out_roles = experiment.evaluate.settings, experiment.held_out.roles
    for name in ("train", "data", "held_out"):
        if name in changes:
            raise ConfigError(
                f"evaluate.settings.{name}: got {changes[name]!r}, which would change what is trained on; expected "
                "changes to held-out tasks alone. Name another set with evaluate.settings.test."
            )
    if held_out_roles != roles:
        raise ConfigError(
            f"evaluate.settings: got {changes}, with which {env} has the roles "
            f"{', '.join(held_out_roles)}; expected those that are trained, {', '.join(roles)}. Remove what "
            "changes them."
        )


def check_tasks(experiment: Experiment) -> None:
    """There are tasks to train on, and held-out tasks if some are to be played."""
    env, settings = experiment.env, experiment.evaluate
    # A missing folder, or settings that exclude each other, raise when the split is read.
    if not len(experiment.training_tasks):
        raise ConfigError(
            f"{env}: got no training tasks; expected at least one. Make tasks('train') return some, or change "
            "its settings."
        )
    if settings.tasks and (count := len(experiment.held_out_tasks)) <= settings.first:
        raise ConfigError(
            f"evaluate.tasks: got {settings.tasks} from number {settings.first} on, but {env} has {count} held-out "
            "tasks; expected more. Make tasks('test') return some, start earlier (evaluate.first), or set "
            "evaluate.tasks=0 to train without measuring."
        )


# ---- Policies and roles


def check_algorithm_policies(experiment: Experiment) -> None:
    """Some algorithms need one model for all roles, a model per role, or one trained role beside frozen ones."""
    name, kind = experiment.algorithm.name, experiment.algorithm.policies
    trained = experiment.trained_roles
    policies = set(trained.values())
    is_wrong = {
        "shared": len(policies) > 1,
        "one_role": len(trained) > 1,
        "by_role": len(policies) < len(trained),
    }
    if is_wrong.get(kind):
        assigned = ", ".join(f"{role}: {policy}" for role, policy in trained.items()) or "none that is trained"
        raise ConfigError(f"algorithm: {name} {EXPECTED_POLICIES[kind]}; got {assigned}. {POLICY_ADVICE[kind]}")


EXPECTED_POLICIES = {
    "shared": "trains one policy that plays all roles which are trained",
    "one_role": "trains one role and leaves the others as they are",
    "by_role": "trains a policy of its own for each role",
}
POLICY_ADVICE = {
    "shared": "Let one policy play them, or use grpo.",
    "one_role": "Set frozen: true for the policies of the others, or use grpo_by_role.",
    "by_role": "Give each role its policy, or use grpo_by_role.",
}


def check_exchange_every(experiment: Experiment) -> None:
    """Only several policies that are trained alike can exchange their roles."""
    played = set(experiment.roles.values())
    if not experiment.exchange_every:
        return
    wrong = {
        "one policy, which plays all roles": len(played) < 2,
        "a policy that is not trained": played != set(experiment.learners),
        "a critic, whose heads belong to roles": experiment.plan.critic is not None,
        "policies that are sampled differently": len(set(experiment.sampling.values())) > 1,
    }
    for problem, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigError(
                f"team.exchange_every: got {experiment.exchange_every} with {problem}; expected several policies, all "
                "of them trained and sampled alike, under an algorithm without a critic. Set it to 0, or change the "
                "team."
            )


def check_schedule(experiment: Experiment) -> None:
    """A schedule has several policies to choose from, and returns some of them at every step."""
    name, train = experiment.schedule, experiment.train
    policies = list(dict.fromkeys(experiment.trained_roles.values()))
    if name == "together":
        return
    load_function("train.schedule", name, SCHEDULES)  # a name that does not exist is the fault to report first
    if len(policies) < 2:
        raise ConfigError(
            f"train.schedule: got {name} with {', '.join(policies) or 'no policy'} that is trained; expected several "
            "policies, which take turns. Give each role a policy of its own under team.policies, or set together."
        )
    if train.max_staleness and name == experiment.plan.schedule:
        raise ConfigError(
            f"train.max_staleness: got {train.max_staleness} with {experiment.algorithm.name}, whose updates are each "
            "on rollouts of the team as the update before left it; expected 0. Remove it."
        )
    for step in range(min(train.steps, SCHEDULE_STEPS)):
        experiment.frozen_at(step)


# Steps for which a schedule is tried before the training begins.
SCHEDULE_STEPS = 1_000


def check_some_policy_trained(experiment: Experiment) -> None:
    """A training changes some weights."""
    trained, weights = experiment.trained_roles, experiment.plan.selection.role_weights
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


# ---- The size and the shape of trees

MAX_LEAVES = 10_000
MAX_DECISIONS = 100


def check_k(experiment: Experiment) -> None:
    """If k is given by role, every role of the environment and no other has a number."""
    k, roles = experiment.algorithm.k, experiment.env_spec.roles
    if not isinstance(k, Mapping):
        return
    for role in k:
        if role not in roles:
            raise ConfigError(
                f"algorithm.k.{role}: {experiment.env_spec.env_class.__name__} has no such role; expected "
                f"{', '.join(roles)}. Remove it.{nearest(role, roles)}"
            )
    for role in roles:
        if role not in k:
            raise ConfigError(
                f"algorithm.k: role {role!r} has no number of siblings; expected one for each of "
                f"{', '.join(roles)}. Add `{role}: {next(iter(k.values()))}`."
            )


def check_k_size(experiment: Experiment) -> None:
    """No decision has more siblings than a tree may have leaves. Checked before anything is built for each of them."""
    k = experiment.algorithm.k
    numbers = k.values() if isinstance(k, Mapping) else [k]
    maximum = max(max(number) if isinstance(number, tuple) else number for number in numbers)
    if maximum > MAX_LEAVES:
        raise ConfigError(
            f"algorithm.k: got {maximum:,}; expected at most {MAX_LEAVES:,} siblings a decision. Lower it."
        )


def check_leaves(experiment: Experiment) -> None:
    """A tree is not too large to sample."""
    shape, first = experiment.plan.shape, experiment.env_spec.roles[0]
    longest_episode = [[first]] * MAX_DECISIONS
    if (
        isinstance(experiment.algorithm.k, int)
        and shapes.count_leaves(shape, longest_episode, range(MAX_DECISIONS)) <= MAX_LEAVES
    ):
        return
    # The bound above is loose, or k differs by role or turn: count the leaves of a probe episode.
    acting, unpaid = run_coroutine(_probe_episode(experiment))
    check_joint_actions(experiment, acting)
    leaves = shapes.count_leaves(shape, acting, unpaid)
    if leaves > MAX_LEAVES:
        unknown = shape.selects is None and ":" in getattr(experiment.algorithm, "shape", "")
        remedy = "declare in the Shape how many branches continue (selects=1, say)" if unknown else "use greedy"
        ahead = f", {len(unpaid)} of which pay nobody," if shape.lookahead and unpaid else ""
        raise ConfigError(
            f"algorithm: {shape.name} over {len(acting)} decisions{ahead} of {experiment.env} needs {leaves:,} leaves "
            f"a task; expected at most {MAX_LEAVES:,}. Lower algorithm.k{', algorithm.lookahead' if ahead else ''} or "
            f"the environment's turns, or {remedy}."
        )


def check_joint_actions(experiment: Experiment, acting: Sequence[Sequence[str]]) -> None:
    """Crossed joint actions, the product of the siblings of the roles that act at once, are not too many."""
    shape = experiment.plan.shape
    if shape.joint != "cross":
        return
    for depth, roles in enumerate(acting):
        count = prod(max(shape.count(role, turn, depth) for turn in (0, depth)) for role in roles)
        if count > MAX_LEAVES:
            raise ConfigError(
                f"algorithm: {shape.name} has {count:,} joint actions where {', '.join(roles)} act at once; expected "
                f"at most {MAX_LEAVES:,}. Lower algorithm.k, or use algorithm.joint=aligned."
            )


async def _probe_episode(experiment: Experiment) -> tuple[list[list[str]], list[int]]:
    """Return the roles that act at each decision of an episode of empty answers, and the decisions without a reward."""
    env = experiment.env_spec.make(experiment.training_tasks[0])
    acting: list[list[str]] = []
    unpaid: list[int] = []
    while (observations := env.observe()) and len(acting) < MAX_DECISIONS:
        reward = await env.step(dict.fromkeys(observations, ""))
        if not any(is_rewarded(reward, role, experiment.plan.credit.alpha) for role in observations):
            unpaid.append(len(acting))
        acting.append(list(observations))
    return acting, unpaid


# Decisions of an episode that are searched for siblings.
PROGRAM_DEPTHS = 20


def check_replayable(experiment: Experiment) -> None:
    """A program that cannot be played again branches at the first decision only, or each answer has a reward of its own
    and one branch is selected."""
    settings, shape = experiment.env_spec.all_settings, experiment.plan.shape
    if settings.get("replayable", True) or not shape.has_later_branches(experiment.env_spec.roles, PROGRAM_DEPTHS):
        return
    if settings.get("turn_reward") and shape.selects == 1 and not shape.revisits_decisions:
        return
    raise ConfigError(
        f"settings.replayable: got false under {experiment.algorithm.name}, whose trees ({shape.name}) branch "
        "behind the first decision, which means to start the program again with the answers that it had; expected "
        "whole episodes side by side. Use algorithm=grpo, or take what changes from run to run out of the prompts "
        "(cadre check shows it) and remove the setting."
    )


def check_ablation(experiment: Experiment) -> None:
    """If the credit steps without some roles, the environment can be forked and takes its default actions."""
    ablation, env = required_ablation(experiment.plan.credit), experiment.env
    if ablation == "none" or experiment.plan.critic is not None:
        return
    if not experiment.env_spec.all_settings.get("replayable", True):
        raise ConfigError(
            f"settings.replayable: got false under {experiment.algorithm.name}, whose credit steps forks of every "
            "state without some roles; expected a program that can be played again. Use algorithm=grpo_by_role, or "
            "take what changes from run to run out of the prompts (cadre check shows it) and remove the setting."
        )
    if experiment.env_spec.env_class.starts_processes:
        return  # a trial would start it
    try:
        run_coroutine(_try_ablation(experiment, ablation))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"algorithm: {experiment.algorithm.name} steps forks of every state with default actions of some roles, "
            f"which {env} does not take: {describe_error(error)}; expected a fork() that copies the state, and a "
            "default_action(role) that step() takes. Write them, or use algorithm=grpo_by_role."
        ) from error


async def _try_ablation(experiment: Experiment, ablation: Ablation) -> None:
    """Step the first state of a task without roles, with empty answers of those that are present."""
    make, roles = experiment.env_spec.make, experiment.env_spec.roles
    team = Team(experiment.roles, {}, {})
    rollout = Rollout(make, team, experiment.plan.shape, experiment.plan.credit.alpha, ablation=ablation)
    with closing(TimedEnv.made(make, experiment.training_tasks[0], roles, experiment.episodes)) as env:
        await env.until_ready()
        if observations := env.observe():
            empty = {role: Sample(role, "", "", (), (), (), "stop", 0) for role in observations}
            await step_ablated(env, observations, [empty], {}, rollout)


# ---- Critics and reward models


def check_single_agent(experiment: Experiment) -> None:
    """Some algorithms train one agent only."""
    roles = experiment.env_spec.roles
    if experiment.algorithm.single_agent and len(roles) > 1:
        raise ConfigError(
            f"algorithm: {experiment.algorithm.name} trains a single agent, and {experiment.env} has the roles "
            f"{', '.join(roles)}; expected one. Use ippo with critic.level=token, or an environment with one role."
        )


def check_reward_model(experiment: Experiment) -> None:
    """The folder of the reward model exists."""
    folder = experiment.plan.reward_model
    if folder is not None and not Path(folder).expanduser().is_dir():
        raise ConfigError(
            f"algorithm.reward_model: got {folder!r}, which is no folder; expected that of a trained reward "
            "model. Fix the path, or remove it to train on the environment's reward."
        )


def check_critic_privileged(experiment: Experiment) -> None:
    """The environment has observations that only critics see, if a critic is to read them."""
    critic, env = experiment.plan.critic, experiment.env_spec.env_class
    if critic and critic.config.privileged and env.privileged is Env.privileged:
        raise ConfigError(
            f"algorithm.critic.privileged: {experiment.env} shows nothing to critics only; expected an "
            "environment with a privileged() of its own. Remove the option, or write the method."
        )


def check_teacher(experiment: Experiment) -> None:
    """A teacher is where its log-probabilities can be read, and is there for samples that are learned from."""
    teacher, plan, policies = experiment.plan.teacher, experiment.plan, experiment.config.team.policies
    if teacher is None:
        return
    name = experiment.algorithm.name
    if teacher.hint and experiment.env_spec.env_class.privileged is Env.privileged:
        raise ConfigError(
            f"teacher.hint: {experiment.env} has no text for a teacher; expected an environment with a privileged() of "
            "its own. Write the method, or remove the option."
        )
    if teacher.policy is not None:
        if teacher.policy not in policies:
            raise ConfigError(
                f"teacher.policy: got {teacher.policy!r}; expected one of {', '.join(policies)}. Name one, or a model "
                f"under teacher.model.{nearest(teacher.policy, policies)}"
            )
        if set(experiment.trained_roles.values()) <= {teacher.policy}:
            raise ConfigError(
                f"teacher.policy: got {teacher.policy}, beside which no policy is trained; expected one to be taught. "
                "Train another, or set teacher.weights or teacher.hint in its place."
            )
        if policies[teacher.policy].url is not None or (
            teacher.policy in experiment.vllm_policies and teacher.policy not in experiment.learners
        ):
            raise ConfigError(
                f"teacher.policy: got {teacher.policy}, whose weights are in no engine of this process that scores "
                "tokens; expected one that is trained, or frozen with sampling.engine=torch. Name its model, with its "
                "url if it has one, under teacher.model."
            )
    is_local = teacher.model.url is None if teacher.model else teacher.policy in policies.keys() - experiment.learners
    if is_local and experiment.cluster is not None:
        raise ConfigError(
            "teacher: got a model that is not trained, with a cluster, which has no process for it; expected an "
            "endpoint. Serve the model, and set teacher.model.url."
        )
    for role in experiment.trained_roles if teacher.model and teacher.model.url else ():
        if (temperature := experiment.sampling[role].temperature) != 1.0:
            raise ConfigError(
                f"sampling.temperature: got {temperature:g} for {role} with teacher.model.url, whose log-probabilities "
                "are those at temperature 1; expected 1, so that both are of one distribution. Set it, or load the "
                "teacher here."
            )
    if teacher.alone and (plan.critic is not None or plan.reward_model is not None or plan.influence):
        raise ConfigError(
            f"teacher.alone: got true with algorithm.name={name}, which computes values, scores or influences that no "
            "advantage would contain; expected an algorithm that compares rewards, such as grpo. Set it, or remove "
            "alone."
        )
    unfit: dict[str, tuple[object, bool]] = {
        "algorithm": (name, plan.preference is not None or plan.only_positive),
        "credit.without_std": ("drop", plan.selection.without_std == "drop"),
        "credit.drop_groups": (plan.selection.drop_groups, teacher.alone and plan.selection.drop_fraction is not None),
    }
    for option, (got, is_wrong) in unfit.items():
        if is_wrong:
            raise ConfigError(
                f"{option}: got {got} with a teacher, which leaves out samples by their rewards, although they have a "
                "teacher's advantages too; expected one that keeps them. Remove it, or the section teacher."
            )


def check_critic_policy(experiment: Experiment) -> None:
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
        if name in experiment.roles.values():
            raise ConfigError(
                f"team.policies.{name}: the critic's own policy has that name; expected another. Rename the policy."
            )


def check_critic_level(experiment: Experiment) -> None:
    """A critic with a model of its own that judges tokens has the vocabulary of the model that sampled them."""
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


# ---- Samples, losses and credit


def check_sampling(experiment: Experiment) -> None:
    """Trained policies sample from the full softmax."""
    for role, policy in experiment.trained_roles.items():
        sampling = experiment.sampling[role]
        if sampling.top_p < 1.0 or sampling.top_k > 0:
            raise ConfigError(
                f"sampling: got top_p={sampling.top_p}, top_k={sampling.top_k} for policy {policy}, which is trained; "
                "expected top_p=1 and top_k=0, since the loss uses the full softmax and its ratio would be wrong. "
                "Remove both, or freeze the policy."
            )


def check_preference(experiment: Experiment) -> None:
    """The margins of preference pairs are those of the policies that sampled, and the gradient that of their loss at
    these alone."""
    plan = experiment.plan
    if plan.preference is None:
        return
    options: dict[str, tuple[object, object]] = {
        "train.max_staleness": (experiment.train.max_staleness, 0),
        "loss.ratio": (plan.loss.ratio, "none"),
        "loss.function": (plan.loss.function, None),
        "loss.correction": (plan.loss.correction, "none"),
    }
    for option, (got, expected) in options.items():
        if got != expected:
            raise ConfigError(
                f"{option}: got {got} with {experiment.algorithm.name}, whose margins are of the policies that "
                f"sampled, and whose gradient is that of its loss at these alone; expected {expected}. Remove it."
            )


def check_parts(experiment: Experiment) -> None:
    """Parts of a reward that are normalised apart leave no place for costs that belong to the whole."""
    plan, name = experiment.plan, experiment.config.algorithm.name
    if plan.credit.sums != "normalised":
        return
    if not any(weight for _, weight in plan.credit.comparisons):
        raise ConfigError(
            "algorithm.parts: got weights that are all 0, under which nothing is learned; expected one that is not. "
            "Set one, such as 1.0."
        )
    costs = {"algorithm.kl": plan.kl, "credit.overlong_buffer": plan.selection.overlong_buffer}
    for option, value in costs.items():
        if value:
            raise ConfigError(
                f"{option}: got {value:g} with algorithm.parts of {name}, each of which is compared by itself, and a "
                "cost is of none of them; expected 0. Set loss.kl in place of algorithm.kl, or report it as a part."
            )


def check_only_positive(experiment: Experiment) -> None:
    """With `only_positive`, failures are left out by their reward, which a penalty would change."""
    if experiment.plan.only_positive and experiment.plan.kl:
        raise ConfigError(
            f"algorithm.kl: got {experiment.plan.kl:g} with {experiment.algorithm.name}, which learns from what "
            "passed alone, and a penalty would change what that is; expected 0. Set loss.kl in its place."
        )
    if experiment.plan.only_positive and (buffer := experiment.plan.selection.overlong_buffer):
        raise ConfigError(
            f"credit.overlong_buffer: got {buffer} with {experiment.algorithm.name}, which learns from what "
            "passed alone, and a penalty would change what that is; expected 0. Remove it."
        )


def check_stale_samples(experiment: Experiment) -> None:
    """A loss corrects for samples of earlier weights if there are some."""
    if experiment.plan.loss.function is not None:  # it has tokens.old, and is responsible
        return
    # The first optimizer step makes the samples of the others stale, which a ratio corrects for.
    for name in dict.fromkeys(experiment.trained_roles.values()):
        learner = experiment.learners[name]
        if experiment.plan.loss.ratio == "none" and makes_several_steps(learner):
            size = learner.minibatch_size
            parts = f"{learner.minibatches} minibatches" if size is None else f"minibatches of {size} sequences"
            raise ConfigError(
                f"learner: got {learner.epochs} epochs of {parts} for policy {name} under a loss without a ratio, "
                "whose data would be stale after the first optimiser step; expected one epoch of one minibatch. Remove "
                "the settings or set loss.ratio=token."
            )
    # Asynchronous sampling makes all samples stale, which a ratio or a correction corrects for.
    loss, max_staleness = experiment.plan.loss, experiment.train.max_staleness
    if max_staleness and loss.ratio == "none" and loss.correction == "none":
        raise ConfigError(
            f"train.max_staleness: got {max_staleness} under a loss without a ratio or a correction, which takes "
            "samples of earlier weights for samples of its own; expected 0. Add loss.correction=truncate, or lower it."
        )


def check_own_loss(experiment: Experiment) -> None:
    """A loss in a file of the user's returns finite numbers for made-up tokens."""
    loss = experiment.plan.loss
    if any(":" in (name or "") for name in (loss.function, loss.ratio, loss.correction, loss.correction_level)):
        from cadre.learn.loss import check_loss  # imports torch

        check_loss(loss)


def check_overlong_buffer(experiment: Experiment) -> None:
    """The length penalty does not begin before the first token."""
    buffer = experiment.plan.selection.overlong_buffer
    for role in experiment.trained_roles:
        if buffer > (max_tokens := experiment.sampling[role].max_tokens):
            raise ConfigError(
                f"credit.overlong_buffer: got {buffer} tokens, and {role} says at most {max_tokens}; "
                "expected no more than that. Lower it or raise sampling.max_tokens."
            )


def check_role_weights(experiment: Experiment) -> None:
    """Roles that have a weight exist."""
    roles = experiment.roles
    for role in experiment.plan.selection.role_weights:
        if role not in roles:
            raise ConfigError(
                f"credit.role_weights.{role}: there is no such role; expected one of {', '.join(roles)}. "
                f"Remove it.{nearest(role, roles)}"
            )


def check_without_std(experiment: Experiment) -> None:
    """Groups without std are dropped only if they have no gradient."""
    if experiment.plan.selection.without_std == "keep":
        return
    for comparison, _ in experiment.plan.credit.comparisons:
        if not comparison.baseline.needs_group:
            baseline = comparison.baseline.name
            names = ", ".join(name for name, function in BASELINES.items() if declared(function, "needs_group"))
            advice = ", or declare(needs_group=True) of your own" if ":" in baseline else ""
            raise ConfigError(
                f"credit.without_std: got drop with the baseline {baseline} of {experiment.algorithm.name}, under "
                "which a group without std has a gradient; expected keep. Remove it, or take a baseline made of the "
                f"group: {names}{advice}."
            )


def check_tree_weight(experiment: Experiment) -> None:
    """Weights by episode need a shape that rolls every branch out: other samples belong to no whole episode."""
    shape = experiment.plan.shape
    if experiment.plan.selection.tree_weight == "by_episode" and not shape.selects_all:
        raise ConfigError(
            f"credit.tree_weight: got by_episode with shape {shape.name}, where siblings that were left behind are of "
            "no whole episode, and would weigh more than the one that went on; expected by_decision. Set that, or a "
            "shape that plays every branch out."
        )


# Depth up to which a tree is searched for decisions with more than one sample.
DEPTHS = 50


def check_group_size(experiment: Experiment) -> None:
    """A sample that is compared with itself alone has no advantage: a baseline of the group needs two."""
    plan, name = experiment.plan, experiment.algorithm.name
    if plan.critic is not None or plan.teacher is not None:
        return
    if not _is_single_sample(plan.shape, list(experiment.trained_roles)):
        return
    if plan.preference is not None:
        raise ConfigError(
            f"algorithm.k: got 1 with {name}, which prefers one of the samples of a decision to another; expected 2 or "
            "more. Raise it."
        )
    if all(_has_zero_advantages(one, experiment.train.tasks_per_step) for one, _ in plan.credit.comparisons):
        baseline = plan.credit.first.baseline.name
        single_task = " and train.tasks_per_step=1" if plan.credit.first.group.scope == "batch" else ""
        raise ConfigError(
            f"algorithm.k: got 1{single_task} with {name}, whose baseline ({baseline}) is made of the "
            "samples of a group, here one each, so that every advantage is 0 and nothing is learned; expected 2 or "
            "more. Raise it, or use an algorithm with another baseline, such as spiral (a running mean) or ippo (a "
            "critic)."
        )


def _is_single_sample(shape: Shape, roles: Sequence[str]) -> bool:
    """Return True if a tree is one episode, with one sample at each of its decisions."""
    positions = [(turn, depth) for depth in range(DEPTHS) for turn in range(depth + 1)]
    return not shape.revisits_decisions and all(
        shape.count(role, *position) == 1 for role in roles for position in positions
    )


def _has_zero_advantages(comparison: Comparison, tasks: int) -> bool:
    """Return True if groups of one episode per task have one sample each, or equal returns, under a baseline made of
    them. Nothing is known of a group whose scope is not declared."""
    scope = comparison.group.scope
    has_one_sample = scope in ("decision", "turn")
    has_one_episode = scope == "task" or (scope == "batch" and tasks == 1)
    return comparison.baseline.needs_group and (
        has_one_sample or (has_one_episode and comparison.returns.whole_episode)
    )


# ---- Trackers


def check_trackers(experiment: Experiment) -> None:
    """The trackers that are named are installed."""
    names = dict.fromkeys(experiment.trackers.names)
    specs = {name: find_spec(name) for name in names}
    # A folder of the package's name, as W&B leaves where it ran, has a spec without an origin.
    absent = [name for name, spec in specs.items() if spec is None or spec.origin is None]
    if absent:
        raise ConfigError(missing_trackers(absent))


def check_on_step(experiment: Experiment) -> None:
    """The user's function for every step can be loaded, and is a plain function."""
    if experiment.train.on_step is None:
        return
    function: Callable[..., Any] = load_function("train.on_step", experiment.train.on_step, {})
    if isinstance(function, type):
        raise ConfigError(
            f"train.on_step: {experiment.train.on_step} is a class; expected a function of the step and its metrics. "
            "Name one."
        )


# ---- Settings without effect, see `cadre.config.conditions`


def check_settings_read(experiment: Experiment) -> None:
    """Every setting that the user gave is read, in play and in training."""
    check_all_read(experiment.config, experiment, CONDITIONS)


def check_training_settings_read(experiment: Experiment) -> None:
    """Every setting that the user gave is read in training."""
    check_all_read(experiment.config, experiment, TRAINING_CONDITIONS)


# ---- All checks, in their order; those that play an episode come last

EVALUATION_CHECKS = (
    check_environment,
    check_settings_read,
    check_quantization,
    check_samplers,
)
TRAINING_CHECKS = (
    check_environment,
    check_settings_read,
    check_training_settings_read,
    check_trackers,
    check_on_step,
    check_quantization,
    check_samplers,
    check_cluster,
    check_tasks,
    check_k,
    check_k_size,
    check_replayable,
    check_single_agent,
    check_algorithm_policies,
    check_exchange_every,
    check_schedule,
    check_reward_model,
    check_critic_privileged,
    check_teacher,
    check_critic_policy,
    check_critic_level,
    check_sampling,
    check_vision_learners,
    check_learner_ranks,
    check_preference,
    check_only_positive,
    check_parts,
    check_stale_samples,
    check_own_loss,
    check_overlong_buffer,
    check_role_weights,
    check_without_std,
    check_tree_weight,
    check_ablation,
    check_leaves,
)


def missing_trackers(names: Sequence[str]) -> str:
    """Return the error message about trackers whose packages are not installed."""
    are = "is" if len(names) == 1 else "are"
    return (
        f"trackers.names: got {', '.join(names)}, which {are} not installed; expected the extra of that name. "
        f"Run {install_command(*names)}, or leave it out of trackers.names."
    )
