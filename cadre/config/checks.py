"""What would give wrong results or lose work, settings without effect, and what is seldom meant.

Each check yields a paragraph for every fault that roles, policies, learners and the environment show together; the
tables at the end name the checks of an evaluation, of growing trees and of a training, of which the first fault is
raised. What a section can check alone is in `cadre.settings` and `cadre.algorithms`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from math import prod
from pathlib import Path

from cadre.advantages.groups import BASELINES
from cadre.advantages.returns import Comparison
from cadre.concurrency import run_coroutine
from cadre.config.experiment import Experiment
from cadre.declare import declared
from cadre.env import Env, GeneratedTasks
from cadre.envs import validation as env_validation
from cadre.envs.spec import name_of
from cadre.envs.splits import shared_tasks
from cadre.errors import ConfigError, ContractError, nearest
from cadre.plugins import environments, install_command, trained_on
from cadre.rollout import shapes
from cadre.rollout.grow import is_rewarded
from cadre.settings import LearnerConfig, LossConfig, SamplingConfig
from cadre.settings.engines import PlacementConfig
from cadre.settings.models import AUDIO_MODELS, MEDIA_MODELS, read_model_type
from cadre.settings.objective import can_leave_bound, makes_several_steps, needs_reference
from cadre.settings.section import Given, ReadIf, Section, SetKeysOnly, apply_changes
from cadre.settings.user_code import load_function
from cadre.types import Task

Check = Callable[[Experiment], Iterable[str]]
# Siblings of a decision, joint actions of a step, and leaves of a tree; decisions of an episode that is looked at.
MAX_LEAVES, MAX_DECISIONS = 10_000, 100
# Decisions of an episode that are searched for siblings.
DEPTHS = 50
# Tasks per split that are compared: of those that are made on demand, and of those in a list.
COMPARED_TASKS, COMPARED_LISTED = 100, 100_000


# ---- The environment and its tasks


def environment(experiment: Experiment) -> Iterator[str]:
    """The environment has its settings, its class is complete, and every role has a policy."""
    env, roles, played = experiment.config.env, experiment.env_spec.roles, experiment.roles
    if unset := experiment.env_spec.missing:
        yield f"settings.{unset[0]}: missing, and {env} has no default for it; expected a value. Add it under settings."
    if faults := env_validation.declaration_faults(experiment.env_spec):
        more = f" ({len(faults) - 1} more: cadre check {env})" if len(faults) > 1 else ""
        raise ContractError(faults[0].paragraph + more)

    missing = [role for role in roles if role not in played]
    for role in played:
        if role not in roles:
            remedy = f"Rename it to {missing[0]}." if len(missing) == 1 else "Rename or remove it."
            yield (
                f"team.roles.{role}: {env} under {experiment.config.algorithm.name} has no such role; expected "
                f"{', '.join(roles)}. {remedy}{nearest(role, missing or roles)}"
            )
    for role in missing:
        yield (
            f"team.roles: role {role!r} of {env} under {experiment.config.algorithm.name} has no policy; expected one "
            f"for each of {', '.join(roles)}. Add `{role}: {next(iter(experiment.policies))}`."
        )

    # Changes on held-out tasks leave the roles and the training data as they are.
    changes, held_out_roles = experiment.config.evaluate.settings, experiment.held_out.roles
    for name in ("train", "data", "held_out"):
        if name in changes:
            got = f"got {changes[name]!r}, which would change what is trained on"
            yield f"evaluate.settings.{name}: {got}; expected none. Name a set with evaluate.settings.test."
    if held_out_roles != roles:
        trained = f"expected those that are trained, {', '.join(roles)}. Remove what changes them."
        yield f"evaluate.settings: got {changes}, which makes the roles {', '.join(held_out_roles)}; {trained}"


def tasks(experiment: Experiment) -> Iterator[str]:
    """There are tasks to train on, and held-out tasks if some are to be played. Reads the splits."""
    env, settings = experiment.config.env, experiment.config.evaluate
    if not len(experiment.training_tasks):
        yield f"{env}: got no training tasks; expected at least one. Make tasks('train') return some, or set others."
    if settings.tasks and (count := len(experiment.held_out_tasks)) <= settings.first:
        yield (
            f"evaluate.tasks: got {settings.tasks} from number {settings.first} on, but {env} has {count} held-out "
            "tasks; expected more. Make tasks('test') return some, lower evaluate.first, or set evaluate.tasks=0."
        )


def curriculum(experiment: Experiment) -> Iterator[str]:
    """Every level has tasks for the same roles, and the level of a step is known when it is sampled."""
    config, levels, cluster = experiment.config.curriculum, experiment.levels, experiment.config.cluster
    if config is not None and config.down >= config.up:
        yield f"curriculum.down: got {config.down:g} with up={config.up:g}; expected less. Lower it."
    if config is not None and (experiment.config.train.max_staleness or (cluster and cluster.environments)):
        got = "got it with train.max_staleness or cluster.environments"
        yield f"curriculum: {got}; expected both to be 0, as a step's tasks follow from the step before. Set them so."
    for number, level in enumerate(levels, 1):
        if level.env_spec.roles != experiment.env_spec.roles or not len(level.training_tasks):
            yield f"curriculum.levels: number {number} has other roles than settings, or no tasks; expected both. Mend."


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
    algorithm, trained, roles = experiment.config.algorithm, experiment.trained_roles, experiment.env_spec.roles
    if algorithm.single_agent and len(roles) > 1:
        got = f"trains a single agent, and {experiment.config.env} has the roles {', '.join(roles)}"
        yield f"algorithm: {algorithm.name} {got}; expected one. Use ippo with critic.level=token."
    if algorithm.policies in POLICIES:
        expected, remedy, is_wrong = POLICIES[algorithm.policies]
        if is_wrong(len(trained), len(set(trained.values()))):
            assigned = ", ".join(f"{role}: {policy}" for role, policy in trained.items()) or "none that is trained"
            yield f"algorithm: {algorithm.name} {expected}; got {assigned}. {remedy}"


def mixture(experiment: Experiment) -> Iterator[str]:
    """Nothing is compared over a batch where the policy of a batch plays in several environments of a mixture."""
    members, plan, name = experiment.env_spec.members, experiment.plan, f"algorithm: {experiment.config.algorithm.name}"
    homes = {f"{member}-{role}": member for member, spec in members.items() for role in spec.roles}
    played = {(policy, homes.get(role)) for role, policy in experiment.trained_roles.items()}
    is_shared = len(played) > len({policy for policy, _ in played}) or experiment.config.algorithm.central
    groups = [one.group for one, _ in plan.credit.comparisons if one.group.scope in ("batch", None)]
    compared = {
        f"{name} has one role for all, and": experiment.config.algorithm.central,
        f"{name} normalises over a batch, and": plan.credit.sums == "normalised",
        f"{name} has groups of more than one task, and": any(group.name != "role" for group in groups),
        "credit.drop_groups ranks the groups of a batch, and": plan.selection.drop_groups != "none",
    }
    for what in [what for what, is_so in compared.items() if is_so and is_shared and len(members) > 1]:
        got = f"a policy plays in several of {', '.join(members)}, whose returns would be compared"
        yield f"{what} {got}; expected one that plays in one of them. Give each its own, or take another algorithm."


def turns_of_policies(experiment: Experiment) -> Iterator[str]:
    """Only policies that are trained alike exchange their roles, and a schedule returns some of them at every step."""
    played, train = set(experiment.roles.values()), experiment.config.train
    interval = experiment.config.team.exchange_every
    is_alike = len(set(experiment.sampling.values())) == 1 and experiment.plan.critic is None
    if interval and (len(played) < 2 or played != set(experiment.learners) or not is_alike):
        expected = "expected several policies, all trained and sampled alike, without a critic"
        yield f"team.exchange_every: got {interval}; {expected}. Set it to 0, or change the team."
    whole = [name for name in experiment.vllm_policies if experiment.policies[name].lora is None]
    if experiment.config.team.opponents and (train.max_staleness or experiment.config.cluster or whole):
        expected = "expected neither train.max_staleness nor a cluster, and with vLLM an adapter (lora)"
        yield f"team.opponents: {expected}: members are loaded between two steps, into this process. Change that."
    if experiment.schedule == "together":
        return
    if train.max_staleness and experiment.schedule == experiment.plan.schedule:
        got = f"got {train.max_staleness} with {experiment.config.algorithm.name}, whose updates follow each other"
        yield f"train.max_staleness: {got}; expected 0. Remove it."
    for step in range(min(train.steps, 1_000)):
        experiment.frozen_at(step)  # raises what a function of the user's raises, or would return at that step


def trained_policies(experiment: Experiment) -> Iterator[str]:
    """A training changes some weights."""
    trained, weights = experiment.trained_roles, experiment.plan.selection.role_weights
    remedy = "or use cadre eval, which plays the team as it is."
    if not trained:
        got = f"got {', '.join(experiment.policies)} frozen, so that nobody is trained"
        yield f"team.policies: {got}; expected a policy that learns. Remove its frozen: true, {remedy}"
    elif all(weights.get(role) == 0.0 for role in trained):
        got = f"got 0 for {', '.join(trained)}, so that nobody is trained"
        yield f"credit.role_weights: {got}; expected a weight above 0. Raise one, {remedy}"


# ---- The size and the shape of trees


def siblings(experiment: Experiment) -> Iterator[str]:
    """Every role has a number of siblings, that of given completions, and none more than a tree may have leaves."""
    k, roles = experiment.config.algorithm.k, experiment.env_spec.roles
    given, engines = experiment.env_spec.declared.given_answers, {one.engine for one in experiment.samplers.values()}
    if given and (k, engines) != (given, {"torch"}):
        got = f"k={k} and the engines {', '.join(sorted(engines))}"
        yield f"algorithm: {experiment.config.env} gives all completions; got {got}, expected k={given} and torch."
    by_role = k if isinstance(k, Mapping) else {}
    for role in by_role:
        if role not in roles:
            expected = f"expected {', '.join(roles)}. Remove it.{nearest(role, roles)}"
            yield f"algorithm.k.{role}: {experiment.config.env} has no such role; {expected}"
    for role in roles:
        if by_role and role not in by_role:
            expected = f"expected one for each of {', '.join(roles)}. Add `{role}: {next(iter(by_role.values()))}`."
            yield f"algorithm.k: role {role!r} has no number of siblings; {expected}"
    # Before anything is built for each of them.
    maximum = max(max(number) if isinstance(number, tuple) else number for number in by_role.values() or [k])
    if maximum > MAX_LEAVES:
        yield f"algorithm.k: got {maximum:,}; expected at most {MAX_LEAVES:,} siblings a decision. Lower it."


def leaves(experiment: Experiment) -> Iterator[str]:
    """A tree is not too large to sample."""
    shape, first = experiment.plan.shape, experiment.env_spec.roles[0]
    longest_episode = [[first]] * MAX_DECISIONS
    if (
        isinstance(experiment.config.algorithm.k, int)
        and shapes.count_leaves(shape, longest_episode, range(MAX_DECISIONS)) <= MAX_LEAVES
    ):
        return
    # The bound above is loose, or k differs by role or turn: count the leaves of a probe episode.
    acting, unpaid = run_coroutine(_probe_episode(experiment))
    counts = {f"leaves a task over {len(acting)} decisions": shapes.count_leaves(shape, acting, unpaid)}
    for depth, roles in enumerate(acting if shape.joint == "cross" else ()):
        joint = prod(max(shape.count(role, turn, depth) for turn in (0, depth)) for role in roles)
        counts[f"joint actions where {', '.join(roles)} act at once"] = joint
    for unit, count in counts.items():
        if count > MAX_LEAVES:
            yield (
                f"algorithm: {shape.name} of {experiment.config.env} needs {count:,} {unit}; expected at most "
                f"{MAX_LEAVES:,}. Lower algorithm.k, its lookahead or the environment's turns, use greedy or "
                "algorithm.joint=aligned, or declare in a Shape of your own how many branches continue (selects=1)."
            )


async def _probe_episode(experiment: Experiment) -> tuple[list[list[str]], list[int]]:
    """Return the roles that act at each decision of an episode of empty answers, and the decisions without a reward."""
    env = experiment.env_spec.make(experiment.training_tasks[0])
    acting: list[list[str]] = []
    unpaid: list[int] = []
    await env.until_ready()
    while (observations := env.observe()) and len(acting) < MAX_DECISIONS:
        reward = await env.step(dict.fromkeys(observations, ""))
        if not any(is_rewarded(reward, role, experiment.plan.credit.alpha) for role in observations):
            unpaid.append(len(acting))
        acting.append(list(observations))
    return acting, unpaid


# ---- Critics, reward models and teachers


def critic(experiment: Experiment) -> Iterator[str]:
    """A critic reads what there is, in the vocabulary of the policies that it judges, and scores are a model's."""
    judge, folder, taught = experiment.plan.critic, experiment.plan.reward_model, experiment.plan.teacher
    if folder is not None and not Path(folder).expanduser().is_dir():
        yield f"algorithm.reward_model: got {folder!r}; expected the folder of a trained reward model. Fix the path."
    readers = {
        "algorithm.critic.privileged": judge is not None and judge.config.privileged,
        "teacher.hint": taught is not None and taught.hint,
    }
    played = experiment.env_spec.members.values()
    for option, is_set in readers.items():
        if is_set and all(spec.env_class.privileged is Env.privileged for spec in played):
            yield f"{option}: {experiment.config.env} has no text for it; expected one by privileged(). Write it."
    if judge is None:
        return
    critic_policy = judge.config.policy
    policies = list(dict.fromkeys(experiment.trained_roles.values()))
    if critic_policy is None and judge.reads == "joint" and len(policies) > 1:
        got = f"unset, with one critic for {len(policies)} policies that are trained ({', '.join(policies)})"
        remedy = "Set algorithm.critic.policy=seed or the model that you train."
        yield f"algorithm.critic.policy: {got}; expected a model of its own. {remedy}"
    for name in experiment.heads if critic_policy is not None else ():
        if name in experiment.config.team.policies:
            yield f"team.policies.{name}: the critic's own policy has that name; expected another. Rename the policy."
    for role, policy in experiment.trained_roles.items():
        model = experiment.policies[policy].model
        if critic_policy is not None and judge.config.level == "token" and model != critic_policy.model:
            got = f"got {critic_policy.model!r} for a critic that reads the tokens of {role}, which {model!r} sampled"
            yield f"algorithm.critic.policy.model: {got}; expected the same model, or level=decision. Set one."


