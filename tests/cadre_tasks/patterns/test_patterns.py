"""Ways of working together: who sees what when, what is paid, and that what is no work earns less than work."""

from typing import Any

import pytest

from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.types import Reward, Task
from cadre_tasks.patterns import Debate, Gather, Lead, Question, Refine, Review
from cadre_tasks.patterns.question import VERDICT, verdict
from tests.helpers.playing import check, play, seen, source, total
from tests.helpers.slow import few_of

TASK = Task("t", {"id": "t", "question": "What is 6 times 7?", "answer": "42", "tolerance": 0.0})
RIGHT, WRONG, OTHER = "I get \\boxed{42}.", "I get \\boxed{41}.", "I get \\boxed{40}."
YES, NO = "Fine. Verdict: right", "The sum is off. Verdict: wrong"


def said(role: str, *texts: str) -> dict[str, str]:
    return {f"{role}{position}": text for position, text in enumerate(texts, 1)}


def test_a_debate() -> None:
    env = Debate(TASK)
    first = play(env, said("debater", RIGHT, WRONG, OTHER))
    assert "You said:\nI get \\boxed{41}." in seen(env, "debater2")
    assert "Another's answer 1:\nI get \\boxed{42}." in seen(env, "debater2")
    assert "Another's answer 2:\nI get \\boxed{40}." in seen(env, "debater2")
    rewards = first + play(env, said("debater", RIGHT, RIGHT, WRONG))
    assert [total(rewards, name) for name in env.names] == pytest.approx([1.0, 1.0, 0.6])
    assert [reward.team for reward in rewards] == [0.5, 0.0]  # of three answers in the first round each is as frequent
    assert rewards[0].local == pytest.approx({"debater1": 0.5, "debater2": 0.1, "debater3": 0.1})
    assert rewards[1].local == pytest.approx({"debater1": 0.0, "debater2": 0.4, "debater3": 0.0})
    assert env.success
    assert env.observe() == {}


def test_a_debate_lost_by_the_majority() -> None:
    env = Debate(TASK)
    rewards = play(env, said("debater", RIGHT, RIGHT, WRONG), said("debater", WRONG, RIGHT, WRONG))
    assert [total(rewards, name) for name in env.names] == pytest.approx([0.1, 0.5, 0.1])
    assert not env.success


def test_how_many_take_part_is_a_setting() -> None:
    names = {"debate": {"agents": 5}, "review": {"agents": 3}, "lead": {"workers": 4}}
    for name, settings in names.items():
        game = EnvSpec(name, {**settings, "source": source()})
        first = game.make(game.tasks("train")[0])
        (count,) = settings.values()
        assert len(game.roles) == count + (name == "lead")
        assert set(first.observe()) <= set(game.roles)
    with pytest.raises(ConfigError, match="Did you mean agents"):
        EnvSpec("debate", {"agent": 2})
    with pytest.raises(ConfigError, match=r"settings\.leaks: got 'keep'"):
        EnvSpec("debate", {"leaks": "keep"})


def test_generate_verify_refine() -> None:
    env = Refine(TASK)
    rewards = play(env, WRONG)
    assert "I get \\boxed{41}." in seen(env, "verifier")
    rewards += play(env, NO)
    assert "The sum is off." in seen(env, "generator")
    rewards += play(env, RIGHT, YES)
    assert env.observe() == {}
    assert env.success
    assert total(rewards, "generator") == pytest.approx(1.0)
    assert total(rewards, "verifier") == pytest.approx(0.5 + (1 / 3 + 2 / 3) / 2)
    assert [reward.team for reward in rewards] == [0.0, 0.0, 0.5, 0.0]


def test_a_right_answer_that_is_sent_back_costs_the_team_its_shaping() -> None:
    rewards = play(Refine(TASK), RIGHT, NO, RIGHT, YES)
    assert [reward.team for reward in rewards] == [0.5, -0.5, 0.5, 0.0]
    assert [reward.local.get("generator") for reward in rewards] == [0.5, None, 0.0, None]


