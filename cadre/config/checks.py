"""What would give wrong results or lose work, as far as roles, policies, learners and the environment show it together.

Each check yields a paragraph for every fault; `check_evaluation` and `check_training` raise the first. What a section
can check alone is in `cadre.settings` and `cadre.algorithms`, what concerns engines in
`cadre.config.engine_validation`, and settings without effect are in `cadre.config.ignored`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from math import prod
from pathlib import Path

from cadre.advantages.groups import BASELINES
from cadre.advantages.returns import Comparison, required_ablation
from cadre.algorithms.schedules import SCHEDULES
from cadre.concurrency import run_coroutine
from cadre.config.engine_validation import (
    check_cluster,
    check_learner_ranks,
    check_quantization,
    check_samplers,
    check_vision_learners,
)
from cadre.config.experiment import Experiment
from cadre.declare import declared
from cadre.env import Env
from cadre.envs import validation as env_validation
from cadre.errors import ConfigError, ContractError, nearest
from cadre.rollout import shapes
from cadre.rollout.deadlines import TimedEnv
from cadre.rollout.grow import Ablation, Rollout, is_rewarded, step_ablated
from cadre.settings.objective import makes_several_steps
from cadre.settings.user_code import describe_error, load_function
from cadre.team import Team
from cadre.types import Sample

Check = Callable[[Experiment], Iterable[str]]
# Siblings of a decision, joint actions of a step, and leaves of a tree; decisions of an episode that is looked at.
MAX_LEAVES, MAX_DECISIONS = 10_000, 100
# Steps for which a schedule is tried before the training begins.
SCHEDULE_STEPS = 1_000
# Decisions of an episode that are searched for siblings.
DEPTHS, PROGRAM_DEPTHS = 50, 20


def check_evaluation(experiment: Experiment) -> None:
    """Raise ConfigError or ContractError for what cannot play held-out tasks."""
    _raise_first(experiment, [environment])
    check_quantization(experiment)
    check_samplers(experiment)


def check_trees(experiment: Experiment) -> None:
    """Raise ConfigError, ContractError or DataError for what cannot grow the trees of a training."""
    check_evaluation(experiment)
    check_cluster(experiment)
    check_vision_learners(experiment)
    check_learner_ranks(experiment)
    _raise_first(experiment, CHECKS)


def check_training(experiment: Experiment) -> None:
    """Raise ConfigError for a training that would change no weights."""
    _raise_first(experiment, [trained_policies, group_size])


def _raise_first(experiment: Experiment, checks: Sequence[Check]) -> None:
    for check in checks:
        for fault in check(experiment):
            raise ConfigError(fault)


# ---- The environment and its tasks


def environment(experiment: Experiment) -> Iterator[str]:
    """The environment has its settings, its class is complete, and every role has a policy."""
    env, policies, roles = experiment.env, experiment.policies, experiment.env_spec.roles
    if unset := experiment.env_spec.missing:
        yield (
            f"settings.{unset[0]}: missing, and {env} has no default for it; expected a value. "
            "Add it under settings, or give it a default in the environment's __init__."
        )
    if faults := env_validation.declaration_faults(experiment.env_spec):
        more = f" ({len(faults) - 1} more: cadre check {env})" if len(faults) > 1 else ""
        raise ContractError(faults[0].paragraph + more)

    played = f"{env} under {experiment.algorithm.name}"
    missing = [role for role in roles if role not in experiment.roles]
    for role in experiment.roles:
        if role not in roles:
            remedy = f"Rename it to {missing[0]}" if len(missing) == 1 else "Rename it" if missing else "Remove it"
            yield (
                f"team.roles.{role}: {played} has no such role; expected {', '.join(roles)}. "
                f"{remedy}.{nearest(role, missing or roles)}"
            )
    for role in missing:
        yield (
            f"team.roles: role {role!r} of {played} has no policy; expected a policy for each of "
            f"{', '.join(roles)}. Add `{role}: {next(iter(policies))}`."
        )

    # Changes on held-out tasks leave the roles and the training data as they are.
    changes, held_out_roles = experiment.evaluate.settings, experiment.held_out.roles
    for name in ("train", "data", "held_out"):
        if name in changes:
            yield (
                f"evaluate.settings.{name}: got {changes[name]!r}, which would change what is trained on; expected "
                "changes to held-out tasks alone. Name another set with evaluate.settings.test."
            )
    if held_out_roles != roles:
        yield (
            f"evaluate.settings: got {changes}, with which {env} has the roles {', '.join(held_out_roles)}; expected "
            f"those that are trained, {', '.join(roles)}. Remove what changes them."
        )


def tasks(experiment: Experiment) -> Iterator[str]:
    """There are tasks to train on, and held-out tasks if some are to be played. Reads the splits."""
    env, settings = experiment.env, experiment.evaluate
    if not len(experiment.training_tasks):
        yield (
            f"{env}: got no training tasks; expected at least one. Make tasks('train') return some, or change its "
            "settings."
        )
    if settings.tasks and (count := len(experiment.held_out_tasks)) <= settings.first:
        yield (
            f"evaluate.tasks: got {settings.tasks} from number {settings.first} on, but {env} has {count} held-out "
            "tasks; expected more. Make tasks('test') return some, lower evaluate.first, or set evaluate.tasks=0."
        )


# ---- Policies and roles

# By the kind of an algorithm: what is expected, what to do, and whether (trained roles, their policies) are not that.
POLICIES: Mapping[str, tuple[str, str, Callable[[int, int], bool]]] = {
    "shared": (
        "trains one policy that plays all roles which are trained",
        "Let one policy play them, or use grpo.",
        lambda roles, policies: policies > 1,
    ),
    "one_role": (
        "trains one role and leaves the others as they are",
        "Set frozen: true for the policies of the others, or use grpo_by_role.",
        lambda roles, policies: roles > 1,
    ),
    "by_role": (
        "trains a policy of its own for each role",
        "Give each role its policy, or use grpo_by_role.",
        lambda roles, policies: policies < roles,
    ),
}


def algorithm_team(experiment: Experiment) -> Iterator[str]:
    """An algorithm that is about a team trains such a team, and one for a single agent trains that."""
    algorithm, trained, roles = experiment.algorithm, experiment.trained_roles, experiment.env_spec.roles
    if algorithm.single_agent and len(roles) > 1:
        yield (
            f"algorithm: {algorithm.name} trains a single agent, and {experiment.env} has the roles "
            f"{', '.join(roles)}; expected one. Use ippo with critic.level=token, or an environment with one role."
        )
    if algorithm.policies in POLICIES:
        expected, remedy, is_wrong = POLICIES[algorithm.policies]
        if is_wrong(len(trained), len(set(trained.values()))):
            assigned = ", ".join(f"{role}: {policy}" for role, policy in trained.items()) or "none that is trained"
            yield f"algorithm: {algorithm.name} {expected}; got {assigned}. {remedy}"


def exchange_every(experiment: Experiment) -> Iterator[str]:
    """Only several policies that are trained alike can exchange their roles."""
    played = set(experiment.roles.values())
    wrong = {
        "one policy, which plays all roles": len(played) < 2,
        "a policy that is not trained": played != set(experiment.learners),
        "a critic, whose heads belong to roles": experiment.plan.critic is not None,
        "policies that are sampled differently": len(set(experiment.sampling.values())) > 1,
    }
    for problem, is_wrong in wrong.items():
        if is_wrong and experiment.exchange_every:
            yield (
                f"team.exchange_every: got {experiment.exchange_every} with {problem}; expected several policies, all "
                "trained and sampled alike, without a critic. Set it to 0, or change the team."
            )


def schedule(experiment: Experiment) -> Iterator[str]:
    """A schedule has several policies to choose from, and returns some of them at every step."""
    name, train = experiment.schedule, experiment.train
    policies = list(dict.fromkeys(experiment.trained_roles.values()))
    if name == "together":
        return
    load_function("train.schedule", name, SCHEDULES)  # a name that does not exist is the fault to report first
    if len(policies) < 2:
        yield (
            f"train.schedule: got {name} with {', '.join(policies) or 'no policy'} that is trained; expected several "
            "policies, which take turns. Give each role a policy of its own under team.policies, or set together."
        )
    if train.max_staleness and name == experiment.plan.schedule:
        yield (
            f"train.max_staleness: got {train.max_staleness} with {experiment.algorithm.name}, each of whose updates "
            "is on rollouts of the team as the update before left it; expected 0. Remove it."
        )
    for step in range(min(train.steps, SCHEDULE_STEPS)):
        experiment.frozen_at(step)  # raises what a function of the user's raises, or would return at that step


def trained_policies(experiment: Experiment) -> Iterator[str]:
    """A training changes some weights."""
    trained, weights = experiment.trained_roles, experiment.plan.selection.role_weights
    remedy = "or use cadre eval, which plays the team as it is."
    if not trained:
        yield (
            f"team.policies: got {', '.join(experiment.policies)} frozen, so that nobody is trained; expected one "
            f"policy at least that learns. Remove its frozen: true, {remedy}"
        )
    if all(weights.get(role) == 0.0 for role in trained):
        yield (
            f"credit.role_weights: got 0 for {', '.join(trained)}, so that nobody is trained; expected a weight above "
            f"0 for one role at least. Raise one, {remedy}"
        )


# ---- The size and the shape of trees


def siblings(experiment: Experiment) -> Iterator[str]:
    """Every role has a number of siblings, and none has more than a tree may have leaves."""
    k, roles = experiment.algorithm.k, experiment.env_spec.roles
    by_role = isinstance(k, Mapping)
    for role in k if by_role else ():
        if role not in roles:
            yield (
                f"algorithm.k.{role}: {experiment.env_spec.env_class.__name__} has no such role; expected "
                f"{', '.join(roles)}. Remove it.{nearest(role, roles)}"
            )
    for role in roles if by_role else ():
        if role not in k:
            yield (
                f"algorithm.k: role {role!r} has no number of siblings; expected one for each of {', '.join(roles)}. "
                f"Add `{role}: {next(iter(k.values()))}`."
            )
    # Before anything is built for each of them.
    maximum = max(max(value) if isinstance(value, tuple) else value for value in (k.values() if by_role else [k]))
    if maximum > MAX_LEAVES:
        yield f"algorithm.k: got {maximum:,}; expected at most {MAX_LEAVES:,} siblings a decision. Lower it."


def leaves(experiment: Experiment) -> Iterator[str]:
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
    for depth, roles in enumerate(acting if shape.joint == "cross" else ()):
        joint = prod(max(shape.count(role, turn, depth) for turn in (0, depth)) for role in roles)
        if joint > MAX_LEAVES:
            yield (
                f"algorithm: {shape.name} has {joint:,} joint actions where {', '.join(roles)} act at once; expected "
                f"at most {MAX_LEAVES:,}. Lower algorithm.k, or use algorithm.joint=aligned."
            )
    count = shapes.count_leaves(shape, acting, unpaid)
    if count > MAX_LEAVES:
        unknown = shape.selects is None and ":" in getattr(experiment.algorithm, "shape", "")
        remedy = "declare in the Shape how many branches continue (selects=1, say)" if unknown else "use greedy"
        ahead = f", {len(unpaid)} of which pay nobody," if shape.lookahead and unpaid else ""
        yield (
            f"algorithm: {shape.name} over {len(acting)} decisions{ahead} of {experiment.env} needs {count:,} leaves "
            f"a task; expected at most {MAX_LEAVES:,}. Lower algorithm.k{', algorithm.lookahead' if ahead else ''} or "
            f"the environment's turns, or {remedy}."
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


def replayable(experiment: Experiment) -> Iterator[str]:
    """A program that cannot be played again is neither branched behind its first decision, unless each answer has a
    reward of its own and one branch is selected, nor stepped without some roles."""
    settings, shape = experiment.env_spec.all_settings, experiment.plan.shape
    if settings.get("replayable", True):
        return
    name = experiment.algorithm.name
    remedy = "take what changes from run to run out of the prompts (cadre check shows it) and remove the setting."
    goes_on = settings.get("turn_reward") and shape.selects == 1 and not shape.revisits_decisions
    if shape.has_later_branches(experiment.env_spec.roles, PROGRAM_DEPTHS) and not goes_on:
        yield (
            f"settings.replayable: got false under {name}, whose trees ({shape.name}) branch behind the first "
            "decision, which means to start the program again with the answers that it had; expected whole episodes "
            f"side by side. Use algorithm=grpo, or {remedy}"
        )
    if _steps_without_roles(experiment):
        yield (
            f"settings.replayable: got false under {name}, whose credit steps forks of every state without some "
            f"roles; expected a program that can be played again. Use algorithm=grpo_by_role, or {remedy}"
        )


def _steps_without_roles(experiment: Experiment) -> bool:
    return required_ablation(experiment.plan.credit) != "none" and experiment.plan.critic is None


def ablation(experiment: Experiment) -> Iterable[str]:
    """If the credit steps without some roles, the environment can be forked and takes its default actions."""
    # A trial would start the processes of an environment that has some.
    if not _steps_without_roles(experiment) or experiment.env_spec.env_class.starts_processes:
        return ()
    try:
        run_coroutine(_try_ablation(experiment, required_ablation(experiment.plan.credit)))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"algorithm: {experiment.algorithm.name} steps forks of every state with default actions of some roles, "
            f"which {experiment.env} does not take: {describe_error(error)}; expected a fork() that copies the state, "
            "and a default_action(role) that step() takes. Write them, or use algorithm=grpo_by_role."
        ) from error
    return ()


async def _try_ablation(experiment: Experiment, kind: Ablation) -> None:
    """Step the first state of a task without roles, with empty answers of those that are present."""
    make, roles = experiment.env_spec.make, experiment.env_spec.roles
    team = Team(experiment.roles, {}, {})
    rollout = Rollout(make, team, experiment.plan.shape, experiment.plan.credit.alpha, ablation=kind)
    with closing(TimedEnv.made(make, experiment.training_tasks[0], roles, experiment.episodes)) as env:
        await env.until_ready()
        if observations := env.observe():
            empty = {role: Sample(role, "", "", (), (), (), "stop", 0) for role in observations}
            await step_ablated(env, observations, [empty], {}, rollout)


# ---- Critics, reward models and teachers


def critic(experiment: Experiment) -> Iterator[str]:
    """A critic reads what there is, in the vocabulary of the policies that it judges, and scores are a model's."""
    judge, folder = experiment.plan.critic, experiment.plan.reward_model
    if folder is not None and not Path(folder).expanduser().is_dir():
        yield (
            f"algorithm.reward_model: got {folder!r}, which is no folder; expected that of a trained reward model. "
            "Fix the path, or remove it to train on the environment's reward."
        )
    if judge is None:
        return
    own = judge.config.policy
    if judge.config.privileged and experiment.env_spec.env_class.privileged is Env.privileged:
        yield (
            f"algorithm.critic.privileged: {experiment.env} shows nothing to critics only; expected an environment "
            "with a privileged() of its own. Remove the option, or write the method."
        )
    policies = list(dict.fromkeys(experiment.trained_roles.values()))
    if own is None and judge.reads == "joint" and len(policies) > 1:
        yield (
            f"algorithm.critic.policy: unset, with {len(policies)} policies that are trained ({', '.join(policies)}) "
            "and one critic for all of them; expected a model of its own for the critic. Set "
            "algorithm.critic.policy=seed or the model that you train."
        )
    for name in experiment.heads if own is not None else ():
        if name in experiment.roles.values():
            yield f"team.policies.{name}: the critic's own policy has that name; expected another. Rename the policy."
    for role, policy in experiment.trained_roles.items():
        model = experiment.policies[policy].model
        if own is not None and judge.config.level == "token" and model != own.model:
            yield (
                f"algorithm.critic.policy.model: got {own.model!r} for a critic that reads the tokens of {role}, "
                f"which {model!r} sampled; expected the same model. Set it, or algorithm.critic.level=decision."
            )


