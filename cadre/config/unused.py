"""The conditions of settings that need more than the recipe to decide: engines, the merged loss, trained roles.

What is declared here is checked by `cadre.config.conditions`: of every experiment, of one that is trained, and of what
a command line sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cadre.advantages.batch import Plan
from cadre.algorithms import ALGORITHMS, plan_of
from cadre.algorithms.custom import OPTIONS, shape_options
from cadre.config.conditions import Condition, Setting, explain
from cadre.config.experiment import Config, Experiment
from cadre.errors import ConfigError
from cadre.rollout.shapes import SELECTIONS, SHAPES
from cadre.settings.engines import LearnerConfig
from cadre.settings.models import MEDIA_MODELS, read_model_type
from cadre.settings.objective import makes_several_steps, needs_entropy_gradient, needs_reference
from cadre.settings.section import apply_changes
from cadre.settings.yaml_file import parse_overrides

# ---- Conditions of the experiment, to play and to train


def _is_read_by_torch(setting: Setting, experiment: Experiment) -> bool:
    """Return True unless vLLM draws for the policy that gets the setting of sampling, or for all that get it."""
    sampled = set(experiment.vllm_policies)
    if setting.names:
        return not setting.value or setting.names[0] not in sampled
    name = setting.path.rpartition(".")[2]
    changed = {policy for policy in sampled if name in experiment.policies[policy].sampling.model_fields_set}
    return not setting.value or sampled == changed


def _is_read_by_vllm(setting: Setting, experiment: Experiment) -> bool:
    """Return True if vLLM draws for a policy. A recipe that says `engine: auto` suits several machines, so that
    settings of vLLM wait in it."""
    return experiment.suits_any_engine or bool(experiment.vllm_policies)


VLLM_CONDITIONS: Sequence[Condition[Experiment]] = (
    Condition(
        "train.deterministic",
        _is_read_by_vllm,
        "vLLM draws for nobody, and batches of the torch engine follow from the work always",
        "Remove it, or set sampling.engine=vllm.",
    ),
    Condition(
        "vllm.*",
        _is_read_by_vllm,
        "vLLM draws for nobody",
        "Set sampling.engine=vllm beside it, or remove the section.",
    ),
    Condition(
        "vllm.sleep",
        lambda setting, experiment: experiment.colocated or not experiment.vllm_policies,
        "without vllm.colocated the sampler never sleeps",
        "Remove it, or set vllm.colocated=true.",
    ),
    *(
        Condition(
            f"{section}.{setting}",
            _is_read_by_torch,
            f"vLLM draws, {reason}",
            "Remove it, or set sampling.engine=torch beside it.",
        )
        for setting, reason in (
            ("graphs", "which has graphs of its own (vllm.eager)"),
            ("turns_memory", "which keeps earlier turns within sampling.memory"),
        )
        for section in ("sampling", "team.policies.*.sampling")
    ),
)


def _loss_condition(option: str, is_read: Callable[[Any], bool], reason: str, remedy: str) -> Condition[Experiment]:
    """Return the condition of an option of the loss, given the loss that the algorithm and the user make together."""
    return Condition(
        f"loss.{option}",
        lambda setting, experiment: is_read(experiment.plan.loss),
        f"a loss with {reason} ignores it",
        f"Remove it, or set {remedy}.",
    )


def _shape_option_condition(option: str) -> Condition[Experiment]:
    owners = [shape for shape in SHAPES if option in shape_options(shape)]
    return Condition(
        f"algorithm.{option}",
        lambda setting, experiment: option in shape_options(setting.section.shape),
        f"shape {{section.shape}} ignores it, only {' and '.join(owners)} takes it",
        f"Remove it, or set algorithm.shape={owners[0]}.",
        algorithm="custom",
    )


def _discounts(number: int) -> Callable[[Setting, Experiment], bool]:
    """Return the condition that the returns of this comparison read gamma, or that it is unknown."""
    return lambda _, experiment: experiment.plan.credit.comparisons[number][0].returns.discounted is not False


# Settings of sampling that need an engine on this machine.
ENGINE_SETTINGS = ("engine", "memory", "turns_memory", "graphs")
CONDITIONS: tuple[Condition[Experiment], ...] = (
    # An endpoint has adapters and an engine of its own.
    Condition(
        "team.policies.*.lora",
        lambda setting, _: setting.section.url is None,
        "it is for a model that is loaded here, and an endpoint serves this one ({section.url})",
    ),
    *(
        Condition[Any](
            f"team.policies.*.sampling.{name}",
            lambda setting, experiment: experiment.policies[setting.names[0]].url is None,
            "the endpoint at the url of {names[0]} draws for this policy",
        )
        for name in ENGINE_SETTINGS
    ),
    # Samplers.
    *VLLM_CONDITIONS,
    # The loss.
    *(
        _loss_condition(
            name,
            lambda loss: loss.function is None,
            "a function ({facts.plan.loss.function}) in place of the ratio",
            "loss.function=null",
        )
        for name in ("ratio", "clip_low", "clip_high", "dual_clip")
    ),
    _loss_condition("settings", lambda loss: loss.function is not None, "no function", "loss.function=file.py:name"),
    *(
        _loss_condition(name, lambda loss: loss.ratio != "none", "ratio {facts.plan.loss.ratio}", "loss.ratio=token")
        for name in ("clip_low", "clip_high")
    ),
    _loss_condition(
        "dual_clip",
        lambda loss: loss.ratio not in ("none", "cispo"),
        "ratio {facts.plan.loss.ratio}",
        "loss.ratio=token",
    ),
    _loss_condition(
        "divisor",
        lambda loss: loss.aggregate not in ("token_mean", "sequence_mean"),
        "aggregate {facts.plan.loss.aggregate}",
        "loss.aggregate=sequence_sum",
    ),
    _loss_condition(
        "entropy_tokens", needs_entropy_gradient, "entropy {facts.plan.loss.entropy:g}", "loss.entropy too"
    ),
    _loss_condition(
        "schedule",
        lambda loss: loss.entropy > 0.0 or loss.kl > 0.0,
        "entropy {facts.plan.loss.entropy:g} and kl {facts.plan.loss.kl:g}",
        "loss.entropy or loss.kl too",
    ),
    *(
        _loss_condition(
            name,
            lambda loss: loss.correction != "none",
            "correction {facts.plan.loss.correction}",
            "loss.correction=truncate",
        )
        for name in ("correction_level", "correction_high")
    ),
    _loss_condition(
        "correction_low",
        lambda loss: loss.correction not in ("none", "truncate"),
        "correction {facts.plan.loss.correction}",
        "loss.correction=mask",
    ),
    # Algorithms.
    Condition(
        "algorithm.gae_lambda",
        lambda setting, _: setting.section.estimate == "gae",
        "algorithm.estimate={section.estimate} ignores it",
        "Remove it, or set algorithm.estimate=gae.",
    ),
    Condition(
        "algorithm.token_gamma",
        lambda setting, _: setting.section.critic.level == "token",
        "a critic of level {section.critic.level} has one value a decision",
        "Remove it, or set algorithm.critic.level=token.",
    ),
    *(
        Condition[Any](
            "algorithm.normalise",
            lambda setting, experiment: setting.value != "sum" or len(experiment.plan.credit.comparisons) > 1,
            "one comparison alone is left, to which nothing is added",
            "Remove it, or raise algorithm.broadcast.",
            expected="each",
            algorithm=name,
        )
        for name in ("counterfactual", "shapley")
    ),
    Condition(
        "algorithm.alpha",
        lambda setting, _: setting.section.reward_model is None,
        "algorithm.reward_model rewards each answer and no team",
        algorithm="rlhf",
    ),
    *(
        Condition[Any](
            "algorithm.alpha",
            lambda setting, _: not setting.section.parts,
            "algorithm.parts are compared in place of the team's reward and a role's own",
            "Remove it, or report both as parts.",
            expected="1",
            algorithm=name,
        )
        for name, kind in ALGORITHMS.items()
        if "parts" in kind.model_fields
    ),
    *(_shape_option_condition(option) for option in OPTIONS),
    Condition(
        "algorithm.lookahead",
        lambda setting, experiment: (
            not setting.value
            # It is unknown of a function of the user's that declares nothing.
            or any(one.returns.uses_lookahead is not False for one, _ in experiment.plan.credit.comparisons)
        ),
        "returns {section.returns} ignores the rewards of later decisions",
        "Remove it, or set algorithm.returns=first_reward.",
        algorithm="custom",
    ),
    *(
        Condition[Any](
            f"{section}.gamma",
            _discounts(number),
            "returns {section.returns} ignores it",
            f"Remove it, or set {section}.returns=reward_to_go.",
            algorithm="custom",
        )
        for number, section in enumerate(("algorithm", "algorithm.second"))
    ),
)

# ---- Conditions of the experiment in training alone


def _learners_with(setting: Setting, experiment: Experiment) -> list[LearnerConfig]:
    """Return the learners that get the value of this setting, merged with what the others change."""
    name, learners = setting.path.rpartition(".")[2], experiment.learners
    if setting.path.startswith("algorithm.critic.learner."):
        return [apply_changes(learners[policy], setting.section) for policy in experiment.heads if policy in learners]
    affected = [policy for policy in setting.names or learners if policy in learners]
    return [learners[policy] for policy in affected if getattr(learners[policy], name) == setting.value]


def _trains_prefix_trees(setting: Setting, experiment: Experiment) -> bool:
    return not setting.value or all(learner.pack != "padded" for learner in _learners_with(setting, experiment))


def _compiles_layers(setting: Setting, experiment: Experiment) -> bool:
    return not setting.value or all(
        learner.flex_attention is not False and learner.ranks == 1 and not learner.gradient_checkpointing
        for learner in _learners_with(setting, experiment)
    )


def can_leave_bound(experiment: Experiment) -> bool:
    """Return True if a policy may differ from its sampler before an optimiser step, which `loss.kl_bound` is for."""
    return experiment.train.max_staleness > 0 or any(map(makes_several_steps, experiment.learners.values()))


def _needs_reference(experiment: Experiment) -> bool:
    plan = experiment.plan
    teacher = experiment.config.teacher
    is_taught = teacher is not None and teacher.is_reference
    return plan.kl > 0.0 or plan.preference is not None or needs_reference(plan.loss) or is_taught


def _saves_its_moments(setting: Setting, experiment: Experiment) -> bool:
    return all(learner.ranks == 1 for learner in _learners_with(setting, experiment))


def _has_falling_rate(setting: Setting, experiment: Experiment) -> bool:
    learners = _learners_with(setting, experiment)
    return not setting.value or not learners or any(learner.schedule != "constant" for learner in learners)


def _reads_text_alone(setting: Setting, experiment: Experiment) -> bool:
    models = [experiment.models[name] for name in setting.names or experiment.models if name in experiment.models]
    return not models or any(read_model_type(Path(model)) not in MEDIA_MODELS for model in models)


def _teaches_alone(experiment: Experiment) -> bool:
    return experiment.plan.teacher is not None and experiment.plan.teacher.alone


def _advantage_axes(plan: Plan) -> tuple[object, ...]:
    """Return what of a plan decides the advantages of samples, and not which samples there are or their loss."""
    shape, credit = plan.shape, plan.credit
    if not shape.selects_all and (shape.select is not SELECTIONS["random"] or shape.lookahead):
        # Branches are selected by the same reward.
        comparisons = tuple((replace(comparison, alpha=1.0), weight) for comparison, weight in credit.comparisons)
        credit = replace(credit, comparisons=comparisons)
    return credit, plan.kl, plan.critic, plan.reward_model, plan.influence


def _outlives_rewards(setting: Setting, experiment: Experiment) -> bool:
    """Return True unless a teacher gives all advantages and the algorithm's setting changes nothing but advantages."""
    section, name = setting.section, setting.names[0]
    field = type(section).model_fields[name]
    if not _teaches_alone(experiment) or field.is_required():
        return True
    try:
        usual = plan_of(section.model_copy(update={name: field.get_default(call_default_factory=True)}))
    except ConfigError:
        return True  # other settings need this one
    return _advantage_axes(usual) == _advantage_axes(plan_of(section))


