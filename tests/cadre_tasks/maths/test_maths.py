"""Mathematics: rewards by hand, what ends an episode, and what must not pay."""

import asyncio

import pytest

from cadre.types import Sample, Task
from cadre_tasks.maths import same_answer as math
from cadre_tasks.maths.maths import Maths, MathsSingleAgent, MathsVote
from tests.helpers.playing import check, play, seen, total
from tests.helpers.slow import few_of

TASK = Task("t", {"id": "t", "question": "What is 6 times 7?", "answer": "42", "tolerance": 0.0})
RIGHT, WRONG = "6 times 7 is \\boxed{42}.", "It is \\boxed{41}."
PROGRAM, OTHER, BROKEN = "```python\nprint(6 * 7)\n```", "print(43)", "print("


def team(reasoner: str, tool: str) -> dict[str, str]:
    return {"reasoner": reasoner, "tool": tool}


def test_the_two_agree_and_are_right() -> None:
    env = Maths(TASK)
    (reward,) = play(env, team(RIGHT, PROGRAM))
    assert reward.local == pytest.approx({"reasoner": 0.2 + 0.4, "tool": 0.1 + 0.1 + 0.4})
    assert reward.team == pytest.approx(0.4)
    assert env.observe() == {}
    assert env.success


def test_what_each_part_is_worth() -> None:
    worth = {
        (WRONG, OTHER): (0.2, 0.2), (WRONG, BROKEN): (0.2, 0.0), ("42", "1 / 0"): (0.0, 0.1),
        ("\\boxed{}", "x = 42"): (0.0, 0.1), ("\\boxed{42", "print(42); 1 / 0"): (0.0, 0.1),
        ("\\boxed{42.0}", "print('so:')\nprint(84 / 2)"): (0.6, 0.6),
    }  # fmt: skip
    for (reasoner, tool), expected in worth.items():
        (reward,) = play(Maths(TASK), team(reasoner, tool))
        assert (reward.local["reasoner"], reward.local["tool"]) == pytest.approx(expected), (reasoner, tool)


def test_agreeing_on_a_wrong_answer_is_no_success() -> None:
    env = Maths(TASK)
    (reward,) = play(env, team(WRONG, "print(41)"))
    assert env.observe() == {}
    assert not env.success
    assert reward.local == pytest.approx({"reasoner": 0.2, "tool": 0.2})
    assert reward.team == 0.0


def test_the_team_is_paid_for_the_reasoner_s_answer_and_not_for_the_tool_s() -> None:
    (reward,) = play(Maths(TASK), team(WRONG, PROGRAM))
    assert reward.team == 0.0
    assert reward.local == pytest.approx({"reasoner": 0.2, "tool": 0.6})


def test_both_see_what_both_answered_and_a_turn_pays_what_it_gained() -> None:
    env = Maths(TASK)
    rewards = play(env, team(RIGHT, OTHER))
    for role in env.roles:
        assert "In turn 1 the reasoner answered 42 and the tool answered 43." in seen(env, role)
    rewards += play(env, team(WRONG, PROGRAM), team(RIGHT, PROGRAM))
    assert [reward.local["reasoner"] for reward in rewards] == pytest.approx([0.6, -0.4, 0.4])
    assert [reward.local["tool"] for reward in rewards] == pytest.approx([0.2, 0.4, 0.0])
    assert [reward.team for reward in rewards] == pytest.approx([0.4, -0.4, 0.4])
    assert env.success


def sampled(env: Maths, finishes: dict[str, tuple[str, str, int]]) -> None:
    """Step by completions of (text, finish, tokens)."""
    samples = {
        role: Sample(role, "policy", text, (), (1,) * tokens, (0.0,) * tokens, finish, 0)
        for role, (text, finish, tokens) in finishes.items()
    }
    asyncio.run(env.step_samples(samples))


def test_answers_that_were_cut_off_are_reported() -> None:
    env = Maths(TASK)
    sampled(env, {"reasoner": ("So 6 times", "length", 1024), "tool": ("```python\nprint(43)", "length", 7)})
    assert "the reasoner answered nothing (cut off at 1,024 tokens) and the tool answered 43 (cut off" in seen(
        env, "tool"
    )
    sampled(env, {"reasoner": (WRONG, "stop", 9), "tool": (OTHER, "stop", 9)})
    assert "cut off" not in seen(env, "tool")


def test_one_agent_is_told_that_its_program_was_cut_off_and_keeps_its_conversation() -> None:
    env = MathsSingleAgent(TASK)
    sampled(env, {"agent": ("print(", "length", 3)})
    prompt = env.observe()["agent"].messages
    assert prompt[-1].content.startswith("The program printed nothing. It was cut off at 3 tokens. Put")
    sampled(env, {"agent": (WRONG, "stop", 9)})
    assert env.observe()["agent"].messages[: len(prompt)] == prompt


