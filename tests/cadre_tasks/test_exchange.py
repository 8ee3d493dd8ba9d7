"""Baselines of two writers: one after the other, a round of discussion, one agent for both; what each sees, by hand."""

from collections.abc import Mapping

import pytest

from cadre.envs.spec import EnvSpec, env_class
from cadre.errors import ConfigError
from cadre.plugins import environments
from cadre.types import Message, Observation, Sound
from cadre_tasks.code.pairs import Pairs, PairsSingleAgent
from cadre_tasks.exchange import SingleAgent
from cadre_tasks.writing.writing import Tldr, TldrSingleAgent
from tests.helpers.code_pairs import AUX, MAIN, TASK
from tests.helpers.playing import check, play, seen, source
from tests.helpers.slow import few_of
from tests.helpers.writing import HONEST, LONG, RIVERS

BOTH = {"aux": AUX, "main": MAIN}


def roles_asked(env: object) -> list[str]:
    requests: Mapping[str, Observation] = env.observe()  # type: ignore[attr-defined]
    return list(requests)


def test_without_an_exchange_nobody_sees_the_other() -> None:
    env = Pairs(TASK)
    assert roles_asked(env) == ["aux", "main"]
    (reward,) = play(env, BOTH)
    assert reward.team == pytest.approx(4.0)


def test_a_pipeline_pays_when_the_last_has_written() -> None:
    env = Pairs(TASK, exchange="pipeline")
    assert roles_asked(env) == ["aux"]
    (first,) = play(env, AUX)
    assert (first.team, dict(first.local)) == (0.0, {})
    assert roles_asked(env) == ["main"]
    assert f"team mate aux has written, for you to see:\n{AUX}" in seen(env, "main")
    (second,) = play(env, MAIN)
    assert second.team == pytest.approx(4.0)
    assert env.success


def test_drafts_are_shown_beside_the_sounds_of_a_prompt() -> None:
    sounds = (Sound("d", 16_000, 1, b""),)

    class Heard(Pairs):
        def asked(self) -> dict[str, Observation]:
            prompts = super().asked()
            return {role: Observation(role, (Message("user", "Listen.", sounds=sounds),)) for role in prompts}

    env = Heard(TASK, exchange="pipeline")
    play(env, AUX)
    (message,) = env.observe()["main"].messages
    assert message.sounds == sounds
    assert AUX in message.content


def test_a_round_of_discussion_judges_the_second_texts_alone() -> None:
    env = Pairs(TASK, exchange="discussion")
    (draft,) = play(env, {"aux": "a draft of aux", "main": "a draft of main"})
    assert (draft.team, draft.parts) == (0.0, {})
    requests = env.observe()
    assert [message.role for message in requests["aux"].messages] == ["user", "assistant", "user"]
    assert requests["aux"].messages[1].content == "a draft of aux"
    assert "a draft of main" in requests["aux"].messages[2].content
    assert "a draft of aux" not in requests["aux"].messages[2].content
    (reward,) = play(env, BOTH)
    assert reward.team == pytest.approx(4.0)
    assert roles_asked(env) == []


def test_one_agent_writes_both_in_one_conversation_and_is_paid_alike() -> None:
    env = PairsSingleAgent(TASK)
    (first,) = play(env, AUX)
    observe = env.observe()["agent"].messages
    assert [message.role for message in observe] == ["user", "assistant", "user"]
    assert "`aux`" in observe[0].content
    assert observe[1].content == AUX
    (second,) = play(env, MAIN)
    assert (first.team, second.team) == (0.0, pytest.approx(4.0))
    assert env.success


def test_one_agents_local_rewards_are_the_sum_of_the_roles() -> None:
    single, team = PairsSingleAgent(TASK, reward="mixed"), Pairs(TASK, reward="mixed")
    (_, reward), (joint,) = play(single, AUX, MAIN), play(team, BOTH)
    assert reward.local["agent"] == pytest.approx(sum(joint.local.values()))
    assert reward.team == pytest.approx(joint.team)


def test_several_turns_begin_anew_each_time() -> None:
    for env in (Pairs(TASK, turns=2, exchange="pipeline"), PairsSingleAgent(TASK, turns=2, feedback="levels")):
        play(env, "nothing", "nothing", AUX, MAIN)
        assert env.success


def test_two_summaries_by_one_agent_are_worth_what_those_of_two_are() -> None:
    single, team = TldrSingleAgent(RIVERS), Tldr(RIVERS)
    (_, reward), (joint,) = play(single, HONEST, LONG), play(team, {"short": HONEST, "long": LONG})
    assert reward.team == pytest.approx(joint.team)


def test_a_fork_has_drafts_of_its_own() -> None:
    env = Pairs(TASK, exchange="pipeline")
    play(env, AUX)
    twin = env.fork()
    play(twin, MAIN)
    assert roles_asked(env) == ["main"]
    assert twin.success
    assert not env.success


@pytest.mark.parametrize("name", [name for name in environments() if issubclass(env_class(name), SingleAgent)])
def test_the_contract_of_single_agents(name: str) -> None:
    more = {"data": "humaneval", "held_out": 1} if name.startswith("pairs") else {}
    check(name, episodes=1, **more)


def test_a_pipeline_pays_nobody_who_has_spoken_before() -> None:
    with pytest.raises(ConfigError, match=r"settings\.reward: got mixed with exchange=pipeline"):
        Pairs(TASK, exchange="pipeline", reward="mixed")


@pytest.mark.parametrize(
    ("name", "exchange"),
    few_of(
        [(name, exchange) for name in ("pairs", "tldr", "story") for exchange in ("pipeline", "discussion")],
        [("pairs", "pipeline"), ("tldr", "discussion")],
    ),
)
def test_the_contract_with_an_exchange(name: str, exchange: str) -> None:
    more = {"data": "humaneval", "held_out": 1} if name == "pairs" else {}
    check(name, episodes=1, exchange=exchange, **more)


def test_what_writers_are_told_of_each_other_is_so() -> None:
    """Roles that act at once do not see each other; in a pipeline the second sees the first."""
    for role, words in (("aux", "cannot see your code"), ("main", "you cannot see it")):
        assert words in seen(Pairs(TASK), role)
    env = Pairs(TASK, exchange="pipeline")
    assert "after you, sees your code" in seen(env, "aux")
    play(env, AUX)
    assert "cannot see" not in seen(env, "main")
    assert "has written a helper function `aux`, which you see below" in seen(env, "main")


@pytest.mark.parametrize("name", [name for name in environments() if issubclass(env_class(name), SingleAgent)])
def test_one_agent_is_told_of_no_team_mate(name: str) -> None:
    more = {"data": "humaneval", "held_out": 1} if name.startswith("pairs") else {}
    game = EnvSpec(name, {"source": source(), **more})
    env = game.make(game.tasks("train")[0])
    play(env, AUX)
    assert "team mate" not in "".join(message.content for message in env.observe()["agent"].messages)
