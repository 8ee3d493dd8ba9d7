"""Makes the tables of README.md and of pages of docs from results/*.jsonl.

python bench/readme.py            write them
python bench/readme.py --check    name the pages that differ from what would be written, and the figures in other texts
                                  that differ from their lines (bench/figures.py); end with 1 if any does
python bench/readme.py --write    also test every block and command of all pages, and record how many there are
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import audits
import evidence
import figures
import gpu_tables
import openspiel
import presets as preset_bench
import worth
from ages import History, read_history
from cadre.algorithms import ALGORITHMS
from common import RESULTS, ROOT, latest, record
from evidence import ranged, shown
from real_tables import over
from real_tasks import COMMON, KNOWN, PASSING, Known, lines_of, passing
from tests.docs.blocks import PAGES as ALL_PAGES
from tutorial import checked

ROWS = {
    "plan-path.base.success": "Plan-Path, the team before training",
    "plan-path.team.success": "**Plan-Path, team of two, AT-GRPO, one shared model**",
    "table.team-shared.plan-path.processor_minutes": "minutes of processor time to train it, evaluations included",
    "plan-path.L1.success": "**Plan-Path, team of two, AT-GRPO, a LoRA per role**",
    "plan-path.L1.swapped.success": "Plan-Path, the same two adapters in each other's role",
    "sokoban.base.success": "Sokoban, the team before training",
    "sokoban.team.success": "**Sokoban, team of two, AT-GRPO, one shared model**",
    "sudoku.base.success": "Sudoku 4x4, the team before training",
    "sudoku.team.success": "**Sudoku 4x4, team of two, AT-GRPO, one shared model**",
    "writing.smollm2.greedy.reward.before": "two writers on SciTLDR, SmolLM2-135M, reward of 3 before training",
    "writing.smollm2.greedy.reward.after": "**the same after MAGRPO on two adapters**",
    "writing.smollm2.reward.before": "the same, sampled at temperature 1, before",
    "writing.smollm2.reward.after": "and after",
    "writing.smollm2.minutes": "minutes of that training on two cores",
    "sandbox.programs_per_s": "confined programs a second",
    "sandbox.p99_ms": "99th percentile of a confined program, ms",
    "adapters.four_vs_one.time_ratio": "time of a step with four adapters over one, same tokens",
    "e2e.vs_trl.p200": "a step, times faster than TRL, 3M model, prompt 200, completion 32",
    "e2e.vs_trl.p1024": "the same with prompt 1,024, completion 64",
    "e2e.vs_comlrl.p200": "a step, times faster than CoMLRL, 3M model, prompt 200, completion 32",
    "e2e.vs_comlrl.p1024": "the same with prompt 1,024, completion 64",
    "e2e.vs_trl.p200.smollm2": "a step, times faster than TRL, SmolLM2-135M, prompt 200, completion 32",
    "e2e.vs_comlrl.p200.smollm2": "a step, times faster than CoMLRL, SmolLM2-135M, prompt 200, completion 32",
    "e2e.vs_trl.p1024.smollm2": "a step, times faster than TRL, SmolLM2-135M, prompt 1,024, completion 64",
    "e2e.vs_comlrl.p1024.smollm2": "a step, times faster than CoMLRL, SmolLM2-135M, prompt 1,024, completion 64",
    "generate.vs_hf": "sampling, times faster than `model.generate`, 3M model, 8 prompts x 8",
    "generate.vs_hf.smollm2": "sampling, times faster than `model.generate`, SmolLM2-135M, 8 prompts x 8",
    "generate.vs_hf-continuous": "sampling, times faster than transformers' continuous batching, 3M model",
    "generate.vs_vllm": "sampling, times faster than vLLM's CPU build, SmolLM2-135M, 8 prompts x 8",
    "learner.vs_bound.p200.k4": "an update's time over padding's, over the share of distinct tokens: prompt 200, K = 4",
    "learner.vs_bound.p200.k8": "the same with K = 8",
    "learner.vs_bound.p1024.k4": "with prompt 1,024, K = 4",
    "learner.vs_bound.p1024.k8": "with prompt 1,024, K = 8",
    "sandbox.attacks_tried": "attacks tried on the sandbox, at two levels and as two users",
    "sandbox.attacks_through": "attacks on the sandbox that got through",
}


NOT_MEASURED = "not measured yet"
# Seeds of Tiny Hanabi that were looked at while its settings were chosen.
SEEN_SEEDS = 5
# Audited decisions below which an interval says nothing.
FEW = 10
GAMES = {"plan-path": "Plan-Path", "sokoban": "Sokoban", "sudoku": "Sudoku 4x4"}
PAPER = {
    "single": "`single`: one agent that has the tool, untrained",
    "single-grpo": "`single-grpo`: the same, GRPO on whole episodes",
    "single-at-grpo": "`single-at-grpo`: the same, completions of every decision compared",
    "team-prompted": "`team-prompted`: tool and planner, untrained",
    "team-grpo": "`team-grpo`: the team, GRPO on whole episodes",
    "team-shared": "**`team-shared`: the team, AT-GRPO, one shared model**",
    "team-per-role": "**`team-per-role`: the team, AT-GRPO, a model per role**",
    "tool-alone": "`tool-alone`: the tool trained alone, its answers executed",
    "planner-alone": "`planner-alone`: the planner trained alone, without a tool",
    "alone-as-team": "`alone-as-team`: these two put together as a team",
    "swapped": "`swapped`: the two models of `team-per-role` in each other's role",
}
ABLATIONS = {
    "carry-sample": "selection with a probability in proportion to the reward above the lowest (`select: sample`)",
    "carry-random": "selection at random (`select: random`)",
    "k2": "K = 2",
    "k4": "K = 4",
    "outcome-only": "reward by outcome only",
    "alpha-0.25": "alpha = 0.25",
    "alpha-4": "alpha = 4",
}


@dataclass(frozen=True)
class Highlight:
    """A row of README: what it is, the lines that it is made of, how they are put, and what their range is over."""

    words: str
    lines: tuple[str, ...]
    form: str
    spread: str


# The rows of bench/presets.py: the algorithms, and points of their choices that have names there.
PRESETS = (*(name for name in ALGORITHMS if name != "custom"), "gdpo", "as_published", "teacher", "hint")


@dataclass(frozen=True)
class Situation:
    """A row of docs/algorithms/which.md: the situation, the algorithms with their pages, and why.

    names   those whose figures of bench/presets.py and bench/audits.py are the evidence, by their titles there
    game    the game of bench/presets.py
    form    further evidence, with a place for each of `lines`
    """

    words: str
    algorithms: str
    why: str
    names: tuple[str, ...]
    game: str = "plan-path"
    form: str = ""
    lines: tuple[str, ...] = ()


WHICH = (
    Situation(
        "every role's step has a reward of its own",
        "[`at_grpo`](at_grpo.md)",
        "the completions of every decision are compared in the same state",
        ("at_grpo",),
    ),
    Situation(
        "the reward comes at the end of a short episode",
        "[`magrpo`](magrpo.md), [`c3`](c3.md)",
        "every alternative is rolled out to the end, so early decisions get credit for what follows; an audit measures "
        "nearly the same quantity, and a tree costs two or three times the tokens",
        ("magrpo", "c3"),
    ),
    Situation(
        "episodes are long or cannot be branched, as in [programs](../programs.md) that are not replayable",
        "[`grpo`, `grpo_by_role`](grpo.md), [`dr_mas`](dr_mas.md), [`m_grpo`](hierarchical.md)",
        "whole episodes are compared; all but `grpo` compare each role with itself. Some seeds learn much less",
        ("grpo", "grpo_by_role", "dr_mas", "m_grpo"),
    ),
    Situation(
        "few decisions of a long episode matter",
        "[`tree_rl`, `arpo`, `tree_grpo`, `bpo`](branching.md)",
        "episodes branch where the policy is uncertain, or at random",
        ("tree_rl", "arpo", "tree_grpo", "bpo"),
    ),
    Situation(
        "one agent does all of the work",
        "[`dr_mamr`](dr_mamr.md)",
        "steps that change the next role's answer get credit, and `ROLE/influence` shows which role contributes "
        "little; the prompts of Plan-Path quote no step, so the influence is 0 there",
        ("dr_mamr",),
    ),
    Situation(
        "agents act at once and share one reward",
        "[`counterfactual`, `shapley`](counterfactual.md)",
        "the credit of a role is what its action adds to the reward of the step, computed by forks without further "
        "tokens; audited in games in which roles act in turn",
        ("counterfactual", "shapley"),
        "coordination",
    ),
    Situation(
        "episodes of a task reach the same states by different paths",
        "[`state_value`](state_value.md), [`gigpo`](gigpo.md)",
        "all visits of a state are compared",
        ("state_value", "gigpo"),
    ),
    Situation(
        "one role is trained, the others are frozen",
        "[`flow_grpo`](hierarchical.md)",
        "the other roles are part of the environment; on Plan-Path the planner is not trained",
        ("flow_grpo",),
    ),
    Situation(
        "a planner and workers share one model",
        "[`matpo`](hierarchical.md)",
        "one group per task for all completions",
        ("matpo",),
    ),
    Situation(
        "proposers and solvers",
        "[`hierarchical_grpo`](hierarchical.md)",
        "solvers of the same proposal are compared",
        ("hierarchical_grpo",),
    ),
    Situation(
        "a reward has several parts of different size",
        "[`parts` of `grpo` and `at_grpo`](gdpo.md)",
        "each part is normalised separately",
        ("gdpo",),
    ),
    Situation(
        "zero-sum self-play",
        "[`spiral`](spiral.md), [`grpo_by_role`](grpo.md)",
        "the mean return is zero whatever the policy does, so the baseline of `spiral` is a running mean per role; "
        "`grpo_by_role` compares episodes of one deal, so that luck cancels",
        ("spiral",),
        form="`grpo_by_role`, not `spiral`: [exploitability](../games_of_theory.md) of Kuhn poker {} before, {} after "
        "(uniform play has 0.458)",
        lines=("kuhn.untrained.exploitability", "kuhn.exploitability"),
    ),
    Situation(
        "success is rare",
        "`scale: mean` of `grpo` and `at_grpo` without a baseline ([discovery](../discovery.md))",
        "a success counts more the rarer it is, and failures have no negative advantage",
        (),
        form="Plan-Path from a base without a right program {} before, {} after",
        lines=("discovery.plan-path.base.success", "discovery.plan-path.team.success"),
    ),
    Situation(
        "a value head is wanted",
        "[`ippo`, `mappo`, `rlhf`](critics.md)",
        "a critic in place of a group as the baseline",
        ("ippo", "mappo", "rlhf"),
    ),
    Situation(
        "only rankings of joint answers are known",
        "[`ma_dpo`](ma_dpo.md)",
        "better joint actions are preferred to worse ones",
        ("ma_dpo",),
    ),
    Situation(
        "supervised learning from successes",
        "[`sirius`](sirius.md)",
        "the answers of successful episodes are imitated",
        ("sirius",),
    ),
    Situation(
        "a better model, or a text that no role sees, can score each token",
        "[`teacher`](../distillation.md) with any algorithm",
        "the teacher's log-probabilities of the sampled tokens are an advantage per token",
        ("teacher", "hint"),
    ),
    Situation(
        "policies disturb each other while they learn together",
        "[`teamtr`](teamtr.md), [`train.schedule`](teamtr.md)",
        "one policy is updated at a time, with a bound on its KL",
        ("teamtr",),
    ),
)

CHANGE, RATIO = "{} before, {} after", "{} times as fast"
HIGHLIGHTS = (
    Highlight(
        "Plan-Path, tool and planner, embedded model: held-out success",
        ("plan-path.base.success", "plan-path.team.success"),
        CHANGE,
        "{seeds} seeds",
    ),
    Highlight("Sokoban, the same", ("sokoban.base.success", "sokoban.team.success"), CHANGE, "{seeds} seeds"),
    Highlight("Sudoku 4x4, the same", ("sudoku.base.success", "sudoku.team.success"), CHANGE, "{seeds} seeds"),
    Highlight(
        "Sudoku 4x4, tool and planner, Qwen2.5-Coder-0.5B-Instruct",
        (
            "headline.sudoku-outcome.qwen2.5-coder-0.5b.L0.before.success",
            "headline.sudoku-outcome.qwen2.5-coder-0.5b.L0.success",
        ),
        CHANGE,
        "{seeds} seeds, {n} tasks",
    ),
    Highlight(
        "a training step against TRL's GRPOTrainer, SmolLM2-135M on two cores, prompt 1,024",
        ("e2e.vs_trl.p1024.smollm2",),
        RATIO,
        "{n} repeats",
    ),
    Highlight(
        "a training step on one H200 against TRL's, both with vLLM, Qwen3-0.6B",
        ("gpu.step.vs_trl_vllm",),
        RATIO,
        "{n} steps of one run each",
    ),
)


def highlights(found: evidence.Lines, history: History | None) -> str:
    """Return README's table; a row that lacks one of its lines says so. Ages are those of docs/evidence.md."""
    lines = ["| what | measured (range) | range over | its code since |", "|---|---|---|---|"]
    for row in HIGHLIGHTS:
        ones = [found[name] for name in row.lines if name in found]
        cells = f"{NOT_MEASURED} | | "
        if len(ones) == len(row.lines):
            spread = row.spread.format(seeds=len(ones[-1]["seeds"]), n=ones[-1]["n"])
            cells = f"{row.form.format(*map(ranged, ones))} | {spread} | {evidence.age_of(ones, history, found)}"
        lines.append(f"| {row.words} | {cells} |")
    return "\n".join(lines)


