"""Programs as environments: what they ask is observed, answers are steps, forks are instances that are started anew."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cadre.errors import ConfigError, ContractError, ProgramFailed
from cadre.rollout import shapes, walk
from cadre.rollout.episodes import grow_many
from cadre.rollout.grow import Rollout
from cadre.types import BranchFailure, Message, Reward, Sample, Task, ToolCall
from cadre_programs import instances
from cadre_programs.instances import shared_host
from cadre_programs.processes import (
    ProgramDiverged,
    ProgramResult,
    StartOrder,
    Stuck,
    cache_variables,
)
from cadre_programs.program import Program
from cadre_programs.rewards import compute_outcome
from cadre_programs.settings import InstanceLimits
from tests.helpers.games import scripted_team
from tests.helpers.programs import AGENTS, ROLES

TASK = Task("t", {"word": "fox"})


@pytest.fixture
def impatient(monkeypatch):
    """A program that asks for something else is not waited for: nothing that it asks for is late."""
    monkeypatch.setattr(instances, "REPLACED_S", 0.2)


# These are told by their signature: whether they take a client, and which.
BY_SIGNATURE = ("swarm", "unaided")


def program(name, task=TASK, **settings):
    """Make the environment of a function of agents.py."""
    if name in BY_SIGNATURE:
        return Program(task, f"{AGENTS}:{name}", ROLES, **settings)
    named = replace(task, data={**task.data, "program": name})
    return Program(named, f"{AGENTS}:run", ROLES, **settings)


def play(env, *expected):
    """Step with these texts, said by whoever acts; the rewards."""

    async def steps():
        return [await env.step(dict.fromkeys(env.observe(), text)) for text in expected]

    try:
        return asyncio.run(steps())
    finally:
        env.close()


def grown(make, answer, shape, tasks=(TASK,), roles=ROLES):
    class Named:
        pass

    Named.roles = tuple(roles)
    team, sampler = scripted_team(Named, answer)
    return asyncio.run(grow_many(tasks, Rollout(make, team, shape, 1.0), 7)), sampler


def test_a_program_is_observed_and_answered():
    env = program("relay")
    shown = env.observe()
    assert shown["planner"].messages == (Message("user", "turn 0 of fox"),)
    assert play(env, "a", "a", "b", "c") == [Reward(), Reward(), Reward(), Reward(team=0.5)]
    assert env.observe() == {}
    assert env.success is False


def test_a_command_is_a_program():
    env = Program(TASK, [sys.executable, AGENTS], ROLES)
    assert play(env, "a", "a", "b", "b")[-1] == Reward(team=1.0, parts={"told": 1.0})
    assert env.success


def printing(code):
    return Program(TASK, [sys.executable, "-c", f"import sys; {code}"], ROLES)


def test_complaints_after_the_reward_do_not_hide_it():
    """Mistake: standard output and errors in one file, of which the last line is read."""
    env = printing("print('1.0'); print('warning: shutting down', file=sys.stderr)")
    assert env.observe() == {}
    assert env.outcome.reward == Reward(team=1.0)
    long = printing("import json; print(json.dumps({'team': 0.5, 'parts': {str(n): 1.0 for n in range(1000)}}))")
    assert long.observe() == {}
    assert long.outcome.reward.team == 0.5


def test_a_last_line_that_is_no_reward_is_told():
    """Mistake: what cannot be read pays 0, and nobody hears of it."""
    with pytest.raises(ProgramFailed, match=r"printed last is none: 'score: 1.0'; expected a number"):
        printing("print('score: 1.0')").observe()
    nothing = printing("pass")
    assert nothing.observe() == {}
    assert nothing.outcome.reward == Reward()


def test_a_chosen_path_does_not_hide_what_programs_may_import():
    """Mistake: PYTHONPATH of the settings in place of the one that `cadre_program` is in."""
    code = "import os, cadre_program; print(float(os.environ['PYTHONPATH'].endswith('/elsewhere')))"
    env = Program(TASK, [sys.executable, "-c", code], ROLES, environment={"PYTHONPATH": "/elsewhere"})
    assert env.observe() == {}
    assert env.outcome.reward == Reward(team=1.0)


@pytest.mark.parametrize("configured", [{}, {"TIKTOKEN_CACHE_DIR": "/mine"}, {"DATA_GYM_CACHE_DIR": "/old"}])
def test_the_folder_of_tiktokens_tables_is_the_users_or_the_librarys(monkeypatch, configured):
    """Mistake: a variable that the user has not set, so that libraries ignore the tables that they bring."""
    for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in configured.items():
        monkeypatch.setenv(name, value)
    program = {**os.environ, **cache_variables("/caches")}
    assert program.get("TIKTOKEN_CACHE_DIR") == configured.get("TIKTOKEN_CACHE_DIR")
    default = f"{tempfile.gettempdir()}/data-gym-cache"  # tiktoken's own, and not in the folder of an instance
    assert program["DATA_GYM_CACHE_DIR"] == configured.get("DATA_GYM_CACHE_DIR", default)


def test_patience_begins_anew_with_every_call():
    """Mistake: a time for what one step takes, in which a fork has to do all steps again."""
    env = program("slow", limits=InstanceLimits(seconds=0.9))

    async def steps():
        for _ in range(3):
            await env.step(dict.fromkeys(env.observe(), "a"))
        fork = env.fork()
        return await fork.step(dict.fromkeys(fork.observe(), "a"))

    try:
        assert asyncio.run(steps()) == Reward(team=1.0)
    finally:
        env.close()


def test_the_end_of_one_instance_leaves_the_processes_of_others_alone():
    first, second = program("daemon"), program("daemon")
    first.observe()
    second.observe()
    assert play(second, "a") == [Reward(team=1.0)]
    assert play(first, "a") == [Reward(team=1.0)]


def test_a_fork_is_started_anew_and_leaves_its_origin_alone():
    async def played():
        env = program("relay")
        for text in ("a", "a"):
            await env.step(dict.fromkeys(env.observe(), text))
        forks = [env.fork() for _ in range(3)]
        await asyncio.gather(*(fork.step({"planner": text}) for fork, text in zip(forks, "xyz", strict=True)))
        shown = [fork.observe()["coder"].messages[-1].content for fork in forks]
        rewards = [await fork.step({"coder": "y"}) for fork in forks]
        assert env.observe()["planner"].messages[-1].content == "turn 1 of fox"
        env.close()
        return shown, rewards, [fork.success for fork in forks]

    shown, reward, success = asyncio.run(played())
    assert shown == ["repeat x", "repeat y", "repeat z"]
    assert reward == [Reward(team=0.5), Reward(team=1.0), Reward(team=0.5)]
    assert success == [False, True, False]


def test_a_conversation_goes_on():
    env = program("relay")
    asyncio.run(env.step({"planner": "a"}))
    asyncio.run(env.step({"coder": "a"}))
    recorded = env.observe()["planner"]
    assert [message.content for message in recorded.messages] == ["turn 0 of fox", "a", "turn 1 of fox"]
    assert recorded.conversation == ""
    env.close()


@pytest.mark.parametrize("name", ["pair", pytest.param("swarm", marks=pytest.mark.slow)])
def test_what_is_asked_at_once_is_seen_at_once(name):
    def answer(request, index):
        return "yes" if index else f"no {len(request.messages[-1].content)}"

    trees = []
    for _ in range(3):
        (grown_trees, failures), _ = grown(lambda task: program(name, task), answer, shapes.greedy(2))
        assert failures == []
        trees.append(grown_trees)
    assert trees[0] == trees[1] == trees[2]
    root = trees[0][0].root
    assert list(root.observations) == (ROLES if name == "pair" else ["planner"])


def test_trees_fork_at_every_decision():
    (trees, failures), sampler = grown(
        lambda task: program("relay", task), lambda request, index: "a" * (index + 1), shapes.full(2)
    )
    assert failures == []
    assert len(list(walk.episodes(trees[0].root))) == 2**4
    reward = {sum(branch.reward.team for _, branch in path) for path in walk.episodes(trees[0].root)}
    assert reward == {0.0, 0.5, 1.0}
    assert [request.previous is None for request in sampler.requests[:2]] == [True, True]


def test_each_completion_of_a_request_for_several_is_a_decision():
    """Mistake: the first is not taken in before the second is there, which nobody asks for until then."""
    limits = InstanceLimits(seconds=10)
    (trees, failures), _ = grown(
        lambda task: program("several", task, limits=limits),
        lambda request, index: request.messages[-1].content[:1] + "ab"[index],
        shapes.full(2),
    )
    assert failures == []
    paths = list(walk.episodes(trees[0].root))
    prompts = {
        tuple(node.observations[role].messages[-1].content for node, _ in path for role in node.samples)
        for path in paths
    }
    assert sorted(prompts) == [("fox", "fox", pair) for pair in ("fa fa", "fa fb", "fb fa", "fb fb")]
    # The coder says fa or fb: it repeats the second plan once for each pair.
    assert sorted(path[-1][1].reward.team for path in paths) == [0.0] * 4 + [1.0] * 4


def test_a_request_for_several_that_is_refused_is_made_anew_as_a_whole():
    env = program("several", limits=InstanceLimits(seconds=10))
    overflow = BranchFailure("prompt", "The prompt has 900 tokens, and the context holds 512.", rewarded=True)

    async def played():
        failed = Sample("planner", "p", "", (), (), (), "stop", 0, failure=overflow)
        await env.step_samples({"planner": failed})
        shown = []
        for text in ("a", "b", "b"):
            ((role, observation),) = env.observe().items()
            shown.append(observation.messages[-1].content)
            reward = await env.step({role: text})
        return shown, reward

    assert asyncio.run(played()) == (["short", "short", "a b"], Reward(team=1.0))
    env.close()


def test_tool_calls_go_to_the_program_and_what_it_returns_comes_back():
    env = program("calls")
    recorded = env.observe()["planner"]
    assert recorded.tools[0].name == "add"
    message = Message("assistant", "", (ToolCall("call_0", "add", '{"a": 1, "b": 2}'),))
    text = Sample("planner", "p", "<tool_call>", (), (), (), "stop", 0, message)
    fork = env.fork()
    malformed = asyncio.run(fork.step_samples({"planner": replace(text, call_error="None.")}))
    assert malformed.parts == {"malformed_calls": 1.0}
    fork.close()
    assert asyncio.run(env.step_samples({"planner": text})).parts == {"malformed_calls": 0.0}
    later = env.observe()["planner"].messages
    assert [message.role for message in later] == ["user", "assistant", "tool"]
    assert later[-1].content == "3"
    assert later[1].tool_calls[0].id == later[-1].tool_call_id
    assert play(env, "3") == [Reward(team=1.0)]


@pytest.mark.usefixtures("impatient")
def test_a_program_that_asks_for_something_else_is_told_how():
    env = program("odd")
    asyncio.run(env.step({"planner": "a"}))
    first, second = env.fork(), env.fork()
    asyncio.run(first.step({"planner": "b"}))
    with pytest.raises(ProgramDiverged, match=r"-user: fox .*\n\+user: fox"):
        asyncio.run(second.step({"planner": "b"}))
    env.close()


@pytest.mark.usefixtures("impatient")
def test_divergence_costs_the_branch_and_no_other():
    """Samples of the branch are left out, as they answer another request; the other branch is kept."""
    tasks = [Task("one", {"word": "a", "main": "odd"}), Task("two", {"word": "b", "main": "relay"})]
    messages = []

    class Named:
        roles = ROLES

    team, _ = scripted_team(Named, lambda request, index: str(index))
    shape = shapes.greedy(2)
    rollout = Rollout(lambda task: program(task.data["main"], task), team, shape, 1.0, failed=messages.append)
    trees, failures = asyncio.run(grow_many(tasks, rollout, 7))
    assert failures == []
    assert [tree.task.id for tree in trees] == ["one", "two"]
    second = trees[0].root.branches[0].child
    assert [sample.text for sample in second.samples["planner"]] == ["0"]
    assert len(second.branches) == 1
    assert [(failure.reason, failure.dropped, failure.branches) for failure in messages] == [("diverged", False, 1)]
    assert "asks for something else" in messages[0].error


def test_a_program_that_cannot_be_replayed_plays_side_by_side():
    (trees, failures), _ = grown(
        lambda task: program("odd_first", task, replayable=False),
        lambda request, index: "yes",
        shapes.independent(3),
    )
    assert failures == []
    assert [path[-1][1].success for path in walk.episodes(trees[0].root)] == [True] * 3


BAD = {
    "raises": (ProgramFailed, "KeyError: 'mistake'"),
    "hangs": (Stuck, "neither asked for anything nor ended"),
    "exits": (ProgramFailed, "exit code 3"),
    "forks": (ProgramFailed, "more than 20 processes"),
    "eats": (ProgramFailed, "MemoryError"),
    "swallows": (ProgramFailed, "more than 5 calls"),
    "unpaid": (ProgramFailed, "expected a number"),
}


def limits_of(name):
    return InstanceLimits(seconds=0.5 if name == "hangs" else 5.0, memory=2.0, processes=20, calls=5)


@pytest.mark.parametrize("name", BAD)
def test_a_program_that_misbehaves_fails_and_leaves_nothing_behind(name):
    kind, words = BAD[name]
    env = program(name, limits=limits_of(name))
    with pytest.raises(kind, match=words):
        play(env, *"aaaaaaa")
    assert wait_for(lambda: left_behind() == [])


def test_what_fails_may_be_paid():
    env = program("raises", errors=-1.0)
    assert play(env, "a") == [Reward(team=-1.0, parts={"program_failed": 1.0})]
    assert (env.observe(), env.success) == ({}, False)


@pytest.mark.parametrize("name", sorted(set(BAD) - {"unpaid"}))
def test_whatever_it_is_that_failed(name):
    """A program that Cadre had to end is paid as one that ended itself is."""
    env = program(name, errors=-1.0, limits=limits_of(name))

    async def to_its_end():
        rewards = []
        while acting := env.observe():
            rewards.append(await env.step(dict.fromkeys(acting, "a")))
        return rewards

    try:
        reward = asyncio.run(to_its_end())
        assert (reward[-1].team if reward else env.outcome.reward.team) == -1.0
        assert env.success is False
    finally:
        env.close()
    assert wait_for(lambda: left_behind() == [])


def test_a_start_that_nobody_waits_for_costs_no_other():
    """A program is being started when its episode is cancelled; it ends, and others start as before."""
    host, first = shared_host(), program("relay")
    play(first, "a")
    fork_server = host.fork_servers[first.episode.launch].result()

    async def cancelled():
        env = program("relay")
        start = StartOrder(
            {"id": "t", "word": "fox", "program": "relay"}, "http://127.0.0.1:9/v1", "k", Path(env.episode.memo)
        )
        begun = asyncio.ensure_future(fork_server.start(start))
        await asyncio.sleep(0)
        begun.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begun

    initial_left_behind = set(left_behind())  # other tests' instances may still be ending
    for _ in range(3):
        host.server.submit(cancelled()).result(5)
    assert wait_for(lambda: set(left_behind()) <= initial_left_behind and fork_server.starting == {})
    assert not fork_server.has_ended
    assert play(program("relay"), "a", "a", "b", "c")[-1] == Reward(team=0.5)


def test_the_client_of_a_function_is_warmed_up_before_instances_are_forked():
    """Mistake: only where the file imports the client itself."""
    env = program("warmed")
    assert env.observe() == {}
    assert env.outcome.reward == Reward(team=1.0)


def test_programs_that_differ_in_their_limits_share_a_fork_server():
    first, second = program("relay"), program("relay", limits=InstanceLimits(calls=3))
    first.observe()
    count = len(shared_host().fork_servers)
    with pytest.raises(ProgramFailed, match="more than 3 calls"):
        play(second, *"aaaa")
    first.close()
    assert len(shared_host().fork_servers) == count


def test_a_fork_server_that_was_killed_is_started_again():
    env = program("relay")
    env.observe()
    host = shared_host()
    opening = host.fork_servers[env.episode.launch]
    os.kill(opening.result().process.pid, signal.SIGKILL)
    assert wait_for(lambda: opening.result().has_ended)
    env.close()
    assert play(program("relay"), "a", "a", "b", "c")[-1] == Reward(team=0.5)
    assert host.fork_servers[env.episode.launch] is not opening


def left_behind():
    """Processes of the fork servers' instances."""
    host = shared_host()
    roots = [task.result().process.pid for task in host.fork_servers.values() if task.done()]
    host.process_table._read_at = -1.0
    return [pid for root in roots for pid in host.process_table.process_tree(root)[1:]]


