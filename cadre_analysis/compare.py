"""Compare trained runs: differences between methods over the same held-out tasks, with intervals over seeds and tasks.

Runs whose settings differ in nothing but `train.seed` are seeds of one method. Every evaluation in training records the
outcome of each task, so a difference between two methods is paired over tasks, and over seeds if both have the same.
Its interval is of a bootstrap with two levels: seeds and tasks are drawn with replacement, crossed, as all seeds play
the same tasks (Owen 2007, "The pigeonhole bootstrap"). It holds what other tasks and another training would give; an
interval over tasks alone holds the first and is too narrow for a claim about a method.
"""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadre.cli.terminal import WIDTH, shorten_path
from cadre.errors import ConfigError, RunError
from cadre.notebook_html import shorten, table_html
from cadre.runs.folder import Run, distinct_names
from cadre.settings.yaml_file import flatten
from cadre.statistics import Interval, rate_interval, with_floor
from cadre_analysis.tables import format_table

RESAMPLES = 10_000
CHUNK = 1 << 22  # draws that are held in memory at once
CONFIDENCE = 0.95
# Settings in which runs of one method may differ: the seed, and what changes no weights.
NOT_OF_A_METHOD = ("train.seed", "train.checkpoint", "train.trees_", "trackers", "evaluate.every")
# Settings that tell methods apart in a reader's eyes, the most telling first.
TELLING = ("algorithm.name", "env", "team.roles", "algorithm.", "loss.", "learner.", "sampling.", "train.")
MEASURES = ("success", "reward")

Table = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run."""

    step: int  # updates before it
    tokens: float  # sampled in training before it
    tasks_sha256: str
    values: Mapping[str, float]  # by task
    tie_breaker: float = 0.0  # mean of the measure that is not compared, which ranks evaluations of equal values

    @property
    def mean(self) -> float:
        return math.fsum(self.values.values()) / len(self.values)


@dataclass(frozen=True)
class TrainedRun:
    """A run with its evaluations, first to last."""

    folder: Path
    seed: int
    settings: Mapping[str, Any]  # by full name
    evaluations: tuple[Evaluation, ...]
    code: str = ""  # its commits
    forked_at: int | None = None  # the step after which a fork begins

    def select(self, at: str, max_tokens: float | None) -> Evaluation:
        """Return the evaluation that `at` names ("last", "best" or a step), among those within `max_tokens` sampled
        tokens. Raises RunError if there is none."""
        allowed = [e for e in self.evaluations if max_tokens is None or e.tokens <= max_tokens]
        if at not in ("last", "best"):
            allowed = [e for e in allowed if e.step == int(at)]
        if not allowed:
            listed = ", ".join(f"step {e.step} ({e.tokens:,.0f} tokens)" for e in self.evaluations)
            limit = "" if max_tokens is None else f" within {max_tokens:,.0f} sampled tokens"
            raise RunError(
                f"compare: {self.folder} has no evaluation at {at}{limit}; expected one of {listed}. Name one of these "
                "with --at, or raise --max-tokens."
            )
        # By success this is the run's own best checkpoint (`cadre.training.checkpoint.best_report`).
        return max(allowed, key=lambda e: (e.mean, e.tie_breaker, -e.step)) if at == "best" else allowed[-1]


@dataclass(frozen=True)
class Method:
    """Runs that differ only in their seed, in the order of their seeds. `name` says what sets them apart."""

    name: str
    runs: tuple[TrainedRun, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)


@dataclass(frozen=True)
class MethodResult:
    """A method's held-out result. Intervals are (value, low, high) at 95%, over seeds and tasks."""

    name: str
    seeds: tuple[int, ...]
    folders: tuple[str, ...]
    before: Interval | None  # mean over the evaluations before training, if these were made
    value: Interval  # mean over the selected evaluations
    by_seed: tuple[float, ...]  # the mean of each seed's
    gain: Interval | None  # value - before, paired over seeds and tasks
    steps: tuple[int, ...]  # of the selected evaluations, by seed
    tokens: tuple[float, ...]  # of the selected evaluations, by seed
    # (step, mean of sampled tokens, value) at the steps at which every seed was evaluated
    curve: tuple[tuple[int, float, Interval], ...]


