"""The files of docs/judges.md work as printed, with a judge at another address."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cadre.cli.calling import call
from tests.cadre_tasks.test_judges import FakeJudge, section
from tests.docs.blocks import blocks


def verdict(content: str) -> str:
    """Prefer the text that says what a thing is or does."""
    if first := section(content, "text A"):
        return "A" if first.count("dissolves") + first.count(" is ") > section(content, "text B").count(" is ") else "B"
    is_good = section(content, "text").split()[0].lower() in section(content, "prompt")
    return "yes" if is_good and "praise" not in content else "no"


def test_the_page_trains_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = [
        block for language in ("python", "yaml", "") for block in blocks(language) if block.page == "docs/judges.md"
    ]
    with FakeJudge(verdict).serving() as fake:
        for block in page:
            for name in ("judged.py", "judged.yaml"):
                if block.text.startswith(f"# {name}\n"):
                    Path(name).write_text(block.text.replace("http://localhost:8000/v1", fake.url))
            if block.text.startswith("{"):
                Path("labels.jsonl").write_text(block.text)
        done = call("check", "judged.yaml", "--labels", "labels.jsonl", "team=seed")
        assert (done.code, done.out) == (0, "agreement 100% (34% to 100%): 2 of 2 pairs in order, 0 tied\n"), done.err
        assert Path("judge_answers.jsonl").is_file()
        small = ["team=seed", "train.steps=1", "train.tasks_per_step=1", "sampling.max_tokens=4", "evaluate.tasks=1"]
        done = call("train", "judged.yaml", *small, "--run", "run")
        assert done.code == 0, done.err
