"""Evaluation tasks that the run was trained on are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadre.cli.evaluate import format_report
from cadre.config.experiment import dump, parse
from cadre.config.resolve import resolve_for_evaluation
from cadre.evaluation.loaded_team import count_trained_on
from tests.cadre_tasks.data.invented import folder

WORDS = "hens ducks geese cows goats sheep pigs mules doves swans".split()
RAW = {"env": "maths", "team": "seed", "algorithm": "at_grpo"}


def written(path: Path, *words: str) -> str:
    question = "A farm has 3 {} in each of its 7 old stables, how many are they all in all?"
    rows = [{"id": word, "question": question.format(word), "answer": "21"} for word in words]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def seen(run: Path, trained: dict[str, object], **chosen: object) -> dict[str, int | None]:
    """Return the message about all held-out tasks of a run, with settings of this evaluation."""
    run.mkdir(exist_ok=True)
    (run / "config.yaml").write_text(dump(parse({**RAW, "settings": trained})))
    evaluated = resolve_for_evaluation(parse({**RAW, "settings": {**trained, **chosen}})).held_out
    return count_trained_on(run, evaluated, evaluated.tasks("test"))


def test_tasks_that_were_trained_on_are_counted(tmp_path: Path) -> None:
    train_file, second = written(tmp_path / "mine.jsonl", *WORDS[:8]), written(tmp_path / "other.jsonl", *WORDS[6:])
    trained: dict[str, object] = {"train": train_file, "test": written(tmp_path / "test.jsonl", WORDS[7])}
    assert seen(tmp_path / "run", trained) == {"trained_on": 0}
    assert seen(tmp_path / "run", trained, test=second) == {"trained_on": 1}  # the other one was kept from training
    again = written(tmp_path / "again.jsonl", *WORDS[:8])
    assert seen(tmp_path / "run", trained, test=again) == {"trained_on": 7}
    assert seen(tmp_path / "run", trained, test=written(tmp_path / "new.jsonl", *WORDS[8:])) == {"trained_on": 0}


def test_another_division_of_one_file_is_seen_through(tmp_path: Path) -> None:
    trained: dict[str, object] = {"data": written(tmp_path / "mine.jsonl", *WORDS), "held_out": 2}
    assert seen(tmp_path / "run", trained) == {"trained_on": 0}
    assert seen(tmp_path / "run", trained, held_out=9) == {"trained_on": 7}


def test_where_the_training_data_is_not_here_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    train_file, home = written(tmp_path / "mine.jsonl", *WORDS), folder(tmp_path / "data")
    monkeypatch.setenv("CADRE_CACHE", str(tmp_path / "cache"))
    trained: dict[str, object] = {"train": train_file, "test": "aime24", "source": home}
    run = tmp_path / "run"
    assert seen(run, trained, test="math500") == {"trained_on": 0}
    assert seen(run, {**trained, "train": str(tmp_path / "gone.jsonl")}, test="math500") == {"trained_on": None}
    assert seen(run, {"train": "gsm8k", "test": "aime24", "source": "hub"}, source=home) == {"trained_on": None}
    assert (
        count_trained_on(None, resolve_for_evaluation(parse({**RAW, "settings": {"source": home}})).held_out, []) == {}
    )


@pytest.mark.parametrize(("count", "words"), [(0, ""), (3, "trained on 3 of these 8 tasks"), (None, "not known")])
def test_the_report_says_so(count: int | None, words: str) -> None:
    report = {"tasks": 8, "success": 0.5, "low": 0.2, "high": 0.8, "reward": 1.0, "tokens": 4.0, "parts": {}}
    message = "\n".join(
        format_report({**report, "failures": 0, "temperature": 0.0, "max_tokens": {}, "trained_on": count})
    )
    assert words in message if words else "trained on" not in message
