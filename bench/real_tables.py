"""The tables of `bench/real.py`: values by line, seed and task in results/real.json.gz, with their means and gains."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

import real_measures as measures
from common import RESULTS, record
from real_tasks import KNOWN, PASSING, Known, Line, ending, in_short, lines_of, passing
from trainings import console

BY_TASK = "real.json.gz"
UNTRAINED = "-"  # in place of a seed
Table = Mapping[str, Sequence[float]]  # by measure, its values by task
Seeds = Mapping[str, Table]  # by seed, or by UNTRAINED alone


def keep(name: str, line: str, seed: int | None, table: Table) -> None:
    """A line's measures by task, and as result lines: the mean over its seeds, those of earlier calls too, with the
    lowest and the highest seed, on the tasks that all were played on."""
    file = RESULTS / BY_TASK
    kept = _read_by_task() if file.exists() else {}
    tables = kept.setdefault(name, {}).setdefault(line, {})
    tables[UNTRAINED if seed is None else str(seed)] = _shortened(table)
    file.write_bytes(gzip.compress(json.dumps(kept).encode() + b"\n", mtime=0))
    count, seeds = min(len(values) for one in tables.values() for values in one.values()), _numbers(tables)
    short, headline = in_short(KNOWN[name], line)
    told = []
    for what in table:
        means = [fmean(one[what][:count]) for one in tables.values()]
        spread = [min(means), fmean(means), max(means)]
        for figure in [f"{line}.{what}", *([short] if what == headline else [])]:
            record(
                f"real-{name}", f"real.{name}.{figure}", spread, what, command(name, [line], seeds, count), count, seeds
            )
        told.append(f"{what} {spread[1]:.3g}")
    console.print(f"{name} {line}: {', '.join(told)}", highlight=False)


def _read_by_task() -> dict[str, dict[str, dict[str, Table]]]:
    return json.loads(gzip.decompress((RESULTS / BY_TASK).read_bytes()))


def command(name: str, rows: Sequence[str], seeds: Sequence[int], count: int) -> str:
    """Return the command that gives lines of a task with these seeds, on so many held-out tasks."""
    chosen = f" --seeds {' '.join(map(str, seeds))}" if seeds else ""
    return f"python bench/real.py {name} --models DIR --data DIR --rows {' '.join(rows)}{chosen} --held-out {count}"


def _shortened(table: Table) -> dict[str, list[float]]:
    return {what: [float(f"{value:.6g}") for value in values] for what, values in table.items()}


def _numbers(seeds: Collection[str]) -> list[int]:
    return sorted(int(seed) for seed in seeds if seed != UNTRAINED)


def alike(first: Seeds, second: Seeds) -> list[tuple[int, Table, Table]]:
    """A line and a trained one as they can be compared, by seed of the second: with the same seed, or with the one
    table of what is not trained."""
    pairs = [(seed, first.get(UNTRAINED, first.get(seed)), table) for seed, table in second.items()]
    return [(int(seed), base, table) for seed, base, table in pairs if base]


def over_seeds(tables: Sequence[Table], what: str, count: int) -> list[float]:
    """A measure by task, seeds averaged."""
    return [fmean(of_task) for of_task in zip(*(table[what][:count] for table in tables), strict=True)]


def gains(name: str, chosen: Sequence[str]) -> None:
    """What the team's own training has gained over `before` in every measure, and in the headline over every other line
    that is played as it is, and what further training has over `before`, where one of the two is new and the other is
    there."""
    known, kept = KNOWN[name], _read_by_task()[name]
    pairs = [("before", known.own, what) for what in dict.fromkeys((known.headline, "reward", *known.measures))]
    for title, line in lines_of(known).items():
        own, untrained = known.own + ending(known, line), "before" + ending(known, line)
        if title not in ("before", own):
            pairs += [(title, own, what) for what in judged(known, line)]
        if known.rows[line.row].further:
            pairs += [(untrained, title, what) for what in judged(known, line)]
    for first, second, what in pairs:
        compared = alike(kept.get(first, {}), kept.get(second, {}))
        if compared and {first, second} & {*chosen}:
            whose = "" if lines_of(known)[second].row == known.own else f"{second}."
            figures = [f"real.{name}.{whose}{over(first)}.{what}"]
            figures += [f"real.{name}.gain"] if (first, second, what) == ("before", known.own, known.headline) else []
            gain(figures, what, compared, (name, first, second))


def judged(known: Known, line: Line) -> list[str]:
    """The measures that a line is compared in."""
    return [passing(k) for k in PASSING] if line.sampled else [known.headline]


def gain(
    figures: Sequence[str], what: str, compared: Sequence[tuple[int, Table, Table]], rows: tuple[str, str, str]
) -> None:
    """Record a gain: seeds averaged, with the interval over the tasks that all were played on; and, where there are
    several, `.seeds`, the mean gain with the least and the greatest of a seed. `rows`: the task and the two lines."""
    count = min(len(table[what]) for _, *both in compared for table in both)
    seeds, *sides = zip(*compared, strict=True)
    mean, low, high = measures.gain(*(over_seeds(tables, what, count) for tables in sides))
    by_seed = [fmean(second[what][:count]) - fmean(first[what][:count]) for _, first, second in compared]
    giving = command(rows[0], rows[1:], seeds, count)
    for figure in figures:
        record(f"real-{rows[0]}", figure, [low, mean, high], what, giving, count, seeds)
        if len(seeds) > 1:
            record(f"real-{rows[0]}", f"{figure}.seeds", [min(by_seed), mean, max(by_seed)], what, giving, count, seeds)
    console.print(f"{figures[0]} {mean:+.3f} [{low:+.3f}, {high:+.3f}]", highlight=False)


def over(title: str) -> str:
    """The name of a gain over a line."""
    return "gain" if title == "before" else f"gain-over-{title}"