def table() -> str:
    """Markdown: the newest measurement of each row, with the lowest and highest over seeds."""
    lines = ["| what | value | lowest to highest | seeds | command |", "|---|---|---|---|---|"]
    found = latest()
    for name, words in ROWS.items():
        if name in found:
            one = found[name]
            spread = _spread(one)
            seeds = len(one["seeds"]) or "-"
            lines.append(f"| {words} | {shown(one['value'], one['unit'])} | {spread} | {seeds} | `{one['command']}` |")
    return "\n".join(lines)


def presets() -> str:
    """Markdown: every preset on both games of bench/presets.py; a line in words where none has been measured."""
    found = latest()
    columns = {
        "plan-path.success": "Plan-Path, held-out success",
        "plan-path.mean": "mean, 95% over seeds and tasks",
        "coordination.return": "coordination game, return",
    }
    columns = {key: title for key, title in columns.items() if any(f"preset.{name}.{key}" in found for name in PRESETS)}
    lines = [f"| {' | '.join(('algorithm', *columns.values()))} |", "|---" * (1 + len(columns)) + "|"]
    for name in PRESETS:
        row = [found.get(f"preset.{name}.{figure}") for figure in columns]
        if any(row):
            lines.append(f"| `{name}` | {' | '.join(_cell(one) for one in row)} |")
    return "\n".join(lines) if len(lines) > 2 else f"{NOT_MEASURED.capitalize()} on the present embedded model."


