"""Preference pairs of trees, and the file that they are written to."""

import json
from pathlib import Path

import yaml
from typer.testing import CliRunner

from bench.parity.trees import inner, leaf, node
from cadre.advantages.groups import comparison_of
from cadre.cli.app import app
from cadre.config.experiment import dump
from cadre.errors import RunError
from cadre.types import Message, Task, Tree
from cadre_tasks.preference_pairs import PreferencePair, make_joint_pairs, make_pairs, remove_ambiguous_pairs
from tests.helpers.training import configured

STEP = comparison_of("step", "node", "mean", "std")


def test_a_line_is_a_preference_in_the_conversational_format_of_trl() -> None:
    messages = (Message("system", "Be brief."), Message("user", "é"))
    assert json.loads(PreferencePair(messages, "4", "").to_json()) == {
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é"}],
        "chosen": [{"role": "assistant", "content": "4"}],
        "rejected": [{"role": "assistant", "content": ""}],
    }


def test_of_sampled_pairs_only_clear_ones_are_written() -> None:
    prompt = (Message("user", "2 + 2?"),)
    kept, order, silent = (
        PreferencePair(prompt, "4", ""),
        PreferencePair(prompt, "4", "5"),
        PreferencePair(prompt, " ", "5"),
    )
    assert remove_ambiguous_pairs([kept, order, silent, kept, PreferencePair(prompt, "5", "4")]) == [kept]


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
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert pairs
    texts = [[pair[key][0]["content"] for key in ("prompt", "chosen", "rejected")] for pair in pairs]
    assert all(prompt == chosen != rejected for prompt, chosen, rejected in texts)
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