def teacher(experiment: Experiment) -> Iterator[str]:
    """A teacher scores with the distribution that is sampled from, and for samples that are learned from."""
    taught, plan, policies = experiment.plan.teacher, experiment.plan, experiment.config.team.policies
    if taught is None:
        return
    if taught.policy is not None and taught.policy not in policies:
        hint = f"Name a model under teacher.model.{nearest(taught.policy, policies)}"
        yield f"teacher.policy: got {taught.policy!r}; expected one of {', '.join(policies)}. {hint}"
    if taught.policy is not None and set(experiment.trained_roles.values()) <= {taught.policy}:
        yield f"teacher.policy: got {taught.policy}, beside which no policy is trained; expected one. Train another."
    is_local = taught.model.url is None if taught.model else taught.policy in policies.keys() - experiment.learners
    if is_local and experiment.config.cluster is not None:
        yield "teacher: got a model that is not trained, with a cluster; expected an endpoint. Set teacher.model.url."
    for role in experiment.trained_roles if taught.model and taught.model.url else ():
        if (temperature := experiment.sampling[role].temperature) != 1.0:
            fault = f"got {temperature:g} for {role} with teacher.model.url, which scores at temperature 1"
            yield f"sampling.temperature: {fault}; expected 1. Set it, or load the teacher here."
    name, selection = experiment.config.algorithm.name, plan.selection
    if taught.alone and (plan.critic is not None or plan.reward_model is not None or plan.influence):
        fault = f"got true with algorithm.name={name}, which computes values, scores or influences that are not used"
        yield f"teacher.alone: {fault}; expected an algorithm that compares rewards. Set algorithm.name=grpo."
    unfit: dict[str, tuple[object, bool]] = {
        "algorithm": (name, plan.preference is not None or plan.only_positive),
        "credit.without_std": ("drop", selection.without_std == "drop"),
        "credit.drop_groups": (selection.drop_groups, taught.alone and selection.drop_fraction is not None),
    }
    for option, (got, is_wrong) in unfit.items():
        if is_wrong:
            fault = "which leaves out samples by their rewards, although a teacher gives them advantages too"
            yield f"{option}: got {got} with a teacher, {fault}; expected one that keeps them. Remove one of the two."