def preset_curves() -> str:
    """Return the table of success in training of the presets whose curves are kept, by fifths of the tokens: the median
    of the seeds' means over the steps that began in the fifth."""
    file = RESULTS / preset_bench.CURVES
    head = ("algorithm", *(f"to {part}%" for part in (20, 40, 60, 80, 100)))
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, seeds in (json.loads(file.read_text()) if file.exists() else {}).items():
        lines.append(f"| `{name}` | {' | '.join(f'{100 * fifth:.0f}%' for fifth in fifths(seeds))} |")
    return "\n".join(lines)


def fifths(seeds: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """Return the median over seeds of the mean value in each fifth of the tokens. A step belongs to the fifth in which
    it began; a fifth in which none did has the value of the step that covers it."""
    means = []
    for curve in seeds:
        starts = [0.0, *(tokens for tokens, _ in curve[:-1])]
        by_fifth: list[list[float]] = [[] for _ in range(5)]
        for start, (_, value) in zip(starts, curve, strict=True):
            by_fifth[min(4, int(5 * start / curve[-1][0]))].append(value)
        row: list[float] = []
        for values in by_fifth:
            row.append(fmean(values) if values else row[-1])
        means.append(row)
    return [median(column) for column in zip(*means, strict=True)]


def which() -> str:
    """Markdown: which algorithm suits which situation, with what has been measured of each."""
    lines = ["| situation | algorithm | why | evidence |", "|---|---|---|---|"]
    found = latest()
    for row in WHICH:
        figure = {"plan-path": "success", "coordination": "return"}[row.game]
        played = [(name, found.get(f"preset.{name}.{row.game}.{figure}")) for name in row.names]
        learned = [f"`{name}` {_cell(one)}" for name, one in played if one]
        place = {"plan-path": "Plan-Path", "coordination": "coordination game"}[row.game]
        measured = [f"{place}: {', '.join(learned)}"] if learned else []
        for game in audits.GAMES.values():
            first = {name: f"{audits.label(name, game, True)}.{game.places[0]}.correlation" for name in row.names}
            agreed = [f"`{name}` {_cell(found[line])}" for name, line in first.items() if line in found]
            measured += [f"[audited](../audit.md) on {game.words}: {', '.join(agreed)}"] if agreed else []
        if row.lines and all(line in found for line in row.lines):
            measured.append(row.form.format(*(_cell(found[line]) for line in row.lines)))
        lines.append(f"| {row.words} | {row.algorithms} | {row.why} | {'; '.join(measured) or NOT_MEASURED} |")
    return "\n".join(lines)


def paper() -> str:
    """Markdown: the rows of the paper's tables for three games, what training them cost, and the ablations."""
    found = latest()
    lines = [f"| row | {' | '.join(GAMES.values())} |", "|---|---|---|---|"]
    for row, words in PAPER.items():
        cells = [found.get(f"table.{row}.{game}.success") for game in GAMES]
        if any(cells):
            lines.append(f"| {words} | {' | '.join(_cell(cell) for cell in cells)} |")
    costs = [
        f"| `{row}`, {name} | {' | '.join(cells)} |"
        for row in PAPER
        for game, name in GAMES.items()
        if (cells := _costs(found, f"table.{row}.{game}"))
    ]
    if costs:
        lines += [
            "",
            "| what training cost, median of the seeds | tokens | environment steps | episodes | minutes of a core |",
        ]
        lines += ["|---|---|---|---|---|", *costs]
    changed = [
        f"| {words} | {_cell(one)} |" for name, words in ABLATIONS.items() if (one := found.get(_ablation(name)))
    ]
    if changed:
        lines += ["", "| Plan-Path, one thing changed, equal tokens | held-out success |", "|---|---|", *changed]
    return "\n".join(lines)


def _ablation(name: str) -> str:
    return f"ablation.{name}.plan-path.success"


def _costs(found: dict[str, dict[str, Any]], row: str) -> list[str]:
    cells = [found.get(f"{row}.{cost}") for cost in ("tokens", "env_steps", "episodes", "processor_minutes")]
    return [_cost(one) for one in cells] if any(cells) else []


def agreements() -> str:
    """Markdown: for each game and team of bench/audits.py how far credits agree with executed effects."""
    teams = [(game, untrained) for game in audits.GAMES.values() for untrained in (True, False)]
    return "\n\n".join(_agreements(latest(), game, untrained) for game, untrained in teams)


def _agreements(found: Mapping[str, dict[str, Any]], game: audits.Game, untrained: bool) -> str:
    """A row a credit: its correlation by place and of all decisions, and what of the effects it explains."""
    when = "before training" if untrained else f"after {game.steps} steps of `{game.recipe}`"
    head = (f"{game.words} {when}", *(f"`{place}`" for place in game.places), "all", "explained", "at most", "minutes")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    columns = (*(f"{place}.correlation" for place in game.places), "correlation", "explained", "at_most")
    for name in audits.CREDITS:
        row = audits.label(name, game, untrained)
        if f"{row}.correlation" not in found:
            continue  # not measured yet
        cells = [_agreed(found.get(f"{row}.{column}")) for column in columns]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {_cost(found.get(f'{row}.minutes'))} |")
    return "\n".join(lines)


def discovery() -> str:
    """Markdown: a row a game on the base of parts, then on the embedded model."""
    found = latest()
    head = ("base", "game", "before", "after", "right programs", "tokens until the first", "tokens in all", "seeds")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    columns = ("base.success", "team.success", "programs", "first", "tokens")
    for base, name in (("parts", "discovery.{}"), ("embedded", "discovery.{}.embedded")):
        for game, words in GAMES.items():
            ones = [found.get(f"{name.format(game)}.{column}") for column in columns]
            if ones[0]:
                lines.append(f"| {base} | {words} | {' | '.join(map(_cell, ones))} | {len(ones[0]['seeds'])} |")
    return "\n".join(lines)


def hanabi() -> str:
    """Return the last value of each seed of Tiny Hanabi's recipes: seeds that settings were chosen on, then others."""
    curves = json.loads((RESULTS / openspiel.CURVES).read_text())
    head = ("recipe", "seeds 0 to 4, on which settings were chosen", "median", "seeds 5 to 9", "median")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, row in openspiel.ROWS.items():
        if name.startswith("hanabi") and name in curves:
            ends = [seed[-1][1] for seed in curves[name]["seeds"]]
            parts = ends[:SEEN_SEEDS], ends[SEEN_SEEDS:]
            cells = [f"{', '.join(f'{end:.2f}' for end in part)} | {median(part):.2f}" for part in parts]
            lines.append(f"| `{row.recipe}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def second_agent() -> str:
    """Return the table of held-out success of every side at every difficulty, and the team's gain over one agent."""
    file = RESULTS / "worth.json"
    points = json.loads(file.read_text()) if file.exists() else []
    head = ("situation", "difficulty", "team", "a LoRA per role", "one policy for both", "alone", "gain of the team")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for situation in dict.fromkeys(one["situation"] for one in points):
        mine = [one for one in points if one["situation"] == situation]
        of = {(one["side"], one["dial"]): one["success"] for one in mine}
        for dial, gain in worth.gains(mine, "team").items():
            sides = [of.get((side, dial)) for side in ("team", "lora", "shared", "alone")]
            cells = [_seeds(values) for values in (*sides, gain)]
            lines.append(f"| `{situation}` | {dial:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def real_models() -> str:
    """Markdown: the lines of each task of bench/real.py that has been played, and how far the trained team is ahead of
    each of them."""
    found = latest()
    tables = [table(found, name, known) for name, known in KNOWN.items() for table in (_played, _sampled)]
    return "\n\n".join(table for table in tables if table)


def _played(found: Mapping[str, dict[str, Any]], name: str, known: Known) -> str:
    """The lines that were played once, greedily."""
    columns = list(dict.fromkeys((known.headline, *known.measures, *COMMON, "normalised", "seconds")))
    return _lines(found, name, known, columns, known.headline)


def _sampled(found: Mapping[str, dict[str, Any]], name: str, known: Known) -> str:
    """The lines that were played several times a task."""
    return _lines(found, name, known, [passing(k) for k in PASSING], passing(PASSING[0]))


def _lines(found: Mapping[str, dict[str, Any]], name: str, known: Known, columns: Sequence[str], headline: str) -> str:
    ahead = f"`{known.own}` ahead of it, {headline}"
    lines = [f"| {name} | seeds | tasks | {' | '.join(columns)} | {ahead} |", "|---" * (len(columns) + 4) + "|"]
    for title in lines_of(known):
        cells = [found.get(f"real.{name}.{title}.{column}") for column in columns]
        gain = found.get(f"real.{name}.{over(title)}.{headline}")
        told = f"{gain['value']:+.2f} ({gain['low']:+.2f} to {gain['high']:+.2f})" if gain else ""
        if played := [cell for cell in cells if cell]:
            seeds = len(played[0]["seeds"]) or "-"
            lines.append(f"| `{title}` | {seeds} | {played[0]['n']} | {' | '.join(map(_of_seeds, cells))} | {told} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _of_seeds(one: dict[str, Any] | None) -> str:
    """A mean, with the lowest and the highest of its seeds where there are several."""
    if one is None or len(one["seeds"]) < 2:
        return _cost(one)
    return f"{_cost(one)} ({' to '.join(_cost({'value': one[end]}) for end in ('low', 'high'))})"


def _seeds(values: Sequence[float] | None) -> str:
    """The median of some seeds, with the lowest and the highest."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""


def _agreed(one: dict[str, Any] | None) -> str:
    if one is None:
        return "-"
    return _cell(one) if one["n"] >= FEW else f"{one['n']} decisions"


def _cost(one: dict[str, Any] | None) -> str:
    if one is None:
        return "-"
    return f"{one['value']:,.0f}" if one["value"] >= 100 else f"{one['value']:.3g}"


def _cell(one: dict[str, Any] | None) -> str:
    return f"{shown(one['value'], one['unit'])} ({_spread(one)})" if one else ""


def _spread(one: dict[str, Any]) -> str:
    return f"{shown(one['low'], one['unit'])} to {shown(one['high'], one['unit'])}"


# The tables of each page, by their marks.
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"highlights": lambda: highlights(latest(), read_history())},
    "docs/evidence.md": {"evidence": lambda: evidence.table(latest(), read_history())},
    "docs/results.md": {"results": table, "presets": presets, "preset curves": preset_curves, "paper": paper},
    "docs/algorithms/which.md": {"which": which},
    "docs/audit.md": {"agreements": agreements},
    "docs/discovery.md": {"discovery": discovery},
    "docs/games_of_theory.md": {"hanabi": hanabi},
    "docs/real.md": {"real": real_models},
    "docs/worth.md": {"worth": second_agent},
    "docs/one_gpu.md": {},  # by gpu_tables.py
}


def renewed(page: str, text: str) -> str:
    """Return the text of a page with its tables made anew."""
    if page == "docs/one_gpu.md":
        return gpu_tables.render(text)
    return with_tables(page, text, {mark: make() for mark, make in PAGES[page].items()})


def with_tables(page: str, text: str, tables: Mapping[str, str]) -> str:
    """Return the text with the tables between their marks. Raises ValueError where a mark is missing."""
    for mark, made in tables.items():
        fresh = f"<!-- {mark} -->\n{made}\n<!-- end of {mark} -->"
        text, count = re.subn(rf"<!-- {mark} -->.*<!-- end of {mark} -->", lambda _, new=fresh: new, text, flags=re.S)
        if count != 1:
            raise ValueError(f"{page}: got {count} places for the table {mark}; expected one. Put its marks there.")
    return text


def outdated_pages(root: Path = ROOT) -> list[str]:
    """Return the pages that differ from what would be written."""

    def is_current(page: str) -> bool:
        text = (root / page).read_text()
        if page == "docs/evidence.md":
            return evidence.is_current(text, latest(), read_history())
        if page == "README.md":  # its ages were counted at the commit that the other page names
            dated = (root / "docs/evidence.md").read_text()
            return evidence.is_current(text, latest(), read_history(), highlights, dated)
        return renewed(page, text) == text

    return [page for page in PAGES if not is_current(page)]


def curve_lines() -> dict[str, list[dict[str, Any]]]:
    """Return learning curves as lines for bench/figures.py.

    `curve.PRESET` has the five values of `fifths`, `curve.ROW.STEP` the median of the seeds of a row of
    bench/openspiel.py, with the lowest and the highest.
    """
    lines: dict[str, list[dict[str, Any]]] = {}
    by_tokens = json.loads((RESULTS / preset_bench.CURVES).read_text())
    for name, seeds in by_tokens.items():
        line = {"values": fifths(seeds), "unit": "share", "n": len(seeds), "commit": preset_bench.CURVES}
        lines[f"curve.{name}"] = [line]
    for name, row in json.loads((RESULTS / openspiel.CURVES).read_text()).items():
        for points in zip(*row["seeds"], strict=True):
            values = [value for _, value in points]
            lines[f"curve.{name}.{points[0][0]}"] = [_line_of_seeds(values, row["figure"], openspiel.CURVES)]
    return lines


def worth_lines() -> dict[str, list[dict[str, Any]]]:
    """Return the cells of the table `second_agent` as lines `worth.SITUATION.DIFFICULTY.SIDE`.

    The gain of the team is the side `gain`, that of one policy for both roles the side `shared.gain`.
    """
    points, lines = json.loads((RESULTS / "worth.json").read_text()), {}
    for situation in dict.fromkeys(one["situation"] for one in points):
        mine = [one for one in points if one["situation"] == situation]
        cells = [(one["side"], one["dial"], one["success"]) for one in mine]
        cells += [("gain", dial, values) for dial, values in worth.gains(mine, "team").items()]
        cells += [("shared.gain", dial, values) for dial, values in worth.gains(mine, "shared").items()]
        for side, dial, values in cells:
            lines[f"worth.{situation}.{dial:g}.{side}"] = [_line_of_seeds(values, "success", "worth.json")]
    return lines


def _line_of_seeds(values: Sequence[float], unit: str, source: str) -> dict[str, Any]:
    of_seeds = {"value": median(values), "low": min(values), "high": max(values), "n": len(values)}
    return of_seeds | {"unit": unit, "commit": source}


def wrong_figures() -> list[str]:
    """Return an error for each figure that a page shows by hand and that its line does not have."""
    lines = figures.read_lines(RESULTS) | curve_lines() | worth_lines()
    texts = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in ALL_PAGES}
    return [error for page, text in texts.items() for error in figures.wrong_figures(page, text, lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--write", action="store_true", help="also test all pages and append to results/docs.jsonl")
    options = parser.parse_args()
    if options.check:
        outdated = outdated_pages()
        for page in outdated:
            print(f"{page} differs from results/: run python bench/readme.py")
        wrong = wrong_figures()
        print(*wrong, f"{len(PAGES)} pages checked, {len(outdated)} differ; {len(wrong)} wrong figures", sep="\n")
        raise SystemExit(bool(outdated or wrong))
    if options.write:
        for name, count in (("docs.blocks_run", checked()), ("docs.pages", len(ALL_PAGES))):
            record("docs", name, [count], "count", "python bench/readme.py --write", 1)
    for page in PAGES:
        (ROOT / page).write_text(renewed(page, (ROOT / page).read_text()))


if __name__ == "__main__":
    main()
