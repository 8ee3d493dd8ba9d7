"""The files and texts of `cadre prove`: the plan as lines, the result as lines, a picture, and a page of one file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from cadre.cli.terminal import visible
from cadre.files import OpenRecord, to_json, write_text_atomically
from cadre.notebook_html import shorten, table_html
from cadre.settings.yaml_file import Raw
from cadre.statistics import Interval
from cadre_analysis.tables import format_table
from cadre_analysis.verdict import Comparison, Verdict

RESULT_FILE, PAGE_FILE, PICTURE_FILE = "result.json", "index.html", "verdict.svg"
TEAM = "team-L0"
UNTRAINED = ("best-of-n", "vote")


class Plan(OpenRecord):
    """The design of a comparison, which is fixed before anything runs."""

    task: str
    methods: dict[str, Raw]  # by name, the configuration of its trainings but learning rate, tokens and seed
    prompted: dict[str, Raw] = {}  # those of which prompts are optimised, and no weight changes
    left_out: dict[str, str]  # by name, why a method cannot be trained here
    rates: list[float]  # learning rates that are tried for every method
    seeds: list[int]
    tokens: int  # sampled in each training
    search_tokens: int  # sampled in each training that chooses a rate
    test_tokens: int  # for each held-out task, of the untrained agent; trained methods play one episode
    held_out: int
    first: int
    comparison: str  # what the verdict is about
    code: dict[str, str] = {}

    @property
    def agents(self) -> list[str]:
        """The single agents that the team has to beat."""
        return [*(name for name in self.methods if not name.startswith("team")), *self.prompted]


@dataclass(frozen=True)
class MethodFigures:
    """A method's figures; None where there was no training."""

    success: Interval  # held-out, with its 95% interval over seeds and tasks
    by_seed: tuple[float, ...]
    rate: float | None
    tokens: float | None  # mean of those sampled in training
    test_tokens: float  # mean of those of a held-out task


@dataclass(frozen=True)
class Result:
    """The findings of `cadre prove`."""

    folder: Path
    plan: Plan
    methods: dict[str, MethodFigures]
    before: dict[str, Interval]  # success before training by side: team, agent
    verdict: Verdict
    beside: dict[str, Interval]  # the team's success minus that of the untrained methods, which do not count

    def __repr__(self) -> str:
        return shorten(f"Result({verdict_line(self)})")

    def _repr_html_(self) -> str:
        return (self.folder / PAGE_FILE).read_text(encoding="utf-8")


# ---- As lines


def plan_lines(plan: Plan) -> list[str]:
    """Return the plan as it is printed, a paragraph each."""
    searched = len(plan.rates) if plan.search_tokens else 0
    rates = ", ".join(f"{rate:g}" for rate in plan.rates)
    chosen = f"the best of the learning rates {rates} on training tasks ({plan.search_tokens:,} tokens each)"
    return [
        f"Question: {plan.comparison}.",
        f"Methods: {', '.join([*plan.methods, *plan.prompted, *UNTRAINED])}.",
        *(f"Left out: {name}. {why}" for name, why in plan.left_out.items()),
        f"Training: {len(plan.methods) * (len(plan.seeds) + searched)} trainings; {len(plan.seeds)} seeds of "
        f"{plan.tokens:,} sampled tokens for each method, at {chosen if searched else f'the learning rate {rates}'}.",
        f"Testing: {plan.held_out:,} held-out tasks, one episode each at temperature 0; the untrained agent samples "
        f"{plan.test_tokens:,} tokens a task.",
    ]


def verdict_line(result: Result) -> str:
    """Return the verdict as one sentence."""
    verdict = result.verdict
    differences = ", ".join(_describe(comparison, len(verdict.comparisons)) for comparison in verdict.comparisons)
    sentence = {
        "wins": f"the team wins against every single agent ({differences})",
        "loses": f"the team loses to a single agent ({differences})",
        "undecided": f"not shown: the team is not better than every single agent, nor worse than one ({differences})",
    }[verdict.word]
    if verdict.word != "undecided":
        return f"{result.plan.task}: {sentence}."
    seeds = verdict.seeds_needed
    needed = "more held-out tasks" if seeds is None else f"{seeds:,} seeds"
    return f"{result.plan.task}: {sentence}. If the differences are as measured, {needed} would decide it."


def _describe(comparison: Comparison, agents: int) -> str:
    """Return a comparison; with the interval by which the team may lose to the agent where that of 95% is below 0."""
    text = f"{comparison.agent} {points(comparison.difference)}"
    if comparison.difference[2] >= 0.0 or agents < 2:
        return text
    _, low, high = (100.0 * number for number in comparison.corrected)
    return f"{text}, at {100.0 - 5.0 / agents:g}% [{low:+.1f}, {high:+.1f}]"


def points(interval: Interval) -> str:
    """Return a difference of rates in percentage points."""
    value, low, high = (100.0 * number for number in interval)
    return f"{value:+.1f} points [{low:+.1f}, {high:+.1f}]"


def percent(interval: Interval) -> str:
    """Return a rate in percent."""
    value, low, high = (100.0 * number for number in interval)
    return f"{value:.1f}% [{low:.1f}, {high:.1f}]"