def wait_for(condition, seconds=5.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


@pytest.mark.usefixtures("impatient")
def test_side_effects_happen_once_and_folders_are_ones_own(tmp_path):
    log = tmp_path / "log"
    task = Task("t", {"word": "fox", "log": str(log)})
    for folder, recorded in (("fresh", "x"), ("copied", "xx")):
        log.unlink(missing_ok=True)
        env = program("tools", task, folder=folder)
        asyncio.run(env.step({"planner": "a"}))
        assert env.observe()["planner"].messages[-1].content == "1 x"
        forks = [env.fork() for _ in range(2)]
        if folder == "copied":
            asyncio.run(forks[0].step({"planner": "b"}))
            with pytest.raises(ProgramDiverged, match=rf"\+user: 1 {recorded}"):
                asyncio.run(forks[1].step({"planner": "b"}))
        else:
            reward = [asyncio.run(fork.step({"planner": "b"})) for fork in forks]
            assert reward == [Reward(team=0.25, local={"planner": 0.5})] * 2
        assert log.read_text() == "x"
        env.close()


def test_rewards_posted_and_returned_are_paid_where_they_fall(tmp_path):
    task = Task("t", {"word": "fox", "log": str(tmp_path / "log")})
    env = program("tools", task)
    assert play(env, "a", "b", "c") == [Reward(), Reward(0.25, {"planner": 0.5}), Reward(1.0)]
    assert env.success is False


def test_a_function_of_the_users_pays():
    env = program("relay", reward=f"{AGENTS}:score")
    assert play(env, "fox", "fox", "fox", "x")[-1] == Reward(team=0.75)
    assert env.success is False


@pytest.mark.parametrize("name", ["score_later", "score_as_scalar"])
def test_a_function_of_the_users_may_be_a_coroutine_or_return_a_scalar_of_numpy(name):
    """Mistake: the episode fails, as if its program had."""
    env = program("relay", reward=f"{AGENTS}:{name}")
    assert play(env, "fox", "fox", "fox", "x")[-1] == Reward(team=0.75)
    silent = program("scalars", reward=f"{AGENTS}:{name}")
    assert silent.observe() == {}
    assert silent.outcome.reward == Reward(team=0.25)


def test_a_program_may_return_scalars_of_numpy():
    env = program("scalars")
    assert env.observe() == {}
    assert env.outcome.reward == Reward(0.5, {"planner": 2.0})
    assert env.success is True


def test_a_function_that_returns_no_reward_is_its_own_fault_and_not_the_programs():
    with pytest.raises(ContractError, match=r"agents\.py:score_in_words returned what is no reward.*got str 'good'"):
        play(program("relay", reward=f"{AGENTS}:score_in_words"), "a", "a", "b", "c")


@pytest.mark.parametrize("name", ["score_turn", "score_turn_later"])
def test_a_turns_own_reward_needs_no_other_run(name):
    env = program("twice", turn_reward=f"{AGENTS}:{name}")
    (trees, failures), _ = grown(
        lambda task: env, lambda request, index: "a" * (index + 1), shapes.greedy(4), roles=["planner"]
    )
    assert failures == []
    node = trees[0].root
    assert [branch.reward.local["planner"] for branch in node.branches] == [1.0, 2.0, 3.0, 4.0]
    assert [branch.child is not None for branch in node.branches] == [False, False, False, True]
    below = node.branches[3].child
    assert below.branches[3].over
    assert not below.branches[0].over


def test_models_may_go_by_other_names():
    task = replace(TASK, data={**TASK.data, "program": "relay"})
    env = Program(task, f"{AGENTS}:run", ["boss", "worker"], models={"planner": "boss", "coder": "worker"})
    assert list(env.observe()) == ["boss"]
    assert play(env, "a")[0] == Reward()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"run": "nothing.py:main"}, "there is no file"),
        ({"run": "agents"}, "expected FILE.py:FUNCTION"),
        ({"run": []}, "got no words"),
    ],
)
def test_what_cannot_be_started_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        Program(TASK, roles=ROLES, **settings)