# ---- Samples, losses and credit


def sampling(experiment: Experiment) -> Iterator[str]:
    """Trained policies sample from the full softmax, and the length penalty does not begin before the first token."""
    buffer = experiment.plan.selection.overlong_buffer
    for role, policy in experiment.trained_roles.items():
        params = experiment.sampling[role]
        if params.top_p < 1.0 or params.top_k > 0:
            yield (
                f"sampling: got top_p={params.top_p}, top_k={params.top_k} for policy {policy}, which is trained; "
                "expected top_p=1 and top_k=0, as the loss uses the full softmax. Remove both, or freeze the policy."
            )
        if buffer > params.max_tokens:
            got = f"got {buffer} tokens, and {role} says at most {params.max_tokens}"
            yield f"credit.overlong_buffer: {got}; expected no more. Lower it or raise sampling.max_tokens."


def preference(experiment: Experiment) -> Iterator[str]:
    """The margins of preference pairs are those of the policies that sampled, and the gradient that of their loss at
    these alone."""
    loss = experiment.plan.loss
    options: dict[str, tuple[object, object]] = {
        "train.max_staleness": (experiment.config.train.max_staleness, 0),
        "loss.ratio": (loss.ratio, "none"),
        "loss.function": (loss.function, None),
        "loss.correction": (loss.correction, "none"),
    }
    for option, (got, expected) in options.items():
        if experiment.plan.preference is not None and got != expected:
            fault = f"with {experiment.config.algorithm.name}, whose gradient is right at the sampling policies alone"
            yield f"{option}: got {got} {fault}; expected {expected}. Remove it."


