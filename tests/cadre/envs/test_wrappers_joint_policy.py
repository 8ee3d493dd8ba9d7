"""One model that writes every role's part: what it is shown, how its answer is cut, what it is paid."""

import asyncio
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cadre.config.experiment import parse
from cadre.config.resolve import resolve
from cadre.env import Env
from cadre.envs.check import check_env
from cadre.envs.wrappers import centralised, joint_prompt, joint_text, split_joint_text
from cadre.errors import ConfigError
from cadre.rollout import shapes
from cadre.rollout.grow import Rollout, grow
from cadre.types import Message, Observation, Reward, Task
from tests.helpers.environments import game_of
from tests.helpers.games import Pair, Relay, scripted_team
from tests.helpers.training import HERE


class Two(Pair):
    """Left must say 1 and right 2: a quarter for each alone, all of it for both."""

    async def step(self, actions: dict[str, str]) -> Reward:
        right = (actions["left"] == "1") + (actions["right"] == "2")
        self.turn, self.agreed = self.turn + 1, self.agreed + (right == 2)
        return Reward(team=1.0 if right == 2 else right / 4, local={"left": 0.125, "right": 0.25}, parts={"r": right})

    def privileged(self) -> str:
        return "1 and 2"


def answer(**answer: str) -> str:
    return "\n".join(f"=== {role} ===\n{text}" for role, text in answer.items())


@pytest.mark.parametrize("env", [Pair, Relay, Two])
def test_a_centralised_environment_keeps_the_contract(env: type[Env]) -> None:
    assert len(asyncio.run(check_env(game_of(centralised(env))))) == 6


def test_the_parts_reach_their_roles_and_the_team_is_paid_for_all() -> None:
    env = centralised(Two)(Task("t", {}), turns=1)
    twin = env.fork()
    reward = asyncio.run(env.step({"team": answer(right="2", left="1")}))
    assert reward == Reward(1.0, {"team": 0.375}, {"r": 2})
    assert env.success
    assert not env.observe()
    assert not twin.success
    assert asyncio.run(twin.step({"team": answer(left="1", right="3")})).team == 0.25
    assert env.privileged() == "1 and 2"
    assert [task.id for task in centralised(Two).tasks("test")] == [task.id for task in Two.tasks("test")]


def test_what_else_the_environment_says_of_itself_is_said() -> None:
    result: list[str] = []

    class HeldTask(Two):
        repeatable = False

        async def until_ready(self) -> None:
            result.append("ready")

        def close(self) -> None:
            result.append("closed")

        def render(self) -> str:
            return "a board"

    env = centralised(HeldTask)(Task("t", {}), turns=1)
    asyncio.run(env.until_ready())
    assert env.render() == "a board"
    env.close()
    assert (env.repeatable, env.fork().repeatable, result) == (False, False, ["ready", "closed"])
    assert centralised(Two)(Task("t", {}), turns=1).repeatable


def test_what_several_roles_see_is_one_prompt_that_says_how_to_answer() -> None:
    remaining = Observation("left", (Message("user", "a"), Message("assistant", "b"), Message("user", "c")))
    (message,) = joint_prompt({"left": remaining, "right": Observation("right", (Message("user", "d"),))})
    assert message.role == "user"
    assert "=== left ===\n[user]\na\n[assistant]\nb\n[user]\nc\n\n=== right ===\nd" in message.content
    assert message.content.endswith("=== left ===\n(what left says)\n=== right ===\n(what right says)")
    assert split_joint_text(message.content, ["left", "right"]) == {
        "left": "(what left says)",
        "right": "(what right says)",
    }


def test_where_one_role_acts_its_conversation_and_the_answer_pass_through() -> None:
    env, plain = centralised(Relay)(Task("t", {})), Relay(Task("t", {}))
    assert env.observe()["team"].messages == plain.observe()["scout"].messages
    text = "=== scout ===\nnote"
    assert asyncio.run(env.step({"team": text})).local == {"team": float(len(text))}


