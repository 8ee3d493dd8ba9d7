"""Coder and tester: rewards by hand on stdin/stdout and on calls, what ends an episode, and what must not pay."""

import asyncio
from typing import Any

import pytest

from cadre.types import Sample, Task
from cadre_tasks.code.code import Code, CodeSingleAgent
from cadre_tasks.code.judge import all_tests, judge
from cadre_tasks.data import load
from cadre_tasks.data.records import CodingProblem
from tests.cadre_sandbox.attacks.cheats import CHEATS
from tests.helpers.playing import check, play, seen, source, total
from tests.helpers.public_sets import FOLDER, rows
from tests.helpers.slow import few_of

ADD = "a, b = map(int, input().split())\nprint(a + b)"
TESTS = "```input\n4 4\n```\n```output\n8\n```\n```input\n1 0\n```\n```output\n1\n```"
ECHO = "```input\n1 2\n```\n```output\n3\n```"


def problem(name: str, split: str = "test", position: int = 0) -> CodingProblem:
    record = load(name, split, source())[position]
    assert isinstance(record, CodingProblem)
    return record


def env_of(program: CodingProblem, **settings: Any) -> Code:
    return Code(Task(program.id, dict(vars(program))), **settings)


def team(coder: str, tester: str) -> dict[str, str]:
    return {"coder": coder, "tester": tester}


def test_a_script_with_hidden_tests() -> None:
    env = env_of(problem("code-contests"))
    assert "1 2" in seen(env, "coder")
    assert "9 1" not in seen(env, "coder") + seen(env, "tester")
    (reward,) = play(env, team(f"```python\n{ADD}\n```", TESTS))
    assert reward.local == pytest.approx({"coder": 0.1 + 0.1 + 0.4, "tester": 0.2 + 0.2 + 0.2})
    assert reward.team == pytest.approx(0.4)
    assert env.success
    assert env.observe() == {}


CODERS = {
    "nothing": ("", 0.0),
    "no program": ("I would add the numbers.", 0.0),
    "the example's output": ("print(3)", 0.2),
    "the example as a table": ("print({'1 2': 3}[input()])", 0.1 + 0.1),  # runs on the example
    "one hidden test in three": ("input(); print(4)", 0.2 + 0.4 / 3),
    "an error": ("1 / 0", 0.1),
    "exit": ("import os; os._exit(0)", 0.2),
    "the input": ("print(input())", 0.2),
}


@pytest.mark.parametrize("case", CODERS)
def test_what_a_program_is_worth(case: str) -> None:
    program, worth = CODERS[case]
    env = env_of(problem("code-contests"))
    (reward,) = play(env, team(program, ""))
    assert reward.local["coder"] == pytest.approx(worth)
    assert reward.team == pytest.approx(0.4 / 3 if case == "one hidden test in three" else 0.0)
    assert not env.success


@pytest.mark.parametrize("cheat", ["equal to everything", "exits at once", "forged verdict on stdout"])
@pytest.mark.parametrize("position", [0, 1])
def test_known_cheats_pass_no_hidden_test(cheat: str, position: int) -> None:
    env = env_of(problem("apps", "test", position))
    (reward,) = play(env, team(CHEATS[cheat].replace("@ENTRY@", env.program.entry), ""))
    assert reward.parts["coder/tests"] == 0.0
    assert not env.success


@pytest.mark.parametrize(
    ("tests", "worth"),
    [("", 0.0), (ECHO, 0.0), ("```input\n4 4\n```\n```output\n9\n```", 0.2), ("assert True", 0.0), (TESTS, 0.6)],
)
def test_what_tests_are_worth(tests: str, worth: float) -> None:
    env = env_of(problem("code-contests"))
    (reward,) = play(env, team("print(0)", tests))
    assert reward.local["tester"] == pytest.approx(worth)


def test_turns_go_on_until_the_tests_pass_and_pay_what_they_gained() -> None:
    env = env_of(problem("code-contests"), turns=3)
    rewards = play(env, team("print(0)", TESTS))
    shown = seen(env, "coder")
    assert "print(0)" in shown
    assert "Of them 0 of 2 passed." in shown
    rewards += play(env, team(ADD, ""))  # right, but nothing has tested it
    assert env.success
    assert env.observe() != {}
    rewards += play(env, team(ADD, TESTS))
    assert env.observe() == {}
    assert [reward.local["coder"] for reward in rewards] == pytest.approx([0.2, 0.4, 0.0])
    assert [reward.local["tester"] for reward in rewards] == pytest.approx([0.6, -0.6, 0.6])
    assert [reward.team for reward in rewards] == pytest.approx([0.0, 0.4, 0.0])