@dataclass(frozen=True)
class Difference:
    """The second method's mean minus the first's."""

    first: str
    second: str
    value: Interval
    paired_seeds: bool  # both have the same seeds, which are then drawn together
    paired_tasks: bool


@dataclass(frozen=True)
class RunComparison:
    """The results of all methods, and each one's difference from the first."""

    measure: str
    tasks: int
    methods: tuple[MethodResult, ...]
    differences: tuple[Difference, ...]
    code: tuple[str, ...] = ()  # the commits of the runs' code, each once
    forks: tuple[tuple[str, int], ...] = ()  # (folder, step) of runs that share another's training up to that step

    def __repr__(self) -> str:
        rows = comparison_rows(self)[1:]
        methods = "; ".join(f"{method} {value} (seeds {seeds})" for method, seeds, _, value, *_ in rows)
        return shorten(f"RunComparison({self.measure} on {self.tasks:,} tasks: {methods})")

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(note)}</p>" for note in comparison_notes(self))
        return table_html(comparison_rows(self)) + notes


def compare_runs(
    folders: Sequence[Path],
    measure: str = "success",
    at: str = "last",
    max_tokens: float | None = None,
    unpaired: bool = False,
    seed: int = 0,
) -> RunComparison:
    """Compare the runs in `folders`; those whose settings differ only in their seed are one method.

    at          which evaluation of each run: "last", "best" (which favours methods with many evaluations) or a step
    max_tokens  evaluations after more sampled tokens than this are left out, for comparisons at equal tokens
    unpaired    the methods played different tasks

    Raises RunError for folders that are no runs, runs without outcomes by task, and methods with different tasks;
    ConfigError for another measure or `at`.
    """
    if measure not in MEASURES:
        raise ConfigError(f"measure: got {measure}; expected {' or '.join(MEASURES)}. Name one of them.")
    if at not in ("last", "best") and not (at.isascii() and at.isdigit()):
        raise ConfigError(f"at: got {at}; expected last, best, or the step of an evaluation, such as 30. Name one.")
    runs = [read_run(folder, measure) for folder in dict.fromkeys(map(Path, folders))]
    methods = group_runs(runs)
    selected = {method.name: [run.select(at, max_tokens) for run in method.runs] for method in methods}
    first = methods[0]
    for method in methods:
        for other in (method,) if unpaired else (method, first):
            _check_same_tasks(other.name, method.name, selected[other.name], selected[method.name])

    generator = np.random.default_rng(seed)
    results = tuple(_summarise(method, selected[method.name], generator) for method in methods)
    differences = []
    for method in methods[1:]:
        same_seeds = method.seeds == first.seeds and len(method.seeds) > 1
        tables = (_table(selected[method.name]), _table(selected[first.name]))
        value = difference_interval(*tables, generator, paired_seeds=same_seeds, paired_tasks=not unpaired)
        differences.append(Difference(first.name, method.name, value, same_seeds, not unpaired))
    code = tuple(sorted({run.code for run in runs if run.code}))
    forks = tuple((str(run.folder), run.forked_at) for run in runs if run.forked_at)
    return RunComparison(measure, len(selected[first.name][0].values), results, tuple(differences), code, forks)


# ---- Reading runs