CUTS = {
    "in order": ("=== left ===\n1\n=== right ===\n2", "1", "2"),
    "the other way round": ("=== right ===\n2\n=== left ===\n1", "1", "2"),
    "reasoning first": ("let me think\n=== left ===\n1\n=== right ===\n2", "1", "2"),
    "one missing": ("=== right ===\n2", "", "2"),
    "nothing marked": ("1\n2", "", ""),
    "nothing": ("", "", ""),
    "the last one counts": ("=== left ===\n8\n=== left ===\n1\n=== right ===\n2", "1", "2"),
    "several lines": ("=== left ===\n\n  1\n\n 1\n\n=== right ===\n2\n", "  1\n\n 1", "2"),
    "spaces and carriage returns": ("  === left ===\r\n1\r\n=== right === \r\n2\r\n", "1", "2"),
    "a stranger": ("=== left ===\n1\n=== boss ===\n0\n=== right ===\n2", "1\n=== boss ===\n0", "2"),
    "not alone on its line": ("say === left ===\n1\n=== right ===2", "", ""),
}


@pytest.mark.parametrize("case", CUTS)
def test_an_answer_is_cut_at_its_marks(case: str) -> None:
    text, remaining, right = CUTS[case]
    assert split_joint_text(text, ["left", "right"]) == {"left": remaining, "right": right}


LINES = st.lists(st.sampled_from(["=== left ===", "=== right ===", "===", "=== left", " ", "\x0b", "\u2028x", "é\x00"]))


# Where the machine is busy, the first draw of a text takes seconds.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LINES, st.text())
def test_any_text_gives_each_role_a_part_of_it(lines: list[str], rest: str) -> None:
    text = "\n".join([*lines, rest])
    got = split_joint_text(text, ["left", "right"])
    assert list(got) == ["left", "right"]
    assert all(part in text for part in got.values())


def test_a_hostile_text_takes_no_longer_than_its_length() -> None:
    text = ("=" * 50_000 + " " * 50_000 + "\n=== left ===\n") * 50
    initial_process_time = time.process_time()
    assert split_joint_text(text, ["left", "right"])["right"] == ""
    assert time.process_time() - initial_process_time < 1.0


def test_a_tree_of_the_team_has_the_returns_of_joint_actions() -> None:
    text = (answer(left="1", right="2"), answer(left="1", right="1"))
    central = centralised(Two)
    team, sampler = scripted_team(central, lambda request, index: text[index])
    root = asyncio.run(grow(central(Task("t", {})), Rollout(central, team, shapes.full(2), 1.0), 7))
    assert root is not None
    assert [branch.reward.team for branch in root.branches] == [1.0, 0.25]
    assert [request.role for request in sampler.requests] == ["team"]


def test_the_only_role_is_the_team() -> None:
    named = {"name": "magrpo_central", "k": 2}
    policies = {"shared": "seed"}
    chosen = {"env": f"{HERE}/helpers/games.py:Pair", "algorithm": named, "team": {"policies": policies}}
    experiment = resolve(parse(chosen | {"team": {"policies": policies, "roles": {"team": "shared"}}}))
    assert (experiment.env_spec.roles, experiment.plan.shape.joint) == (("team",), "aligned")
    wrong = {"policies": policies, "roles": {"left": "shared", "right": "shared"}}
    with pytest.raises(ConfigError, match=r"team\.roles\.left: .* under magrpo_central has no such role; .* to team"):
        resolve(parse(chosen | {"team": wrong}))
    with pytest.raises(ConfigError, match=r"algorithm\.joint: unknown"):
        parse(chosen | {"algorithm": named | {"joint": "cross"}, "team": wrong})


def test_what_is_said_together_is_taken_apart_again() -> None:
    text = {"a": "one\ntwo", "b": "three"}
    assert split_joint_text(joint_text(text), ["a", "b"]) == text
    assert joint_text({"a": "alone"}) == "alone"
