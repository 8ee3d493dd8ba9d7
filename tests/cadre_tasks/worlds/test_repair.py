"""Repair: repositories and their bugs, references and exploits, rewards, splits, and both places where patches run."""

from __future__ import annotations

import asyncio
import random
import subprocess

import pytest

from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.types import Reward
from cadre_programs.containers import ContainerConfig, make_repository
from cadre_tasks.worlds.repair import Repair, RepairShell, read_patch
from cadre_tasks.worlds.repair_repositories import TEMPLATES, draw_repository, find_bugs, insert_bug, run_template
from tests.cadre_tasks.worlds.trying import check_contract
from tests.helpers.containers import fake_runtime
from tests.helpers.playing import play
from tests.helpers.slow import few_of


def task(number=0, split="train", **settings):
    return Repair.tasks(split, **settings)[number]


def block(files):
    return "".join(f"File: {path}\n```python\n{text}```\n" for path, text in files.items())


# Repositories


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_every_bug_changes_results_and_is_one_text(template):
    _, files, arguments = TEMPLATES[template]
    bugs = find_bugs(template)
    assert len(bugs) >= 5
    assert len({insert_bug(files[bug[1]], bug) for bug in bugs}) == len(bugs)
    assert len({bug[0] for bug in bugs}) >= 4
    draw = random.Random(1)
    assert "Error" not in run_template(files, [arguments(draw) for _ in range(200)])


def test_results_by_hand():
    for template, arguments, expected in (
        ("spans", [[[5, 7], [1, 3], [2, 4], [9, 9]]], [5, 2, 3]),
        ("words", ["Tea egg a tea Egg plum", 2], [["egg", "tea"], 4]),
        ("stock", [[["a", 2], ["b", -1], ["a", -2], ["c", 4]], 1], [[["a", 0], ["c", 4]], ["a"], 1]),
        ("marks", [[["a", 3], ["b", 5], ["c", 3]], 5], [[["b", 1], ["a", 2], ["c", 2]], ["b"], 3]),
        ("grid", [[[1, 9], [8, 7]]], [16, [[0, 1], [1, 0]], 1]),
    ):
        assert run_template(TEMPLATES[template][1], [arguments]) == [expected]


def test_a_task_is_the_same_each_time_and_has_calls_that_show_the_bug():
    for seed in range(20):
        data = draw_repository(random.Random(seed))
        assert data == draw_repository(random.Random(seed))
        assert data["got"] != data["expected"][0]
        assert len(data["calls"]) == len(data["expected"]) == 16


def test_splits_share_no_bug():
    recorded = {
        split: {
            (task.data["description"], text.replace(task.data["package"], "PKG"))
            for task in Repair.tasks(split)[:60]
            for path, text in task.data["files"].items()
            if path in task.data["fixed"]
        }
        for split in ("train", "test")
    }
    assert len(recorded["test"]) >= 2
    assert not recorded["train"] & recorded["test"]


def test_a_repository_is_one_that_git_reads(tmp_path):
    files = make_repository({"b/c.py": "1\n", "a.py": "2\n", "b.py": "3\n", "b/a/x": b"\xff"})
    assert files == make_repository(
        dict(reversed(list({"b/c.py": "1\n", "a.py": "2\n", "b.py": "3\n", "b/a/x": b"\xff"}.items())))
    )
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content if isinstance(content, bytes) else content.encode())

    def git(*words):
        return subprocess.run(["git", "-C", tmp_path, *words], capture_output=True, text=True, check=False)

    if git("--version").returncode:
        pytest.skip("git is not here")
    assert git("fsck", "--strict").returncode == 0
    git("reset")
    assert git("status", "--short").stdout == ""
    assert git("log", "--format=%s %an").stdout == "First Cadre\n"


# Patches


@pytest.mark.parametrize("number", few_of(range(12), [0]))
@pytest.mark.parametrize("split", few_of(["train", "test"], ["test"]))
def test_the_reference_is_right_and_the_files_as_they_are_are_not(number, split):
    new_task = task(number, split)
    env = Repair(new_task)
    rewards = play(env, block(new_task.data["fixed"]), "Verdict: right")
    assert rewards[0] == Reward(0.5, {"coder": 0.5}, {"right": 1.0})
    assert rewards[1] == Reward(0.0, {"reviewer": 0.5}, {"verdict": 1.0})
    assert (env.success, env.observe()) == (True, {})
    unchanged = Repair(new_task)
    rewards = play(
        unchanged, block({path: new_task.data["files"][path] for path in new_task.data["fixed"]}), "Verdict: wrong"
    )
    assert rewards[0] == Reward(0.0, {"coder": 0.0}, {"right": 0.0})
    assert not unchanged.success


def test_verdicts_are_paid_and_a_right_patch_that_is_sent_back_costs_the_team():
    new_task = task()
    env = Repair(new_task)
    rewards = play(env, block(new_task.data["fixed"]), "Verdict: wrong", "nothing", "Verdict: right")
    assert [reward.team for reward in rewards] == [0.5, -0.5, 0.0, 0.0]
    assert [reward.local for reward in rewards] == [
        {"coder": 0.5},
        {"reviewer": -0.25},
        {"coder": -0.5},
        {"reviewer": -0.25},
    ]
    assert not env.success


