"""`cadre check RECIPE --labels FILE`, against numbers that were worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cadre
from cadre.errors import CadreError, DataError
from tests.cadre.cli.calling import call

REWARDS = """
def length(completion):
    return len(completion)


async def above(completions, weight):
    # Relative: the fraction of the other answers that are shorter; `weight` is a column.
    assert weight == [2] * len(completions)
    return [sum(len(a) > len(b) for b in completions) / len(completions) for a in completions]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARDS)
    Path("rows.jsonl").write_text(json.dumps({"prompt": "p", "weight": 2}))
    return tmp_path


def agreement(rows: list[dict[str, Any]], reward: str = "length", *overrides: str) -> dict[str, float]:
    Path("labels.jsonl").write_text("\n".join(json.dumps({"weight": 2, **row}) for row in rows))
    return cadre.label_agreement("rows.jsonl", "labels.jsonl", [f"reward=mine.py:{reward}", *overrides])


@pytest.mark.parametrize("reward", ["length", "above"])
def test_pairs_of_one_prompt(reward: str) -> None:
    """Three pairs in order and one in the other: Wilson's interval of 3 of 4, z = 1.96, is
    (3 + 1.9208) / 7.8416 = 0.62753 -+ 1.96 / 7.8416 sqrt(0.75 + 0.9604) = 0.32689."""
    rows = [{"prompt": f"p{n}", "chosen": "long", "rejected": "s"} for n in range(3)]
    found = agreement([*rows, {"prompt": "p3", "chosen": "s", "rejected": "long"}], reward)
    assert found == pytest.approx(
        {"agreement": 0.75, "low": 0.30064, "high": 0.95442, "pairs": 4, "right": 3, "tied": 0}, abs=1e-5
    )


def test_numbers_and_messages_and_ties() -> None:
    """One prompt with the labels 3, 2, 1 for the lengths 2, 2, 5: one tie, and two pairs in the wrong order. The other
    has one pair in order. The mean over prompts is (0.5 / 3 + 1) / 2."""
    answer = [{"role": "assistant", "content": "aa"}]
    rows = [
        {"prompt": "p", "completion": "bb", "label": 3},
        {"prompt": "p", "completion": answer, "label": 2},
        {"prompt": "p", "completion": "ccccc", "label": 1.0},
        {"prompt": "q", "completion": "d", "label": False},
        {"prompt": "q", "completion": "dd", "label": True},
    ]
    found = agreement(rows)
    assert (found["agreement"], found["pairs"]) == (pytest.approx(7 / 12), 4)
    assert (found["right"], found["tied"]) == (1, 1)


def test_prompts_with_one_answer_are_paired_by_halves() -> None:
    """By label, and then in the order of the file, the lengths are 1, 5 and 2 of no, 3 and 4 of yes: the pairs are 1
    with 3 and 5 with 4; the one in the middle has none."""
    lengths = {"no": [1, 5, 2], "yes": [3, 4]}
    rows = [{"prompt": str(n), "completion": "x" * n, "label": word} for word in lengths for n in lengths[word]]
    found = agreement(rows)
    assert (found["agreement"], found["pairs"], found["right"], found["tied"]) == (0.5, 2, 1, 0)


def test_a_nested_column_has_its_name() -> None:
    rows = [{"q": {"text": "p"}, "chosen": "long", "rejected": "s"}]
    assert agreement(rows, "length", "settings.columns={prompt: q.text}")["agreement"] == 1.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p", "completion": "a", "label": "maybe"}, "line 1 has .* the label 'maybe'; expected completion"),
        ({"prompt": "p", "completion": "a"}, "the label None"),
        ({"prompt": "p", "label": 1}, "line 1 has weight, prompt, label"),
        ({"prompt": "p", "chosen": "a"}, "or chosen and rejected"),
        ({"prompt": "p", "chosen": 3, "rejected": "a"}, "expected a text, or a list of messages"),
        ({"chosen": "b", "rejected": "a"}, "expected one named prompt"),
        ({"prompt": "p", "completion": "a", "label": 1}, "no two answers with different labels"),
    ],
)
def test_rows_that_cannot_be_used_are_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        agreement([row])


def test_the_command() -> None:
    agreement([{"prompt": "p", "chosen": "long", "rejected": "s"}])
    command = ("check", "rows.jsonl", "reward=mine.py:length", "--labels", "labels.jsonl")
    done = call(*command)
    assert (done.code, done.out) == (0, "agreement 100% (21% to 100%): 1 of 1 pairs in order, 0 tied\n")
    assert json.loads(call(*command, "--json").out)["right"] == 1
    assert "one of the two" in call(*command, "--exploit", "1").err
    assert "expected rows with reward functions" in call("check", "plan-path", "--labels", "labels.jsonl").err
    with pytest.raises(CadreError, match="reward: missing"):
        cadre.label_agreement("rows.jsonl", "labels.jsonl")