def test_a_function_without_a_client_finds_the_endpoint():
    assert play(program("unaided"), "a", "a", "b", "b")[-1] == Reward(team=1.0)


def test_a_file_that_fails_to_load_is_told(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ConfigError, match=r"nothing_of_that_name.*line 1 of broken.py"):
        Program(TASK, f"{tmp_path}/broken.py:main", ROLES).observe()
    (tmp_path / "long.py").write_text("raise ValueError('x' * 70_000)\n")
    with pytest.raises(ConfigError, match=r"ValueError: x+.* at line 1 of long.py"):
        Program(TASK, f"{tmp_path}/long.py:main", ROLES).observe()


def test_a_file_has_no_input_while_it_is_imported(tmp_path):
    """Mistake: it reads, and waits for, what tells the process to start programs."""
    (tmp_path / "asking.py").write_text(
        "import sys\nread = sys.stdin.read()\ndef main(task, client): return len(read)\n"
    )
    env = Program(TASK, f"{tmp_path}/asking.py:main", ROLES)
    assert env.observe() == {}
    assert env.outcome.reward == Reward()


DECORATED = """
import functools

def traced(function):
    @functools.wraps(function)
    def wrapper(*arguments, **options):
        return function(*arguments, **options)
    return wrapper

@traced
async def asks(task, client):
    answer = await client.chat.completions.create(model="planner", messages=[{"role": "user", "content": "Go."}])
    return float(answer.choices[0].message.content)

def quiet(task, *, verbose=False, **options):
    return 0.5

def plain(function):
    def wrapper(*arguments, **options):
        return function(*arguments, **options)
    return wrapper

@plain
def hidden(task, client):
    answer = client.chat.completions.create(model="planner", messages=[{"role": "user", "content": "Go."}])
    return float(answer.choices[0].message.content)
"""