def teacher(experiment: Experiment) -> Iterator[str]:
    """A teacher is where its log-probabilities can be read, and is there for samples that are learned from."""
    taught, plan, policies = experiment.plan.teacher, experiment.plan, experiment.config.team.policies
    if taught is None:
        return
    if taught.hint and experiment.env_spec.env_class.privileged is Env.privileged:
        yield (
            f"teacher.hint: {experiment.env} has no text for a teacher; expected an environment with a privileged() of "
            "its own. Write the method, or remove the option."
        )
    if taught.policy is not None:
        if taught.policy not in policies:
            yield (
                f"teacher.policy: got {taught.policy!r}; expected one of {', '.join(policies)}. Name one, or a model "
                f"under teacher.model.{nearest(taught.policy, policies)}"
            )
        if set(experiment.trained_roles.values()) <= {taught.policy}:
            yield (
                f"teacher.policy: got {taught.policy}, beside which no policy is trained; expected one to be taught. "
                "Train another, or set teacher.weights or teacher.hint in its place."
            )
        sampled_apart = set(experiment.vllm_policies) - experiment.learners.keys()
        if policies[taught.policy].url is not None or taught.policy in sampled_apart:
            yield (
                f"teacher.policy: got {taught.policy}, whose weights are in no engine of this process that scores "
                "tokens; expected one that is trained, or frozen with sampling.engine=torch. Name its model, with its "
                "url if it has one, under teacher.model."
            )
    is_local = taught.model.url is None if taught.model else taught.policy in policies.keys() - experiment.learners
    if is_local and experiment.cluster is not None:
        yield (
            "teacher: got a model that is not trained, with a cluster, which has no process for it; expected an "
            "endpoint. Serve the model, and set teacher.model.url."
        )
    for role in experiment.trained_roles if taught.model and taught.model.url else ():
        if (temperature := experiment.sampling[role].temperature) != 1.0:
            yield (
                f"sampling.temperature: got {temperature:g} for {role} with teacher.model.url, whose log-probabilities "
                "are those at temperature 1; expected 1. Set it, or load the teacher here."
            )
    name = experiment.algorithm.name
    if taught.alone and (plan.critic is not None or plan.reward_model is not None or plan.influence):
        yield (
            f"teacher.alone: got true with algorithm.name={name}, which computes values, scores or influences that no "
            "advantage would contain; expected an algorithm that compares rewards, such as grpo. Set it, or remove "
            "alone."
        )
    unfit: dict[str, tuple[object, bool]] = {
        "algorithm": (name, plan.preference is not None or plan.only_positive),
        "credit.without_std": ("drop", plan.selection.without_std == "drop"),
        "credit.drop_groups": (plan.selection.drop_groups, taught.alone and plan.selection.drop_fraction is not None),
    }
    for option, (got, is_wrong) in unfit.items():
        if is_wrong:
            yield (
                f"{option}: got {got} with a teacher, which leaves out samples by their rewards, although they have a "
                "teacher's advantages too; expected one that keeps them. Remove it, or the section teacher."
            )


