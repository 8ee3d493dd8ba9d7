"""The critic's inputs, word for word, and their separation from the policy's."""

import asyncio
from dataclasses import replace

import pytest

from bench.parity.critics import (
    Learner,
    asked,
    crossed,
    node,
    one_answer,
    played_by,
    rule,
    sequential,
    team_of,
)
from bench.parity.trees import inner, leaf
from cadre.advantages.critic import Reads, required_heads
from cadre.rollout import shapes
from cadre.rollout.grow import Rollout, grow
from cadre.settings import PolicyConfig
from cadre.team import Team
from cadre.types import Sampling, Task
from tests.helpers.games import Relay, Scripted


def test_a_critic_on_the_trunk_reads_the_prompt_that_was_sampled_from_once() -> None:
    team = team_of(Learner())
    root = node(0, {"a": 3}, [leaf({"a": i}, float(i)) for i in range(3)], "x")
    data, shown = asked(root, rule(), team)
    assert shown == ["x a"]
    assert [datum.targets.at for datum in data] == [(2,)] * 3
    assert [datum.targets.head for datum in data] == ["a"] * 3
    assert [datum.policy for datum in data] == ["shared"] * 3


def test_the_joint_history_names_the_actor_and_what_the_others_saw_and_said_last() -> None:
    team = team_of(Learner())
    data, shown = asked(sequential(), rule("joint"), team)
    assert shown == [
        "a acts and sees\nearly a",
        "b acts and sees\nearly b\n\na saw\nearly a\n\na said\nearly a 0",
        "a acts and sees\nlate a\n\nb saw\nearly b\n\nb said\nearly b 0",
        "b acts and sees\nlate b\n\na saw\nlate a\n\na said\nlate a 0",
    ]
    policies, critics = data[:4], data[4:]
    assert all(datum.targets is None for datum in policies)
    assert {datum.targets.head for datum in critics} == {"joint"}
    assert not any(any(datum.mask) for datum in critics)
    assert [datum.policy for datum in critics] == ["shared"] * 4
    assert all(datum.targets.at == (len(datum.token_ids) - 1,) for datum in critics)


def test_the_joint_history_holds_every_other_role() -> None:
    last = node(0, {"c": 1}, [leaf({"c": 0})], "x")
    middle = node(0, {"b": 1}, [inner({"b": 0}, last)], "x")
    _, shown = asked(node(0, {"a": 1}, [inner({"a": 0}, middle)], "x"), rule("joint"), team_of(Learner()))
    assert shown[2] == "c acts and sees\nx c\n\na saw\nx a\n\na said\nx a 0\n\nb saw\nx b\n\nb said\nx b 0"


def test_what_is_said_at_once_is_not_history_yet() -> None:
    _, shown = asked(crossed(), rule("joint"), team_of(Learner()))
    assert shown[0] == "a acts and sees\nearly a\n\nb acts and sees\nearly b"
    assert shown[2] == "a acts and sees\nlate a\n\nb acts and sees\nlate b\n\nb said\nearly b 0"
    assert len(shown) == 4


@pytest.mark.parametrize(("reads", "policy"), [("joint", "critic"), ("own", "critic of a")])
def test_siblings_share_the_sequence_of_a_critic_of_its_own(reads: Reads, policy: str) -> None:
    actor, judge = Learner(), Learner((policy,), says=lambda datum, position: 0.5)
    root = node(0, {"a": 3}, [leaf({"a": i}, float(i)) for i in range(3)], "x")
    chosen = rule(reads, policy=PolicyConfig(model="seed"))
    data, _ = asked(root, chosen, team_of(actor, judge))
    assert actor.value_requests == []
    assert [datum.policy for datum in data] == ["shared"] * 3 + [policy]
    assert [datum.advantages[-1] for datum in data[:3]] == pytest.approx([-0.5, 0.5, 1.5])
    last = len(data[3].token_ids) - 1
    assert data[3].targets is not None
    assert data[3].targets.at == (last,) * 3
    assert data[3].targets.returns == pytest.approx((0.0, 1.0, 2.0))
    assert data[3].targets.values == (0.5,) * 3
    assert data[3].version == 5
    assert len(data[3].mask) == len(data[3].logprobs) == len(data[3].advantages) == last + 1


def test_a_critic_of_its_own_with_a_value_a_token_reads_the_answer_too() -> None:
    judge = Learner(("critic of a",), says=lambda datum, position: float(position))
    chosen = rule(gae_lambda=0.0, level="token", policy=PolicyConfig(model="seed"))
    data, _ = asked(one_answer(9.0).root, chosen, team_of(Learner(), judge))
    policy, critic_sequence = data
    assert critic_sequence.token_ids == (*b"p a", 7, 8)
    assert critic_sequence.targets.at == (2, 3, 4)
    assert policy.advantages[3:] == pytest.approx((1.0, 1.0, 5.0))  # 3 - 2, 4 - 3, 9 - 4
    assert policy.targets is None


class Told(Relay):
    """The relay with a secret for critics."""

    def privileged(self) -> str:
        return f"secret {self.turn}"


@pytest.mark.parametrize("reads", ["own", "joint"])
def test_what_only_critics_may_know_never_reaches_a_policy(reads: Reads) -> None:
    sampler, learner = Scripted(lambda request, index: f"{index}"), Learner()
    roles = dict.fromkeys(Told.roles, "shared")
    team = Team(roles, {"shared": sampler}, dict.fromkeys(roles, Sampling()), (learner,))
    root = asyncio.run(grow(Told(Task("t", {}), 2), Rollout(Told, team, shapes.independent(2), 1.0), 0))
    assert root is not None
    data, shown = asked(root, rule(reads, privileged=True), team)
    assert all(text.endswith(("\n\nsecret 0", "\n\nsecret 1")) for text in shown)
    for datum in data:
        is_visible = "secret" in bytes(datum.token_ids).decode()
        assert is_visible == (not any(datum.mask))
        assert (datum.targets is not None) == is_visible
    assert not any("secret" in message.content for request in sampler.requests for message in request.messages)
    _, plain = asked(root, rule(reads), replace(team, learners=(Learner(),)))
    assert not any("secret" in text for text in plain)


def test_heads_go_where_the_critics_sit() -> None:
    roles = {"a": "one", "b": "one", "c": "two"}
    own_policy_config = PolicyConfig(model="seed")
    assert required_heads(rule("own"), roles) == {"one": ("a", "b"), "two": ("c",)}
    assert required_heads(rule("own", policy=own_policy_config), roles) == {
        f"critic of {role}": (role,) for role in roles
    }
    assert required_heads(rule("joint", policy=own_policy_config), roles) == {"critic": ("joint",)}
    assert required_heads(rule("joint"), {"a": "one", "b": "one"}) == {"one": ("joint",)}


def test_values_come_from_the_engine_that_owns_the_policy() -> None:
    one_learner, two = Learner(("one",), lambda *_: 1.0), Learner(("two",), lambda *_: 2.0)
    root = played_by(sequential(), a="two", b="one")
    data, _ = asked(root, rule(gae_lambda=1.0), team_of(one_learner, two, a="two", b="one"))
    assert {datum.policy: datum.targets.values for datum in data} == {"one": (1.0,), "two": (2.0,)}
