"""The run: length of training, failures of episodes, evaluation, trackers, and the sandbox of programs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, JsonValue

from cadre.settings.section import Positive, Section


class TrainConfig(Section):
    """The training loop, and the files that it leaves."""

    steps: Positive = Field(100, description="updates")
    tasks_per_step: int = Field(16, ge=1, le=1_000_000, description="trees a step")
    replacements: int = Field(0, ge=0, description="rounds of other tasks a step in place of those that teach nothing")
    max_staleness: int = Field(0, ge=0, description="updates that sampling may run ahead of learning; 0 for none")
    max_tokens: int = Field(0, ge=0, description="stop after the step that has sampled this many tokens; 0 for never")
    seed: int = Field(0, description="names every random draw of the run")
    deterministic: bool | None = Field(
        None,
        description="vLLM's batches follow from the work, so that equal seeds give equal runs, instead of taking each "
        "request as it arises; unset: so on a CPU only",
    )
    checkpoint_minutes: float = Field(
        5.0,
        ge=0.0,
        description="minutes between checkpoints to go on from; 0: the first, the best, the last",
    )
    checkpoint_every: int = Field(0, ge=0, description="steps between checkpoints that are kept for good; 0 for none")
    checkpoints_kept: Positive = Field(2, description="newest checkpoints that are kept, beside the best one")
    trees_kept: int = Field(4, ge=0, description="trees a step that are kept whole, to look at (docs/trees.md)")
    trees_megabytes: float = Field(
        256.0, ge=0.0, description="most megabytes of kept trees, spread evenly over the steps"
    )


class EpisodesConfig(Section):
    """Limits and failures of episodes, in training and evaluation."""

    retries: int = Field(1, ge=0, le=100, description="times that a failed episode is tried again from its start")
    step_seconds: float = Field(300.0, ge=0.0, description="that one call of the environment may take; 0: any")
    seconds: float = Field(
        1800.0, ge=0.0, description="that an episode's calls may take together, without the models' time; 0: any"
    )
    failed_share: float = Field(0.5, ge=0.0, le=1.0, description="of a step's episodes that may fail before it stops")
    failure_reward: Literal["lowest"] | FiniteFloat = Field(
        "lowest",
        description="of an episode that fails while others of its tree do not: as the lowest of them, or a number that "
        "the team is paid beside what it had earned",
    )


class EvaluateConfig(Section):
    """Evaluation on held-out tasks: greedy, with one sample per decision."""

    tasks: int = Field(200, ge=0, description="so many of the test split; 0 for none")
    first: int = Field(0, ge=0, description="from this one on, so that settings can be chosen on others")
    every: int = Field(0, ge=0, description="steps between evaluations in training; 0 for before and after only")
    settings: dict[str, JsonValue] = Field(
        default_factory=dict, description="changes to the environment's settings on held-out tasks: {cases: 0}, say"
    )


class SandboxConfig(Section):
    """The confinement of programs that a model wrote."""

    level: Literal["auto", "process", "confined", "isolated"] = Field(
        "auto", description="auto takes the highest that holds, never below confined; process is rlimits only"
    )
    cgroup: Literal["auto", "on", "off"] = Field(
        "auto", description="limits on all processes of a program together, where a cgroup v2 subtree is delegated"
    )


TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class TrackersConfig(Section):
    """Trackers that receive the metrics of every step and evaluation; nothing is read back from them."""

    names: tuple[TrackerName, ...] = Field(
        ("tensorboard",), description="so many as you like; all but tensorboard are extras of that name"
    )
    project: Annotated[str, Field(min_length=1)] = Field(
        "cadre", description="what the run belongs to there; MLflow calls it an experiment"
    )
