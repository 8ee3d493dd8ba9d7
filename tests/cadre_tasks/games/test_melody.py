"""The melody tasks: what each role hears and sees, rewards, splits, hostile answers, and the contract."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from cadre.envs.check import check_env
from cadre.envs.images import pixels
from cadre.envs.sounds import samples
from cadre.envs.spec import EnvSpec
from cadre.types import Task
from cadre_tasks.games.melody import COLORS, GAP_S, NAMES, NOTE_S, RATE, Melody, MelodySingleAgent, Signals, tones
from lab import melodies as bench
from tests.helpers.playing import play, seen, total

TASK = Task("t", {"melody": "acb", "order": "backward", "colors": ["red", "blue", "green"], "seed": 7})


def test_the_loudest_frequency_of_each_tone_is_its_pitch() -> None:
    for seed in range(5):
        heard = samples(tones("abcde", seed))
        assert len(heard) == 5 * round((NOTE_S + GAP_S) * RATE)
        peaks = []
        for tone in heard.reshape(5, -1):
            spectrum = abs(np.fft.rfft(tone[: int(NOTE_S * RATE)]))
            peaks.append(spectrum.argmax() / NOTE_S)
        ratios = np.array(peaks) / (220 * 2 ** (np.arange(5) * 4 / 12))
        assert (abs(ratios - 1) < 0.05).all()
    assert tones("ab", 1) != tones("ab", 2)


def test_one_role_hears_and_the_other_plays() -> None:
    env = Melody(TASK, "compact")
    (observation,) = env.observe().values()
    assert (observation.role, observation.messages[0].sounds) == ("listener", (tones("acb", 7),))
    (note,) = play(env, "a c b")
    assert (note.team, note.local, note.parts) == (0.0, {"listener": 0.5}, {"listener/right": 1.0})
    (observation,) = env.observe().values()
    assert (observation.role, observation.messages[0].content) == ("player", "backward a c b")
    assert observation.messages[0].sounds == ()
    (reward,) = play(env.fork(), "b c a")
    assert (reward.team, reward.local["player"]) == (0.5, 0.5)
    (reward,) = play(env.fork(), "Well.\nKeys: **B, C, a**.\n")
    assert reward.parts == {"right": 1.0, "formed": 1.0}
    (reward,) = play(env, "a c b")
    assert (reward.team, reward.local["player"], env.success) == (0.0, 0.1, False)


@pytest.mark.parametrize(
    ("note", "share"),
    [("a c b", 1.0), ("a c", 2 / 3), ("a b b", 2 / 3), ("a c b " * 9, 1 / 9), ("", 0.0), ("a c b or not", 0.0)],
)
def test_the_value_of_a_note(note: str, share: float) -> None:
    (reward,) = play(Melody(TASK), note)
    assert reward.parts["listener/right"] == pytest.approx(share)


def test_picture_sound_and_text_together() -> None:
    env = Signals(TASK, prompts="compact", cell=8)
    play(env, "a c b")
    (observation,) = env.observe().values()
    shown = pixels(observation.messages[0].images[0])
    assert [tuple(shown[8, 8 * number + 4]) for number in range(3)] == [COLORS[it] for it in TASK.data["colors"]]
    (note,) = play(env.fork(), "red pink green")  # no key is pink: two of three are right
    assert note.parts["looker/right"] == pytest.approx(2 / 3)
    play(env, "red blue green")
    assert seen(env, "player") == "backward a c b / red blue green"
    (reward,) = play(env.fork(), "blue pink red")  # a key that is not there cannot be pressed
    assert reward.parts == {"right": 0.0, "formed": 0.0}
    play(env, "blue green red")
    assert env.success
    full = Signals(TASK)
    play(full, "Notes: a c b", "Notes: red blue green")
    assert "wrote:\na c b\n" in seen(full, "player")
    assert "red blue green\nPlay the melody backward" in seen(full, "player")


def test_a_single_agent_hears_and_plays() -> None:
    env = MelodySingleAgent(TASK, "compact")
    assert seen(env, "agent") == "backward"
    assert total(play(env, "b c a"), "agent") == pytest.approx(1.0)
    assert env.success


def test_splits_share_no_melody() -> None:
    melodies = {split: {task.data["melody"] for task in Melody.tasks(split)[:40]} for split in ("train", "test")}  # type: ignore[arg-type]
    assert not melodies["train"] & melodies["test"]
    assert Melody.tasks("test")[3] == Melody.tasks("test")[3]


def test_hostile_answers_earn_nothing() -> None:
    draw = random.Random(0)
    hostile = [
        "",
        "Keys:",
        "\0" * 9,
        "\ud800",
        "a" * 10**6,
        "a " * 10**5,
        "Keys: " * 10**4,
        "/ red",
        "\u202ea b",
        NAMES,
    ]
    for text in hostile:
        for kind in (Melody, Signals, MelodySingleAgent):
            env = kind(TASK, prompts="compact")
            while env.observe():
                (reward,) = play(env, text if draw.random() < 0.9 else text[::-1])
                assert reward.team == 0.0
                assert sum(reward.local.values()) <= 0.5 / 3
            assert not env.success


@pytest.mark.parametrize("kind", [Melody, MelodySingleAgent, Signals])
def test_the_contract(kind: type[Melody]) -> None:
    spec = EnvSpec(kind, {"prompts": "compact", "notes": 3, "pitches": 3})
    assert len(asyncio.run(check_env(spec, 1, ["a b", "Keys: b a", "red"]))) == 6
    env = kind(TASK)
    assert "a c b" in str(env.render())
    assert env.privileged().startswith("keys ")


@pytest.mark.parametrize("form", [Melody, MelodySingleAgent, Signals])
def test_exploits_earn_what_right_notes_are_worth_at_most(form: type[Melody]) -> None:
    draw, shares = random.Random(0), {}
    for name, policy in bench.EXPLOITS.items():
        limit = bench.play(form(TASK), bench.honest, draw)
        assert limit == pytest.approx({Melody: 1.5, MelodySingleAgent: 1.0, Signals: 2.0}[form])
        shares[name] = bench.play(form(TASK), policy, draw) / limit
    notes = {Melody: 0.5, MelodySingleAgent: 0.0, Signals: 1.0}[form]
    assert shares["note and never play"] * limit == pytest.approx(notes)
    # Keys in the wrong order are keys, which is worth 0.1.
    assert max(shares.values()) * limit <= notes + 0.1 + 1e-9