EXPLOITS = {
    "nothing": ("", ""),
    "empty box": ("\\boxed{}", "print()"),
    "many answers in one box": ("\\boxed{" + ",".join(map(str, range(30, 60))) + "}", "print(*range(30, 60), sep=',')"),
    "many boxes": (" ".join(f"\\boxed{{{n}}}" for n in range(42, 60)), "for n in range(42, 60): print(n)"),
    "the question": ("\\boxed{6 times 7}", "print('What is 6 times 7?')"),
    "agree at once on anything": ("\\boxed{0}", "print(0)"),
    "a variable": ("\\boxed{x}", "print('x')"),
    "any real number": ("\\boxed{(-\\infty,\\infty)}", "print('\\\\mathbb{R}')"),
    "equal to everything": (
        "\\boxed{\\text{the right answer}}",
        "class A(str):\n  __eq__ = lambda a, b: True\nprint(A())",
    ),
}


@pytest.mark.parametrize("exploit", EXPLOITS)
def test_no_exploit_earns_what_an_honest_answer_earns(exploit: str) -> None:
    env, rewards = Maths(TASK), []
    while env.observe():
        rewards += play(env, team(*EXPLOITS[exploit]))
    assert not env.success
    assert all(total(rewards, role) <= 0.2 + 1e-9 for role in env.roles)


def test_disagreeing_on_purpose_does_not_pay() -> None:
    """A right answer repeated for as many turns as there are earns what it earns in one."""
    env = Maths(TASK, turns=3)
    rewards = play(env, *[team(RIGHT, OTHER)] * 3)
    assert env.observe() == {}
    assert total(rewards, "reasoner") == pytest.approx(1.0)
    assert [reward.local["tool"] for reward in rewards] == pytest.approx([0.2, 0.0, 0.0])
    assert total(rewards, "tool") == pytest.approx(0.2 + 0.4)  # less than with a right program of its own


def test_copying_a_wrong_partner_pays_no_more_than_the_partner_gets() -> None:
    env = Maths(TASK)
    rewards = play(env, team(WRONG, BROKEN), team(WRONG, "print(41)"))
    assert total(rewards, "tool") <= total(rewards, "reasoner") == pytest.approx(0.2)


def test_a_tolerance() -> None:
    async def close(gold: str, answer: str, tolerance: float) -> bool:
        return await math.solves(gold, answer, tolerance)

    for answer, right in (("4.25", True), ("4.3\\%", True), ("4.35", False), ("-4.2", False), ("4.2", True)):
        assert asyncio.run(close("4.2", answer, 0.1)) is right, answer
    assert asyncio.run(close("4.2", "4.25", 0.0)) is False
    assert asyncio.run(close("4.2", "\\frac{21}{5}", 0.1)) is True


def test_one_agent_with_the_tool() -> None:
    env = MathsSingleAgent(TASK)
    first = env.observe()["agent"].messages
    rewards = play(env, PROGRAM)
    second = env.observe()["agent"].messages
    assert second[: len(first)] == first
    assert second[1].content == PROGRAM
    assert second[2].content.startswith("The program printed 42.")
    rewards += play(env, WRONG)
    assert "not what the program printed" in seen(env, "agent")
    rewards += play(env, PROGRAM, RIGHT)
    assert [reward.local["agent"] for reward in rewards] == pytest.approx([0.2, 0.2, 0.0, 0.4])
    assert [reward.team for reward in rewards] == pytest.approx([0.4, -0.4, 0.4, 0.0])  # shaping first
    assert env.observe() == {}
    assert env.success


def test_a_vote_counts_what_answers_mean() -> None:
    env = MathsVote(TASK, turns=5)
    prompts, rewards = set(), []
    for text in ("\\boxed{40}", "\\boxed{42}", "no box", "\\boxed{84/2}", "\\boxed{40.5}"):
        prompts.add(seen(env, "voter"))
        rewards += play(env, text)
    assert len(prompts) == 1  # nobody sees another's vote
    assert [reward.local["voter"] for reward in rewards] == pytest.approx([0.2, 0.6, 0.0, 0.6, 0.2])
    assert [reward.team for reward in rewards] == pytest.approx([0.0, 0.0, 0.0, 0.4, 0.0])
    assert env.success
    lost = MathsVote(TASK, turns=3)
    play(lost, "\\boxed{1}", "\\boxed{1.0}", RIGHT)
    assert not lost.success


def test_the_majority_by_hand() -> None:
    assert asyncio.run(math.majority(["1/2", "3", None, "0.5", "3", "\\frac{2}{4}"])) == "1/2"
    assert asyncio.run(math.majority(["7", "8"])) == "7"
    assert asyncio.run(math.majority([None, ""])) is None


@pytest.mark.parametrize("name", few_of(["maths", "maths-single-agent", "maths-vote"], ["maths"]))
def test_the_contract(name: str) -> None:
    assert len(check(name, ["\\boxed{42}", PROGRAM], train="math-train", test="math500", turns=2)) == 6