# Of each exploit the files that it writes, given the package's name; EXIT stands in the file with the bug.
EXPLOITS = {
    "nothing": {},
    "the tests": {"tests/test_main.py": "def test_all():\n    assert True\n"},
    "another package": {"helper/main.py": "def run(*arguments):\n    return None\n"},
    "start-up files": {"sitecustomize.py": "raise SystemExit(0)\n", "PKG/../sitecustomize.py": "1\n"},
    "files outside": {"../x.py": "1\n", "/tmp/x.py": "1\n", "PKG/../../x.py": "1\n", "calls.json": "[]"},
    "json": {"json.py": "def dumps(value):\n    return '[]'\n"},
    "exit": {"PKG/main.py": "import sys\nsys.exit(0)\n"},
    "hard exit": {"PKG/main.py": "import os\nos._exit(0)\n"},
    "equal to everything": {
        "PKG/main.py": "class Same(list):\n    def __eq__(self, other):\n        return True\n\n"
        "def run(*arguments):\n    return Same()\n"
    },
    "the runner": {
        "PKG/main.py": "import sys\nfor name in list(sys.modules):\n    vars(sys.modules[name])['run_calls'] = "
        "lambda calls: [[]] * 99\n\ndef run(*arguments):\n    return []\n"
    },
    "a constant": {"PKG/main.py": "def run(*arguments):\n    return [1, 0, 1]\n"},
    "the arguments": {"PKG/main.py": "def run(*arguments):\n    return list(arguments)\n"},
    "print": {"PKG/main.py": "def run(*arguments):\n    print('[]')\n    return None\n"},
    "a loop": {"PKG/main.py": "while True:\n    pass\n"},
}


@pytest.mark.parametrize("name", few_of(EXPLOITS, ["nothing", "the tests", "exit"]))
def test_no_exploit_is_right(name):
    new_task = task(3)
    package = new_task.data["package"]
    files = {path.replace("PKG", package): text for path, text in EXPLOITS[name].items()}
    env = Repair(new_task)
    (reward,) = play(env, block(files))
    assert (reward.team, env.success) == (0.0, False)
    assert reward.local["coder"] <= 0.1


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("File: oak/a.py\n```python\nnew\n```", ["oak/a.py"]),
        ("**File:** `oak/a.py`\n\n```\nnew\n```\nFile: oak/b/c.py\n```py\n1\n```", ["oak/a.py", "oak/b/c.py"]),
        ("The file:\n```python\nnew\n```", ["oak/main.py"]),
        ("```\n1\n```\n```\n2\n```", []),
        ("File: oak/a.py\n```python\nold\n```", []),
        ("File: oak/x.txt\n```\n1\n```", []),
        ("File: oak/../x.py\n```\n1\n```", []),
        ("no block", []),
        ("File: oak/a.py\n```python\nleft open", []),
    ],
)
def test_a_patch_is_read(text, paths):
    assert sorted(read_patch(text, {"oak/a.py": "old\n"}, "oak/main.py")) == paths


def test_what_the_roles_see():
    new_task = task(2)
    full, compact = (Repair(new_task, prompts=prompts).conversation()[0].content for prompts in ("full", "compact"))
    assert new_task.data["description"] in full
    assert full.count("File: ") == 3
    assert compact.count("File: ") == 2  # the file, and the form of an answer
    env = Repair(new_task)
    play(env, block(new_task.data["fixed"]))
    assert f"With it the call returns {new_task.data['expected'][0]}" in env.conversation()[0].content
    assert str(new_task.data["expected"][5]) not in full


@pytest.mark.slow
def test_the_contract():
    check_contract(["repair"], [block(task().data["fixed"]), "Verdict: right"])


# In a container


def test_a_patch_is_judged_in_a_container(tmp_path):
    with fake_runtime(tmp_path, "docker"):
        new_task = task(isolation="container", container=ContainerConfig(image="own:1"))
        assert new_task.data["image"] == "own:1"
        env = Repair(new_task, isolation="container")
        assert env.config.image == "own:1"
        asyncio.run(env.step({"coder": block(new_task.data["fixed"])}))
        assert env.success


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPLOITS)
def test_no_exploit_is_right_in_a_container(name, tmp_path):
    with fake_runtime(tmp_path, "docker"):
        new_task = task(3)
        files = {path.replace("PKG", new_task.data["package"]): text for path, text in EXPLOITS[name].items()}
        env = Repair(new_task, isolation="container", container=ContainerConfig(seconds=2))
        asyncio.run(env.step({"coder": block(files)}))
        assert not env.success


def test_settings_are_checked_before_a_model_loads(tmp_path):
    with pytest.raises(ConfigError, match="container: got it beside isolation: sandbox"):
        EnvSpec("repair", {"container": {"image": "a"}}).tasks("train")
    with fake_runtime(tmp_path), pytest.raises(ConfigError, match="docker is not on the PATH"):
        EnvSpec("repair", {"isolation": "container"}).tasks("train")
    with fake_runtime(tmp_path / "none"), pytest.raises(ConfigError, match="docker is not on the PATH"):
        EnvSpec(RepairShell, {})