LEARNERS = ("learner", "team.policies.*.learner", "algorithm.critic.policy.learner", "algorithm.critic.learner")

TRAINING_CONDITIONS: tuple[Condition[Experiment], ...] = (
    Condition(
        "loss.kl_bound",
        lambda setting, experiment: can_leave_bound(experiment),
        "every update is one optimiser step on fresh samples, before which no policy has moved",
        "Set learner.epochs or learner.minibatches above 1, or remove it.",
    ),
    Condition(
        "kl.reference",
        lambda setting, experiment: setting.value == "base" or _needs_reference(experiment),
        "neither the algorithm nor the loss reads a reference model",
        "Remove it, or set loss.kl or algorithm.kl above 0.",
    ),
    Condition(
        "train.schedule_period",
        lambda setting, experiment: experiment.schedule == "round_robin",
        "the schedule is {facts.schedule}",
        "Remove it, or set train.schedule=round_robin.",
    ),
    *(
        Condition[Any](
            f"{section}.{name}",
            _trains_prefix_trees,
            "it is for prefix trees, and learner.pack is padded",
            "Remove it, or set learner.pack=auto.",
        )
        for section in LEARNERS[:3]
        for name in ("flex_attention", "compile")
    ),
    *(
        Condition[Any](
            f"{section}.compile",
            _compiles_layers,
            "layers are compiled with flex_attention alone, by one rank, and without gradient_checkpointing",
            "Remove it, or these.",
        )
        for section in LEARNERS[:3]
    ),
    *(
        Condition[Any](
            f"{section}.saved_moments",
            _saves_its_moments,
            "under learner.ranks the shards of moments are written as they are",
            "Remove it, or learner.ranks.",
        )
        for section in LEARNERS
    ),
    *(
        Condition[Any](
            f"{section}.final_rate_fraction",
            _has_falling_rate,
            "learner.schedule is constant",
            "Remove it, or set learner.schedule=cosine.",
        )
        for section in LEARNERS
    ),
    *(
        Condition[Any](
            f"{section}.turns_memory",
            lambda setting, experiment: not setting.value or _reads_text_alone(setting, experiment),
            "a model that reads images keeps no keys and values of earlier turns",
        )
        for section in ("sampling", "team.policies.*.sampling")
    ),
    Condition(
        "cluster.learner_kept",
        lambda setting, _: setting.section.replaced > 0,
        "cluster.replaced=0 replaces no learner that died",
        "Remove it, or raise cluster.replaced.",
    ),
    Condition(
        "credit.role_weights.*",
        lambda setting, experiment: (
            setting.names[0] not in experiment.roles or setting.names[0] in experiment.trained_roles
        ),
        "the policy that plays {names[0]} is frozen",
        expected="a role that is trained",
    ),
    *(
        Condition[Any](
            setting,
            lambda setting, experiment: experiment.plan.preference is None,
            "{facts.algorithm.name} learns from pairs and ignores it",
            expected=expected,
        )
        for setting, expected in (
            ("algorithm.kl", "0"),
            ("credit.overlong_buffer", "0"),
            ("credit.without_std", "keep"),
            ("credit.drop_groups", "none"),
        )
    ),
    *(
        Condition[Any](
            setting,
            lambda setting, experiment: experiment.plan.critic is None,
            "{facts.algorithm.name} has advantages from a critic and compares no groups",
            expected=expected,
        )
        for setting, expected in {"credit.without_std": "keep", "credit.drop_groups": "none"}.items()
    ),
    *(
        Condition[Any](
            setting,
            is_read,
            "teacher.alone learns from the teacher's log-probabilities and not from rewards",
            "Remove it, or teacher.alone.",
        )
        for setting, is_read in {
            "algorithm.*": _outlives_rewards,
            "credit.overlong_buffer": lambda setting, experiment: not _teaches_alone(experiment),
        }.items()
    ),
    Condition(
        "train.replacements",
        lambda setting, experiment: experiment.plan.selection.without_std == "drop",
        "credit.without_std=keep leaves nothing to replace",
        "Set credit.without_std=drop, or remove train.replacements.",
        expected="0",
    ),
    Condition(
        "algorithm.gamma",
        lambda setting, _: setting.section.step_weight > 0.0,
        "algorithm.step_weight=0 leaves the comparison of steps out, which alone is discounted",
        "Remove it, or raise algorithm.step_weight.",
        algorithm="gigpo",
    ),
)

