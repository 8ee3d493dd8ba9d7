"""Programs ask for the same when they are started again, whatever they draw, date, cache or do at once."""

import asyncio
from pathlib import Path

import pytest

from cadre.errors import ConfigError
from cadre.types import Message, Sample, Task, Tool, ToolCall
from cadre_programs.calls import ModelCall, ProgramCall
from cadre_programs.instances import raise_diverged
from cadre_programs.processes import ForkServer, ProgramDiverged
from cadre_programs.program import Program
from cadre_programs.settings import InstanceLimits
from tests.helpers.programs import ROLES
from tests.helpers.slow import few_of

REPLAYED = str(Path(__file__).parent / "replayed.py")
TASK = Task("t", {"word": "fox"})
HELD = [
    "dated",
    "child",
    "foldered",
    "handed_over",
    "responded",
    "voted",
    "first_come",
    "staggered",
    "polling",
    "cached",
    "drawn_in_threads",
    "drawn_in_tasks",
]


def program(name, word="fox", **settings):
    return Program(Task("t", {"word": word, "program": name}), f"{REPLAYED}:run", ROLES, **settings)


def branch(env, forks=2):
    """Play to the end and fork at every decision, so that all but the first fork are started anew; the prompts."""
    answers = iter(f"answer {number}" for number in range(1000))

    async def play():
        state, prompts = env, []
        while observations := state.observe():
            prompts.append({role: request.messages[-1].content for role, request in observations.items()})
            twins = [state.fork() for _ in range(forks)]
            for twin in twins:
                text = {role: Sample(role, "p", next(answers), (), (), (), "stop", 0) for role in observations}
                await twin.step_samples(text)
                twin.observe()
            state = twins[-1]
        await state.check_replay()
        return prompts

    try:
        return asyncio.run(play())
    finally:
        env.close()


@pytest.mark.parametrize("name", few_of(HELD, ["dated", "child", "staggered", "cached", "drawn_in_threads"]))
def test_it_asks_for_the_same(name):
    assert len(branch(program(name))) >= 2


@pytest.mark.slow
def test_a_clock_may_stand_elsewhere_and_be_left_as_it_is():
    env = program("dated", clock="2031-05-06T07:08:09")
    assert env.observe()["planner"].messages[0].content.startswith("2031-05-06 07:08:09 ")
    env.close()
    with pytest.raises(ProgramDiverged, match=r"-user: 20.*\n\+user: 20"):
        branch(program("dated", steady=False))
    with pytest.raises(ConfigError, match=r"settings.clock: got 'noon'; expected a time in UTC"):
        program("dated", clock="noon")


def test_what_a_tool_prints_is_masked():
    masks = {r"pid \d+": "pid 1", r"real [\d.]+": 'real\t"0"'}
    assert [list(prompt.values()) for prompt in branch(program("numbered", masks=masks), 1)] == [
        ["fox"],
        ['pid 1\nreal\t"0"s'],
    ]


@pytest.mark.slow
def test_an_animation_does_not_hide_a_difference():
    """Mistake: the time for which a program has to be blocked begins anew whenever one of its threads works."""
    with pytest.raises(ProgramDiverged, match=r"-user: pid \d+\n"):
        branch(program("animated", limits=InstanceLimits(seconds=20)))


@pytest.mark.slow
def test_secrets_are_drawn_by_the_system_unless_the_recipe_says_otherwise():
    with pytest.raises(ProgramDiverged):
        branch(program("drawn_by_the_system"))
    assert len(branch(program("drawn_by_the_system", steady_secrets=True))) == 2


def test_tasks_draw_differently():
    prompts = []
    for word in ("fox", "owl"):
        env = program("dated", word)
        prompts.append(env.observe()["planner"].messages[0].content)
        env.close()
    assert prompts[0] != prompts[1]


def test_a_folder_has_its_name_for_a_program_that_calls_at_once(tmp_path, monkeypatch):
    """Mistake: the folder is known once the start has returned, which the first call of a quick program is ahead of."""
    (tmp_path / "prog.py").write_text(
        "import os\n"
        "def main(task, client):\n"
        "    client.chat.completions.create(model='planner', messages=[{'role': 'user', 'content': os.getcwd()}])\n"
    )
    start = ForkServer.start

    async def start_slowly(self, order):
        running = await start(self, order)
        await asyncio.sleep(0.3)
        return running

    monkeypatch.setattr(ForkServer, "start", start_slowly)
    env = Program(TASK, f"{tmp_path}/prog.py:main", ROLES)
    assert env.observe()["planner"].messages[0].content == "/srv/program/work"
    env.close()


def test_a_folder_has_one_name_and_the_model_may_use_it(tmp_path):
    (tmp_path / "prog.py").write_text(
        "import os\n"
        "def main(task, client):\n"
        "    messages = [{'role': 'user', 'content': os.getcwd()}]\n"
        "    said = client.chat.completions.create(model='planner', messages=messages)\n"
        "    open(said.choices[0].message.content, 'w').write('x')\n"
        "    return float(os.path.exists('made.txt'))\n"
    )
    env = Program(TASK, f"{tmp_path}/prog.py:main", ROLES)
    folder = env.observe()["planner"].messages[0].content
    reward = asyncio.run(env.step({"planner": f"{folder}/made.txt"}))
    env.close()
    assert folder == "/srv/program/work"
    assert reward.team == 1.0


def looked(first, second, **changes):
    """A call after two calls of a tool at once, with a result for each."""
    calls = (ToolCall("call_0", "look", '{"x": 1}'), ToolCall("call_1", "look", '{"x": 2}'))
    results = (Message("tool", "an owl", tool_call_id=first), Message("tool", "a fox", tool_call_id=second))
    messages = (Message("user", "Look twice."), Message("assistant", "", calls), *results)
    return ProgramCall(ModelCall("planner", messages, **changes), 0)


@pytest.mark.parametrize(
    ("second", "lines"),
    [
        (looked("call_1", "call_0"), ["+tool: (of call_1)", "+tool: an owl", "-tool: an owl", "-tool: (of call_1)"]),
        (looked("call_0", "call_1", schema={"type": "object"}), ["+schema: {'type': 'object'}"]),
        (looked("call_0", "call_1", tools=(Tool("look", "Looks.", {}),)), ["+tool: look Looks. {}"]),
    ],
)
def test_the_difference_of_replays_is_told_with_ids(second, lines):
    with pytest.raises(ProgramDiverged) as diverged:
        raise_diverged([looked("call_0", "call_1")], [ProgramCall(ModelCall("coder", ()), 0), second])
    assert set(lines) <= set(str(diverged.value).splitlines())
    assert "coder" not in str(diverged.value)