def read_run(folder: Path, measure: str) -> TrainedRun:
    """Read a run's settings and evaluations. Raises RunError if it has none, or none with outcomes by task."""
    run = Run.open(folder)
    reports = run.evaluations()
    if not reports:
        raise RunError(f"compare: {folder} holds no evaluation; train with evaluate.tasks above 0.")
    tokens_after = {line["step"] + 1: line.get("rollout/tokens") or 0.0 for line in run.metrics()}
    evaluations = []
    for report in reports:
        if not report.get("outcomes"):
            raise RunError(
                f"compare: the evaluation of step {report['step']} in {folder} has no outcomes by task, as an "
                "earlier version has written it. Train again."
            )
        sampled = math.fsum(tokens for step, tokens in tokens_after.items() if step <= report["step"])
        # An episode that failed has no reward; it counts as one of the least that was observed.
        outcomes = {task: outcome[MEASURES.index(measure)] for task, outcome in report["outcomes"].items()}
        minimum = min((value for value in outcomes.values() if value is not None), default=0.0)
        values = {task: minimum if value is None else value for task, value in outcomes.items()}
        tie_breaker = report["reward" if measure == "success" else "success"]
        evaluations.append(Evaluation(report["step"], sampled, report["tasks_sha256"], values, tie_breaker))
    settings = dict(flatten(run.config.model_dump(mode="json")))
    commits = sorted(run.environment().get("commits", {}).items())
    code = ", ".join(f"{name} {commit}" for name, commit in commits)
    return TrainedRun(folder, run.train.seed, settings, tuple(evaluations), code, run.forked_at())


def group_runs(runs: Sequence[TrainedRun]) -> list[Method]:
    """Return the methods of the runs in their order, each named by the settings in which it differs from the others.

    Raises RunError if a method has the same seed twice.
    """
    groups: dict[tuple[tuple[str, str], ...], list[TrainedRun]] = defaultdict(list)
    for run in runs:
        settings = sorted((n, repr(v)) for n, v in run.settings.items() if not n.startswith(NOT_OF_A_METHOD))
        members = groups[tuple(settings)]
        for other in members:
            if other.seed == run.seed:
                raise RunError(
                    f"compare: {other.folder} and {run.folder} have the same settings and the same seed, {run.seed}; "
                    "expected other seeds. Leave one out."
                )
        members.append(run)
    names = _name_methods([members[0] for members in groups.values()])
    by_seed = [tuple(sorted(members, key=lambda run: run.seed)) for members in groups.values()]
    return [Method(name, members) for name, members in zip(names, by_seed, strict=True)]


def _name_methods(runs: Sequence[TrainedRun]) -> list[str]:
    """Return a name for each method: the values of up to three settings in which the methods differ."""
    if len(runs) == 1:
        return [runs[0].folder.name]
    names = dict.fromkeys(name for run in runs for name in run.settings if not name.startswith(NOT_OF_A_METHOD))
    differing = [name for name in names if len({repr(run.settings.get(name)) for run in runs}) > 1]

    def rank(name: str) -> int:
        return next((index for index, prefix in enumerate(TELLING) if name.startswith(prefix)), len(TELLING))

    labels, telling = [""] * len(runs), sorted(differing, key=rank)[:3]
    for count in range(1, len(telling) + 1):
        if len(set(labels)) < len(runs):
            shown = [(name, name.removesuffix(".name").split(".")[-1]) for name in telling[:count]]
            labels = [", ".join(f"{short}={run.settings.get(name, 'unset')}" for name, short in shown) for run in runs]
    return labels if len(set(labels)) == len(runs) else distinct_names([run.folder for run in runs])


def _check_same_tasks(name: str, second_name: str, first: Sequence[Evaluation], second: Sequence[Evaluation]) -> None:
    expected, digest = set(first[0].values), first[0].tasks_sha256
    for evaluation in second:
        if set(evaluation.values) != expected:
            common = len(expected & set(evaluation.values))
            problem = f"{len(expected):,} and {len(evaluation.values):,} tasks, {common:,} of them the same"
        elif evaluation.tasks_sha256 != digest:
            problem = "tasks of the same names and other contents"
        else:
            continue
        subject = f"runs of {name}" if name == second_name else f"{name} and {second_name}"
        raise RunError(
            f"compare: {subject} were evaluated on {problem}; expected the same tasks. Evaluate all runs alike "
            "(evaluate.tasks, evaluate.first, evaluate.settings)"
            f"{'.' if name == second_name else ', or add --unpaired, which widens the interval.'}"
        )


# ---- Intervals


def _table(evaluations: Sequence[Evaluation]) -> Table:
    """Return [seeds, tasks], tasks in the order of the first seed's."""
    tasks = sorted(evaluations[0].values)
    return np.array([[evaluation.values[task] for task in tasks] for evaluation in evaluations])


