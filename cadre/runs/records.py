"""The JSON records of a run folder, as pydantic models.

A run folder may be a stranger's, damaged, or half copied, so everything in it is validated when it is read
(`cadre.files.read_record`, `cadre.runs.jsonl`). A record that does not fit is a RunError that names the file, what is
wrong and what to do.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from cadre.files import Count, OpenRecord, Text

Step = Annotated[int, Field(strict=True, ge=0, le=1 << 40)]
Number = Annotated[float, Field(strict=True)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class CommandRecord(OpenRecord):
    """`command.json`."""

    recipe: Text
    overrides: list[Text]
    forked_at: Step | None = None


class EnvironmentRecord(OpenRecord):
    """`environment.json`."""

    cadre: Text = ""
    python: Text = ""
    machine: Text = ""
    commits: dict[Text, Text] = {}
    packages: dict[Text, Text | None] = {}
    tasks: dict[Text, Text] = {}
    bases: dict[Text, Text] = {}
    sampling_memory: dict[Text, Number] = {}
    engines: dict[Text, Text] = {}


class StepLine(OpenRecord):
    """A line of which only the step is read."""

    step: Step


class StepMetrics(StepLine):
    """A line of `metrics.jsonl`: the step, and numbers by name."""

    __pydantic_extra__: dict[str, Number | None]


class EvaluationLine(StepLine):
    """A line of `evaluations.jsonl`."""

    success: Number
    reward: Number
    low: Number = 0.0
    high: Number = 1.0
    tasks: Count = 0
    tokens: Number = 0.0
    outcomes: dict[Text, tuple[Number, Finite | None]] = {}
    tasks_sha256: Text = ""


class LeftOutLine(StepLine):
    """A line of `left_out.jsonl`."""

    kind: Text
    reason: Text


class VocabularyLine(OpenRecord):
    """A line of `vocabulary.jsonl`."""

    policy: Text
    tokens: dict[Annotated[str, Field(pattern=r"^\d+$")], Text]


class AnnotatedSample(OpenRecord):
    """The annotation of one sample."""

    node: Count
    role: Text
    index: Count


class TreeLine(StepLine):
    """A line of `trees.jsonl`, without the tree itself (`cadre.runs.tree_format`)."""

    tree: Count


class AnnotationLine(TreeLine):
    """A line of `annotations/PRODUCER.jsonl`."""

    samples: list[AnnotatedSample]


class Rating(BaseModel):
    """The rating of a policy in self-play: of the learner, or of a member of its pool with the weights of `step`.

    elo    on the scale of chess: 400 points more are odds of 10 to 1
    score  of the learner against the member: 1 if it wins every game, 0.5 for draws; a mean that forgets
    """

    step: Step
    elo: Finite = 1000.0
    score: Finite = 0.5


class CheckpointState(BaseModel):
    """`state.json` of a checkpoint."""

    model_config = ConfigDict(extra="forbid")

    step: Step
    baselines: dict[str, Finite] = {}
    curriculum: dict[str, Finite] = {}
    best_step: Step | None = None
    best: Finite = 0.0
    ratings: dict[str, Rating] = {}