def test_the_last_program_is_the_one_that_counts() -> None:
    env = env_of(problem("code-contests"), turns=2)
    rewards = play(env, team(ADD, ""), team("print(0)", ""))
    assert not env.success
    assert total(rewards, "coder") == pytest.approx(0.2)


def test_without_a_reference_the_program_that_passes_stands_in() -> None:
    bare = problem("code-contests")
    unknown = CodingProblem(bare.id, bare.statement, public=bare.public, hidden=bare.hidden)
    (right,) = play(env_of(unknown), team(ADD, TESTS))
    (wrong,) = play(env_of(unknown), team("print(0)", TESTS))
    assert right.local["tester"] == pytest.approx(0.6)
    assert wrong.local["tester"] == pytest.approx(0.2)


@pytest.mark.parametrize("reference", ["print(0)", "print int(1)"])
def test_a_reference_that_fails_the_tests_of_its_problem_is_none(reference: str) -> None:
    """Mistake: tests that agree with a wrong solution of a public set are paid, and right ones are not."""
    bare = problem("code-contests")
    unsolved = CodingProblem(bare.id, bare.statement, public=bare.public, hidden=bare.hidden, reference=reference)
    (right,) = play(env_of(unsolved), team(ADD, TESTS))
    (wrong,) = play(env_of(unsolved), team("print(0)", TESTS))
    assert right.local["tester"] == pytest.approx(0.6)
    assert wrong.local["tester"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("name", "position", "program", "tests"),
    [
        ("apps", 0, "def total(items):\n    return sum(items)", "assert total([4, 5]) == 9\nassert total([2]) == 2"),
        ("apps", 1, "class Solution:\n    def ends(self, items):\n        return items[0], items[-1]", ""),
        ("livecodebench", 0, "print(2 * int(input()))", "```input\n7\n```\n```output\n14\n```"),
        (
            "livecodebench",
            1,
            "class Solution:\n    def ends(self, items: List[int], turn: bool) -> List[int]:\n"
            "        found = [items[0], items[-1]]\n        return found[::-1] if turn else found",
            "assert ends([7, 8, 9], False) == [7, 9]\nassert ends([7, 8], True) == [8, 7]",
        ),
        ("mbpp", 0, "def add_rice(items):\n    return items + ['rice']", "assert add_rice(['x']) == ['x', 'rice']"),
    ],
)
def test_every_protocol(name: str, position: int, program: str, tests: str) -> None:
    env = env_of(problem(name, "test", position))
    (reward,) = play(env, team(program, f"```python\n{tests}\n```" if "assert" in tests else tests))
    assert env.success
    assert reward.local["coder"] == pytest.approx(0.6)
    assert reward.local["tester"] == pytest.approx(0.6 if tests else 0.0)
    assert reward.team == pytest.approx(0.4)


def test_so_many_cases_decide() -> None:
    env = env_of(problem("code-contests"), cases=1)
    play(env, team("print(10)", ""))
    assert env.success  # the first hidden case only


def test_prompts_end_with_what_to_reply_with_if_asked_for() -> None:
    script, function = problem("code-contests"), problem("humaneval")
    assert function.entry
    coder = f"Reply with the complete Python function `{function.entry}` only, in one ```python block."
    env = env_of(function, prompts="function", turns=2)
    assert seen(env, "coder").endswith(coder)
    assert seen(env, "tester").endswith(f"lines `assert {function.entry}(...) == ...` only, in one ```python block.")
    play(env, team("def other(): ...", ""))
    assert "There were no tests in it that count." in seen(env, "coder")
    assert seen(env, "coder").endswith(
        f"Correct the last program, or repeat it if it is right: the tests may be wrong. {coder}"
    )
    env = env_of(script, prompts="function", turns=2)
    assert seen(env, "coder").endswith("It reads standard input and prints the answer.")
    assert seen(env, "tester").endswith("Reply with pairs of blocks ```input and ```output only.")
    agent = CodeSingleAgent(Task(function.id, dict(vars(function))), prompts="function")
    assert seen(agent, "agent").endswith(coder)
    play(agent, "def other(): ...")
    assert "Your program is:\ndef other(): ...\n\nDo not write this function." in seen(agent, "agent")