def costs(experiment: Experiment) -> Iterator[str]:
    """A penalty on the whole reward neither hides in one of the parts that are normalised apart, nor decides which
    samples passed."""
    plan, name = experiment.plan, experiment.config.algorithm.name
    penalties = {"algorithm.kl": plan.kl, "credit.overlong_buffer": plan.selection.overlong_buffer}
    costs = {option: value for option, value in penalties.items() if value}
    if plan.credit.sums == "normalised":
        if not any(weight for _, weight in plan.credit.comparisons):
            yield "algorithm.parts: got weights that are all 0; expected one that is not. Set one, such as 1.0."
        for option, value in costs.items():
            got = f"got {value:g} with algorithm.parts of {name}, each of which is compared by itself"
            yield f"{option}: {got}; expected 0. Set loss.kl in place of algorithm.kl, or report it as a part."
    for option, value in costs.items() if plan.only_positive else ():
        remedy = "Set loss.kl in its place." if option == "algorithm.kl" else "Remove it."
        yield f"{option}: got {value:g} with {name}, which learns from what passed alone; expected 0. {remedy}"


def stale_samples(experiment: Experiment) -> Iterator[str]:
    """A loss corrects for samples of earlier weights if there are some."""
    loss, max_staleness = experiment.plan.loss, experiment.config.train.max_staleness
    if loss.function is not None or loss.ratio != "none":  # a function has tokens.old, and is responsible
        return
    # The first optimiser step makes the samples of the others stale, which a ratio corrects for.
    for name in dict.fromkeys(experiment.trained_roles.values()):
        learner = experiment.learners[name]
        if makes_several_steps(learner):
            size = learner.minibatch_size
            parts = f"{learner.minibatches} minibatches" if size is None else f"minibatches of {size} sequences"
            got = f"got {learner.epochs} epochs of {parts} for {name}, whose data are stale after one optimiser step"
            yield f"learner: {got} under a loss without a ratio; expected one step. Set loss.ratio=token."
    # Asynchronous sampling makes all samples stale, which a correction corrects for too.
    if max_staleness and loss.correction == "none":
        got = f"got {max_staleness} under a loss that takes samples of earlier weights for its own"
        yield f"train.max_staleness: {got}; expected 0. Add loss.correction=truncate, or lower it."


