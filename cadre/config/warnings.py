"""Warnings about experiments that work and are seldom what the user wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cadre.config.checks import SCHEDULE_STEPS
from cadre.config.experiment import Experiment
from cadre.config.ignored import ignored_settings
from cadre.env import GeneratedTasks
from cadre.envs.spec import name_of
from cadre.envs.splits import shared_tasks
from cadre.plugins import environments, trained_on
from cadre.settings.objective import can_leave_bound, needs_reference
from cadre.types import Task

# Tasks per split that are compared: of those that are made on demand, and of those in a list.
COMPARED_TASKS, COMPARED_LISTED = 100, 100_000


def find_warnings(experiment: Experiment) -> list[str]:
    """Return the warnings that need no tasks, one paragraph each."""
    return _warn_embedded_model(experiment)


def find_training_warnings(experiment: Experiment) -> list[str]:
    """Return all warnings about a training.

    Raises the error of making the first task of a split, as where settings leave none.
    """
    _first_tasks(experiment.training_tasks, 0, 1)
    if experiment.evaluate.tasks:
        _first_tasks(experiment.held_out_tasks, 0, 1)
    return [
        *find_warnings(experiment),
        *_warn_shared_tasks(experiment),
        *_warn_adapter_reference(experiment),
        *_warn_single_sample_roles(experiment),
        *_warn_idle_bound(experiment),
        *_warn_idle_policies(experiment),
        *(
            f"warning: {name} has no effect here (it is read if {words})."
            for name, words in ignored_settings(experiment)
        ),
        *_warn_long_warmup(experiment),
    ]


def _warn_long_warmup(experiment: Experiment) -> list[str]:
    """Warn of policies whose learning rate rises until the end of the training, and never reaches its peak."""
    steps = experiment.train.steps
    return [
        f"warning: the learning rate of {name} rises for {learner.warmup_steps} steps (learner.warmup_steps), and the "
        f"training has {steps} (train.steps), so that it ends at {steps / learner.warmup_steps:.1%} of "
        "learner.learning_rate. Lower warmup_steps."
        for name, learner in experiment.learners.items()
        if learner.warmup_steps > steps
    ]


def _warn_idle_policies(experiment: Experiment) -> list[str]:
    """Warn of policies that the schedule lets learn in none of the first steps."""
    idle, steps = set(experiment.trained_roles.values()), 0
    while idle and steps < min(experiment.train.steps, SCHEDULE_STEPS):
        idle &= experiment.frozen_at(steps)
        steps += 1
    return [
        f"warning: under train.schedule={experiment.schedule} {name} learns in none of the {steps} steps looked at. "
        "Raise train.steps, or set frozen: true for a policy that is not to learn."
        for name in sorted(idle)
    ]


def _warn_idle_bound(experiment: Experiment) -> list[str]:
    """Warn of an algorithm that bounds its updates, each of which is one step that nothing bounds."""
    if experiment.plan.loss.kl_bound is None or can_leave_bound(
        experiment.train.max_staleness, experiment.learners.values()
    ):
        return []
    return [
        f"warning: {experiment.algorithm.name} ends an update where loss.kl_bound is exceeded, which is found before "
        "an optimiser step, and each update is one step. Set learner.epochs or learner.minibatches above 1 for the "
        "bound to hold."
    ]


def _warn_single_sample_roles(experiment: Experiment) -> list[str]:
    """Warn of a role with one sample per decision, which is compared with no other if decisions alone are compared."""
    plan, k = experiment.plan, experiment.algorithm.k
    if (
        plan.critic is not None
        or plan.teacher is not None
        or plan.credit.first.group.scope != "decision"
        or not plan.credit.first.baseline.needs_group
    ):
        return []
    single = [role for role in experiment.trained_roles if isinstance(k, Mapping) and k.get(role) == 1]
    return [
        f"warning: {role} has algorithm.k 1 and is compared with its other samples of a decision, of which there are "
        f"none, so that it learns nothing. Raise algorithm.k.{role}, or set frozen for its policy if that is meant."
        for role in single
    ]


def _warn_adapter_reference(experiment: Experiment) -> list[str]:
    """Warn of a KL penalty on a policy that starts from an adapter if the reference is the plain base."""
    plan = experiment.plan
    if experiment.config.kl.reference == "start":
        return []
    uses_reference = plan.kl or needs_reference(plan.loss) or (plan.teacher is not None and plan.teacher.is_reference)
    for name in experiment.learners if uses_reference else ():
        lora = experiment.policies[name].lora
        if lora is not None and lora.path is not None:
            return [
                f"warning: {name} begins from the adapter {lora.path}, and the penalty on its distance from the "
                "reference (kl) is about the plain base without it. Set kl.reference=start to be held against where it "
                "begins."
            ]
    return []


def _warn_embedded_model(experiment: Experiment) -> list[str]:
    """Warn if an embedded model plays an environment, or has settings, that it was not trained on."""
    spec = experiment.env_spec
    for name, policy in experiment.policies.items():
        declared = trained_on(policy.model)
        if declared is None:
            continue
        # By module, so that an environment's variants count, and by base classes, so that its subclasses elsewhere do.
        modules = {environments()[env].partition(":")[0] for env in declared.environments if env in environments()}
        is_known = any(kind.__module__ in modules for kind in spec.declared.__mro__)
        changed = {key: value for key, value in declared.settings.items() if spec.all_settings.get(key) != value}
        if is_known and not changed:
            continue
        settings = ", ".join(f"settings.{key}={value}" for key, value in declared.settings.items())
        wording = f"{experiment.env} without {settings}" if is_known else experiment.env
        return [
            f"warning: {name} is the embedded model {policy.model}, which was trained on "
            f"{', '.join(declared.environments)}{f' with {settings}' if settings else ''} only; in {wording} its "
            "completions mean nothing. "
            + (f"Set {settings}." if is_known else "Name another model, such as Qwen/Qwen3-1.7B.")
        ]
    return []


def _warn_shared_tasks(experiment: Experiment) -> list[str]:
    """Warn of held-out tasks that are trained on, by their data: of those that an evaluation plays, and all that
    training draws from, or the first where tasks are made on demand. Data sets are checked for leaks where they are
    read, and bundled tasks divide their problems.
    """
    spec, settings = experiment.env_spec, experiment.evaluate
    if not settings.tasks or spec.declared.splits_data or name_of(spec.declared) in environments():
        return []
    training, tested = experiment.training_tasks, experiment.held_out_tasks
    held_out = _first_tasks(tested, settings.first, min(settings.tasks, _most_compared(tested)))
    shared = shared_tasks(_first_tasks(training, 0, _most_compared(training)), held_out)
    return shared and [
        f"warning: {experiment.env}: held-out task {shared[0]} is also a training task, {len(shared)} of "
        f"{len(held_out)} are; expected disjoint splits. What is measured is not held out: divide the problems by the "
        "split in tasks. Tasks are compared by their data, not by their id."
    ]


def _most_compared(tasks: Sequence[Task]) -> int:
    return COMPARED_TASKS if isinstance(tasks, GeneratedTasks) else COMPARED_LISTED


def _first_tasks(tasks: Sequence[Task], first: int, count: int) -> list[Task]:
    return [tasks[index] for index in range(first, min(first + count, len(tasks)))]
