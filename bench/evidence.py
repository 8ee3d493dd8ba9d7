"""The table of docs/evidence.md: each claim with its figure, seeds, tokens, hardware, commit and the age of its code.

    python bench/evidence.py            print the claims whose code has changed since they were measured (`make stale`)
    python bench/evidence.py --write    also append their number to results/docs.jsonl

The age of a line is the number of commits since its own that change code which it runs (bench/ages.py). It is read from
the history of git; where there is none (a wheel, a shallow clone), a table has no ages.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ages import History, read_history
from common import latest, record

Lines = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Claim:
    """A sentence, the lines that show it, and what their lowest and highest values are of.

    `form` has a place for each line. `tokens` is the line with the tokens sampled in one training, or their number.
    """

    words: str
    lines: tuple[str, ...]
    form: str
    spread: str
    tokens: str = ""


@dataclass(frozen=True)
class Chapter:
    """Claims of one kind, with the page that has their details, and what a reader of all of them has to know."""

    title: str
    page: str
    claims: tuple[Claim, ...]
    note: str = ""


BEFORE_AFTER, AGAINST, ONE = "{} before, {} after", "{} against {}", "{}"
SEEDS, TASKS, REPEATS, STEPS, ONCE = "seeds", "tasks", "repeats", "steps of one run each", "measured once"
SEEDS_AND_TASKS = "seeds and tasks"
REPEATED = "give the same now"


def _game(words: str, game: str) -> Claim:
    lines = (f"{game}.base.success", f"{game}.team.success")
    return Claim(words, lines, BEFORE_AFTER, SEEDS, f"table.team-shared.{game}.tokens")


def _single(words: str, game: str) -> Claim:
    lines = (f"table.team-shared.{game}.success", f"table.single-grpo.{game}.success")
    return Claim(words, lines, AGAINST, SEEDS, f"table.single-grpo.{game}.tokens")


def _discovery(words: str, game: str) -> Claim:
    lines = (f"discovery.{game}.base.success", f"discovery.{game}.team.success")
    return Claim(words, lines, BEFORE_AFTER, SEEDS, f"discovery.{game}.tokens")


def _worth(words: str, situation: str, elsewhere: str = "") -> Claim:
    words += f": gain over one agent at the difficulty where it is largest, chosen afterwards{elsewhere}."
    return Claim(words, (f"worth.{situation}.gain",), ONE, SEEDS, "51,200")


CHAPTERS = (
    Chapter(
        "Training a team, embedded model of a million parameters",
        "results.md",
        (
            _game("AT-GRPO trains tool and planner on Plan-Path: held-out success.", "plan-path"),
            _game("The same on Sokoban.", "sokoban"),
            _game("The same on Sudoku 4x4.", "sudoku"),
            _single(
                "Plan-Path: the AT-GRPO team against one agent with GRPO on whole episodes, equal tokens.", "plan-path"
            ),
            _single("The same on Sokoban.", "sokoban"),
            _single("The same on Sudoku 4x4.", "sudoku"),
            Claim(
                "Plan-Path: the AT-GRPO team against one agent with the same tool and AT-GRPO. No gain is shown.",
                ("table.team-shared.plan-path.success", "table.single-at-grpo.plan-path.success"),
                AGAINST,
                SEEDS,
                "table.single-at-grpo.plan-path.tokens",
            ),
            Claim(
                "Plan-Path: two models in their own role against the same two with roles swapped.",
                ("table.team-per-role.plan-path.success", "table.swapped.plan-path.success"),
                AGAINST,
                SEEDS,
                "table.team-per-role.plan-path.tokens",
            ),
            Claim(
                "Tool and planner trained apart, then put together as a team, on Plan-Path.",
                ("table.alone-as-team.plan-path.success",),
                ONE,
                SEEDS,
            ),
            _discovery("Plan-Path from a base whose text has no right program.", "plan-path"),
            _discovery("The same on Sokoban; one seed of three found no right program.", "sokoban"),
            _discovery("The same on Sudoku 4x4; one seed of three found it late.", "sudoku"),
            _worth("A second agent that receives what only the first sees (`relay`)", "relay"),
            _worth("The same through a narrow channel (`channel`)", "channel"),
            _worth("A second agent that checks the first (`verifier`)", "verifier"),
            _worth(
                "Two specialists against one model of the same size (`jobs`)",
                "jobs",
                "; at the two ends the team is 33 and 18 points behind, so no gain is shown",
            ),
            Claim(
                "Tiny Hanabi, two policies, AT-GRPO: value (optimum 10). Settings were chosen on five of the seeds.",
                ("hanabi.team.value",),
                ONE,
                SEEDS,
            ),
            Claim(
                "Kuhn poker in self-play: exploitability; uniform play has 0.458.",
                ("kuhn.untrained.exploitability", "kuhn.exploitability"),
                BEFORE_AFTER,
                SEEDS,
            ),
        ),
    ),
    Chapter(
        "Training known models",
        "real.md",
        (
            Claim(
                "Two writers on SciTLDR, SmolLM2-135M, MAGRPO, 96 tokens an answer: reward of 3.",
                ("real.writing.before.reward", "real.writing.magrpo.reward"),
                BEFORE_AFTER,
                SEEDS,
                "real.writing.tokens.0",
            ),
            Claim(
                "The same team over one agent that writes both texts, two seeds: difference. No difference is shown.",
                ("real.writing.gain-over-alone.reward.seeds",),
                ONE,
                SEEDS,
                "real.writing.tokens.0",
            ),
            Claim(
                "Two coders on MBPP, Qwen2.5-Coder-0.5B, MAGRPO: greedy pass rate. No gain is shown.",
                ("real.code.before.pass", "real.code.magrpo.pass"),
                BEFORE_AFTER,
                SEEDS,
                "real.code.tokens.0",
            ),
            Claim(
                "Coder and tester on MBPP, the same model, AT-GRPO: gain in pass rate; first programs gain 3 points.",
                ("real.tested.gain.pass",),
                ONE,
                TASKS,
                "real.tested.tokens.0",
            ),
            Claim(
                "Reasoner and tool on GSM8K, the same model, AT-GRPO, 256 tokens an answer: gain in accuracy.",
                ("real.maths.gain.accuracy",),
                ONE,
                TASKS,
                "real.maths.tokens.0",
            ),
        ),
    ),
    Chapter(
        "Speed and numerics",
        "one_gpu.md",
        (
            Claim(
                "TRL's step over Cadre's, both with vLLM, Qwen3-0.6B: ratio of times.",
                ("gpu.step.vs_trl_vllm",),
                ONE,
                STEPS,
            ),
            Claim(
                "A step over TRL's on a CPU, SmolLM2-135M, prompt 1,024, completion 64: ratio of speeds.",
                ("e2e.vs_trl.p1024.smollm2",),
                ONE,
                REPEATS,
            ),
            Claim(
                "Log-probabilities on a GPU against a CPU's, float32, in three forms: largest differences in nats.",
                ("gpu.parity.float32.tree", "gpu.parity.float32.flex", "gpu.parity.float32.padded"),
                "{}, {}, {}",
                ONCE,
            ),
            Claim(
                "Model families of transformers that sample and train alike, of all; 11 could not be tested.",
                ("families.supported",),
                "{} of {n}",
                ONCE,
            ),
            Claim(
                "Inputs on which another library's estimator differs, and those that no known convention explains.",
                ("parity.disagreements", "parity.inputs", "parity.unexplained"),
                "{} of {}, {} unexplained",
                ONCE,
            ),
        ),
    ),
    Chapter(
        "Robots and sounds, tiny models",
        "worlds.md",
        (
            Claim(
                "Two robots hand a cube over in MuJoCo: held-out success of a team.",
                ("worlds.robots.base.success", "worlds.robots.team.success"),
                BEFORE_AFTER,
                SEEDS,
                "30,000",
            ),
            Claim(
                "The same team against one agent that plans for both. No gain is shown.",
                ("worlds.robots.team.success", "worlds.robots.alone.success"),
                AGAINST,
                SEEDS,
                "30,000",
            ),
            Claim(
                "A melody that one role hears and the other plays: held-out success.",
                ("audio.sound.base.success", "audio.sound.success"),
                BEFORE_AFTER,
                SEEDS,
            ),
            Claim(
                "One role hears, one sees, a third plays: held-out success.",
                ("audio.signals.base.success", "audio.signals.success"),
                BEFORE_AFTER,
                SEEDS,
            ),
        ),
    ),
    Chapter(
        "Robustness",
        "faults.md",
        (
            Claim(
                "Attacks on the sandbox that got through.",
                ("sandbox.attacks_through", "sandbox.attacks_tried"),
                "{} of {}",
                ONCE,
            ),
            Claim(
                "Runs killed at random moments whose weights differ from the unbroken run's.",
                ("resume.mismatches", "resume.kills"),
                "{}, in {} kills",
                ONCE,
            ),
            Claim(
                "Pairs of equal seeds whose weights differ.", ("repeat.mismatches", "repeat.pairs"), "{} of {}", ONCE
            ),
            Claim(
                "Tricks of a search (`bench/reward_search.py`) that earned a reward without the work.",
                ("attacks.through", "attacks.tried"),
                "{} of {}",
                ONCE,
            ),
        ),
    ),
)


# Words for the tasks and methods of bench/headline.py.
HEADLINE_TASKS = {
    "plan-path": "Plan-Path, shaped reward",
    "sokoban": "Sokoban, shaped reward",
    "sudoku": "Sudoku 4x4, shaped reward",
    "plan-path-outcome": "Plan-Path, outcome reward",
    "sokoban-outcome": "Sokoban, outcome reward",
    "sudoku-outcome": "Sudoku 4x4, outcome reward",
    "code": "MBPP, coder and tester",
    "pairs": "MBPP, two coders",
    "maths": "GSM8K",
}
HEADLINE_METHODS = {
    "L0": "team with one policy for all roles (L0)",
    "L1": "team with an adapter per role (L1)",
    "L2": "team with a model per role (L2)",
    "grpo": "one agent, GRPO on whole episodes",
    "single": "one agent with the team's algorithm",
}


# Repeated sampling: no verifier chooses one of the episodes at test time.
PASS_AT = r"untrained team, tasks that at least one of \1 episodes solves (pass@\1)"
HEADLINE_NOTE = (
    "Under the outcome reward only right programs and right answers are rewarded; the shaped reward also rewards "
    "programs that run. Before and after are of the same method. Intervals over seeds and tasks resample both "
    "(`cadre compare`); with three seeds they are wide."
)


def headline(found: Lines) -> Iterator[Claim]:
    """Yield a claim for each line of bench/headline.py: methods at equal tokens, and their differences."""
    for name in (name for name in found if name.startswith("headline.") and ".before." not in name):
        task, rest = name.removeprefix("headline.").removesuffix(".success").split(".", 1)
        model, method = rest.rsplit(".", 1)  # names of models have dots, those of methods have none
        before = f"headline.{task}.{model}.{method}.before.success"
        both = before in found and name.endswith(".success")
        method = re.sub(r"^best-of-(\d+)$", PASS_AT, method)
        compared = " minus ".join(HEADLINE_METHODS.get(one, one) for one in method.split(" - "))
        words = f"{HEADLINE_TASKS.get(task, task)}, {model}: {compared}; held-out success."
        budget = re.search(r"--tokens (\d+)", found[name]["command"])
        tokens = f"{int(budget[1]):,}" if budget else ""
        yield Claim(words, (before, name) if both else (name,), BEFORE_AFTER if both else ONE, SEEDS_AND_TASKS, tokens)


def chapters(found: Lines) -> tuple[Chapter, ...]:
    """Return all chapters that have something to show. Claims whose code nobody can check out are in the last one."""
    title = "A team, one agent and repeated sampling at equal tokens"
    first = Chapter(title, "real.md", tuple(headline(found)), HEADLINE_NOTE)
    shown, doubtful = [], []
    for chapter in (first, *CHAPTERS):
        claims = tuple(claim for claim in chapter.claims if not was_uncommitted(claim, found))
        shown += [replace(chapter, claims=claims)] if claims else []
        doubtful += [claim for claim in chapter.claims if claim not in claims]
    last = Chapter(
        "Not validated: uncommitted changes were measured, and not measured again", "real.md", tuple(doubtful)
    )
    return (*shown, last) if doubtful else tuple(shown)


def was_uncommitted(claim: Claim, found: Lines) -> bool:
    """Return True if one of the lines of a claim is of a commit with changes, from before such lines were errors."""
    return any("+" in found[name]["commit"] for name in claim.lines if name in found)


def shown(value: float, unit: str) -> str:
    """Return a value as tables show it."""
    if unit in ("tokens", "count", "attacks", "kills", "runs", "pairs", "variants", "families"):
        return f"{value:,.0f}"
    return f"{value:.1%}" if unit in ("share", "pass", "accuracy", "fraction") else f"{value:,.3g}"


def ranged(line: Mapping[str, Any]) -> str:
    """Return the value of a line, with the lowest and the highest where they differ from it."""
    value, low, high = (shown(line[part], line["unit"]) for part in ("value", "low", "high"))
    return value if low == high else f"{value} ({low} to {high})"


def rows(found: Lines, history: History | None) -> Iterator[str]:
    """Yield the rows of all claims that have been measured, a table a chapter."""
    for chapter in chapters(found):
        head = "what was measured", "figure (range)", "range over", "tokens per training", "hardware"
        yield f"\n**{chapter.title}** ([details]({chapter.page}))\n"
        if chapter.note:
            yield f"{chapter.note}\n"
        yield f"| {' | '.join(head)} | commit | its code since |"
        yield "|---" * (len(head) + 2) + "|"
        for claim in chapter.claims:
            lines = [found[name] for name in claim.lines if name in found]
            if len(lines) == len(claim.lines):
                tokens = ranged(found[claim.tokens]) if claim.tokens in found else claim.tokens
                yield _row(claim, lines, tokens, age_of(lines, history, found))


def _row(claim: Claim, lines: Sequence[Mapping[str, Any]], tokens: str, age: str) -> str:
    newest = lines[-1]
    figure = claim.form.format(*map(ranged, lines), n=newest["n"])
    count = {SEEDS: len(newest["seeds"]), TASKS: newest["n"], REPEATS: newest["n"], STEPS: newest["n"]}.get(
        claim.spread
    )
    spread = claim.spread if count is None else f"{count} {claim.spread}"
    if claim.spread == TASKS:
        spread += f", {len(newest['seeds'])} seed"
    if claim.spread == SEEDS_AND_TASKS:
        seeds = len(newest["seeds"])
        spread = f"{newest['n']} tasks, 1 seed" if seeds == 1 else f"{seeds} seeds, {newest['n']} tasks"
    hardware = newest["machine"].replace(", x86_64, Linux", "")
    commits = ", ".join(dict.fromkeys(line["commit"] for line in lines))
    cells = (claim.words, figure, spread, tokens, hardware, commits, age)
    return f"| {' | '.join(cells)} |"


def age_of(lines: Sequence[Mapping[str, Any]], history: History | None, found: Lines) -> str:
    """Return how old the code of a claim is, in words, and whether newer code gives the same first steps."""
    if history is None:
        return "unknown"
    ages = [history.age(line) for line in lines]
    if any(line["commit"].endswith("+") for line in lines):
        return "uncommitted changes were measured"
    if None in ages:
        return "commit not in this history"
    oldest = max(age for age in ages if age is not None)
    if not oldest:
        return "unchanged"
    changed = [line for line, age in zip(lines, ages, strict=True) if age]
    since = [_replay_age(line, history, found) for line in changed]
    if None in since:
        return f"measured {_commits_ago(oldest)}"
    newest = max(age for age in since if age is not None)
    steps = min(found[f"replay.{line['name']}"]["n"] for line in changed)
    same = f"gave the same {_commits_ago(newest)}" if newest else REPEATED
    return f"measured {_commits_ago(oldest)}; its first {steps} step{'s' * (steps > 1)} {same}"


def _commits_ago(age: int) -> str:
    return f"{age} commit{'s' * (age > 1)} ago"


def _replay_age(line: Mapping[str, Any], history: History, found: Lines) -> int | None:
    """Return the age of the replay (bench/replay.py) of a line that gave the same; None without one."""
    replay = found.get(f"replay.{line['name']}")
    if replay is None or replay["value"] < 1 or replay["of"] != line["commit"]:
        return None
    return history.age(replay)


def table(found: Lines, history: History | None) -> str:
    """Return the tables of docs/evidence.md as markdown."""
    counted = [f"Ages were counted at commit {history.head[:8]}."] if history else []
    return "\n".join([*counted, *rows(found, history)])


COUNTED_AT = re.compile(r"Ages were counted at commit (\w+)\.\n")
STEPS = rf"; its first \d+ steps? (?:{REPEATED}|gave the same \d+ commits? ago)"
AGE = re.compile(rf"measured \d+ commits? ago(?:{STEPS})?|unchanged|commit not in this history|unknown")


def is_current(
    page: str,
    found: Lines,
    history: History | None,
    make: Callable[[Lines, History | None], str] = table,
    dated: str = "",
) -> bool:
    """Return True if a page has the tables of these lines, with the ages of the commit that it names.

    `make` returns the tables. `dated` is the page that names the commit, if it is another one. Later commits make lines
    older without making the page wrong. Ages are not compared where that commit is unknown, as without a history or
    after a rebase.
    """
    named = COUNTED_AT.search(dated or page)
    if named and history and history.find(named[1]):
        return make(found, history.at(named[1])) in page
    return _without_ages(make(found, history)) in _without_ages(page)


def _without_ages(text: str) -> str:
    return AGE.sub("", COUNTED_AT.sub("", text))


def stale(found: Lines, history: History) -> dict[str, str]:
    """Return the claims whose code is not the present one, with their age in words."""
    old = {}
    for claim in (claim for chapter in chapters(found) for claim in chapter.claims):
        lines = [found[name] for name in claim.lines if name in found]
        age = age_of(lines, history, found) if lines else "unchanged"
        if age != "unchanged" and not age.endswith(REPEATED):
            old[claim.lines[-1]] = age
    return old


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="append claims.stale to results/docs.jsonl")
    options = parser.parse_args(arguments)
    history, found = read_history(), latest()
    if history is None:
        raise SystemExit("This checkout has no full git history, from which ages are counted. Use a full clone.")
    old, claims = stale(found, history), sum(len(chapter.claims) for chapter in chapters(found))
    for name, age in sorted(old.items()):
        print(f"{name}: {age}; {found[name]['command']}")
    print(f"claims.stale {len(old)} of {claims}")
    if options.write:
        record("docs", "claims.stale", [len(old)], "count", "python bench/evidence.py --write", claims)


if __name__ == "__main__":
    main()