def _summarise(method: Method, selected: Sequence[Evaluation], generator: np.random.Generator) -> MethodResult:
    value = table_interval(_table(selected), generator)
    starts = [run.evaluations[0] for run in method.runs]
    value_before = gain = None
    if all(start.step == 0 and set(start.values) == set(selected[0].values) for start in starts):
        table, at_start = _table(selected), _table(starts)
        value_before = table_interval(at_start, generator)
        gain = difference_interval(table, at_start, generator, paired_seeds=True, paired_tasks=True)
    shared_steps = set.intersection(*({e.step for e in run.evaluations} for run in method.runs))
    curve = []
    for step in sorted(shared_steps):
        at_step = [next(e for e in run.evaluations if e.step == step) for run in method.runs]
        if all(set(e.values) == set(at_step[0].values) for e in at_step):
            tokens = math.fsum(e.tokens for e in at_step) / len(at_step)
            curve.append((step, tokens, table_interval(_table(at_step), generator)))
    return MethodResult(
        name=method.name,
        seeds=method.seeds,
        folders=tuple(str(run.folder) for run in method.runs),
        before=value_before,
        value=value,
        by_seed=tuple(e.mean for e in selected),
        gain=gain,
        steps=tuple(e.step for e in selected),
        tokens=tuple(e.tokens for e in selected),
        curve=tuple(curve),
    )