@pytest.mark.parametrize("function", ["asks", "hidden"])
def test_a_decorated_function_gets_the_client_that_it_takes(tmp_path, function):
    """Mistake: the decorator hides that the function is a coroutine function, or that it takes a client at all."""
    (tmp_path / "decorated.py").write_text(DECORATED)
    env = Program(TASK, f"{tmp_path}/decorated.py:{function}", ROLES)
    assert play(env, "0.25") == [Reward(team=0.25)]


def test_options_of_a_function_are_no_client(tmp_path):
    (tmp_path / "decorated.py").write_text(DECORATED)
    env = Program(TASK, f"{tmp_path}/decorated.py:quiet", ROLES)
    assert env.observe() == {}
    assert env.outcome.reward == Reward(team=0.5)


@pytest.mark.parametrize(
    ("signature", "count"), [("*all", 3), ("task, *, scale=1.0", 1), ("task, **options", 1), ("task, exchanges", 2)]
)
def test_a_reward_function_gets_what_it_takes_by_position(tmp_path, signature, count):
    """Mistake: options by name are counted, and `*all` counts as one."""
    file = tmp_path / "rewards.py"
    file.write_text(f"def pay({signature}):\n    return {'len(all)' if signature == '*all' else count}\n")
    outcome = asyncio.run(compute_outcome(TASK, ProgramResult("x"), (), f"{file}:pay", None))
    assert outcome.reward == Reward(team=count)


