"""Preference pairs, read, made of trees and refused."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from bench.parity.trees import inner, leaf, node
from cadre.advantages.groups import comparison_of
from cadre.cli.app import app
from cadre.config.experiment import dump
from cadre.errors import DataError, RunError
from cadre.types import Message, Task, Tree
from cadre_tasks.reward_models.pairs import (
    PreferencePair,
    make_joint_pairs,
    make_pairs,
    pair_to_json,
    read_pairs,
    remove_ambiguous_pairs,
)
from tests.helpers.training import configured

STEP = comparison_of("step", "node", "mean", "std")
GOOD = '{"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}'


def written(folder: Path, *lines: str) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_prompt_is_a_text_or_a_conversation(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é"}]
    path = written(tmp_path, GOOD, "", json.dumps({"prompt": said, "chosen": "no", "rejected": ""}))
    first, second = read_pairs(path)
    assert first == PreferencePair((Message("user", "2 + 2?"),), "4", "5")
    assert second == PreferencePair((Message("system", "Be brief."), Message("user", "é")), "no", "")
    assert read_pairs(written(tmp_path, pair_to_json(first), pair_to_json(second))) == [first, second]


BAD = {
    "not JSON": ('{"prompt": ', "line 2: it is not JSON"),
    "no object": ("[1]", "line 2: got list"),
    "an unknown key": ('{"prompt": "a", "choosen": "b", "rejected": "c"}', "Did you mean chosen?"),
    "a missing key": ('{"prompt": "a", "chosen": "b"}', "line 2: got ['prompt', 'chosen']"),
    "no text": ('{"prompt": "a", "chosen": 1, "rejected": "c"}', "line 2: got chosen 1 and"),
    "no preference": (
        '{"prompt": "a", "chosen": "b", "rejected": "b"}',
        "line 2: got chosen 'b' and rejected 'b'; expected two texts",
    ),
    "a blank answer": ('{"prompt": "a", "chosen": " ", "rejected": "c"}', "line 2: got chosen ' ' and"),
    "a blank prompt": ('{"prompt": " ", "chosen": "b", "rejected": "c"}', "line 2: got a blank prompt"),
    "blank messages": (
        '{"prompt": [{"role": "user", "content": ""}], "chosen": "b", "rejected": "c"}',
        "line 2: got a blank prompt",
    ),
    "no messages": ('{"prompt": [], "chosen": "b", "rejected": "c"}', "line 2: got the prompt"),
    "a stranger": (
        '{"prompt": [{"role": "boss", "content": "x"}], "chosen": "b", "rejected": "c"}',
        "line 2: got the message",
    ),
    "half of a character": ('{"prompt": "a", "chosen": "\\ud83d", "rejected": "c"}', "line 2: got half of a character"),
    "nested deeply": ("[" * 100_000, "line 2: it is not JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_named_before_a_model_loads(case: str, tmp_path: Path) -> None:
    line, wanted = BAD[case]
    path = written(tmp_path, GOOD, line)
    with pytest.raises(DataError) as caught:
        read_pairs(path)
    assert wanted in str(caught.value)
    done = CliRunner().invoke(app, ["reward-model", str(path), "--model", "no/such", "--out", str(tmp_path / "out")])
    assert wanted in str(done.exception)


def test_repeated_pairs_count_once(tmp_path: Path) -> None:
    assert len(read_pairs(written(tmp_path, GOOD, GOOD, GOOD))) == 1


def test_of_sampled_pairs_only_clear_ones_are_written() -> None:
    """Mistake: what one command writes, the next refuses to read."""
    prompt = (Message("user", "2 + 2?"),)
    kept, order, silent = (
        PreferencePair(prompt, "4", ""),
        PreferencePair(prompt, "4", "5"),
        PreferencePair(prompt, " ", "5"),
    )
    assert remove_ambiguous_pairs([kept, order, silent, kept, PreferencePair(prompt, "5", "4")]) == [kept]


def test_no_file_an_empty_one_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        read_pairs(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="is empty"):
        read_pairs(written(tmp_path, ""))
    (tmp_path / "pairs.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8 at byte"):
        read_pairs(tmp_path / "pairs.jsonl")


def test_siblings_that_earned_differently_are_pairs() -> None:
    late = node(1, {"b": 2}, [leaf({"b": 0}, 1.0), leaf({"b": 1}, 0.0)])
    root = node(0, {"a": 3}, [leaf({"a": 0}, 2.0), inner({"a": 1}, late, 5.0), leaf({"a": 2}, 2.0)])
    tree = Tree(Task("t", {}), root)
    found = [(pair.chosen, pair.rejected) for pair in make_pairs([tree], STEP)]
    assert found == [("a1", "a0"), ("a1", "a2"), ("b0", "b1")]  # a0 and a2 are a tie
    # by the return to go a1 is worth 5 + 1/2; by episodes b's siblings are worth 6 and 5
    for returns in ("reward_to_go", "episode"):
        again = make_pairs([tree], comparison_of(returns, "node", "mean", "none"))
        assert [(pair.chosen, pair.rejected) for pair in again] == found


def test_equal_texts_are_no_pair_and_a_pair_is_written_once() -> None:
    root = node(0, {"a": 3}, [leaf({"a": i}, float(i > 0)) for i in range(3)])
    same = tuple(root.samples["a"][1] for _ in range(2))
    twice = node(0, {"a": 3}, list(root.branches))
    twice.samples["a"] = (root.samples["a"][0], *same)  # type: ignore[index]
    assert [(pair.chosen, pair.rejected) for pair in make_pairs([Tree(Task("t", {}), twice)], STEP)] == [("a1", "a0")]
    twice.samples["a"] = (same[0], same[0], same[0])  # type: ignore[index]
    assert make_pairs([Tree(Task("t", {}), twice)], STEP) == []


def test_pairs_of_an_untrained_team(speaker: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "digit.yaml"
    recipe.write_text(yaml.safe_dump(yaml.safe_load(dump(configured(speaker, sampling={"max_tokens": 1})))))
    command = ["preference-pairs", str(recipe), "--tasks", "8", "--out", str(tmp_path / "pairs.jsonl")]
    done = CliRunner().invoke(app, [*command, "algorithm.k=16"])
    assert done.exit_code == 0, done.output
    pairs = read_pairs(tmp_path / "pairs.jsonl")
    assert pairs
    assert all(pair.chosen == pair.prompt[0].content != pair.rejected for pair in pairs)
    again = CliRunner().invoke(app, command)
    assert isinstance(again.exception, RunError)


def test_joint_actions_that_earned_differently_are_pairs_by_hand() -> None:
    """Three joint actions of a and b: 2, 5 + 1/2 by what follows, 2; below the second b alone has two siblings."""
    late = node(1, {"b": 2}, [leaf({"b": 0}, 1.0), leaf({"b": 1}, 0.0)])
    branches = [leaf({"a": 0, "b": 0}, 2.0), inner({"a": 1, "b": 1}, late, 5.0), leaf({"a": 2, "b": 0}, 2.0)]
    root = node(0, {"a": 3, "b": 2}, branches)
    both = "=== a ===\na{}\n=== b ===\nb{}"
    found = make_joint_pairs([Tree(Task("t", {}), root)], STEP)
    assert [(pair.chosen, pair.rejected) for pair in found] == [
        (both.format(1, 1), both.format(0, 0)),
        (both.format(1, 1), both.format(2, 0)),
        ("b0", "b1"),
    ]
    assert "You speak for all of a, b at once" in found[0].prompt[0].content