def table_interval(
    table: Table,
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
    tables: Sequence[Table] = (),
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return the mean of values [seeds, tasks] with its interval over both; over tasks alone with one seed.

    `tables` are those of which `table` is the difference.
    """
    if len(table) == 1 and not tables:
        return rate_interval(table[0].tolist(), normal_quantile(confidence))
    widened = widen_seed_effects(table, confidence)
    means = [
        _crossed_means(widened, _draw_weights(len(table), len(weights), generator), weights)
        for weights in _task_weights(table.shape[1], generator, resamples)
    ]
    return _to_interval(float(table.mean()), np.concatenate(means), tables or (table,), confidence)


def difference_interval(
    second: Table,
    first: Table,
    generator: np.random.Generator,
    paired_seeds: bool,
    paired_tasks: bool,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return the mean of `second` minus that of `first`, both [seeds, tasks], with its interval.

    Paired over seeds, row i of both is of the same seed; paired over tasks, column j of both is the same task. What is
    paired is drawn together.
    """
    if paired_seeds and paired_tasks:
        return table_interval(second - first, generator, resamples, (second, first), confidence)

    tables, means = (widen_seed_effects(second, confidence), widen_seed_effects(first, confidence)), []
    for tasks_of_second in _task_weights(second.shape[1], generator, resamples):
        count = len(tasks_of_second)
        tasks_of_first = tasks_of_second if paired_tasks else _draw_weights(first.shape[1], count, generator)
        seeds_of_second = _draw_weights(second.shape[0], count, generator)
        seeds_of_first = seeds_of_second if paired_seeds else _draw_weights(first.shape[0], count, generator)
        means.append(
            _crossed_means(tables[0], seeds_of_second, tasks_of_second)
            - _crossed_means(tables[1], seeds_of_first, tasks_of_first)
        )
    value = float(second.mean() - first.mean())
    return _to_interval(value, np.concatenate(means), (second, first), confidence, paired_tasks)


def normal_quantile(confidence: float) -> float:
    """Return how many standard deviations a two-sided interval reaches: 1.96 at 95%."""
    return NormalDist().inv_cdf((1.0 + confidence) / 2.0)


def student_quantile(confidence: float, degrees: int) -> float:
    """Return the same of Student's t with so many degrees of freedom: 12.7 at 95% with one, 2.36 with seven."""
    low, high = 0.0, 1e6
    while high - low > 1e-9 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if student_within(middle, degrees) < confidence else (low, middle)
    return high


def student_within(t: float, degrees: int) -> float:
    """Return the probability that |T| <= t (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    is_odd = degrees % 2
    term, total = 1.0, 0.0
    for number in range(degrees // 2):
        total += term
        term *= square * (2 * number + 1 + is_odd) / (2 * number + 2 + is_odd)
    if is_odd:
        return 2.0 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)
    return math.sin(angle) * total


def widen_seed_effects(table: Table, confidence: float = CONFIDENCE) -> Table:
    """Return [seeds, tasks] with each seed's deviation from the mean of all enlarged for the small number of seeds.

    Drawing S seeds with replacement gives a variance that is (S - 1) / S of the unbiased one, and its quantiles are
    those of a normal distribution where the variance is estimated from S values. The deviations are multiplied with
    sqrt(S / (S - 1)) and with Student's quantile over the normal one, so that intervals hold with three seeds too.
    """
    seeds = len(table)
    if seeds < 2:
        return table
    quantile = student_quantile(confidence, seeds - 1)
    factor = math.sqrt(seeds / (seeds - 1)) * quantile / normal_quantile(confidence)
    deviations = table.mean(axis=1, keepdims=True) - table.mean()
    widened: Table = table + (factor - 1.0) * deviations
    return widened


def _draw_weights(items: int, resamples: int, generator: np.random.Generator) -> Table:
    """Return [resamples, items]: how often each item is drawn with replacement, over their number."""
    return generator.multinomial(items, np.full(items, 1.0 / items), size=resamples) / items


def _task_weights(tasks: int, generator: np.random.Generator, resamples: int) -> Iterator[Table]:
    """Yield the weights of tasks in chunks of resamples that fit into memory."""
    for start in range(0, resamples, size := max(1, CHUNK // tasks)):
        yield _draw_weights(tasks, min(size, resamples - start), generator)


def _crossed_means(table: Table, seed_weights: Table, task_weights: Table) -> Table:
    """Return the weighted mean of [seeds, tasks] for every resample, [resamples]."""
    means: Table = ((seed_weights @ table) * task_weights).sum(axis=1)
    return means


def _to_interval(
    value: float, means: Table, tables: Sequence[Table], confidence: float, paired_tasks: bool = True
) -> Interval:
    """Return the percentile interval of resampled means of one table or of the difference of two.

    It is at least as wide as one more task of the largest value would make it. For rates it also holds the interval
    over tasks alone, as resampling equal outcomes gives none, and it stays within their bounds.
    """
    low, high = (float(bound) for bound in np.quantile(means, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0]))
    size = max(float(np.abs(table).max()) for table in tables) or 1.0
    _, low, high = with_floor((value, low, high), min(table.shape[1] for table in tables), size)
    if all(table.min() >= 0.0 and table.max() <= 1.0 for table in tables):
        rates = [table.mean(axis=0).tolist() for table in tables]
        _, task_low, task_high = _interval_over_tasks(rates, paired_tasks, normal_quantile(confidence))
        low, high = max(min(low, task_low), 0.0 if len(tables) == 1 else -1.0), min(max(high, task_high), 1.0)
    return value, low, high


def _interval_over_tasks(rates: Sequence[Sequence[float]], paired: bool, z: float) -> Interval:
    """Return the interval over tasks alone of rates by task, or of the difference of two, first minus second.

    A paired difference from -1 to 1 is a rate from 0 to 1 on another scale; an unpaired one has the interval of
    Newcombe (1998, method 10), whose bounds are as far off as those of both rates together, squared and added.
    """
    if len(rates) == 1:
        return rate_interval(rates[0], z)
    if paired:
        scaled = rate_interval([(first - second + 1.0) / 2.0 for first, second in zip(*rates, strict=True)], z)
        return 2.0 * scaled[0] - 1.0, 2.0 * scaled[1] - 1.0, 2.0 * scaled[2] - 1.0
    (first, low, high), (second, other_low, other_high) = (rate_interval(by_task, z) for by_task in rates)
    value = first - second
    return (
        value,
        value - math.hypot(first - low, other_high - second),
        value + math.hypot(high - first, second - other_low),
    )


# ---- The table


def format_comparison(comparison: RunComparison) -> list[str]:
    """Return a comparison as a table of the methods, a line for each difference, and what the intervals hold."""
    lines = format_table(comparison_rows(comparison))
    return lines + [line for note in comparison_notes(comparison) for line in textwrap.wrap(note, WIDTH)]


def format_value(comparison: RunComparison, interval: Interval | None, signed: bool = False) -> str:
    """Return an interval of the compared measure, a success in percent."""
    if interval is None:
        return "-"
    is_rate = comparison.measure == "success"
    percent, sign = "%" if is_rate else "", "+" if signed else ""
    value, low, high = (f"{number * 100:{sign}.1f}" if is_rate else f"{number:{sign}.3f}" for number in interval)
    return f"{value}{percent} [{low}, {high}]"


def comparison_rows(comparison: RunComparison) -> list[tuple[str, ...]]:
    """Return the table of the methods, with its head."""
    rows: list[tuple[str, ...]] = [("method", "seeds", "before", comparison.measure, "gain", "sampled tokens")]
    for method in comparison.methods:
        tokens = f"{sum(method.tokens) / len(method.tokens):,.0f}"
        figures = (format_value(comparison, value) for value in (method.before, method.value))
        gain = format_value(comparison, method.gain, signed=True)
        rows.append((shorten_path(method.name), str(len(method.seeds)), *figures, gain, tokens))
    return rows


def comparison_notes(comparison: RunComparison) -> list[str]:
    """Return the values by seed, the differences, and what the intervals hold, a line or a paragraph each."""
    is_rate, lines = comparison.measure == "success", []
    for method in comparison.methods:
        if len(method.seeds) > 1:
            means = (f"{100 * mean:.1f}%" if is_rate else f"{mean:.3f}" for mean in method.by_seed)
            by_seed = ", ".join(f"{mean} (seed {seed})" for mean, seed in zip(means, method.seeds, strict=True))
            lines.append(f"{shorten_path(method.name)} by seed: {by_seed}")

    for difference in comparison.differences:
        kinds = {"tasks": difference.paired_tasks, "seeds": difference.paired_seeds}
        pairs = [name for name, is_paired in kinds.items() if is_paired]
        paired = f", paired over {' and '.join(pairs)}" if pairs else ", unpaired"
        names = f"{shorten_path(difference.second)} - {shorten_path(difference.first)}"
        lines.append(f"{names}: {format_value(comparison, difference.value, signed=True)}{paired}")

    notes = [f"{comparison.tasks:,} held-out tasks; 95% intervals by bootstrap over seeds and tasks."]
    if any(len(method.seeds) < 2 for method in comparison.methods):
        notes.append(
            "A method with one seed: its interval leaves out what another training would give. Train more seeds."
        )
    counts = [sum(method.tokens) / len(method.tokens) for method in comparison.methods]
    if not_trained := [shorten_path(method.name) for method in comparison.methods if not sum(method.tokens)]:
        notes.append(
            f"{', '.join(not_trained)}: compared before training, as no later evaluation is within the tokens or steps "
            "that were asked for, or none is better (--at best). Train with evaluate.every to have more."
        )
    elif max(counts) > 1.1 * min(counts):
        notes.append("The methods sampled different numbers of tokens: --max-tokens compares at equal ones.")
    for method in comparison.methods:
        if len(set(method.steps)) > 1:
            steps = ", ".join(f"{step} (seed {seed})" for step, seed in zip(method.steps, method.seeds, strict=True))
            notes.append(
                f"{shorten_path(method.name)}: its seeds were evaluated after different numbers of steps: {steps}."
            )
    for folder, step in comparison.forks:
        notes.append(
            f"{shorten_path(folder)} is a fork that shares the training of another run up to step {step}: intervals "
            "over seeds take every run for a training of its own."
        )
    if len(comparison.code) > 1:
        notes.append(
            f"The runs were trained by different code ({'; '.join(comparison.code)}): a difference may be that of the "
            "code. A plus is for changes that were not committed."
        )
    return lines + notes