def own_functions(experiment: Experiment) -> Iterable[str]:
    """A loss of the user's returns finite numbers for made-up tokens, and the function of every step can be loaded."""
    loss = experiment.plan.loss
    if experiment.config.train.on_step is not None:
        load_function("train.on_step", experiment.config.train.on_step, {})
    if loss.function is not None:
        from cadre.learn.loss import check_loss  # imports torch

        check_loss(loss)
    return ()


def credit(experiment: Experiment) -> Iterator[str]:
    """Weights are of roles that exist, of whole episodes if by episode, and no group with a gradient is dropped."""
    plan, selection, roles = experiment.plan, experiment.plan.selection, experiment.roles
    for role in selection.role_weights:
        if role not in roles:
            expected = f"expected one of {', '.join(roles)}. Remove it.{nearest(role, roles)}"
            yield f"credit.role_weights.{role}: there is no such role; {expected}"
    for comparison, _ in plan.credit.comparisons if selection.without_std == "drop" else ():
        if not (baseline := comparison.baseline).needs_group:
            names = ", ".join(name for name, function in BASELINES.items() if declared(function, "needs_group"))
            yield (
                f"credit.without_std: got drop with the baseline {baseline.name}, where groups without std have a "
                f"gradient; expected keep. Take one of {names}, or declare(needs_group=True) of your own."
            )
    if selection.tree_weight == "by_episode" and not plan.shape.selects_all:
        got = f"got by_episode with shape {plan.shape.name}, where some siblings are of no whole episode"
        yield f"credit.tree_weight: {got}; expected by_decision. Set that, or a shape that plays every branch out."