# ---- Samples, losses and credit


def sampling(experiment: Experiment) -> Iterator[str]:
    """Trained policies sample from the full softmax, and the length penalty does not begin before the first token."""
    buffer = experiment.plan.selection.overlong_buffer
    for role, policy in experiment.trained_roles.items():
        drawn = experiment.sampling[role]
        if drawn.top_p < 1.0 or drawn.top_k > 0:
            yield (
                f"sampling: got top_p={drawn.top_p}, top_k={drawn.top_k} for policy {policy}, which is trained; "
                "expected top_p=1 and top_k=0, since the loss uses the full softmax and its ratio would be wrong. "
                "Remove both, or freeze the policy."
            )
        if buffer > drawn.max_tokens:
            yield (
                f"credit.overlong_buffer: got {buffer} tokens, and {role} says at most {drawn.max_tokens}; expected no "
                "more than that. Lower it or raise sampling.max_tokens."
            )


def preference(experiment: Experiment) -> Iterator[str]:
    """The margins of preference pairs are those of the policies that sampled, and the gradient that of their loss at
    these alone."""
    loss = experiment.plan.loss
    options: dict[str, tuple[object, object]] = {
        "train.max_staleness": (experiment.train.max_staleness, 0),
        "loss.ratio": (loss.ratio, "none"),
        "loss.function": (loss.function, None),
        "loss.correction": (loss.correction, "none"),
    }
    for option, (got, expected) in options.items():
        if experiment.plan.preference is not None and got != expected:
            yield (
                f"{option}: got {got} with {experiment.algorithm.name}, whose margins are of the policies that "
                f"sampled, and whose gradient is that of its loss at these alone; expected {expected}. Remove it."
            )


