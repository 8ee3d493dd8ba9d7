"""Hanabi as text: what a player sees, moves in words, illegal answers, the score, splits, and known policies."""

from __future__ import annotations

import asyncio
import random

import pytest

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from cadre.types import Task
from cadre_tasks.games.hanabi import COPIES, Hanabi, Size, move_words
from lab.hanabi import POLICIES, exploits, play
from tests.helpers.extras import skip_without
from tests.helpers.playing import play as play_texts
from tests.helpers.playing import seen

skip_without("pyspiel")
# Cards are drawn from the left: two for player 0, then two for player 1.
DECK = "R1 Y1 R2 Y5 R1 R3 R4 R5 Y1 Y1 R1 R2 R3 R4 Y2 Y2 Y3 Y3 Y4 Y4"


def small(prompts: str = "compact", deck: str = DECK) -> Hanabi:
    return Hanabi(Task("t", {"deck": deck}), "small", prompts)  # type: ignore[arg-type]


def test_a_player_sees_the_partners_cards_and_what_it_was_told_of_its_own() -> None:
    env = small()
    assert env.observe()["player_0"].messages[0].content == (
        "hanabi\nlives 1 tokens 3 deck 16\nfireworks R0 Y0\nyou R2:?? Y5:??\nme RY12345 RY12345\ndiscards \nlast \n"
        "moves: play 1 | play 2 | hint red | hint yellow | hint 2 | hint 5"
    )
    play_texts(env, "hint 5", "hint red", "play 1", "discard 1")
    lines = seen(env, "player_0").split("\n")
    assert lines[1:6] == [
        "lives 1 tokens 2 deck 14",
        "fireworks R1 Y0",
        "you Y5:?5 R3:??",
        "me Y12345 RY12345",
        "discards R2",
    ]
    assert lines[6] == (
        "last me hint 5 for card 2 ; you hint red for card 1 ; me play 1, a red 1, which fits ; you discard 1, a red 2"
    )
    full = small("full")
    play_texts(full, "hint 5", "Move: `Hint red`")
    text = seen(full, "player_0")
    assert "  2: yellow 5; knows red or yellow, 5" in text
    assert "  1: red, any rank\n  2: yellow, any rank" in text
    assert "partner: hint red for card 1" in text


@pytest.mark.parametrize(
    "answer", ["", "play 3", "hint blue", "play", "Move: play 1 or 2", "\ud800" * 9, "play 1" * 9999]
)
def test_what_is_no_legal_move_costs_and_a_random_one_is_played(answer: str) -> None:
    env, again = small(), small()
    (reward,) = play_texts(env, answer)
    assert reward.local == {"player_0": -1.0}
    assert reward.parts["legal"] == 0.0
    assert play_texts(again, "another") == [reward]  # the move depends on the state alone
    assert env.moves == again.moves


@pytest.mark.parametrize("answer", ["play 1", " Play 1.\n", "I think so.\nMove: **play 1**\nDone", "move : PLAY  1"])
def test_spellings_of_a_move(answer: str) -> None:
    (reward,) = play_texts(small(), answer)
    assert (reward.team, reward.local) == (1.0, {})


def test_the_last_life_makes_the_score_zero_and_a_perfect_game_is_a_success() -> None:
    env = small()
    rewards = play_texts(env, "play 1", "play 1", "play 2")  # red 1, red 2, red 1 again
    assert [reward.team for reward in rewards] == [1.0, 1.0, -2.0]
    assert (env.score, env.success, env.observe()) == (0, False, {})
    assert rewards[-1].parts["score"] == 0.0
    # Cards in such an order that every player always has the next one: 0 plays odd ones of the order, 1 the others.
    order = "R1 R2 R3 R4 R5 Y1 Y2 Y3 Y4 Y5".split()
    deck = [order[0], order[2], order[1], order[3], *order[4:]]
    rest = [f"{color}{rank}" for color in "RY" for rank, count in COPIES.items() for _ in range(count - 1)]
    env = small(deck=" ".join([*deck, *rest]))
    while observed := env.observe():
        (role,) = observed
        hand = [card.face for card in env.table(1 - int(role[-1])).partner]
        playable = [index for index, face in enumerate(hand, 1) if env.table(0).fireworks[face[0]] + 1 == int(face[1])]
        play_texts(env, f"play {playable[0]}")
    assert (env.score, env.success) == (10, True)


@pytest.mark.parametrize("size", ["small", "full"])
def test_splits_share_no_deal_and_a_deal_is_drawn_in_its_order(size: Size) -> None:
    decks = {split: {task.data["deck"] for task in Hanabi.tasks(split, size)[:8]} for split in ("train", "test")}  # type: ignore[arg-type]
    assert not decks["train"] & decks["test"]
    assert [len(deck) for deck in decks.values()] == [8, 8]
    task = Hanabi.tasks("test", size)[1]
    assert task == Hanabi.tasks("test", size)[1]
    samples = set()
    for seed in range(2):
        env, draw = Hanabi(task, size), random.Random(seed)
        while env.observe():
            play_texts(env, draw.choice([word for word in env.words() if "play" not in word] or list(env.words())))
        chance = [env.state.action_to_string(-1, move) for move in env.state.history()[:4]]
        samples.add(tuple(chance))
    assert len(samples) == 1


def test_words_are_the_moves_of_openspiel() -> None:
    env = small()
    for word, move in env.words().items():
        assert move_words(env.state.action_to_string(0, move)) == word
    assert [move_words(it) for it in ("(Play 0)", "(Discard 4)", "(Reveal player +1 color W)")] == [
        "play 1",
        "discard 5",
        "hint white",
    ]


def test_the_contract_and_the_drawing() -> None:
    spec = EnvSpec(Hanabi, {"size": "small", "prompts": "compact"})
    assert len(asyncio.run(check_env(spec, 1, ["play 1", "discard 1", "hint red"]))) == 6
    env = small()
    assert "red 2" in str(env.render())
    assert "hands R1 Y1 / R2 Y5 deck R1" in env.privileged()


@pytest.mark.parametrize("games", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_the_convention_scores_in_the_range_of_published_rules(games: int) -> None:
    """Random play loses all lives; rules of the literature have 19 to 23 points in the full game."""
    assert max(play("small", POLICIES["random"], games)) == 0
    assert sum(play("small", POLICIES["convention"], games)) / games > 4
    if games > 100:
        assert 19 < sum(play("full", POLICIES["convention"], games)) / games < 23


def test_exploits_earn_nothing() -> None:
    best, games = exploits(2)
    assert (best, games) == (0.0, 36)