def group_size(experiment: Experiment) -> Iterator[str]:
    """A sample that is compared with itself alone has no advantage: a baseline of the group needs two."""
    plan, name, shape = experiment.plan, experiment.config.algorithm.name, experiment.plan.shape
    positions = [(turn, depth) for depth in range(DEPTHS) for turn in range(depth + 1)]
    is_single = not shape.revisits_decisions and all(
        shape.count(role, *position) == 1 for role in experiment.trained_roles for position in positions
    )
    if not is_single or plan.critic is not None or plan.teacher is not None:
        return
    if plan.preference is not None:
        yield f"algorithm.k: got 1 with {name}, which prefers one sample of a decision to another. Raise it."
    if all(_has_zero_advantages(one, experiment.config.train.tasks_per_step) for one, _ in plan.credit.comparisons):
        single_task = " and train.tasks_per_step=1" if plan.credit.first.group.scope == "batch" else ""
        yield (
            f"algorithm.k: got 1{single_task} with {name}, whose baseline ({plan.credit.first.baseline.name}) is that "
            "of a group, here of one sample, so that every advantage is 0; expected 2 or more. Raise it, or use spiral."
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


# ---- Engines


def quantization(experiment: Experiment) -> Iterator[str]:
    """A base is quantised only where nothing trains it, and the torch engine alone runs it."""
    for name, policy in experiment.policies.items():
        setting = f"team.policies.{name}.quantization: got {policy.quantization}"
        if policy.quantization is None:
            continue
        if policy.lora is None and not policy.frozen:
            remedy = "Add lora: {}, or remove quantization."
            yield f"{setting}, and the policy is trained whole, which packed weights cannot be. {remedy}"
        if name in experiment.vllm_policies:
            yield f"{setting} with sampling.engine=vllm, which loads weights of its own; expected torch. Set that."
        if experiment.ranks([name]) > 1:
            ranks = experiment.ranks([name])
            yield f"{setting} with learner.ranks={ranks}, which divide each layer; expected 1. Remove one of the two."


def vllm(experiment: Experiment) -> Iterator[str]:
    """vLLM is installed and can sample the policies that it is set for."""
    for name in experiment.vllm_policies:
        policy, learner = experiment.policies[name], experiment.learners.get(name)
        if (kind := read_model_type(Path(experiment.models[name]))) in MEDIA_MODELS:
            got = f"got vllm for policy {name}, whose model of type {kind} reads {_media(kind)}"
            yield f"sampling.engine: {got}, which vLLM is not handed here; expected torch. Set it for that policy."
        if policy.device.startswith("cuda:") and policy.device != "cuda:0":
            got = f"got {policy.device} with sampling.engine=vllm, which takes the first GPU"
            yield f"team.policies.{name}.device: {got}; expected cuda:0. Set CUDA_VISIBLE_DEVICES to the GPU instead."
        if policy.lora is not None and policy.lora.path is not None:
            yield (
                f"team.policies.{name}.lora.path: got {policy.lora.path} with sampling.engine=vllm, which begins from "
                "fresh adapters alone; expected torch. Set that, or merge the adapter first (cadre export --merge)."
            )
        if experiment.colocated and learner is not None and learner.ranks > 1:
            got = f"got {learner.ranks} for {name} with vllm.colocated, which shares one GPU's memory"
            yield f"learner.ranks: {got}; expected 1. Remove one of the two."
        if experiment.config.vllm.sleep == "discard" and (learner is None or policy.lora is not None):
            got = f"got discard, and {name} keeps the weights of its base model, which no sync sends again"
            yield f"vllm.sleep: {got}; expected another value. Remove it."
    if experiment.vllm_policies and find_spec("vllm") is None:
        yield (
            f"sampling.engine: got vllm for {', '.join(experiment.vllm_policies)}, and vLLM is not installed; expected "
            f"version 0.32. Run {install_command('vllm')} (without a card: make vllm, in the clone), or set torch."
        )


def cluster(experiment: Experiment) -> Iterator[str]:
    """The policies of one base model have one placement, and nothing is placed that cannot be in another process."""
    config = experiment.config.cluster
    if config is None:
        return
    members = experiment.env_spec.members.values()
    if config.environments and any(spec.declared.starts_processes for spec in members):
        yield f"cluster.environments: got {config.environments} for a program, which has its own; expected 0."
    for name in config.policies:
        if name not in experiment.policies:
            yield f"cluster.policies.{name}: there is no such policy; expected one of {', '.join(experiment.policies)}."
    for names in experiment.engines:
        ranks = experiment.ranks(names)
        placed = config.place(names, trains=ranks > 0)
        if ranks > 1 and placed.learner_gpus not in (0, ranks):
            got = f"got {placed.learner_gpus:.0f} for {names[0]} with learner.ranks={ranks}, each of which takes a GPU"
            yield f"cluster.learner_gpus: {got}; expected {ranks}, or 0 to learn on CPUs. Set both alike."
    if experiment.colocated:
        yield "vllm.colocated: got true with a cluster, whose samplers have other processes; expected false. Remove it."


def learners(experiment: Experiment) -> Iterator[str]:
    """The policies of one model are trained by the same number of ranks, each of which may have a GPU of its own, and
    models that read images or sounds are trained padded by one rank."""
    for names in experiment.engines:
        ranks = {name: experiment.learners[name].ranks for name in names if name in experiment.learners}
        if len(set(ranks.values())) > 1:
            counts = ", ".join(f"{name}: {count}" for name, count in ranks.items())
            yield f"learner.ranks: got {counts} for policies on one model; expected one number. Set learner.ranks."
        device = experiment.policies[names[0]].device
        if experiment.ranks(names) > 1 and ":" in device:
            got = f"got {device} with learner.ranks={experiment.ranks(names)}, each of which takes a GPU of its own"
            yield f"team.policies.{names[0]}.device: {got}; expected cuda, cpu or auto. Remove the number."
    for name, learner in experiment.learners.items():
        yield from media_learner(name, learner, partial(read_model_type, Path(experiment.models[name])))


def media_learner(name: str, learner: LearnerConfig, find_type: Callable[[], str]) -> Iterator[str]:
    """A model that reads images or sounds is trained padded, by one rank: in a prefix tree equal ids with other images
    would be one node, and positions in an image are no depths. `find_type` is called only where that matters."""
    unfit = {
        "learner.flex_attention": learner.flex_attention,
        "learner.pack": learner.pack if learner.pack == "prefix_tree" else None,
        "learner.ranks": learner.ranks if learner.ranks > 1 else None,
    }
    for setting, value in unfit.items():
        if value and (kind := find_type()) in MEDIA_MODELS:
            got = f"got {value} for policy {name}, whose model of type {kind} reads {_media(kind)}"
            yield f"{setting}: {got}, which are trained padded and by one rank; expected it unset. Remove it."


def _media(model_type: str) -> str:
    return "sounds" if model_type in AUDIO_MODELS else "pictures"


# ---- The tables, in their order; what plays an episode comes last

EVALUATION: tuple[Check, ...] = (environment, quantization, vllm)
TREES: tuple[Check, ...] = (
    *(*EVALUATION, cluster, learners, tasks, curriculum, siblings, algorithm_team, turns_of_policies, critic, teacher),
    *(mixture, sampling, preference, costs, stale_samples, own_functions, credit, leaves),
)
TRAINING: tuple[Check, ...] = (trained_policies, group_size)


def raise_first(experiment: Experiment, checks: Sequence[Check]) -> None:
    """Raise ConfigError for the first fault that the checks of a table find."""
    for check in checks:
        for fault in check(experiment):
            raise ConfigError(fault)


# ---- Settings without effect: an error where the user typed them, a warning where they stand in a recipe
#
# A setting that depends on others has a `ReadIf` in its annotation. It is given if the recipe, its base or an override
# has it with another value than the default, which a run's configuration writes out, and than one that turns it off. In
# a section of changes to another one (`loss`, a policy's `sampling` and `learner`) every key that is written counts.


def check_typed_are_read(experiment: Experiment, typed: Collection[str]) -> None:
    """Raise ConfigError for the first setting without effect among those that the user typed, by their dotted keys."""
    for setting, words in ignored_settings(experiment) if typed else ():
        if any(_is_within(key, setting) for key in typed):
            raise ConfigError(f"{setting} has no effect here (it is read if {words}): remove it.")


def ignored_settings(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield (setting, when it would be read) for every setting that is given and has no effect."""
    for setting, conditions in _given_settings(Given("", None, experiment.config, "", experiment)):
        merged = [replace(setting, section=section, policy=policy) for section, policy in _merged(setting)]
        for condition in conditions:
            if not any(map(condition.is_read, merged)):
                yield setting.path, condition.words
                break


def _is_within(key: str, setting: str) -> bool:
    """Return True if a key, in which `*` is any name, is that of the setting or of a part of it."""
    parts = key.split(".")[: setting.count(".") + 1]
    return len(parts) == setting.count(".") + 1 and all(
        part in ("*", name) for part, name in zip(parts, setting.split("."), strict=True)
    )


def _given_settings(parent: Given, are_changes: bool = False) -> Iterator[tuple[Given, list[ReadIf]]]:
    """Yield every setting that is given and has conditions, with these, of the section that `parent` has."""
    section, prefix = parent.section, parent.path and f"{parent.path}."
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if name not in section.model_fields_set or value is None or value is False:
            continue
        setting = replace(parent, path=f"{prefix}{name}", value=value)
        has_changes = are_changes or SetKeysOnly in field.metadata
        if isinstance(value, Section) and has_changes:
            is_given = bool(value.model_fields_set)
        else:
            is_given = are_changes or value != field.get_default(call_default_factory=True)
        conditions = [*section.conditions, *(entry for entry in field.metadata if isinstance(entry, ReadIf))]
        if is_given and conditions:
            yield setting, conditions
        if isinstance(value, Section):
            yield from _given_settings(replace(setting, section=value), has_changes)
        for key, inner in value.items() if isinstance(value, Mapping) else ():
            if isinstance(inner, Section):
                yield from _given_settings(replace(setting, path=f"{setting.path}.{key}", section=inner, policy=key))


def _merged(setting: Given) -> list[tuple[Section, str]]:
    """Return the sections that a setting ends up in, with the policy of each: those of changes once they are merged."""
    section, policy, experiment = setting.section, setting.policy, setting.experiment
    match section:
        case LossConfig():
            return [(experiment.plan.loss, "")]
        case LearnerConfig() if setting.path.startswith("algorithm.critic.learner."):
            heads = [head for head in experiment.heads if head in experiment.learners]
            return [(apply_changes(experiment.learners[head], section), head) for head in heads]
        case LearnerConfig() | SamplingConfig():
            kind = "learner" if isinstance(section, LearnerConfig) else "sampling"
            merged = experiment.learners if kind == "learner" else experiment.samplers
            if setting.path.startswith("algorithm.critic.policy."):
                policies = [*experiment.heads]
            elif policy:
                policies = [policy]
            else:  # what policies have not changed
                changes = {key: getattr(experiment.policies[key], kind).model_fields_set for key in merged}
                policies = [key for key in merged if setting.name not in changes[key]]
            return [(merged[key], key) for key in policies if key in merged]
        case PlacementConfig() if policy:
            return [(apply_changes(experiment.config.cluster, section), policy)]
    return [(section, policy)]


# ---- What works and is seldom what the user wants


def find_training_warnings(experiment: Experiment) -> list[str]:
    """Return all warnings about a training. Raises ConfigError where settings leave a split without tasks."""
    _first_tasks(experiment.training_tasks, 0, 1)
    if experiment.config.evaluate.tasks:
        _first_tasks(experiment.held_out_tasks, 0, 1)
    return [
        *find_warnings(experiment),
        *_warn_shared_tasks(experiment),
        *_warn_learners(experiment),
        *(
            f"warning: {name} has no effect here (it is read if {words})."
            for name, words in ignored_settings(experiment)
        ),
    ]


def find_warnings(experiment: Experiment) -> list[str]:
    """Warn if an embedded model plays an environment, or has settings, that it was not trained on. Needs no tasks."""
    pairs = product(experiment.env_spec.members.items(), experiment.policies.items())
    for (member, spec), (name, policy) in pairs:
        trained = trained_on(policy.model)
        if trained is None:
            continue
        # By module, so that an environment's variants count, and by base classes, so that its subclasses elsewhere do.
        modules = {environments()[env].partition(":")[0] for env in trained["environments"] if env in environments()}
        is_known = any(kind.__module__ in modules for kind in spec.declared.__mro__)
        changed = {key: value for key, value in trained["settings"].items() if spec.all_settings.get(key) != value}
        if is_known and not changed:
            continue
        settings = ", ".join(f"settings.{key}={value}" for key, value in trained["settings"].items())
        wording = member or experiment.config.env
        wording = f"{wording} without {settings}" if is_known else wording
        advice = f"Set {settings}." if is_known else "Name another model, such as Qwen/Qwen3-1.7B."
        return [
            f"warning: {name} is the embedded model {policy.model}, which was trained on "
            f"{', '.join(trained['environments'])} only; in {wording} its completions mean nothing. {advice}"
        ]
    return []


def _warn_learners(experiment: Experiment) -> Iterator[str]:
    """Warn of roles that are compared with nothing, of learning rates that never reach their peak, of a bound on the
    updates of one step, and of a KL penalty on a policy that starts from an adapter if the reference is the plain base.
    """
    plan, k, steps = experiment.plan, experiment.config.algorithm.k, experiment.config.train.steps
    learners = experiment.learners
    compares_decisions = plan.credit.first.group.scope == "decision" and plan.credit.first.baseline.needs_group
    if compares_decisions and plan.critic is None and plan.teacher is None and isinstance(k, Mapping):
        for role in experiment.trained_roles:
            if k.get(role) == 1:
                yield f"warning: {role} has algorithm.k 1, so that it is compared with nothing and does not learn."
    for name, learner in learners.items():
        if learner.warmup_steps > steps:
            warmup = f"rises for {learner.warmup_steps} steps (learner.warmup_steps) of {steps} (train.steps)"
            yield f"warning: the learning rate of {name} {warmup}, and never reaches its peak. Lower it."
    if plan.loss.kl_bound is not None and not can_leave_bound(experiment.config.train.max_staleness, learners.values()):
        yield "warning: loss.kl_bound is checked before an optimiser step, and each update is one. Set learner.epochs."
    uses_reference = plan.kl or needs_reference(plan.loss) or (plan.teacher is not None and plan.teacher.is_reference)
    for name in learners if uses_reference and experiment.config.kl.reference == "base" else ():
        lora = experiment.policies[name].lora
        if lora is not None and lora.path is not None:
            yield (
                f"warning: {name} begins from the adapter {lora.path}, and the KL penalty holds it against the plain "
                "base without it. Set kl.reference=start to hold it against where it begins."
            )


def _warn_shared_tasks(experiment: Experiment) -> list[str]:
    """Warn of held-out tasks that are trained on, by their data: of those that an evaluation plays, and all that
    training draws from, or the first where tasks are made on demand. Data sets are checked for leaks where they are
    read, and bundled tasks divide their problems.
    """
    spec, settings = experiment.env_spec, experiment.config.evaluate
    if not settings.tasks or spec.declared.splits_data or name_of(spec.declared) in environments():
        return []
    training, tested = experiment.training_tasks, experiment.held_out_tasks
    held_out = _first_tasks(tested, settings.first, settings.tasks)
    shared = shared_tasks(_first_tasks(training, 0, len(training)), held_out)
    return shared and [
        f"warning: {experiment.config.env}: held-out task {shared[0]} is also a training task, {len(shared)} of "
        f"{len(held_out)} are (by their data); expected disjoint splits. Divide the problems by the split in tasks."
    ]


def _first_tasks(tasks: Sequence[Task], first: int, count: int) -> list[Task]:
    """Return so many tasks from `first` on, at most as many as are compared."""
    count = min(count, COMPARED_TASKS if isinstance(tasks, GeneratedTasks) else COMPARED_LISTED)
    return [tasks[index] for index in range(first, min(first + count, len(tasks)))]