def costs(experiment: Experiment) -> Iterator[str]:
    """A penalty on the whole reward neither hides in one of the parts that are normalised apart, nor decides which
    samples passed."""
    plan, name = experiment.plan, experiment.algorithm.name
    penalties = {"algorithm.kl": plan.kl, "credit.overlong_buffer": plan.selection.overlong_buffer}
    costs = {option: value for option, value in penalties.items() if value}
    if plan.credit.sums == "normalised":
        if not any(weight for _, weight in plan.credit.comparisons):
            yield (
                "algorithm.parts: got weights that are all 0, under which nothing is learned; expected one that is "
                "not. Set one, such as 1.0."
            )
        for option, value in costs.items():
            yield (
                f"{option}: got {value:g} with algorithm.parts of {name}, each of which is compared by itself, and a "
                "cost is of none of them; expected 0. Set loss.kl in place of algorithm.kl, or report it as a part."
            )
    for option, value in costs.items() if plan.only_positive else ():
        remedy = "Set loss.kl in its place." if option == "algorithm.kl" else "Remove it."
        yield (
            f"{option}: got {value:g} with {name}, which learns from what passed alone, and a penalty would change "
            f"what that is; expected 0. {remedy}"
        )


def stale_samples(experiment: Experiment) -> Iterator[str]:
    """A loss corrects for samples of earlier weights if there are some."""
    loss, max_staleness = experiment.plan.loss, experiment.train.max_staleness
    if loss.function is not None or loss.ratio != "none":  # a function has tokens.old, and is responsible
        return
    # The first optimiser step makes the samples of the others stale, which a ratio corrects for.
    for name in dict.fromkeys(experiment.trained_roles.values()):
        learner = experiment.learners[name]
        if makes_several_steps(learner):
            size = learner.minibatch_size
            parts = f"{learner.minibatches} minibatches" if size is None else f"minibatches of {size} sequences"
            yield (
                f"learner: got {learner.epochs} epochs of {parts} for policy {name} under a loss without a ratio, "
                "whose data would be stale after the first optimiser step; expected one epoch of one minibatch. Remove "
                "the settings or set loss.ratio=token."
            )
    # Asynchronous sampling makes all samples stale, which a correction corrects for too.
    if max_staleness and loss.correction == "none":
        yield (
            f"train.max_staleness: got {max_staleness} under a loss without a ratio or a correction, which takes "
            "samples of earlier weights for samples of its own; expected 0. Add loss.correction=truncate, or lower it."
        )


