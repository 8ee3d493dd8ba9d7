"""Two writers: what is paid, what each reward can be cheated by, and the contract."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cadre.types import Task
from cadre_tasks.writing import writing
from cadre_tasks.writing.writing import Arxiv, Story, Tldr
from tests.helpers.playing import check, play, seen
from tests.helpers.writing import HONEST, LONG, OTHER, RIVERS, SOURCE

OTHER_LONG = (
    "First, a transformer is trained on images with a contrastive loss. However, its accuracy depends on the data and "
    "on how the classifier is tuned; therefore the authors vary the optimiser, although they keep the schedule, and "
    "finally report a table of errors."
)


def tldr(**settings: str) -> Tldr:
    return Tldr(RIVERS, **settings)  # type: ignore[arg-type]


def pair(short: str, long: str) -> dict[str, str]:
    return {"short": short, "long": long}


def test_both_are_paid_together_for_one_step() -> None:
    env = tldr()
    assert SOURCE in seen(env, "short")
    assert SOURCE in seen(env, "long")
    (reward,) = play(env, pair(HONEST, LONG))
    assert dict(reward.local) == {}
    assert reward.team == pytest.approx(reward.parts["published"])
    assert reward.team > 2.7
    assert reward.parts["rouge_l"] == 1.0
    assert env.success
    assert env.observe() == {}


def test_the_published_reward_pays_for_any_source_and_the_faithful_one_does_not() -> None:
    (fooled,) = play(tldr(), pair(OTHER, OTHER_LONG))
    assert fooled.team > 2.7
    env = tldr(reward="faithful")
    (seen_through,) = play(env, pair(OTHER, OTHER_LONG))
    (honest,) = play(tldr(reward="faithful"), pair(HONEST, LONG))
    assert seen_through.team < 0.5 < 2.0 < honest.team
    assert not env.success


EXPLOITS = {
    "nothing": pair("", ""),
    "the source twice": pair(SOURCE, SOURCE),
    "the same text": pair(LONG, LONG),
    "the source and its half": pair(" ".join(SOURCE.split()[:18]), SOURCE),
    "one word": pair("sand " * 10, "sand " * 30),
    "key words": pair(
        "rivers sand sea dams beaches mouths samples forty", "however first therefore " + "rivers sand " * 12
    ),
    "the prompt": pair(
        "Sum this up in one or two sentences.", "Sum this up in a paragraph of varied words, with them."
    ),
    "a true one and a false one": pair(HONEST, OTHER_LONG),
}


@pytest.mark.parametrize("exploit", EXPLOITS)
def test_no_exploit_earns_what_honest_writers_earn(exploit: str) -> None:
    (honest,) = play(tldr(reward="faithful"), pair(HONEST, LONG))
    (cheat,) = play(tldr(reward="faithful"), EXPLOITS[exploit])
    assert cheat.team < honest.team / 2


def test_a_story_is_continued() -> None:
    story = (
        "The ship left the harbour at dawn . Nobody saw it go . At noon the storm came and the mast fell into the sea ."
    )
    task = Task("s", {"id": "s", "title": "A ship", "text": story, "references": ()})
    env = Story(task)
    assert "left the harbour" in seen(env, "middle")
    assert "mast" not in seen(env, "middle") + seen(env, "ending")
    (true,) = play(env, {"middle": "At noon the storm came", "ending": "and the mast fell into the sea"})
    assert env.success
    assert true.team > 0.9
    for cheat in ("the " * 40, env.given, "", "and then it was over and all was well " * 4):
        (reward,) = play(Story(task), cheat)
        assert reward.team < true.team / 2


def test_the_prompt_said_again_is_no_continuation() -> None:
    text = Path(__file__).with_name("harbour.txt").read_text().replace("\n\n", " ")
    task = Task("s", {"id": "s", "title": "The bell", "text": text, "references": ()})
    arguments = Story(task).given
    for middle, ending in ((arguments, ""), (arguments[:600], arguments[600:])):
        env = Story(task)
        (reward,) = play(env, {"middle": middle, "ending": ending})
        assert (reward.team, env.success) == (0.0, False)
        assert reward.parts["rouge_l"] > 0.15


def test_words_that_are_in_every_text_are_no_continuation() -> None:
    """Against five hundred words the commonest ones over and over have a ROUGE-L of more than is enough."""
    rest, other_content = Path(__file__).with_name("harbour.txt").read_text().split("\n\n")
    text = "once " * len(rest.split()) + rest
    task = Task("s", {"id": "s", "title": "The bell", "text": text, "references": ()})
    commonest = ("the of to a and in we that " * 50).split()
    honest = " ".join(rest.split(". ")[::2]) + other_content
    cheats = [commonest, [*honest.split()[:60], *commonest[:300]], rest.split()[:6] * 60]
    for cheat in cheats:
        env = Story(task)
        (reward,) = play(env, {"middle": " ".join(cheat[:200]), "ending": " ".join(cheat[200:])})
        assert (reward.team, env.success) == (0.0, False)
        assert cheat is not commonest or reward.parts["rouge_l"] > 0.2
    for words, solved in ((honest.split(), True), (other_content.split(), False)):
        env = Story(task)
        (reward,) = play(env, {"middle": " ".join(words[:200]), "ending": " ".join(words[200:])})
        assert reward.team == reward.parts["rouge_l"] > 0.1
        assert env.success is solved


def test_of_a_long_story_the_end_of_what_is_given_is_seen() -> None:
    story = " ".join(f"word{number}" for number in range(2_000))
    env = Story(Task("s", {"id": "s", "title": "[WP] Words.", "text": story, "references": ()}))
    for role in ("middle", "ending"):
        assert "[WP] Words." in seen(env, role)
        assert "word999\n" in f"{seen(env, role)}\n"
        assert "word1000" not in seen(env, role)
        assert len(seen(env, role)) < writing.LONGEST + 100
    assert env.rest.startswith("word1000 ")


def test_texts_are_measured_off_the_thread_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte takes half a second, in which nothing else would be done."""
    threads: set[threading.Thread] = set()

    def noted(measure: Callable[..., object]) -> Callable[..., object]:
        def measured(*texts: object) -> object:
            threads.add(threading.current_thread())
            return measure(*texts)

        return measured

    for name in ("graded", "faithful", "rouge_l", "prose"):
        monkeypatch.setattr(writing, name, noted(getattr(writing, name)))
    play(tldr(), pair(HONEST, LONG))
    play(Story(Task("s", {"id": "s", "title": "A ship", "text": SOURCE, "references": ()})), "the")
    assert threads
    assert threading.current_thread() not in threads


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tldr", {"data": "scitldr", "leaks": "drop"}),
        ("tldr", {"data": "tldr", "reward": "faithful", "leaks": "drop"}),
        ("arxiv", {"data": "arxiv"}),
        ("story", {"leaks": "drop"}),
    ],
)
def test_the_contract(name: str, settings: dict[str, str]) -> None:
    assert len(check(name, [HONEST, LONG], **settings)) == 6


def test_arxiv_has_its_own_roles_and_levels() -> None:
    env = Arxiv(RIVERS)
    assert set(env.observe()) == {"background", "method"}
    (reward,) = play(env, {"background": HONEST, "method": LONG})
    assert reward.team == 0.0  # fewer than 128 words
