"""The trainings of searchers, and of signals: what they train, and the lines that they write."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from cadre.config.recipes import read_recipe
from cadre_tasks.models.make_seed import byte_level
from cadre_tasks.worlds.search import Search
from lab import melodies, search_trainings, taught
from lab.taught import example
from tests.helpers.extras import skip_without

Recorded = list[tuple[str, list[float], int, list[int]]]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    lines: Recorded = []

    def keep(file: str, name: str, values: Any, unit: str, command: str, n: int, seeds: Any) -> None:
        assert (file, command.split()[0]) == ("vision" if name.startswith("audio") else "worlds", "python")
        lines.append((name, list(values), n, list(seeds)))

    monkeypatch.setattr(taught, "record", keep)
    return lines


def run(monkeypatch: pytest.MonkeyPatch, bench: Any, line: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *line.split()])
    bench.main()


@pytest.mark.parametrize(
    ("bench", "part", "names"),
    [
        (search_trainings, "train", ("worlds.search.base.success", "worlds.search.success")),
        (melodies, "learn", ("audio.signals.base.success", "audio.signals.success")),
    ],
)
def test_lines_of_one_team(
    monkeypatch: pytest.MonkeyPatch, recorded: Recorded, bench: Any, part: str, names: tuple[str, str]
) -> None:
    monkeypatch.setattr(bench, part, lambda model, seed, *options: [0.0, 0.5, 0.25 * seed])
    run(monkeypatch, bench, f"{part} models/x --seeds 1 2 --write")
    assert recorded == [(names[0], [0.0, 0.0], 200, [1, 2]), (names[1], [0.25, 0.5], 200, [1, 2])]


def test_examples_of_searchers_and_writers_need_one_more_word_or_are_needed() -> None:
    skip_without("bm25s")
    lines = search_trainings.examples(300)
    requests = "search\nWhat is the company that gerda rossi works for?"
    assert lines[0] == {"role": "searcher", "before": [], "prompt": requests, "answer": "Search: gerda rossi"}
    answers = [line for line in lines if line["role"] == "writer"]
    right = [line for line in answers if len(line["answer"].split()) == 4]
    assert len(right) / len(answers) == pytest.approx(1 / 3, abs=0.15)
    assert all(line["answer"].removeprefix("Answer: ").split(" [")[0] in line["prompt"] for line in answers)
    # No command is one that the environment does not read.
    assert {line["answer"].split(":")[0] for line in lines if line["role"] == "searcher"} == {"Search", "Open"}


def test_only_the_answer_of_an_example_is_learned() -> None:
    line = {"before": [("user", "a"), ("assistant", "b")], "prompt": "c", "answer": "d"}
    tokenizer = byte_level(r"\w", list("abcd"), 300)
    ids, labels = example(line, tokenizer)
    end = tokenizer.eos_token_id
    user, assistant, a, b, c, d = tokenizer.convert_tokens_to_ids(["<|user|>", "<|assistant|>", *"abcd"])
    assert ids == [user, a, end, assistant, b, end, user, c, end, assistant, d, end]
    assert labels == [-100] * 10 + [d, end]


def test_the_recipe_search_is_solved_by_what_is_needed() -> None:
    skip_without("bm25s")
    settings = read_recipe("search")["settings"]
    for task in Search.tasks("test", **settings)[:20]:
        env = Search(task, **settings)
        while observed := env.observe():
            asyncio.run(env.step(dict.fromkeys(observed, search_trainings.needed(env))))
        assert env.success