def own_functions(experiment: Experiment) -> Iterable[str]:
    """A loss of the user's returns finite numbers for made-up tokens, and the function of every step can be loaded."""
    loss = experiment.plan.loss
    if experiment.train.on_step is not None:
        load_function("train.on_step", experiment.train.on_step, {})
    if any(":" in (name or "") for name in (loss.function, loss.ratio, loss.correction, loss.correction_level)):
        from cadre.learn.loss import check_loss  # imports torch

        check_loss(loss)
    return ()


def credit(experiment: Experiment) -> Iterator[str]:
    """Weights are of roles that exist, of whole episodes if by episode, and no group with a gradient is dropped."""
    plan, selection, roles = experiment.plan, experiment.plan.selection, experiment.roles
    for role in selection.role_weights:
        if role not in roles:
            yield (
                f"credit.role_weights.{role}: there is no such role; expected one of {', '.join(roles)}. Remove it."
                f"{nearest(role, roles)}"
            )
    for comparison, _ in plan.credit.comparisons if selection.without_std == "drop" else ():
        if not comparison.baseline.needs_group:
            baseline = comparison.baseline.name
            names = ", ".join(name for name, function in BASELINES.items() if declared(function, "needs_group"))
            advice = ", or declare(needs_group=True) of your own" if ":" in baseline else ""
            yield (
                f"credit.without_std: got drop with the baseline {baseline} of {experiment.algorithm.name}, under "
                "which a group without std has a gradient; expected keep. Remove it, or take a baseline made of the "
                f"group: {names}{advice}."
            )
    if selection.tree_weight == "by_episode" and not plan.shape.selects_all:
        yield (
            f"credit.tree_weight: got by_episode with shape {plan.shape.name}, where siblings that were left behind "
            "are of no whole episode, and would weigh more than the one that went on; expected by_decision. Set that, "
            "or a shape that plays every branch out."
        )


