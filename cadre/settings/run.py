"""The run: length of training, failures of episodes, evaluation, trackers, and the sandbox of programs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, JsonValue

from cadre.settings.engines import SAMPLED_APART
from cadre.settings.section import Positive, ReadIf, Section, Share

EVALUATED = ReadIf(
    "evaluate.every and evaluate.tasks are above 0",
    lambda given: bool(given.experiment.config.evaluate.every and given.experiment.config.evaluate.tasks),
)


class TrainConfig(Section):
    """The training loop, and the files that it writes."""

    steps: Positive = Field(100, description="updates")
    tasks_per_step: int = Field(16, ge=1, le=1_000_000, description="trees per step")
    replacements: Annotated[
        int, ReadIf("credit.without_std is drop", lambda given: given.experiment.plan.selection.without_std == "drop")
    ] = Field(0, ge=0, description="rounds of other tasks per step in place of those without a gradient")
    schedule: str | None = Field(
        None,
        description="which policies learn at a step: together, round_robin (one at a time, the others are frozen), or "
        "file.py:function(step, policies), which returns those that learn; unset: the algorithm's own",
    )
    schedule_period: Annotated[
        Positive, ReadIf("train.schedule is round_robin", lambda given: given.experiment.schedule == "round_robin")
    ] = Field(1, description="with round_robin: steps until it is the next policy's turn")
    max_staleness: int = Field(0, ge=0, description="updates that sampling may run ahead of learning; 0: none")
    max_tokens: int = Field(
        0, ge=0, description="stop after the step at which this many tokens have been sampled; 0: never"
    )
    stop_at_success: Annotated[float | None, EVALUATED] = Field(
        None, ge=0.0, le=1.0, description="stop after an evaluation with at least this success"
    )
    patience: Annotated[
        int,
        EVALUATED,
        ReadIf(
            "train.steps is above patience * evaluate.every",
            lambda given: given.value * given.experiment.config.evaluate.every < given.section.steps,
        ),
    ] = Field(
        0,
        ge=0,
        description="stop after this many evaluations in a row without a better one, by success and then by reward; "
        "0: never",
    )
    on_step: str | None = Field(
        None, description="FILE.py:function, called as f(step, metrics) after each step; True ends the training there"
    )
    seed: int = Field(0, description="seed of all random draws of the run")
    deterministic: Annotated[bool | None, SAMPLED_APART] = Field(
        None,
        description="vLLM's batches follow from the work, so that equal seeds give equal runs, instead of taking each "
        "request as it arises; unset: so on a CPU only",
    )
    checkpoint_minutes: float = Field(
        5.0, ge=0.0, description="minutes between checkpoints to resume from; 0: the first, the best and the last only"
    )
    checkpoint_every: int = Field(0, ge=0, description="steps between checkpoints that are never removed; 0: none")
    checkpoints_kept: Positive = Field(2, description="newest checkpoints that are kept, beside the best")
    trees_kept: int = Field(4, ge=0, description="trees per step that are kept, to look at (docs/view.md)")
    trees_megabytes: Annotated[
        float, ReadIf("train.trees_kept is above 0", lambda given: given.section.trees_kept > 0)
    ] = Field(256.0, ge=0.0, description="most megabytes of kept trees, spread evenly over the steps")


class EpisodesConfig(Section):
    """Limits and failures of episodes, in training and evaluation."""

    retries: int = Field(1, ge=0, le=100, description="times that a failed episode is run again from its start")
    step_seconds: float = Field(300.0, ge=0.0, description="limit of one call of the environment; 0: none")
    seconds: float = Field(
        1800.0, ge=0.0, description="limit of an episode's calls together, without the models' time; 0: none"
    )
    failed_fraction: float = Field(
        0.5, ge=0.0, le=1.0, description="fraction of a step's episodes that may fail before the run stops"
    )
    failure_reward: Literal["lowest"] | FiniteFloat = Field(
        "lowest",
        description="reward of an episode that fails while others of its tree do not: as the lowest of theirs, or a "
        "number that is added to the team reward so far, and to each part of the reward that is trained on",
    )


class EvaluateConfig(Section):
    """Evaluation on held-out tasks: greedy, with one sample per decision."""

    tasks: int = Field(200, ge=0, description="tasks of the test split; 0: none")
    first: int = Field(0, ge=0, description="index of the first task, so that settings can be chosen on others")
    every: int = Field(0, ge=0, description="steps between evaluations; 0: before and after training only")
    settings: dict[str, JsonValue] = Field(
        default_factory=dict, description="changes to the environment's settings on held-out tasks: {cases: 0}, say"
    )


class CurriculumConfig(Section):
    """Levels of the environment's settings in training, by success. Held-out tasks have the settings themselves."""

    levels: list[dict[str, JsonValue]] = Field(min_length=2, description="changes to settings, the easiest first")
    up: Share = Field(0.8, description="success of a window from which the next level follows")
    down: float = Field(0.3, ge=0.0, lt=1.0, description="success of a window up to which the level before follows")
    window: Positive = Field(64, description="tasks that are counted before each decision")


class SandboxConfig(Section):
    """The confinement of programs that a model wrote."""

    level: Literal["auto", "process", "confined", "isolated"] = Field(
        "auto", description="auto: the highest level that works here, never below confined; process: rlimits only"
    )
    cgroup: Literal["auto", "on", "off"] = Field(
        "auto", description="limits on all processes of a program together, where a cgroup v2 subtree is delegated"
    )


TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class TrackersConfig(Section):
    """Trackers that receive the metrics of every step and evaluation; nothing is read back from them."""

    names: tuple[TrackerName, ...] = Field(
        ("tensorboard",), description="any number of them; all but tensorboard need the extra of that name"
    )
    project: Annotated[
        str,
        Field(min_length=1),
        ReadIf(
            "trackers.names has one with projects, which tensorboard is not",
            lambda given: bool(set(given.section.names) - {"tensorboard"}),
        ),
    ] = Field(
        "cadre",
        description="project of the run; MLflow calls it an experiment; unset: WANDB_PROJECT or "
        "MLFLOW_EXPERIMENT_NAME of the environment, or cadre",
    )
