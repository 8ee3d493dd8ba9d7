"""What `bench/real.py` plays: tasks with their models, rows and measures, and the lines of their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import real_measures as measures

SAMPLES, PASSING = 5, (1, 5)  # episodes a task of a line that is sampled, and the k of its pass@k
Measure = Callable[[Mapping[str, Any]], float]


@dataclass(frozen=True)
class Row:
    """A line of a table: what is changed in the task's recipe, and whether it is trained; in another environment with
    the one role that it has, whose best reward is another where `best` says so. `further` is no baseline but the team's
    own training gone on with, past the tokens that the others have."""

    changes: tuple[str, ...] = ()
    trained: bool = True
    env: str = ""
    best: float | None = None
    further: bool = False


@dataclass(frozen=True)
class Line:
    """A line of what is reported: a row, played as trained or as its models are, perhaps with longer answers, on a set
    that nothing is trained on, or several times a task at a temperature in place of once greedily."""

    row: str
    trained: bool = True
    longer: bool = False
    sampled: bool = False
    elsewhere: bool = False

    def title(self, seed: int | None) -> str:
        """What its episodes are called."""
        trained = self.row if seed is None else f"{self.row}-{seed}"
        return trained + "-longer" * self.longer + "-sampled" * self.sampled + "-elsewhere" * self.elsewhere


@dataclass(frozen=True)
class Known:
    """A task: its recipe and changes, the model's folder, the roles, the measures with the headline first, the best
    reward there is (for the normalised return), its rows with the team's own training first, how many tokens an answer
    may have where the team is played once more, not cut off for the time it takes, the temperature at which it is
    sampled for pass@k, 0 where nothing passes, and another set that its lines are played on, if any."""

    recipe: str
    model: str
    roles: tuple[str, ...]
    changes: tuple[str, ...]
    measures: Mapping[str, Measure]
    best: float
    rows: Mapping[str, Row]
    headline: str
    longer: int
    temperature: float = 0.0
    elsewhere: str = ""

    @property
    def own(self) -> str:
        """The row of the team's own training."""
        return next(iter(self.rows))


PROMPTED = {
    "pipeline": Row(("settings.exchange=pipeline",), trained=False),
    "discussion": Row(("settings.exchange=discussion",), trained=False),
}
IPPO = Row(("algorithm={name: ippo, k: 8}",))
JUDGE = "runs/joint-reward/judge"  # what bench/joint_reward.py leaves
JUDGED = Row((f"algorithm={{name: ippo, k: 8, kl: 0.05, reward_model: {JUDGE}}}", "learner.learning_rate=1.0e-4"))
COMMON: dict[str, Measure] = {"reward": measures.reward, "tokens": measures.tokens, "well-formed": measures.whole}
KNOWN: dict[str, Known] = {
    "writing": Known(
        "tldr-smollm2",
        "smollm2",
        ("short", "long"),
        ("settings.reward=faithful", "sampling.temperature=0.7"),
        {
            "faithful": measures.part("faithful"),
            "published": measures.part("published"),
            "rouge_l": measures.part("rouge_l"),
        },
        3.0,
        {
            "magrpo": Row(),
            "ippo": IPPO,
            "judged": JUDGED,
            "alone": Row(("algorithm={name: grpo, k: 8}",), env="tldr-single-agent"),
            **PROMPTED,
        },
        "reward",
        256,
    ),
    "code": Known(
        "pairs-mbpp-qwen2.5-coder-0.5b",
        "qwen-coder",
        ("aux", "main"),
        ("train.tasks_per_step=2", "train.steps=75", "evaluate.every=0"),
        {
            "pass": measures.success,
            "calls": measures.calls,
            "helps": measures.helps,
            "codebleu": measures.part("codebleu"),
        },
        4.0,
        {
            "magrpo": Row(),
            "ippo": IPPO,
            "alone": Row(("algorithm={name: grpo, k: 8}",), env="pairs-single-agent"),
            **PROMPTED,
            "further": Row(("train.steps=200",), further=True),
        },
        "pass",
        512,
        0.8,
        "humaneval",
    ),
    "tested": Known(
        "code-qwen2.5-coder-0.5b-L1",
        "qwen-coder",
        ("coder", "tester"),
        (
            "settings={train: mbpp, test: mbpp, turns: 2}",
            "algorithm={name: at_grpo, k: 4}",
            "sampling={max_tokens: 256, temperature: 0.8}",
            "learner={learning_rate: 1.0e-4, minibatches: 2}",
            "train={steps: 20, tasks_per_step: 4}",
            "evaluate.every=0",
        ),
        {
            "pass": measures.success,
            "at-first": measures.at_first,
            "repaired": measures.repaired,
            "valid": measures.part("tester/valid"),
            "agrees": measures.part("tester/agrees"),
        },
        1.6,
        {
            "at_grpo": Row(),
            "grpo": Row(("algorithm={name: grpo, k: 4}",)),
            "alone": Row(env="code-single-agent"),
        },
        "pass",
        512,
        0.8,
        "humaneval",
    ),
    "maths": Known(
        "maths-qwen2.5-coder-0.5b-L1",
        "qwen-coder",
        ("reasoner", "tool"),
        (
            "settings={train: gsm8k, test: gsm8k, turns: 2}",
            "sampling={max_tokens: 256, temperature: 0.7}",
            "learner={learning_rate: 1.0e-4, minibatches: 2}",
            "train={steps: 24, tasks_per_step: 4}",
            "evaluate.every=0",
        ),
        {"accuracy": measures.success},
        1.6,
        {
            "at_grpo": Row(),
            "grpo": Row(("algorithm={name: grpo, k: 4}",)),
            "alone": Row(env="maths-single-agent", best=1.2),
            "refine": Row(("settings={train: gsm8k, test: gsm8k, rounds: 2}",), env="refine", best=1.5),
        },
        "accuracy",
        512,
        0.7,
    ),
}


def lines_of(known: Known) -> dict[str, Line]:
    """The lines of a task's tables by name: each as it is, with longer answers, on another set and both, the team's
    own sampled too."""
    plain = {
        "before": Line(known.own, trained=False),
        **{name: Line(name, row.trained) for name, row in known.rows.items()},
        **{untrained(name): Line(name, trained=False) for name, row in known.rows.items() if row.env},
    }
    longer = {title: replace(line, longer=True) for title, line in plain.items()}
    tried = ["before", known.own, *(name for name, row in known.rows.items() if row.further)]
    sampled = {title: replace(plain[title], sampled=True) for title in tried if known.temperature}
    others = {title: replace(line, elsewhere=True) for title, line in plain.items() if known.elsewhere}
    longer_others = {title: replace(line, longer=True) for title, line in others.items()}
    parts = (plain, longer, others, longer_others, sampled)
    return {title + ending(known, line): line for part in parts for title, line in part.items()}


def ending(known: Known, line: Line) -> str:
    """What the names of lines that are played like this one end with."""
    if line.sampled:
        return "-sampled"
    return f"-{known.elsewhere}" * line.elsewhere + f"-{known.longer}" * line.longer


def in_short(known: Known, line: str) -> tuple[str, str]:
    """What a line's one figure is called, and its measure: `accuracy.before` and `accuracy.after` are the team's, a
    baseline's figure has its name and is the headline."""
    first = next(iter(known.measures))
    team = {"before": f"{first}.before", known.own: f"{first}.after"}
    return (team[line], first) if line in team else (line, known.headline)


def untrained(row: str) -> str:
    """The line of a row in another environment, as its model is."""
    return f"{row}-before"


def passing(k: int) -> str:
    """The measure of a line that is sampled."""
    return f"pass@{k}"