def refined(*texts: str) -> tuple[float, float]:
    """Return the generator's total reward, and the verifier's own part."""
    rewards = play(Refine(TASK), *texts)
    return total(rewards, "generator"), sum(reward.local.get("verifier", 0.0) for reward in rewards)


@pytest.mark.parametrize(
    ("texts", "worth"),
    [
        ((RIGHT, YES), (1.0, 1 / 2)),
        ((WRONG, NO, WRONG, NO, WRONG, NO), (0.1, 1 / 2)),
        ((WRONG, YES), (0.1, -1 / 2)),  # waving it through
        ((RIGHT, NO, RIGHT, NO, RIGHT, NO), (1.0, -1 / 2)),  # never content, to play on
        ((WRONG, "It looks good.", RIGHT, YES), (1.0, 1 / 6)),  # no verdict is a false one
        ((RIGHT, NO, WRONG, NO, RIGHT, YES), (1.0, 1 / 6)),
    ],
)
def test_what_a_verifier_is_paid(texts: tuple[str, ...], worth: tuple[float, float]) -> None:
    assert refined(*texts) == pytest.approx(worth)


@pytest.mark.parametrize(
    ("text", "intended"),
    [
        (r"Verdict: \boxed{right}", "right"), ('Verdict: "wrong"', "wrong"), ("Verdict: (right)", "right"),
        (r"Verdict: $\text{right}$", "right"), (r"Verdict: $\boxed{\text{wrong}}$", "wrong"),
        ("Verdict : right", "right"),
        ("Verdict\uff1a wrong", "wrong"), ("Verdict: correct", "right"), ("Verdict: incorrect.", "wrong"),
        ("Verdict: rightly so", None), ("Verdict: right or wrong?", None), ("Verdict:\nright", "right"),
    ],
)  # fmt: skip
def test_a_verdict_is_read_as_people_would(text: str, intended: str | None) -> None:
    assert verdict(text) == intended


def test_a_verdict_is_the_last_one() -> None:
    assert verdict("Verdict: right ... no. VERDICT:  wrong.") == "wrong"
    assert verdict("right") is None
    assert verdict(VERDICT) is verdict("Verdict: right or Verdict: wrong") is None  # what was asked, repeated
    assert verdict(f"{VERDICT}\nVerdict: wrong") == "wrong"


@pytest.mark.parametrize(
    "form", ["**Verdict:** {}", "Verdict: **{}**", "Verdict: `{}`", "**Verdict**: _{}_", "`Verdict: {}`"]
)
def test_a_verdict_may_be_emphasised(form: str) -> None:
    for word in ("right", "wrong"):
        assert verdict(f"So it is.\n{form.format(word)}.") == word


def test_review_by_peers() -> None:
    env = Review(TASK)
    rewards = play(env, said("author", RIGHT, WRONG))
    assert "I get \\boxed{41}." in seen(env, "author1")
    assert "I get \\boxed{42}." in seen(env, "author2")
    rewards += play(env, said("author", NO, NO))
    assert "The sum is off." in seen(env, "author2")
    assert "Your answer:\nI get \\boxed{41}." in seen(env, "author2")
    rewards += play(env, said("author", RIGHT, RIGHT))
    assert total(rewards, "author1") == pytest.approx(0.5 + 0.2 + 0.5)
    assert total(rewards, "author2") == pytest.approx(0.1 - 0.2 + 0.4 + 0.5)
    assert [reward.team for reward in rewards] == [0.5, 0.0, 0.0]  # of two answers the first counts
    assert env.success