def method_rows(result: Result) -> list[tuple[str, ...]]:
    """Return the table of the methods, with its head."""
    rows: list[tuple[str, ...]] = [("method", "seeds", "success", "by seed", "rate", "tokens", "tokens a test task")]
    for name, figures in result.methods.items():
        by_seed = " ".join(f"{100 * value:.0f}" for value in figures.by_seed)
        rate = "" if figures.rate is None else f"{figures.rate:g}"
        tokens = "untrained" if figures.tokens is None else f"{figures.tokens:,.0f}"
        seeds = str(len(figures.by_seed))
        rows.append((name, seeds, percent(figures.success), by_seed, rate, tokens, f"{figures.test_tokens:,.0f}"))
    return rows


def result_notes(result: Result) -> list[str]:
    """Return what there is to say of a result beside its table, a sentence or two each."""
    sides = ", ".join(f"{side} {percent(success)}" for side, success in result.before.items())
    versus_draws = ", ".join(f"{name} {points(difference)}" for name, difference in result.beside.items())
    resolution = max(comparison.resolution for comparison in result.verdict.comparisons)
    planned = result.plan.tokens
    short = [
        f"{name} {figures.tokens:,.0f}"
        for name, figures in result.methods.items()
        if figures.tokens is not None and figures.tokens < planned
    ]
    return [
        *([f"Trained with fewer tokens than the {planned:,} planned: {', '.join(short)}."] if short else []),
        f"Before training: {sides}. {TEAM} minus the untrained agent's draws: {versus_draws}.",
        f"An experiment of this size and spread shows a difference of {100 * resolution:.1f} points in 19 of 20 "
        "cases. Intervals are at 95%, over seeds and tasks, those of untrained methods over tasks alone.",
    ]


def result_lines(result: Result) -> list[str]:
    """Return a result as it is printed."""
    return [*format_table(method_rows(result)), *map(visible, [*result_notes(result), verdict_line(result)])]


# ---- As a picture and a page


def draw_verdict(result: Result) -> str:
    """Return an SVG picture of the methods' success, and of the team's differences from the others."""
    differences = {comparison.agent: comparison.difference for comparison in result.verdict.comparisons} | result.beside
    height, margin, width = 22, 120, 380
    rows = ['<text x="0" y="16" font-weight="bold">held-out success</text>']
    y = 16

    def draw(name: str, interval: Interval, low: float, high: float) -> None:
        nonlocal y
        y += height
        at = [margin + width * (number - low) / (high - low) for number in interval]
        rows.append(
            f'<text x="0" y="{y + 4}">{escape(name)}</text><line x1="{at[1]:.1f}" x2="{at[2]:.1f}" y1="{y}" y2="{y}" '
            f'stroke="currentColor"/><circle cx="{at[0]:.1f}" cy="{y}" r="4" fill="currentColor"/>'
        )

    for name, figures in result.methods.items():
        draw(name, figures.success, 0.0, 1.0)
    y += 2 * height
    zero = margin + width / 2
    rows.append(f'<text x="0" y="{y}" font-weight="bold">{TEAM} minus</text>')
    rows.append(
        f'<line x1="{zero}" x2="{zero}" y1="{y}" y2="{y + height * (len(differences) + 1)}" stroke="currentColor" '
        'stroke-dasharray="2 3"/>'
    )
    for name, difference in differences.items():
        draw(name, difference, -1.0, 1.0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {margin + width + 10} {y + height}" '
        f'font-family="sans-serif" font-size="12" role="img">{"".join(rows)}</svg>'
    )


STYLE = "body{font:16px/1.5 sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}table{border-collapse:collapse;"
STYLE += "display:block;overflow-x:auto}td,th{padding:.2rem .6rem;border-bottom:1px solid;text-align:left}"


def result_page(result: Result) -> str:
    """Return the page: the verdict, the picture, the figures, and the plan with all settings."""
    plan = result.plan
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in result_notes(result))
    planned = "".join(f"<li>{escape(line)}</li>" for line in plan_lines(plan))
    settings = escape(plan.model_dump_json(indent=1))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>cadre prove: {escape(plan.task)}</title>'
        f"<style>{STYLE}</style><h1>Is a team worth its tokens?</h1><p><strong>{escape(verdict_line(result))}</strong>"
        f"</p>{draw_verdict(result)}{table_html(method_rows(result))}{paragraphs}<h2>The plan, written before anything "
        f"ran</h2><ul>{planned}</ul><details><summary>All settings</summary><pre>{settings}</pre></details>"
        "<p>Every prompt and completion of the tests is beside this page, in METHOD/seed-N.episodes.jsonl.</p></html>"
    )


def write_result(result: Result) -> None:
    """Write the JSON, the picture and the page of a result; they are made again whenever the command is."""
    fields: Raw = {"task": result.plan.task, "verdict": asdict(result.verdict), "before": result.before}
    fields |= {"methods": {name: asdict(figures) for name, figures in result.methods.items()}, "beside": result.beside}
    write_text_atomically(result.folder / RESULT_FILE, to_json(fields) + "\n")
    write_text_atomically(result.folder / PICTURE_FILE, draw_verdict(result))
    write_text_atomically(result.folder / PAGE_FILE, result_page(result))
