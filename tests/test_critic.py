"""Values are given numbers and every advantage is worked out by hand, so that a wrong sign or place cannot pass."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from pydantic import TypeAdapter

from cadre import critic, presets, shape, walk
from cadre.algorithms import Algorithm
from cadre.credit import Credit, reward_to_go
from cadre.critic import Critic, explained_variance, heads
from cadre.errors import ConfigError
from cadre.lesson import prepare
from cadre.rollout import grow
from cadre.sections import CreditConfig, CriticConfig, LossConfig, PolicyConfig
from cadre.team import Team
from cadre.types import Branch, Datum, Message, Node, Observation, Sample, Sampling, Task, Tree
from tests.games import Relay, Scripted
from tests.test_credit import inner, leaf


@dataclass
class Learner:
    """Values from a table of prompts' texts or from a function; token ids are bytes. Remembers what it was asked."""

    policies: tuple[str, ...] = ("shared",)
    says: Callable[[Datum, int], float] = lambda datum, place: 0.0
    reference: Callable[[Datum], tuple[float, ...]] = lambda datum: datum.logprobs
    asked: list[Datum] = field(default_factory=list)
    referred: list[Datum] = field(default_factory=list)

    def encode(self, policy: str, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple("|".join(message.content for message in messages).encode())

    def values(self, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        self.asked += data
        return [tuple(self.says(datum, place) for place in datum.targets.at) for datum in data]

    def reference_logprobs(self, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        self.referred += data
        return [self.reference(datum) for datum in data]


def by_text(table: Mapping[str, float]) -> Callable[[Datum, int], float]:
    """The value of a sequence is that of the prompt that it begins with."""
    return lambda datum, place: table[bytes(datum.token_ids[: place + 1]).decode()]


def node(turn: int, siblings: Mapping[str, int], branches: list[Branch], tag: str, **shown: str) -> Node:
    """Prompts read `TAG ROLE`, and sibling i of a role says `TAG ROLE i`."""

    def draw(role: str, index: int) -> Sample:
        said = f"{tag} {role} {index}"
        prompt = tuple(f"{tag} {role}".encode())
        return Sample(role, "shared", said, prompt, (3, 0), (-0.5, -0.25), "stop", 5)

    samples = {role: tuple(draw(role, index) for index in range(count)) for role, count in siblings.items()}
    seen = {role: Observation(role, (Message("user", f"{tag} {role}"),)) for role in siblings}
    return Node(turn, seen, samples, tuple(branches), **shown)


def team_of(*learners: Learner, roles: str = "abc", **assignment: str) -> Team:
    assigned = {role: assignment.get(role, "shared") for role in [*roles, *assignment]}
    return Team(assigned, {}, {role: Sampling(0.7) for role in assigned}, learners)


def rule(reads: critic.Reads = "own", gae_lambda: float = 0.5, **options) -> Critic:
    gamma = options.pop("token_gamma", 1.0)
    return Critic(reads, CriticConfig(**options), gae_lambda, gamma, whiten=False)


def taught(
    root: Node, values: Mapping[str, float], chosen: Critic, gamma: float = 1.0, **numbers: float
) -> dict[str, tuple[float, float]]:
    """(advantage, target) of every sample by its text, from the sequences that the update gets."""
    learner = Learner(says=by_text(values))
    credit = Credit("reward_to_go", "role", "critic", "none", gamma=gamma, **numbers)
    data, _ = critic.data([Tree(Task("t", {}), root)], credit, chosen, team_of(learner))
    samples = list(walk.samples(root))
    assert [datum.token_ids for datum in data] == [one.prompt_ids + one.token_ids for one in samples]
    pairs = [(datum.advantages[-1], datum.targets.returns[0]) for datum in data if datum.targets is not None]
    return dict(zip((one.text for one in samples), pairs, strict=True))


def chain(*pays: float) -> Node:
    """One episode of role a, a reward a turn; the turns are called 0, 1, ..."""
    below: Node | None = None
    for turn in reversed(range(len(pays))):
        branch = leaf({"a": 0}, pays[turn]) if below is None else inner({"a": 0}, below, pays[turn])
        below = node(turn, {"a": 1}, [branch], str(turn))
    assert below is not None
    return below


THREE = {"0 a": 0.5, "1 a": 1.0, "2 a": 1.5}


def test_gae_over_three_turns() -> None:
    got = taught(chain(1.0, 0.0, 2.0), THREE, rule(gae_lambda=0.5), gamma=0.9)
    # delta: 2 - 1.5 = 0.5; 0 + 0.9 * 1.5 - 1 = 0.35; 1 + 0.9 * 1 - 0.5 = 1.4; each adds 0.9 * 0.5 of the next
    assert got["2 a 0"] == pytest.approx((0.5, 2.0))
    assert got["1 a 0"] == pytest.approx((0.575, 1.575))
    assert got["0 a 0"] == pytest.approx((1.65875, 2.15875))


def test_reward_to_go_minus_the_value_is_lambda_one() -> None:
    got = taught(chain(1.0, 0.0, 2.0), THREE, rule(gae_lambda=1.0), gamma=0.9)
    # returns 2; 0.9 * 2 = 1.8; 1 + 0.9 * 1.8 = 2.62
    assert got["2 a 0"] == pytest.approx((0.5, 2.0))
    assert got["1 a 0"] == pytest.approx((0.8, 1.8))
    assert got["0 a 0"] == pytest.approx((2.12, 2.62))


def sequential() -> Node:
    """Two turns in which a acts before b: local 1, team 2; local -1 with team 1, team 4."""
    last = node(1, {"b": 1}, [leaf({"b": 0}, 4.0)], "late")
    second = node(1, {"a": 1}, [inner({"a": 0}, last, 1.0, a=-1.0)], "late")
    middle = node(0, {"b": 1}, [inner({"b": 0}, second, 2.0)], "early")
    return node(0, {"a": 1}, [inner({"a": 0}, middle, a=1.0)], "early")


def test_roles_that_act_in_turn_are_paid_until_they_act_again() -> None:
    values = {"early a": 1.0, "late a": 2.0, "early b": 0.5, "late b": 3.0}
    got = taught(sequential(), values, rule(gae_lambda=0.5), gamma=0.5)
    # a: then 1 - 1 + 4 - 2 = 2; first 1 + 2 + 0.5 * 2 - 1 = 3, and 0.5 * 0.5 * 2 more
    assert got["late a 0"] == pytest.approx((2.0, 4.0))
    assert got["early a 0"] == pytest.approx((3.5, 4.5))
    # b: then 4 - 3 = 1; first 2 + 0.5 * 1 (its team's, when a acts) + 0.5 * 3 - 0.5 = 3.5, and 0.5 * 0.5 * 1 more
    assert got["late b 0"] == pytest.approx((1.0, 4.0))
    assert got["early b 0"] == pytest.approx((3.75, 4.25))


def test_alpha_weighs_the_team_between_decisions_too() -> None:
    values = {"early a": 0.0, "late a": 0.0, "early b": 0.0, "late b": 0.0}
    got = taught(sequential(), values, rule(gae_lambda=0.0), alpha=0.5)
    assert got["early a 0"][0] == pytest.approx(1.0 + 0.5 * 2.0)
    assert got["late a 0"][0] == pytest.approx(0.5 * 1.0 - 1.0 + 0.5 * 4.0)


def crossed() -> Node:
    """Two roles at once in all pairs, paying 1, 3, 0 and 2; the first pair goes on to 0, 4, 4 and 8."""
    both = {"a": 2, "b": 2}
    late = [leaf({"a": i, "b": j}, pay) for (i, j), pay in zip(PAIRS, (0.0, 4.0, 4.0, 8.0), strict=True)]
    child = node(1, both, late, "late")
    early = [leaf({"a": i, "b": j}, pay) for (i, j), pay in zip(PAIRS[1:], (3.0, 0.0, 2.0), strict=True)]
    return node(0, both, [inner({"a": 0, "b": 0}, child, 1.0), *early], "early")


PAIRS = [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_roles_at_once_in_a_tree_of_unequal_depths() -> None:
    values = {"early a": 1.0, "early b": 0.0, "late a": 2.0, "late b": 1.0}
    got = taught(crossed(), values, rule(gae_lambda=0.5), gamma=0.5)
    # late: a earns 2 and 6 against 2, mean advantage 2; b the same against 1, mean advantage 3
    assert [got[f"late a {i}"][0] for i in range(2)] == pytest.approx([0.0, 4.0])
    assert [got[f"late b {i}"][0] for i in range(2)] == pytest.approx([1.0, 5.0])
    # one of the two pairs that hold a's first goes on, which halves 0.5: (1 + 3) / 2 + 0.25 * 2 - 1 + 0.5 * 0.25 * 2;
    # its second earns (0 + 2) / 2 - 1
    assert got["early a 0"] == pytest.approx((1.75, 2.75))
    assert got["early a 1"] == pytest.approx((0.0, 1.0))
    # b's first: (1 + 0) / 2 + 0.25 * 1 - 0 + 0.5 * 0.25 * 3; its second (3 + 2) / 2
    assert got["early b 0"] == pytest.approx((1.125, 1.125))
    assert got["early b 1"] == pytest.approx((2.5, 2.5))


def fanned() -> Node:
    """a acts, then b twice from the same place, and a again after either, for 2 and 6."""
    ends = [node(1, {"a": 1}, [leaf({"a": 0}, pay)], f"end{pay}") for pay in (2.0, 6.0)]
    middle = node(0, {"b": 2}, [inner({"b": i}, end, 1.0 + 2 * i) for i, end in enumerate(ends)], "mid")
    return node(0, {"a": 1}, [inner({"a": 0}, middle)], "start")


def test_a_decision_that_others_fan_out_is_followed_by_the_mean() -> None:
    values = {"start a": 1.0, "mid b": 0.0, "end2.0 a": 1.0, "end6.0 a": 3.0}
    got = taught(fanned(), values, rule(gae_lambda=0.5), gamma=0.5)
    # the pay (1 + 3) / 2, then 0.25 of each of V 1 and 3 and of A 1 and 3
    assert got["start a 0"] == pytest.approx((2.0 + 1.0 - 1.0 + 0.5 * 1.0, 3.5))


def trio() -> Node:
    """a, then b and c at once, then a; c pays b nothing locally, and only two of three of a's go on."""
    ends = [node(1, {"a": 1}, [leaf({"a": 0}, pay, a=0.5)], f"end{pay}") for pay in (2.0, 6.0)]
    pairs = [
        node(0, {"b": 1, "c": 1}, [inner({"b": 0, "c": 0}, end, 1.0, b=0.25, c=-1.0)], f"pair{index}")
        for index, end in enumerate(ends)
    ]
    branches = [inner({"a": 0}, pairs[0]), inner({"a": 1}, pairs[1]), leaf({"a": 2}, 9.0)]
    return node(0, {"a": 3}, branches, "start")


def test_three_roles_that_act_unequally_often() -> None:
    values = {"start a": 2.0, "end2.0 a": 1.0, "end6.0 a": 2.0}
    values |= {"pair0 b": 1.0, "pair1 b": 2.0, "pair0 c": 0.0, "pair1 c": 1.0}
    got = taught(trio(), values, rule(gae_lambda=0.5), gamma=0.5)
    # a at the end: 2.5 - 1 and 6.5 - 2; before: team 1 while the pair acts, 0.5 V, 0.25 A
    assert got["start a 0"] == pytest.approx((1.0 + 0.5 * 1.0 - 2.0 + 0.25 * 1.5, 1.875))
    assert got["start a 1"] == pytest.approx((1.0 + 0.5 * 2.0 - 2.0 + 0.25 * 4.5, 3.125))
    assert got["start a 2"] == pytest.approx((7.0, 9.0))
    # b and c act once: what follows is all theirs, the other's local is not
    assert got["pair0 b 0"] == pytest.approx((1.25 + 0.5 * 2.0 - 1.0, 2.25))
    assert got["pair1 c 0"] == pytest.approx((1.0 - 1.0 + 0.5 * 6.0 - 1.0, 3.0))


@pytest.mark.parametrize("tree", [chain(1.0, 0.0, 2.0), sequential(), crossed(), fanned(), trio()])
def test_lambda_one_without_values_is_the_reward_to_go_of_the_groups(tree: Node) -> None:
    credit = Credit("reward_to_go", "node", "none", "none", gamma=0.7)
    expected = {member.sample.text: member.value for _, member in reward_to_go(tree, credit)}
    prompts = {bytes(one.prompt_ids).decode(): 0.0 for one in walk.samples(tree)}
    got = taught(tree, prompts, rule(gae_lambda=1.0), gamma=0.7)
    assert {text: pair[0] for text, pair in got.items()} == pytest.approx(expected)


def test_one_member_and_equal_rewards_still_learn_from_the_value() -> None:
    root = node(0, {"a": 1}, [leaf({"a": 0}, 3.0)], "one")
    assert taught(root, {"one a": 1.0}, rule()) == {"one a 0": (2.0, 3.0)}
    root = node(0, {"a": 2}, [leaf({"a": i}, 3.0) for i in range(2)], "two")
    assert taught(root, {"two a": 4.0}, rule()) == {"two a 0": (-1.0, 3.0), "two a 1": (-1.0, 3.0)}


def test_whitening_is_over_the_batch_of_a_policy() -> None:
    pays = {"a": (0.0, 2.0), "b": (5.0, 5.0)}
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": i}, a=pays["a"][i], b=pays["b"][i]) for i in range(2)], "x")
    other = {role: tuple(replace(one, policy=role) for one in siblings) for role, siblings in root.samples.items()}
    root = replace(root, samples=other)
    chosen = replace(rule(), whiten=True)
    credit = Credit("reward_to_go", "role", "critic", "none")
    learner = Learner(("a", "b"))
    data, figures = critic.data([Tree(Task("t", {}), root)], credit, chosen, team_of(learner, a="a", b="b"))
    assert [datum.advantages[-1] for datum in data] == pytest.approx([-1.0, 1.0, 0.0, 0.0])
    assert figures["a/advantage_std"] == pytest.approx(1.0)
    shared, _ = critic.data(
        [Tree(Task("t", {}), node(0, {"a": 2}, [leaf({"a": i}, 4.0 * i) for i in range(2)], "y"))],
        credit,
        chosen,
        team_of(Learner()),
    )
    assert [datum.advantages[-1] for datum in shared] == pytest.approx([-1.0, 1.0])
    assert [datum.targets.returns for datum in shared] == [(0.0,), (4.0,)]  # targets are never whitened


def test_branches_left_behind_are_refused() -> None:
    root = node(0, {"a": 2}, [replace(leaf({"a": 0}), carried=False), leaf({"a": 1})], "x")
    with pytest.raises(ConfigError, match="left behind"):
        critic.data([Tree(Task("t", {}), root)], Credit("reward_to_go", "role", "critic", "none"), rule(), team_of())


# A value a token.


def one_answer(score: float) -> Tree:
    """Prompt "p a", three tokens, a score at the end."""
    root = node(0, {"a": 1}, [leaf({"a": 0}, score)], "p")
    said = replace(root.samples["a"][0], token_ids=(7, 8, 1), logprobs=(-0.5, -0.25, -1.0))
    return Tree(Task("t", {}), replace(root, samples={"a": (said,)}))


def plan_of(name: str, **options) -> presets.Plan:
    return presets.preset(TypeAdapter(Algorithm).validate_python({"name": name, **options}))


def test_gae_over_tokens_with_a_penalty_on_each() -> None:
    """gaps 0.5, 0, -0.5 at beta 0.1; values 1, 1.5, 2; the score 2 on the last token."""
    said = {2: 1.0, 3: 1.5, 4: 2.0}
    learner = Learner(says=lambda datum, place: said[place], reference=lambda datum: (0.0, 0.0, 0.0, -1.0, -0.25, -0.5))
    plan = plan_of("rlhf", kl=0.1, gae_lambda=0.5, whiten=False)
    lesson = prepare([one_answer(2.0)], plan, team_of(learner))
    (datum,) = lesson.data
    # last: 2 + 0.05 - 2; middle: 0 + 2 - 1.5 + 0.5 * 0.05; first: -0.05 + 1.5 - 1 + 0.5 * 0.525
    assert datum.advantages == pytest.approx((0.0, 0.0, 0.0, 0.7125, 0.525, 0.05))
    assert datum.targets.at == (2, 3, 4)
    assert datum.targets.values == (1.0, 1.5, 2.0)
    assert datum.targets.returns == pytest.approx((1.7125, 2.025, 2.05))
    assert datum.targets.head == "a"
    assert datum.mask == (False, False, False, True, True, True)
    assert datum.temperature == 0.7
    assert lesson.figures["a/kl_to_reference"] == pytest.approx(0.0)
    assert lesson.groups == []


def test_the_discount_of_a_token_is_its_own() -> None:
    learner = Learner()
    plan = plan_of("rlhf", kl=0.0, gae_lambda=1.0, token_gamma=0.5, whiten=False)
    (datum,) = prepare([one_answer(2.0)], plan, team_of(learner)).data
    assert datum.advantages[3:] == pytest.approx((0.5, 1.0, 2.0))
    assert learner.referred == []
    learner.says = lambda datum, place: {2: 1.0, 3: 2.0, 4: 3.0}[place]
    (datum,) = prepare(
        [one_answer(2.0)], replace(plan, critic=replace(plan.critic, gae_lambda=0.0)), team_of(learner)
    ).data
    assert datum.advantages[3:] == pytest.approx((0.5 * 2.0 - 1.0, 0.5 * 3.0 - 2.0, 2.0 - 3.0))


def test_token_values_bridge_decisions_by_the_discount_of_a_turn() -> None:
    """Two turns of two tokens each: values 1 and 2 in each, 4 paid at the end."""
    learner = Learner(says=lambda datum, place: 1.0 if place == 2 else 2.0)
    chosen = rule(gae_lambda=0.5, level="token", token_gamma=1.0)
    credit = Credit("reward_to_go", "role", "critic", "none", gamma=0.9)
    data, _ = critic.data([Tree(Task("t", {}), chain(0.0, 4.0))], credit, chosen, team_of(learner))
    early, late = data
    # late: 4 - 2 = 2; 2 - 1 + 0.5 * 2 = 2. early: 0.9 * 1 - 2 + 0.5 * 0.9 * 2 = -0.2; 2 - 1 + 0.5 * -0.2 = 0.9
    assert late.advantages[-2:] == pytest.approx((2.0, 2.0))
    assert early.advantages[-2:] == pytest.approx((0.9, -0.2))


def test_a_penalty_on_a_decision_is_the_sum_over_its_tokens() -> None:
    learner = Learner(reference=lambda datum: (0.0, 0.0, 0.0, -1.0, -0.25, -0.25))
    plan = plan_of("ippo", kl=0.1, whiten=False)
    (datum,) = prepare([one_answer(2.0)], plan, team_of(learner)).data
    assert datum.advantages[3:] == pytest.approx((2.025,) * 3)  # gaps 0.5 + 0 - 0.75, so it gains


# k1 in the reward of the group-relative algorithms.


def test_the_penalty_is_taken_from_the_return_before_the_comparison() -> None:
    """Rewards 1 and 1; one sample is surer than the reference by 0.5 nats, so it earns 0.05 less."""
    root = node(0, {"a": 2}, [leaf({"a": i}, 1.0) for i in range(2)], "p")
    surer = iter([(0.0, 0.0, 0.0, -0.75, -0.5), (0.0, 0.0, 0.0, -0.5, -0.25)])
    learner = Learner(reference=lambda datum: next(surer))
    lesson = prepare([Tree(Task("t", {}), root)], plan_of("magrpo", kl=0.1), team_of(learner))
    assert [datum.advantages[-1] for datum in lesson.data] == pytest.approx([-0.025, 0.025])
    assert lesson.figures["a/kl_to_reference"] == pytest.approx(0.5 / 4)
    plain = prepare([Tree(Task("t", {}), root)], plan_of("magrpo"), team_of(learner))
    assert [datum.advantages[-1] for datum in plain.data] == [0.0, 0.0]


def test_the_loss_gets_its_reference_only_where_it_asks() -> None:
    plan = plan_of("grpo")
    assert prepare([one_answer(1.0)], plan, team_of(Learner())).data[0].reference == ()
    asks = replace(plan, loss=LossConfig(kl=0.1))
    (datum,) = prepare([one_answer(1.0)], asks, team_of(Learner())).data
    assert datum.reference == (0.0, 0.0, 0.0, -0.5, -0.25, -1.0)


# What a critic reads.


def asked(root: Node, chosen: Critic, team: Team) -> tuple[list[Datum], list[str]]:
    """The data of an update, and the texts that the critic was shown."""
    credit = Credit("reward_to_go", "role", "critic", "none")
    data, _ = critic.data([Tree(Task("t", {}), root)], credit, chosen, team)
    return data, [bytes(one.token_ids).decode() for learner in team.learners for one in learner.asked]


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


def test_mappo_and_ippo_differ_where_the_others_matter() -> None:
    """The critic knows that what a said is worth 3; the critic of b alone cannot see it."""

    def says(datum: Datum, place: int) -> float:
        return 3.0 if "a said" in bytes(datum.token_ids).decode() else 0.0

    def advantages(reads: critic.Reads) -> dict[str, float]:
        credit = Credit("reward_to_go", "role", "critic", "none")
        trees = [Tree(Task("t", {}), sequential())]
        data, _ = critic.data(trees, credit, rule(reads, gae_lambda=1.0), team_of(Learner(says=says)))
        return {bytes(datum.token_ids[:-2]).decode(): datum.advantages[-1] for datum in data if any(datum.mask)}

    own, joint = advantages("own"), advantages("joint")
    assert own == pytest.approx({"early a": 7.0, "early b": 7.0, "late a": 4.0, "late b": 4.0})
    assert joint == pytest.approx({"early a": 7.0, "early b": 4.0, "late a": 4.0, "late b": 1.0})


@pytest.mark.parametrize(("reads", "policy"), [("joint", "critic"), ("own", "critic of a")])
def test_siblings_share_the_sequence_of_a_critic_of_its_own(reads: critic.Reads, policy: str) -> None:
    actor, judge = Learner(), Learner((policy,), says=lambda datum, place: 0.5)
    root = node(0, {"a": 3}, [leaf({"a": i}, float(i)) for i in range(3)], "x")
    chosen = rule(reads, policy=PolicyConfig(model="seed"))
    data, _ = asked(root, chosen, team_of(actor, judge))
    assert actor.asked == []
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
    judge = Learner(("critic of a",), says=lambda datum, place: float(place))
    chosen = rule(gae_lambda=0.0, level="token", policy=PolicyConfig(model="seed"))
    data, _ = asked(one_answer(9.0).root, chosen, team_of(Learner(), judge))
    policy, own = data
    assert own.token_ids == (*b"p a", 7, 8)
    assert own.targets.at == (2, 3, 4)
    assert policy.advantages[3:] == pytest.approx((1.0, 1.0, 5.0))  # 3 - 2, 4 - 3, 9 - 4
    assert policy.targets is None


def test_a_frozen_role_pays_and_is_not_trained() -> None:
    root = sequential()
    data, _ = asked(_played_by(root, a="shared", b="frozen"), rule(gae_lambda=1.0), team_of(Learner(), b="frozen"))
    assert [datum.role for datum in data] == ["a", "a"]
    assert [datum.advantages[-1] for datum in data] == pytest.approx([7.0, 4.0])


def _played_by(root: Node, **policies: str) -> Node:
    samples = {r: tuple(replace(one, policy=policies[r]) for one in drawn) for r, drawn in root.samples.items()}
    below = [branch.child and _played_by(branch.child, **policies) for branch in root.branches]
    branches = tuple(replace(branch, child=child) for branch, child in zip(root.branches, below, strict=True))
    return replace(root, samples=samples, branches=branches)


class Told(Relay):
    """The relay with a secret for critics."""

    def privileged(self) -> str:
        return f"secret {self.turn}"


@pytest.mark.parametrize("reads", ["own", "joint"])
def test_what_only_critics_may_know_never_reaches_a_policy(reads: critic.Reads) -> None:
    sampler, learner = Scripted(lambda request, index: f"{index}"), Learner()
    roles = dict.fromkeys(Told.roles, "shared")
    team = Team(roles, {"shared": sampler}, dict.fromkeys(roles, Sampling()), (learner,))
    root = asyncio.run(grow(Told(Task("t", {}), 2), team, shape.independent(2), 1.0, 0))
    assert root is not None
    data, shown = asked(root, rule(reads, privileged=True), team)
    assert all(text.endswith(("\n\nsecret 0", "\n\nsecret 1")) for text in shown)
    for datum in data:
        told = "secret" in bytes(datum.token_ids).decode()
        assert told == (not any(datum.mask))
        assert (datum.targets is not None) == told
    assert not any("secret" in message.content for request in sampler.asked for message in request.messages)
    _, plain = asked(root, rule(reads), replace(team, learners=(Learner(),)))
    assert not any("secret" in text for text in plain)


def test_heads_go_where_the_critics_sit() -> None:
    roles = {"a": "one", "b": "one", "c": "two"}
    own = PolicyConfig(model="seed")
    assert heads(rule("own"), roles) == {"one": ("a", "b"), "two": ("c",)}
    assert heads(rule("own", policy=own), roles) == {f"critic of {role}": (role,) for role in roles}
    assert heads(rule("joint", policy=own), roles) == {"critic": ("joint",)}
    assert heads(rule("joint"), {"a": "one", "b": "one"}) == {"one": ("joint",)}


def test_values_come_from_the_engine_that_owns_the_policy() -> None:
    one, two = Learner(("one",), lambda *_: 1.0), Learner(("two",), lambda *_: 2.0)
    root = _played_by(sequential(), a="two", b="one")
    data, _ = asked(root, rule(gae_lambda=1.0), team_of(one, two, a="two", b="one"))
    assert {datum.policy: datum.targets.values for datum in data} == {"one": (1.0,), "two": (2.0,)}


def test_explained_variance() -> None:
    assert explained_variance([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1.0
    assert explained_variance([1.0, 2.0, 3.0], [5.0, 5.0, 5.0]) == pytest.approx(0.0)
    assert explained_variance([1.0, 3.0], [3.0, 1.0]) == pytest.approx(-3.0)  # errors -2 and 2 on a variance of 1
    assert explained_variance([0.0, 4.0], [1.0, 3.0]) == pytest.approx(0.75)  # errors -1 and 1 on a variance of 4
    assert explained_variance([2.0, 2.0], [0.0, 1.0]) == 0.0
    assert explained_variance([2.0], [7.0]) == 0.0


# A reward model.


@dataclass
class ByLength:
    seen: list[tuple[Sequence[Message], str]] = field(default_factory=list)

    def score(self, prompts: Sequence[Sequence[Message]], completions: Sequence[str]) -> list[float]:
        self.seen += zip(prompts, completions, strict=True)
        return [float(len(text)) for text in completions]


def test_a_reward_model_pays_in_place_of_the_environment() -> None:
    judge = ByLength()
    plan = plan_of("rlhf", kl=0.0, gae_lambda=1.0, whiten=False, reward_model="scorer")
    lesson = prepare([one_answer(100.0)], plan, replace(team_of(Learner()), reward_model=judge))
    assert lesson.data[0].advantages[3:] == pytest.approx((5.0,) * 3)  # "p a 0"
    assert lesson.figures["reward_model/score"] == 5.0
    assert judge.seen == [((Message("user", "p a"),), "p a 0")]
    with pytest.raises(ConfigError, match="without one"):
        prepare([one_answer(1.0)], plan, team_of(Learner()))


def test_what_is_selected_holds_for_critics_too() -> None:
    """A cut answer trains the critic and no policy; an overlong one pays with its last token; a role weighs more."""
    root = one_answer(1.0)
    (sample,) = root.root.samples["a"]
    cut = replace(sample, finish="length")
    tree = replace(root, root=replace(root.root, samples={"a": (cut,)}))
    plan = plan_of("rlhf", kl=0.0, gae_lambda=1.0, whiten=False)
    masked = replace(plan, selection=CreditConfig(truncated="mask"))
    lesson = prepare([tree], masked, team_of(Learner()))
    assert lesson.figures["rollout/dropped"] == 1
    assert [any(datum.mask) for datum in lesson.data] == [False]
    assert lesson.data[0].targets is not None
    late = replace(plan, selection=CreditConfig(overlong_buffer=1, overlong_factor=0.25, role_weights={"a": 2.0}))
    (datum,) = prepare([tree], late, team_of(Learner())).data
    assert datum.advantages[3:] == pytest.approx((2.0 * 0.75,) * 3)