def cut(role: str, text: str, tokens: int) -> Sample:
    return Sample(role, "policy", text, (), (1,) * tokens, (0.0,) * tokens, "length" if tokens else "stop", 0)


def test_texts_that_were_cut_off_are_reported() -> None:
    env = env_of(problem("code-contests"), turns=3)
    samples = {"coder": cut("coder", "```python\nprint(0", 2048), "tester": cut("tester", TESTS, 0)}
    asyncio.run(env.step_samples(samples))
    assert "The last program was:\nprint(0\nIt was cut off at 2,048 tokens.\n" in seen(env, "coder")
    assert seen(env, "coder").count("cut off") == 1


def test_one_agent_is_told_that_its_program_was_cut_off() -> None:
    program = problem("code-contests")
    env = CodeSingleAgent(Task(program.id, dict(vars(program))))
    asyncio.run(env.step_samples({"agent": cut("agent", "```python\nprint(0", 64)}))
    assert seen(env, "agent").endswith("Your program is:\nprint(0\nIt was cut off at 64 tokens.")


def test_one_agent_writes_both() -> None:
    program = problem("code-contests")
    env = CodeSingleAgent(Task(program.id, dict(vars(program))))
    (draft,) = play(env, ADD)
    assert (draft.team, draft.local["agent"]) == pytest.approx((0.4, 0.6))
    assert ADD in seen(env, "agent")
    (tests,) = play(env, TESTS)
    assert (tests.team, tests.local["agent"]) == pytest.approx((0.0, 0.6))
    assert env.success
    assert env.observe() == {}


def test_one_agent_is_paid_what_a_turn_changed() -> None:
    program = problem("code-contests")
    env = CodeSingleAgent(Task(program.id, dict(vars(program))), turns=2)
    rewards = play(env, "print(0)", TESTS)
    assert "The last program was:\nprint(0)" in seen(env, "agent")
    rewards += play(env, ADD)
    assert "The last program was:\nprint(0)" in seen(env, "agent")
    assert f"Your program is:\n{ADD}" in seen(env, "agent")
    rewards += play(env, "")
    assert [reward.local["agent"] for reward in rewards] == pytest.approx([0.2, 0.6, 0.4, -0.6])
    assert [reward.team for reward in rewards] == pytest.approx([0.0, 0.0, 0.4, 0.0])
    assert env.success


@pytest.mark.parametrize("name", few_of(["code", "code-single-agent"], ["code"]))
def test_the_contract(name: str) -> None:
    settings = {"train": "apps", "test": "code-contests", "turns": 2}
    assert len(check(name, [ADD, TESTS], episodes=1, **settings)) == 6


def test_cheats_and_outputs_of_the_public_contests() -> None:
    """Known cheats, and programs that print what the statement shows, on a sample; no references come with this set."""
    rows("code_contests/test.jsonl")
    programs = [item for item in load("code-contests", "test", str(FOLDER)) if isinstance(item, CodingProblem)]
    small = [program for program in programs if len(program.hidden) < 12 and program.public][::8]

    async def go() -> list[bool]:
        tries = [(item, f"print({item.public[0][1]!r})") for item in small]
        tries += [(item, cheat) for item in small[:2] for cheat in (CHEATS["exits at once"], CHEATS["hunt by gc"])]
        verdicts = await asyncio.gather(*(judge(text, all_tests(item)) for item, text in tries))
        return [verdict.ok for verdict in verdicts]

    assert len(small) >= 5
    assert not any(asyncio.run(go()))


def test_a_function_may_have_a_script_of_its_own_below_it() -> None:
    """Mistake: what stands below `if __name__ == "__main__"` reads what nobody gave it, and counts as an error."""
    program = CodingProblem("p", "Add.", entry="add", hidden=(((1, 2), 3),))
    code = "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int' = 1\ndef add(a, b): return a + b\n"
    for below, runs in (
        ("if __name__ == '__main__':\n    print(add(*map(int, input().split())))", 0.1),
        ("1 / 0", 0.0),
    ):
        (reward,) = play(env_of(program), team(code + below, ""))
        assert reward.parts["coder/runs"] == runs
    assert reward.parts["coder/tests"] == 0.0
