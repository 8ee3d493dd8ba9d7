"""Figures on pages are those of results/, lines name a commit that can be checked out, and old ones are marked."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, cast

import ages
import pytest
from ages import History

import common
import evidence
import readme
import sandbox

LINE = {"name": "kuhn.exploitability", "value": 0.1, "low": 0.1, "high": 0.1, "unit": "exploitability", "n": 3}
LINE |= {"seeds": [0, 1, 2], "command": "python -m lab.openspiel", "machine": "2 cores", "commit": "bbbbbbb"}


class Ages:
    """The history of a figure whose code one commit has changed since b; later commits have not."""

    def __init__(self, *known: str) -> None:
        self.known = known
        self.head = known[0] * 40

    def find(self, commit: str) -> str | None:
        return commit if commit[0] in self.known else None

    def at(self, commit: str) -> Ages:
        return Ages(*self.known[self.known.index(commit[0]) :])

    def age(self, line: dict[str, Any]) -> int | None:
        found = [self.find(commit) for commit in line["commit"].split(", ")]
        return None if None in found else int("b" in [commit[0] for commit in found if commit] and "c" in self.known)


def ages_of(*known: str) -> History:
    """A history whose newest commit is the first one."""
    return cast(History, Ages(*known))


HISTORY = ages_of("d", "c", "b", "a")


def test_pages_are_what_results_give() -> None:
    assert readme.outdated_pages() == [], "run: python bench/readme.py"


def test_every_measured_claim_has_a_row_and_every_line_of_a_claim_exists() -> None:
    found = common.latest()
    claims = [claim for chapter in evidence.chapters(found) for claim in chapter.claims]
    assert [name for claim in claims for name in claim.lines if name not in found] == []
    rows = evidence.table(found, None).split("\n")
    assert [claim.words for claim in claims if not any(row.startswith(f"| {claim.words} |") for row in rows)] == []


def test_commands_of_lines_are_those_of_this_checkout() -> None:
    commands = {line["command"] for line in common.latest().values()}
    benches = {name for command in commands for name in re.findall(r"bench/\w+\.py", command)}
    assert [name for name in sorted(benches) if not (common.ROOT / name).is_file()] == []
    makefile = (common.ROOT / "Makefile").read_text()
    targets = {name for command in commands for name in re.findall(r"^make ([\w-]+)", command)}
    assert [name for name in sorted(targets) if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def test_large_results_and_transcripts_are_left_out_of_the_tree() -> None:
    folders = ("results", "docs/pictures", "tests", "examples", "bench", "cadre", "cadre_sandbox", "cadre_tasks")
    kinds = (".json", ".jsonl", ".md", ".txt", ".svg", ".png", ".csv")
    found = [path for folder in folders for path in (common.ROOT / folder).rglob("*") if path.suffix in kinds]
    assert [str(path) for path in found if path.stat().st_size > 100_000] == []


def test_parts_of_a_bench_without_their_data_are_left_out_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sandbox, "DATA", tmp_path)
    assert sandbox.runnable(["soak", "checkers", "maths"]) == ["soak"]
    said = " ".join(capsys.readouterr().out.split())
    assert "checkers is left out" in said
    assert "no humaneval/HumanEval.jsonl" in said
    assert "Set CADRE_DATA" in said
    for name in sandbox.NEEDED["checkers"]:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    assert sandbox.runnable(["checkers"]) == ["checkers"]


def test_old_figures_are_marked_and_listed() -> None:
    found = {"kuhn.untrained.exploitability": LINE, "kuhn.exploitability": LINE}
    assert "| bbbbbbb | measured 1 commit ago |" in evidence.table(found, HISTORY)
    assert evidence.stale(found, HISTORY) == {"kuhn.exploitability": "measured 1 commit ago"}
    assert evidence.stale({name: line | {"commit": "ddddddd"} for name, line in found.items()}, HISTORY) == {}
    dirty = found | {"kuhn.exploitability": LINE | {"commit": "bbbbbbb+"}}
    assert evidence.stale(dirty, HISTORY) == {"kuhn.exploitability": "uncommitted changes were measured"}


def test_an_old_figure_is_not_stale_if_its_first_steps_give_the_same_with_the_present_code() -> None:
    found = {name: LINE | {"name": name} for name in ("kuhn.untrained.exploitability", "kuhn.exploitability")}
    again = LINE | {"commit": "aaaaaaa", "of": "bbbbbbb", "value": 1, "n": 2}
    replays = {f"replay.{name}": again for name in found}
    both = found | replays
    assert "| measured 1 commit ago; its first 2 steps give the same now |" in evidence.table(both, HISTORY)
    assert evidence.stale(both, HISTORY) == {}
    one = found | {"replay.kuhn.exploitability": again}
    assert evidence.stale(one, HISTORY) == {"kuhn.exploitability": "measured 1 commit ago"}
    for changed in ({"value": 0}, {"of": "ccccccc"}):
        others = found | {name: again | changed for name in replays}
        assert evidence.stale(others, HISTORY) == {"kuhn.exploitability": "measured 1 commit ago"}
    older = found | {name: again | {"commit": "bbbbbbb"} for name in replays}
    words = "measured 1 commit ago; its first 2 steps gave the same 1 commit ago"
    assert evidence.stale(older, HISTORY) == {"kuhn.exploitability": words}
    assert evidence.is_current(evidence.table(older, HISTORY), both, None)


def test_figures_of_uncommitted_changes_are_in_a_table_of_their_own() -> None:
    found = {"kuhn.untrained.exploitability": LINE, "kuhn.exploitability": LINE | {"commit": "bbbbbbb+"}}
    before, after = evidence.table(found, HISTORY).split("**Not validated")
    assert "Kuhn" not in before
    assert "| Kuhn poker in self-play" in after
    assert "Not validated" not in evidence.table(found | {"kuhn.exploitability": LINE}, HISTORY)


def test_a_claim_names_a_command_whose_bench_its_age_counts() -> None:
    found, history = common.latest(), ages.read_history()
    claims = [claim for chapter in evidence.chapters(found) for claim in chapter.claims]
    lines = [found[name] for claim in claims for name in claim.lines]
    assert [line["name"] for line in lines if not re.match(r"(python|cadre|make) ", line["command"])] == []
    if history is None:
        pytest.skip("this checkout has no full history")
    for line in lines:
        benches = set(re.findall(r"bench/\w+\.py", line["command"]))
        assert benches <= ages.reached(history.sources, ages.measured(line["name"])), line["name"]


def test_the_number_of_old_claims_is_recorded_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded: list[tuple[Any, ...]] = []
    monkeypatch.setattr(evidence, "read_history", lambda: HISTORY)
    lines = {"kuhn.untrained.exploitability": LINE, "kuhn.exploitability": LINE}
    monkeypatch.setattr(evidence, "latest", lambda: lines)
    monkeypatch.setattr(evidence, "record", lambda *line: recorded.append(line))
    evidence.main([])
    claims = sum(len(chapter.claims) for chapter in evidence.CHAPTERS)
    assert capsys.readouterr().out.splitlines()[-1] == f"claims.stale 1 of {claims}"
    assert recorded == []
    evidence.main(["--write"])
    assert recorded == [("docs", "claims.stale", [1], "count", "python bench/evidence.py --write", claims)]


def test_lines_at_equal_tokens_name_their_model_seeds_and_budget() -> None:
    command = "python -m lab.headline --tasks sudoku --tokens 40000"
    line = LINE | {"unit": "fraction", "n": 50, "seeds": [0], "command": command, "value": 1.0, "low": 0.9, "high": 1.0}
    name = "headline.sudoku.qwen2.5-coder-0.5b.L0"
    found = {f"{name}.before.success": line, f"{name}.success": line}
    (claim,) = evidence.headline(found)
    assert claim.words.startswith(
        "Sudoku 4x4, shaped reward, qwen2.5-coder-0.5b: team with one policy for all roles (L0)"
    )
    assert claim.lines == (f"{name}.before.success", f"{name}.success")
    assert " after | 50 tasks, 1 seed | 40,000 |" in evidence.table(found, None)


def test_a_page_stays_current_while_commits_follow_until_a_figure_differs() -> None:
    found = {"kuhn.untrained.exploitability": LINE, "kuhn.exploitability": LINE}
    page = f"before\n{evidence.table(found, HISTORY.at('b' * 7))}\nafter"
    assert "unchanged" in page
    for history in (HISTORY, HISTORY.at("b" * 7), ages_of("f"), None):
        assert evidence.is_current(page, found, history)
        assert not evidence.is_current(page, found | {"kuhn.exploitability": LINE | {"value": 0.2}}, history)
    assert not evidence.is_current(page.replace("unchanged", "measured 4 commits ago"), found, HISTORY)


def test_a_figure_that_was_changed_by_hand_is_found(tmp_path: Path) -> None:
    for page in readme.PAGES:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        text = (common.ROOT / page).read_text()
        if page in ("docs/worth.md", "docs/evidence.md"):
            assert "0.72" in text or "71.8%" in text
            text = text.replace("| 0.72 (", "| 0.73 (").replace("| 71.8% (", "| 72.8% (")
        (tmp_path / page).write_text(text)
    assert readme.outdated_pages(tmp_path) == ["docs/evidence.md", "docs/worth.md"]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in place of this one."""
    (tmp_path / "cadre").mkdir()
    (tmp_path / "cadre" / "a.py").write_text("1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "--quiet", "-m", "one")
    monkeypatch.setattr(common, "ROOT", tmp_path)
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def record(measured: str = "") -> None:
    common.record("file", "figure", [0.25], "share", "command", 1, (), measured)


def test_the_writer_refuses_uncommitted_code_and_foreign_commits(checkout: Path) -> None:
    record()
    head = common.commit()
    record(f"{head}, {head}")
    assert (checkout / "results" / "file.jsonl").read_text().count(head) == 3
    for measured, message in (
        ("unknown", "expected a hash"),
        ("", "expected a hash"),
        (f"{head}, abcdef1", "which HEAD does not descend from"),
        (f"{head}+", "code differed from it"),
    ):
        with pytest.raises(ValueError, match=message):
            common.validate_commit(measured)
    (checkout / "cadre" / "a.py").write_text("2\n")
    with pytest.raises(ValueError, match=r"code differed .* Not recorded: .*0\.25"):
        record()
    assert (checkout / "results" / "file.jsonl").read_text().count("\n") == 2


def test_without_git_the_commit_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "ROOT", tmp_path)
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("BENCH_COMMIT", raising=False)
    with pytest.raises(ValueError, match="set BENCH_COMMIT"):
        record()
    monkeypatch.setenv("BENCH_COMMIT", "b29dde3")
    record()
    assert common.latest()["figure"]["commit"] == "b29dde3"


def test_a_headline_is_named_by_task_model_and_method() -> None:
    lines: evidence.Lines = {
        f"headline.sudoku.coder-0.5b.{name}": {"command": ""}
        for name in ("L0.before.success", "L0.success", "grpo - L0")
    }
    words = [claim.words for claim in evidence.headline(lines)]
    assert words == [
        "Sudoku 4x4, shaped reward, coder-0.5b: team with one policy for all roles (L0); held-out success.",
        "Sudoku 4x4, shaped reward, coder-0.5b: one agent, GRPO on whole episodes minus team with one policy for all "
        "roles (L0); held-out success.",
    ]
