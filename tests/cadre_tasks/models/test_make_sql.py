"""Training texts of the model of SQL: answers of mixed quality, of training tasks alone, in compact wording."""

import random

import pytest

from cadre import random_keys
from cadre.concurrency import run_coroutine
from cadre_tasks.models.make_seed import encode, padded
from cadre_tasks.models.make_sql import KINDS, SETTINGS, make_tokenizer, mixed, transcripts
from cadre_tasks.worlds.sql import Sql, SqlOneTurn


def test_the_right_answer_solves_the_task_and_others_lack_their_end_or_are_one_word_off() -> None:
    env = SqlOneTurn(Sql.tasks("train", **SETTINGS)[0], **SETTINGS, prompts="compact")
    right, generator = env.task.data["reference"], random_keys.generator("mixed")
    answer = [mixed(right, "other words", generator) for _ in range(400)]
    run_coroutine(env.step(dict.fromkeys(env.observe(), right)))
    assert env.success
    assert answer.count(right) / len(answer) == pytest.approx(KINDS["right"] / 100, abs=0.06)
    begun = [text for text in answer if right.startswith(text) and text != right]
    assert len(begun) / len(answer) == pytest.approx(KINDS["unfinished"] / 100, abs=0.08)
    assert all(len(text) > len(right) // 4 for text in set(answer) - set(begun))


def test_a_task_is_drafted_decided_and_decided_without_a_draft() -> None:
    """Prompts are those of the environment, and many decisions repeat their draft."""
    talks = transcripts(10, random.Random(0))
    assert len(talks) == 90
    first = [talk[0][1].partition("\n")[0] for talk in talks]
    assert first[:3] == ["sql query", "sql draft", "sql query"]
    drafts = [talk for talk, title in zip(talks, first, strict=True) if title == "sql draft"]
    decided = talks[2::3]
    assert all(draft[1][1] in decision[0][1] for draft, decision in zip(drafts, decided, strict=True))
    repeated = sum(draft[1][1] == decision[1][1] for draft, decision in zip(drafts, decided, strict=True))
    assert 15 < repeated < 30


def test_rows_are_padded_and_only_answers_are_learned() -> None:
    talks = transcripts(2, random.Random(0))
    tokenizer = make_tokenizer(talks)
    rows = sorted((encode(talk, tokenizer) for talk in talks), key=lambda row: len(row[0]))
    batch = padded(rows)
    assert batch["input_ids"].shape == (18, len(rows[-1][0]))
    for (ids, _), row, labels in zip(rows, batch["input_ids"], batch["labels"], strict=True):
        text = labels[labels >= 0].tolist()
        assert ids[-len(text) :] == text
        assert row[len(ids) :].tolist() == [0] * (len(row) - len(ids))