# ---- Conditions of the configuration on what a command line sets. A recipe or a run may have such a setting: it counts
# again once the other one changes.

OVERRIDE_CONDITIONS: tuple[Condition[Config], ...] = (
    *(
        Condition[Any](
            f"evaluate.{name}",
            lambda setting, _: setting.section.tasks > 0,
            "evaluate.tasks=0 plays no held-out tasks",
            "Remove it, or change evaluate.tasks.",
        )
        for name in ("every", "first")
    ),
    *(
        Condition[Any](
            f"train.{name}",
            lambda setting, config: not setting.value or (config.evaluate.every > 0 and config.evaluate.tasks > 0),
            "no evaluation is made during the training (evaluate.every={facts.evaluate.every}, "
            "evaluate.tasks={facts.evaluate.tasks})",
            "Remove it, or set evaluate.every.",
        )
        for name in ("stop_at_success", "patience")
    ),
    Condition(
        "train.patience",
        lambda setting, config: (
            not (config.evaluate.every and config.evaluate.tasks)
            or setting.value * config.evaluate.every < config.train.steps
        ),
        "with evaluate.every={facts.evaluate.every} it could end a training of {facts.train.steps} steps at its last "
        "step or later",
        "Lower it or evaluate.every.",
    ),
    Condition(
        "train.trees_megabytes",
        lambda setting, _: not setting.value or setting.section.trees_kept > 0,
        "train.trees_kept=0 keeps no trees",
        "Remove it, or change train.trees_kept.",
    ),
    Condition(
        "trackers.project",
        lambda setting, _: bool(set(setting.section.names) - {"tensorboard"}),
        "no tracker of trackers.names={section.names} has projects",
        "Remove it, or change trackers.names.",
    ),
)


def check_overrides_read(overrides: Sequence[str], config: Config) -> None:
    """Raise ConfigError for the first `key=value` pair of a training that another setting turns off.

    A recipe or a run may have such a setting: it counts again once the other one changes.
    """
    for key, path in overridden_settings(overrides):
        for condition in OVERRIDE_CONDITIONS:
            if path != condition.path:
                continue
            section, name = path.split(".")
            holder = getattr(config, section)
            setting = Setting(path, getattr(holder, name), holder, ())
            if setting.value and not condition.is_read(setting, config):
                raise ConfigError(explain(condition, setting, config, key))


def overridden_settings(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (key as it is written, setting) of every `key=value` pair.

    A policy's own change counts as the experiment's setting; a section that is set whole counts by its keys too.
    """
    for pair in overrides:
        key = pair.partition("=")[0]
        section = parse_overrides([pair])[key] if key in ("evaluate", "train", "trackers") else None
        for name in section if isinstance(section, dict) else ():
            yield f"{key}.{name}", f"{key}.{name}"
        parts = key.split(".")
        yield key, ".".join(parts[3:] if parts[:2] == ["team", "policies"] else parts)
