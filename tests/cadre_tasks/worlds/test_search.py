"""The library: facts and questions by hand, commands, and what an answer with citations is worth."""

import math
import random

import pytest

from cadre_tasks.worlds.library import library, question
from cadre_tasks.worlds.search import Search, SearchSingleAgent
from tests.cadre_tasks.worlds.trying import (
    check_contract,
    check_exploits,
    check_hostile,
    check_references,
    check_splits,
)
from tests.helpers.extras import skip_without
from tests.helpers.playing import play, seen, total

skip_without("bm25s")


def test_a_library_has_each_fact_in_one_passage() -> None:
    created = library(random.Random(0), 12)
    titles = [passage.title for passage in created.passages]
    assert len(titles) == len(set(titles)) == 12 + 12 + 6
    for chain, passage_number in zip(created.chains, created.passage_numbers, strict=True):
        for name, second, position in zip(chain[:3], chain[1:], passage_number, strict=True):
            assert created.passages[position - 1].title == name
            assert second in created.passages[position - 1].text
    assert question(("ada kern", "alpha mills"), 1) == "What is the company that ada kern works for?"
    assert question(("ada kern",), 2) == "What is the town of the head office of the company that ada kern works for?"


def test_commands_and_what_they_show() -> None:
    env = Search(Search.tasks("test")[0], steps=4)
    person, firm = env.chain[:2]
    play(env, f"Search: {person}", f"Open: {env.needed[0]}")
    assert f"[{env.needed[0]}] {person}" in env.log[0]
    assert firm in env.log[1]
    play(env, "what?", "Open: 999")
    assert env.log[2:] == ("No command was read.", "There is no such passage.")
    assert env.acting == "writer"
    assert firm in seen(env, "writer")
    assert "Search" not in seen(env, "writer")


def test_the_search_can_be_ended() -> None:
    env = Search(Search.tasks("test")[0])
    play(env, "Open: 0")
    assert env.acting == "writer"


@pytest.mark.parametrize(
    ("form", "worth"),
    [
        ("Answer: {right} [{first}, {second}]", 1.0),
        ("I think.\nAnswer: {right} [{second}, {first}]\n", 1.0),
        ("Answer: {right} [{first}][{second}]", 1.0),
        ("Answer: {right} [{first} and {second}].", 1.0),
        ("Answer: {right} [{first}]", 0.75),
        ("Answer: {right} [{first}, {second}, 999]", 0.5 + 0.5 * 2 / 3),
        ("Answer: {right} []", 0.5),
        ("Answer: {firm} [{first}, {second}]", 0.0),
        ("{right}", 0.0),
    ],
)
def test_what_an_answer_is_worth(form: str, worth: float) -> None:
    env = Search(Search.tasks("test")[0], steps=2)
    first, second = env.needed
    rewards = play(env, f"Open: {first}", f"Open: {second}")
    assert all(reward.team == 0 and not reward.local for reward in rewards)
    text = form.format(right=env.right, first=first, second=second, firm=env.chain[1])
    (reward,) = play(env, text)
    assert reward.team == pytest.approx(0.5 * worth)
    assert env.success == (worth == 1.0)


def test_citations_count_only_where_the_passage_was_opened() -> None:
    env = Search(Search.tasks("test")[0], steps=1)
    first, second = env.needed
    play(env, f"Open: {second}")
    (reward,) = play(env, f"Answer: {env.right} [{first}, {second}]")
    assert reward.team == pytest.approx(0.5 * 0.75)


def test_one_agent_and_compact_prompts() -> None:
    env = SearchSingleAgent(Search.tasks("test", hops=1)[0], steps=1, prompts="compact")
    (number,) = env.needed
    requests = seen(env, "agent")
    assert requests == f"search\n{env.task.data['question']}"
    rewards = play(env, f"Open: {number}", f"Answer: {env.right} [{number}]")
    assert total(rewards, "agent") == pytest.approx(1.0)


@pytest.mark.parametrize("share", [0.1, pytest.param(1.0, marks=pytest.mark.slow)])
def test_references_exploits_and_hostile_answers(share: float) -> None:
    check_references("search", math.ceil(share * 9))
    check_exploits("search", math.ceil(share * 9))
    check_hostile("search", math.ceil(share * 150))


def test_splits_and_contract() -> None:
    check_splits("search", "question", 20)
    check_contract(["search-single-agent"], ["Search: river", "Open: 3", "Answer: ada kern [3]"], steps=2, people=6)