def test_a_leader_with_workers() -> None:
    env = Lead(TASK)
    rewards = play(env, "Plan:\n1. Multiply 6 by 7.\n2) Check it.\n3. Too many.")
    assert list(env.observe()) == ["worker1", "worker2"]
    assert seen(env, "worker1") == "Multiply 6 by 7."
    rewards += play(env, {"worker1": "It is 42.", "worker2": "Yes."})
    assert "Report 1:\nIt is 42." in seen(env, "leader")
    rewards += play(env, RIGHT)
    assert env.observe() == {}
    assert env.success
    assert [dict(reward.local) for reward in rewards] == [{}, {}, {"leader": 0.5}]  # what follows judges the others
    assert [reward.team for reward in rewards] == [0.0, 0.0, 0.5]
    assert total(rewards, "worker1") == 0.5


def test_a_job_stands_on_the_line_of_its_number() -> None:
    env = Lead(TASK)
    play(env, "1.\n2. Multiply.\n 3) Check. ")
    assert env.jobs == ("Multiply.", "Check.")


@pytest.mark.parametrize(
    ("line", "job"),
    [
        ("**1.** Add.", "Add."), ("(1) Add.", "Add."), ("1: Add.", "Add."), ("Worker 1: Add.", "Add."),
        ("**1**. Add.", "Add."),
        ("2.5 is the answer", None), ("12:30 is the answer", None), ("1 of them", None),
    ],
)  # fmt: skip
def test_a_job_is_numbered_in_the_usual_ways(line: str, job: str | None) -> None:
    env = Lead(TASK)
    play(env, line)
    assert env.jobs == ((job,) if job else ())


def test_a_leader_without_a_plan_answers_alone() -> None:
    env = Lead(TASK)
    play(env, "I will do it myself.")
    assert list(env.observe()) == ["leader"]
    play(env, WRONG)
    assert not env.success


def test_answers_gathered() -> None:
    env = Gather(TASK, answers=3)
    prompts, rewards = set(), []
    for text in (RIGHT, WRONG, RIGHT):
        prompts.add(seen(env, "solver"))
        rewards += play(env, text)
    assert len(prompts) == 1
    assert "Answer 2:\nI get \\boxed{41}." in seen(env, "aggregator")
    rewards += play(env, RIGHT)
    assert [reward.local.get("solver", 0.0) for reward in rewards] == pytest.approx([0.5 / 3, 0.1 / 3, 0.5 / 3, 0.0])
    assert [reward.team for reward in rewards] == [0.5, 0.0, 0.0, 0.0]
    assert rewards[-1].local == {"aggregator": 0.5}
    assert env.success


class Capital(Question):
    """Another task than mathematics, as a user would write it."""

    @property
    def question(self) -> str:
        return "What is the capital of France?"

    async def right(self, answer: str) -> bool:
        return answer.strip() == "Paris"


class CapitalRefine(Capital, Refine):
    pass


def test_a_pattern_over_another_task() -> None:
    env = CapitalRefine(TASK)
    assert seen(env, "generator") == "What is the capital of France?"
    play(env, "Paris", YES)
    assert env.success


LAZY = {
    "nothing": "",
    "no answer": "I agree with the others.",
    "always right": YES,
    "always wrong": NO,
    "empty": "\\boxed{}",
}


@pytest.mark.parametrize("lazy", LAZY)
@pytest.mark.parametrize("kind", [Debate, Gather, Lead, Refine, Review])
def test_what_is_no_work_earns_less_than_work(kind: type[Question], lazy: str) -> None:
    env: Any = kind(TASK)
    rewards: list[Reward] = []
    while env.observe():
        rewards += play(env, LAZY[lazy])
    roles = {role for reward in rewards for role in reward.local} | {"leader"}
    assert not env.success
    assert all(total(rewards, role) <= (1.0 if role == "verifier" else 0.2) for role in roles)


@pytest.mark.parametrize("name", few_of(["debate", "gather", "lead", "refine", "review"], ["debate", "review"]))
def test_the_contract(name: str) -> None:
    assert len(check(name, [RIGHT, WRONG, YES, NO, "1. Add.\n2. Check."])) == 6
