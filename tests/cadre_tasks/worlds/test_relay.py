"""The form of draft and decision: rewards by hand, in the team's form and the single agents'."""

import pytest

from cadre.types import Task
from cadre_tasks.worlds.relay import Judged, Relay, RelayOneTurn, RelaySingleAgent, answer_in
from tests.helpers.playing import play, seen, total


class GuessingPlayer(Relay):
    """A number from 0 to 4 is worth a quarter of itself."""

    roles = ("first", "second")
    titles = ("guess draft", "guess")

    def __init__(self, task: Task, turns: int = 2, prompts: str = "full", reward: str = "shaped") -> None:
        super().__init__(task, turns, prompts, reward)  # type: ignore[arg-type]

    async def judge(self, text: str) -> Judged:
        if text not in "01234" or not text:
            return Judged(False, False, 0.0, "no number", "none")
        return Judged(True, text == "4", int(text) / 4, f"it is {text}", f"is {text}")

    def question(self) -> str:
        return "Guess."

    def brief(self) -> str:
        return "0 1 2 3 4"

    def asked(self) -> tuple[str, str]:
        return "Try.", "Decide."


class GuessOneTurn(RelayOneTurn, GuessingPlayer):
    roles = ("agent",)


class GuessSingleAgent(RelaySingleAgent, GuessingPlayer):
    pass


TASK = Task("guess", {})


def test_a_draft_is_lent_and_a_decision_counts() -> None:
    env = GuessingPlayer(TASK)
    draft, decision = play(env, "2", "3")
    assert (draft.team, draft.local) == (pytest.approx(0.25), {"first": pytest.approx(0.1 + 0.2)})
    assert (decision.team, decision.local) == (pytest.approx(0.125), {"second": pytest.approx(0.1 + 0.3)})
    assert not env.success
    again, worse = play(env, "4", "?")
    assert again.team == pytest.approx(0.5 - 0.375)
    assert again.local == {"first": pytest.approx(0.5 - 0.3)}
    assert (worse.team, worse.local) == (pytest.approx(-0.5), {"second": pytest.approx(-0.4)})
    assert env.observe() == {}


def test_what_is_right_pays_a_role_one_and_ends_the_episode() -> None:
    env = GuessingPlayer(TASK)
    rewards = play(env, "4", "4")
    assert env.success
    assert env.observe() == {}
    assert total(rewards, "first") == total(rewards, "second") == pytest.approx(1.0)


def test_an_agent_alone_and_one_that_does_both_earn_one_too() -> None:
    single, solo = GuessOneTurn(TASK), GuessSingleAgent(TASK)
    assert total(play(single, "4"), "agent") == pytest.approx(1.0)
    assert total(play(solo, "4", "4"), "agent") == pytest.approx(1.0)
    farm = GuessSingleAgent(TASK)
    assert total(play(farm, "4", "0", "4", "0"), "agent") == pytest.approx(0.5 * 0.5 + 0.5 * 0.1)


def test_by_outcome_only_solving_pays() -> None:
    rewards = play(GuessingPlayer(TASK, reward="outcome"), "3", "3", "4", "4")
    assert [(reward.team, list(reward.local.values())) for reward in rewards[:2]] == [(0, [0]), (0, [0])]
    assert total(rewards, "second") == pytest.approx(1.0)


def test_the_second_role_sees_the_draft_and_what_came_of_it() -> None:
    env, small = GuessingPlayer(TASK), GuessingPlayer(TASK, prompts="compact")
    play(env, "3")
    play(small, "3")
    assert seen(env, "second").startswith("Guess.\n\nA team mate answered:\n3\nWhat came of it:\nit is 3")
    assert seen(small, "second") == "guess\n0 1 2 3 4\n3\nis 3"
    play(env, "1")
    assert "The last answer was not right. What came of it:\nit is 1" in seen(env, "first")


def test_one_agent_has_both_steps_in_one_conversation() -> None:
    env = GuessSingleAgent(TASK)
    for _ in range(2):
        requests = env.observe()["agent"].messages
        play(env, " So:\n```\n2\n```\n")
        observe = env.observe()["agent"].messages
        assert [message.role for message in observe] == ["user", "assistant", "user"]
        assert observe[0] == requests[0]
        assert observe[1].content == " So:\n```\n2\n```\n"  # as it was sampled, so that its ids are kept
        assert "What came of your answer:\nit is 2" in observe[2].content
        play(env, "1")


def test_the_answer_is_the_last_block_or_the_text() -> None:
    assert answer_in("a\n```sql\nSELECT 1\n```\nb", "sql") == "SELECT 1"
    assert answer_in("```\n1\n```\n```sql\n2\n```\n```python\n3\n```", "sql") == "2"
    assert answer_in(" SELECT 1 ", "sql") == "SELECT 1"
    assert answer_in("```sql\nSELECT 1\n```\nIt gives:\n```\n1\n```", "sql") == "SELECT 1"
    assert len(answer_in("x" * 100_000, "sql")) == 20_000