def group_size(experiment: Experiment) -> Iterator[str]:
    """A sample that is compared with itself alone has no advantage: a baseline of the group needs two."""
    plan, name, shape = experiment.plan, experiment.algorithm.name, experiment.plan.shape
    positions = [(turn, depth) for depth in range(DEPTHS) for turn in range(depth + 1)]
    is_single = not shape.revisits_decisions and all(
        shape.count(role, *position) == 1 for role in experiment.trained_roles for position in positions
    )
    if not is_single or plan.critic is not None or plan.teacher is not None:
        return
    if plan.preference is not None:
        yield (
            f"algorithm.k: got 1 with {name}, which prefers one of the samples of a decision to another; expected 2 or "
            "more. Raise it."
        )
    if all(_has_zero_advantages(one, experiment.train.tasks_per_step) for one, _ in plan.credit.comparisons):
        single_task = " and train.tasks_per_step=1" if plan.credit.first.group.scope == "batch" else ""
        yield (
            f"algorithm.k: got 1{single_task} with {name}, whose baseline ({plan.credit.first.baseline.name}) is made "
            "of the samples of a group, here one each, so that every advantage is 0 and nothing is learned; expected 2 "
            "or more. Raise it, or use an algorithm with another baseline, such as spiral (a running mean) or ippo (a "
            "critic)."
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


# In their order; those that play an episode come last.
CHECKS: tuple[Check, ...] = (
    tasks,
    siblings,
    replayable,
    algorithm_team,
    exchange_every,
    schedule,
    critic,
    teacher,
    sampling,
    preference,
    costs,
    stale_samples,
    own_functions,
    credit,
    ablation,
    leaves,
)