def test_tasks_without_an_id_are_numbered(tmp_path):
    """Mistake: every null is the id "None"."""
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": null, "word": "a"}\n{"id": null, "word": "b"}\n{"id": 0, "word": "c"}\n')
    assert [task.id for task in Program.tasks("train", tasks=str(file), held_out=0.0)] == ["train-0", "train-1", "0"]


def test_tasks_are_divided_by_content(tmp_path):
    rows = [{"word": str(number)} for number in range(200)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.jsonl").write_text(json.dumps(rows[0]) + "\n")
    name = str(tmp_path / "tasks.jsonl")
    train, test = (Program.tasks(split, tasks=name) for split in ("train", "test"))
    assert len(train) + len(test) == 200
    assert 5 < len(test) < 40
    assert not {task.data["word"] for task in train} & {task.data["word"] for task in test}
    second = str(tmp_path / "test.jsonl")
    assert [task.data for task in Program.tasks("test", tasks=name, test=second)] == rows[:1]
    assert len(Program.tasks("train", tasks=name, test=second)) == 199
    with pytest.raises(ConfigError, match="there is no file"):
        Program.tasks("train", tasks="nowhere.jsonl")


FORKING = """
import subprocess, time

def main(task):
    for _ in range(30):
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    time.sleep(1000)
"""
PLAYING = """
import sys, threading, time
from cadre_programs.instances import shared_host
from cadre_programs.program import Program
from cadre.types import Task

host = shared_host()
env = Program(Task("t", {}), sys.argv[1] + "/forking.py:main", ["planner"])
threading.Thread(target=env.observe, daemon=True).start()
while not (started := [task.result() for task in host.fork_servers.values() if task.done()]):
    time.sleep(0.01)
print(host.scratch, started[0].process.pid, flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_when_cadre_is_killed(tmp_path):
    (tmp_path / "forking.py").write_text(FORKING)
    child = subprocess.Popen(
        [sys.executable, "-c", PLAYING, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder, pid = child.stdout.readline().split()
    host = shared_host()
    assert wait_for(lambda: len(fresh_family(host, int(pid))) > 30)
    family = fresh_family(host, int(pid))
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert wait_for(lambda: not any(os.path.exists(f"/proc/{item}") for item in family))
    assert wait_for(lambda: not os.path.exists(folder))


def fresh_family(host, pid):
    host.process_table._read_at = -1.0
    return host.process_table.process_tree(pid)
