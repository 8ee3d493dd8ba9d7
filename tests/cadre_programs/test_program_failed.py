"""A program that fails is a branch with a reward, and an overflow of the context reaches it as the API's error."""

import asyncio
import threading

import pytest

from cadre.errors import ProgramFailed, PromptError
from cadre.rollout import shapes
from cadre.rollout.episodes import grow_many
from cadre.rollout.grow import Rollout
from cadre.types import Task
from cadre_programs import rewards
from cadre_programs.program import Program
from cadre_programs.settings import ErrorRule
from tests.helpers.games import scripted_team

PROGRAM = """
import openai

def ask(client, text):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="planner", messages=messages).choices[0].message.content

def run(task, client):
    return globals()[task["program"]](task, client)

def picky(task, client):
    said = ask(client, task["word"])
    if said == "0":
        raise ValueError("cannot read it")
    return 0.5

def trims(task, client):
    ask(client, "first")
    try:
        return float(len(ask(client, "long " * 100)))
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded" and "maximum context length is 50 tokens" in str(error)
        return float(len(ask(client, "short")))

def structured(task, client):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    messages = [{"role": "user", "content": "A number."}]
    made = client.chat.completions.create(model="planner", messages=messages, response_format=form)
    import json
    return float(json.loads(made.choices[0].message.content)["n"])
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """One file for all, as each would be imported by a process of its own."""
    path = tmp_path_factory.mktemp("failed") / "prog.py"
    path.write_text(PROGRAM)
    return path


def grow(file, name, answer, **settings):
    class NamedProgram:
        roles = ("planner",)

    team, _ = scripted_team(NamedProgram, answer)
    reported = []
    rollout = Rollout(
        lambda task: Program(task, f"{file}:run", ["planner"], **settings),
        team,
        shapes.greedy(3),
        1.0,
        failed=reported.append,
    )
    trees, failures = asyncio.run(grow_many([Task("t", {"word": "fox", "program": name})], rollout, 7))
    assert failures == []
    return trees[0].root, reported


def test_a_failed_sibling_is_worth_less_than_the_lowest(file):
    root, reported = grow(file, "picky", lambda request, index: str(index))
    # A failure is never raised to what its siblings earned: it earned nothing, less the margin.
    assert [branch.reward.team for branch in root.branches] == [-0.1, 0.5, 0.5]
    assert [(failure.branches, failure.dropped) for failure in reported] == [(1, False)]
    root, _ = grow(file, "picky", lambda request, index: str(index), errors=-2.0)
    assert [branch.reward.team for branch in root.branches] == [-2.0, 0.5, 0.5]
    # No branch is lost, so the part is what counts them.
    assert [branch.reward.parts["program_failed"] for branch in root.branches] == [1.0, 0.0, 0.0]
    root, _ = grow(file, "picky", lambda request, index: str(index), errors="drop")
    assert [branch.reward.team for branch in root.branches] == [0.5, 0.5]


def test_the_first_program_that_fails_and_is_rewarded_is_reported(file, monkeypatch, capfd):
    """Mistake: with a number for settings.errors no branch fails, and a run of failures alone is silent."""
    monkeypatch.setattr(rewards, "_warned", threading.Event())
    grow(file, "picky", lambda request, index: "0", errors=-2.0)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning")]
    assert line.startswith(
        "warning: a program failed; settings.errors gives it the reward -2, and parts/program_failed"
    )


def test_a_tree_of_failures_alone_is_kept(file):
    root, reported = grow(file, "picky", lambda request, index: "0")
    assert len(root.branches) == 3
    assert all(branch.failure is not None for branch in root.branches)
    assert reported[0].branches == 3


def test_an_overflow_is_an_error_that_the_program_may_answer(file):
    def answer(request, index):
        if request.messages[-1].content.startswith("long"):
            raise PromptError("Role 'planner': its prompt has 400 tokens, and the model's context holds 50 with it.")
        return "four"

    root, reported = grow(file, "trims", answer)
    overflow = root.branches[0].child or root.branches[1].child or root.branches[2].child
    assert overflow.samples["planner"][0].failure.reason == "prompt"
    last = next(branch.child for branch in overflow.branches if branch.child)
    assert [branch.reward.team for branch in last.branches] == [4.0, 4.0, 4.0]
    assert reported == []


def test_an_answer_that_breaks_its_schema_is_asked_for_again_and_costs(file):
    """Mistake: the program parses what is no JSON, or asks without end."""

    def made(**settings):
        task = Task("t", {"program": "structured"})
        return Program(task, f"{file}:run", ["planner"], **settings)

    def say(env, text):
        return asyncio.run(env.step({"planner": text}))

    env = made()
    requests = env.observe()
    assert say(env, "seven").local == {"planner": -0.1}
    assert env.observe() == requests
    reward = say(env, '{"n": 7}')
    assert (reward.team, reward.parts, env.observe()) == (7.0, {"malformed": 0.0}, {})
    env = made(schema_retries=0, errors=ErrorRule(margin=0.5))
    with pytest.raises(ProgramFailed, match="planner broke the JSON schema of its answer 1 times") as failure:
        say(env, '{"n": "7"}')
    assert failure.value.margin == 0.5
    env.close()
    env = made(schema_retries=2, errors=-3.0)
    rewards = [say(env, "{}") for _ in range(3)]
    assert [reward.parts["malformed"] for reward in rewards] == [1.0, 1.0, 1.0]
    assert [reward.team for reward in rewards] == [0.0, 0.0, -3.0]
    assert (env.observe(), env.success) == ({}, False)
