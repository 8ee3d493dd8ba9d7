"""`examples/harbor`: Harbor's tasks as an environment, the verifier's machine, and what an agent may not reach."""

import asyncio
import importlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cadre.envs.spec import EnvSpec, env_class
from cadre.errors import ConfigError, DataError
from cadre.types import Message, Sample

EXAMPLE = Path(__file__).parents[2] / "examples" / "harbor"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a machine has two users")


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in ("harbor_env", "machine", "make_tasks", "repository", "swe_tasks", "task_folder", "work"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    sys.path.insert(0, str(EXAMPLE))
    importlib.import_module("make_tasks").main(folder)
    sys.path.remove(str(EXAMPLE))
    return folder


@pytest.fixture
def folder(tmp_path):
    """A task whose verifier looks for a word in a file."""
    files = {
        "task.toml": "[verifier]\ntimeout_sec = 20\nenv = { WORD = 'yes' }\n",
        "instruction.md": "Write yes to /app/answer/word.txt.\n",
        "environment/Dockerfile": "# begin\nFROM debian\nWORKDIR /app\nCOPY start.txt \\\n  more /app/\n",
        "environment/start.txt": "begin\n",
        "environment/more/deep/other.txt": "other\n",
        "tests/test.sh": 'grep -qx "$WORD" answer/word.txt && echo 1 > /logs/verifier/reward.txt\n'
        "[ -f /logs/verifier/reward.txt ] || echo 0 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "mkdir answer && echo yes > /app/answer/word.txt\n",
    }
    for path, text in files.items():
        (tmp_path / "tasks" / "word" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tasks" / "word" / path).write_text(text)
    return tmp_path / "tasks" / "word"


def judge(folder, files=None, script=None):
    harbor = importlib.import_module("harbor_env")
    task = harbor.read_task(folder)
    return harbor.judge(task, task.files if files is None else files, script)


def test_a_task_begins_with_the_files_that_its_dockerfile_copies(folder):
    task = importlib.import_module("task_folder").read_task(folder)
    assert task.workdir == "/app"
    assert task.files == {"start.txt": b"begin\n", "deep/other.txt": b"other\n"}
    assert (task.seconds, task.variables) == (20.0, {"WORD": "yes"})


@needs_root
def test_the_solution_is_rewarded_and_nothing_else(folder):
    assert judge(folder, script=folder / "solution" / "solve.sh") == {"reward": 1.0}
    assert judge(folder) == {"reward": 0.0}
    assert judge(folder, {"answer/word.txt": b"no\n"}) == {"reward": 0.0}
    assert judge(folder, {"../../tests/test.sh": b"echo 1 > /logs/verifier/reward.txt"}) == {"reward": 0.0}


@needs_root
@pytest.mark.parametrize(
    ("line", "rewards"),
    [
        (
            'echo \'{"a": 1, "b": 0.5}\' > /logs/verifier/reward.json; echo 0 > /logs/verifier/reward.txt',
            {"a": 1, "b": 0.5},
        ),
        ("echo nan > /logs/verifier/reward.txt", None),
        ("ln -s /app/start.txt /logs/verifier/reward.txt", None),
        ("true", None),
        ("kill -9 $$; sleep 1; echo 0.25 > /logs/verifier/reward.txt", {"reward": 0.25}),
        ("ls /root/* /home /work /logs/../proc/1/root/work && echo 1 > /logs/verifier/reward.txt", None),
        ("(sleep 0.2; echo 1 > /logs/verifier/reward.txt) & true", None),
        (
            "echo 1 > /usr/x || echo 1 > /etc/passwd || mount -o remount,rw /usr || echo 0 > /logs/verifier/reward.txt",
            {"reward": 0},
        ),
    ],
)
def test_what_a_verifier_leaves_is_read_and_nothing_is_near_it(folder, line, rewards):
    (folder / "tests" / "test.sh").write_text(line + "\n")
    assert judge(folder) == rewards


@needs_root
def test_a_verifier_that_does_not_end_is_ended(folder):
    (folder / "task.toml").write_text("[verifier]\ntimeout_sec = 0.5\n")
    (folder / "tests" / "test.sh").write_text("setsid sleep 60 & sleep 60\n")
    assert judge(folder) is None


@needs_root
def test_the_example_s_tasks_reward_their_solutions_and_no_cheat(twenty):
    """One of each kind of cheat; `lab/harbor_tasks.py` plays all twenty, by Harbor too."""
    for folder in sorted(twenty.glob("repair-*"))[:10]:
        assert judge(folder, script=folder / "cheats" / "cheat.sh") == {"reward": 0.0}, folder
    assert judge(folder) == {"reward": 0.0}
    assert judge(folder, script=folder / "solution" / "solve.sh") == {"reward": 1.0}


def spec_of(folder, **settings):
    harness = ["/usr/bin/python3", str(EXAMPLE / "shell_agent.py"), "{instruction}"]
    settings = {"tasks": str(folder), "harness": harness, "held_out": 0.0} | settings
    return EnvSpec(f"{EXAMPLE / 'harbor_env.py'}:Harbor", settings)


async def play(env, commands):
    """Play an episode with these commands; return what they print."""
    prompts = []
    await env.until_ready()
    while observations := env.observe():
        prompts.append(observations["coder"].messages[-1].content)
        text = f"```bash\n{commands[len(prompts) - 1]}\n```" if len(prompts) <= len(commands) else "I am done."
        sample = Sample("coder", "coder", text, (0,), (0,), (0.0,), "stop", 0, Message("assistant", text))
        await env.step_samples({"coder": sample})
    return prompts


@needs_root
def test_a_harness_works_on_a_copy_and_is_replayed(folder):
    spec = spec_of(folder.parent, environment={"WORD": "yes"})
    (task,) = spec.tasks("train")
    env = spec.make(task)
    try:
        prompts = asyncio.run(play(env, ["cat start.txt deep/other.txt", "mkdir answer; echo $WORD > answer/word.txt"]))
        assert prompts[0].startswith("Write yes to /srv/program/work/repository/answer/word.txt.")
        assert prompts[1] == "begin\nother\n"
        assert (env.total_team_reward, env.success) == (1.0, True)
        asyncio.run(env.check_replay())
    finally:
        env.close()
    assert (folder / "environment" / "start.txt").read_text() == "begin\n"


def test_its_package_names_the_environment(folder):
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    ((name, target),) = project["entry-points"]["cadre.environments"].items()
    module, _, attribute = target.partition(":")
    assert name == "harbor"
    assert spec_of(folder.parent).env_class is env_class(f"{EXAMPLE / module}.py:{attribute}")


@needs_root
def test_a_harness_cannot_reach_the_hidden_checks(folder):
    spec = spec_of(folder.parent)
    (task,) = spec.tasks("train")
    assert not {"grep", "solve"} & set(str(task.data).split())
    env, tasks = spec.make(task), folder.parent
    commands = [
        f"ls -A {tasks}; cat {folder}/tests/test.sh {folder}/solution/solve.sh",
        f"umount {tasks}; umount -l {tasks}; unshare -rm umount {tasks}; mount -o remount,rw {tasks}; ls -A {tasks}",
        f"for pid in $(ls /proc | grep '^[0-9]'); do cat /proc/$pid/root{folder}/tests/test.sh; done",
        f"nsenter -t {os.getpid()} -m cat {folder}/tests/test.sh",
        f"echo 'echo 1 > /logs/verifier/reward.txt' > {folder}/tests/test.sh; mkdir {tasks}/x; mv {tasks} {tasks}2",
        f"mkdir x; unshare -m sh -c 'mount --bind / x; cat x{folder}/tests/test.sh'",
        f"unshare -m sh -c 'mount --rbind / x; umount -l x{tasks}; cat x{folder}/tests/test.sh'",
        f"cd {EXAMPLE}; touch written; mount -o remount,rw ../..; umount -l ../..; touch {EXAMPLE}/written",
        f"ls -A /tmp/cadre-harbor-0; ln -s {folder}/tests/test.sh answer; mkdir -p logs; ln -s {folder}/tests tests",
    ]
    try:
        prompts = asyncio.run(play(env, commands))
        assert (env.total_team_reward, env.success) == (0.0, False)
    finally:
        env.close()
    assert "grep -qx" not in "".join(prompts[1:])
    assert not (EXAMPLE / "written").exists()
    assert prompts[1].count("No such file") == 2
    assert "grep -qx" in (folder / "tests" / "test.sh").read_text()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "tests" / "test.sh").unlink(), "there is no tests/test.sh"),
        (lambda folder: (folder / "task.toml").write_text("a = "), "expected TOML"),
        (lambda folder: (folder / "task.toml").write_text("verifier = 1"), "expected tables"),
        (lambda folder: (folder / "task.toml").write_text("[[steps]]\nname = 'x'"), "got steps"),
        (
            lambda folder: (folder / "task.toml").write_text("verifier.environment_mode = 'separate'"),
            "got verifier.env",
        ),
        (lambda folder: (folder / "task.toml").write_text("environment.docker_image = 'x'"), "which needs an image"),
        (lambda folder: (folder / "task.toml").write_text("environment.docker_image = '-v'"), "the name of an image"),
        (lambda folder: (folder / "environment" / "docker-compose.yaml").touch(), "got environment/docker-compose"),
        (lambda folder: (folder / "task.toml").write_text("[verifier]\ntimeout_sec = inf"), "timeout_sec: got inf"),
        (lambda folder: (folder / "task.toml").write_text("[verifier.env]\nKEY = '${HOME}'"), "without ${NAME}"),
        (lambda folder: (folder / "environment" / "x").symlink_to("/etc/passwd"), "environment/x is a link"),
        (lambda folder: os.mkfifo(folder / "tests" / "x"), "a link or a device"),
        (lambda folder: (folder / "tests" / "a\nb").touch(), "got the name 'tests/a\\nb'"),
        (lambda folder: (folder / "tests" / "x").open("wb").truncate(1 << 30), "at most 1000 files and 16 MiB"),
        (lambda folder: dockerfile(folder, "RUN apt-get update"), "'RUN apt-get update', which needs an image"),
        (lambda folder: dockerfile(folder, "COPY ../tests /app/"), "a path in this folder"),
        (lambda folder: dockerfile(folder, "COPY none /app/"), "a path in this folder"),
        (lambda folder: dockerfile(folder, "COPY start.txt /etc/"), "expected a target in /app"),
        (lambda folder: dockerfile(folder, "COPY start.txt ../"), "expected a target in /app"),
        (lambda folder: dockerfile(folder, "WORKDIR /"), "expected WORKDIR /FOLDER"),
        (shutil.rmtree, "no task to train with"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_error_before_anything_runs(folder, break_it, message):
    break_it(folder)
    with pytest.raises(DataError) as error:
        spec_of(folder.parent).tasks("train")
    assert message in str(error.value)


def dockerfile(folder, line):
    (folder / "environment" / "Dockerfile").write_text(f"FROM debian\n{line}\n")


def test_a_harness_in_a_container_is_not_offered(folder):
    with pytest.raises(ConfigError, match="isolation: got container"):
        spec_of(folder.parent, isolation="container").tasks("train")


FAKE_DOCKER = """#!/usr/bin/python3 -IS
# Docker's command line as far as a machine uses it: a container is a machine here.
import json, sys
sys.path[:0] = [{example!r}]
import machine
options = [word[2:].partition("=")[::2] for word in sys.argv[2:] if word.startswith("--")]
first, *rest = [word for word in sys.argv[2:] if not word.startswith("--")]
print(json.dumps(sys.argv[1:]), file=open({log!r}, "a"))
if sys.argv[1] == "run":
    image, (command, *_) = first, [value for name, value in options if name == "entrypoint"]
    folders = dict(value.split(":")[::-1] for name, value in options if name == "volume")
    variables = dict(value.split("=", 1) for name, value in options if name == "env")
    cwd = dict(options)["workdir"]
    if image != "debian:13":
        sys.exit("no image")
    code, output = machine.run([command, *rest], folders, cwd, 20, variables=variables)
    print(output)
    sys.exit(code)
"""


@needs_root
def test_a_verifier_runs_in_a_container_of_the_task_s_image(folder, tmp_path, monkeypatch):
    """A fake docker: none was at hand."""
    (tmp_path / "bin").mkdir()
    docker, log = tmp_path / "bin" / "docker", tmp_path / "log"
    docker.write_text(FAKE_DOCKER.format(example=str(EXAMPLE), log=str(log)))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (folder / "environment" / "Dockerfile").write_text("FROM debian:13\nRUN true\nCOPY start.txt /app/\n")
    with pytest.raises(ConfigError, match=r"verifier: docker python:3.12-slim does not start .*no image"):
        spec_of(folder.parent, verifier="docker").tasks("train")
    (task,) = spec_of(folder.parent, verifier="docker", image="debian:13").tasks("train")
    score = importlib.import_module("harbor_env").score
    for word, reward in (("yes", 1.0), ("no", 0.0)):
        result = {"files": {"answer/word.txt": f"{word}\n"}}
        assert asyncio.run(score(task.data, [], result))["team"] == reward
    commands = [json.loads(line) for line in log.read_text().splitlines()]
    run = next(words for words in commands if "--env=WORD=yes" in words)
    assert {"--network=none", "--cap-drop=ALL", "--pull=never", "--security-opt=no-new-privileges"} < set(run)
    assert commands[-1][0] == "kill"


# Rows like SWE-bench's.

SUMS = "def add(first, second):\n    return first {} second\n"
TESTS = """import unittest

from sums.core import add


class TestAdd(unittest.TestCase):
    def test_zero(self):
        self.assertEqual(add(0, 0), 0)

    def test_sum(self):
        self.assertEqual(add(2, 3), 5)
"""
CORE_DIFF = """--- a/sums/core.py
+++ b/sums/core.py
@@ -1,2 +1,2 @@
 def add(first, second):
-    return first - second
+    return first + second
"""


@pytest.fixture
def swe(tmp_path):
    """A clone with two commits, the older of which has a bug, and a row of it."""
    clone = tmp_path / "clones" / "sums"
    files = {"sums/__init__.py": "", "sums/core.py": SUMS.format("-"), "old.txt": "old\n"}
    for number in range(2):
        for path, text in files.items():
            (clone / path).parent.mkdir(parents=True, exist_ok=True)
            (clone / path).write_text(text)
        git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b.c"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", str(number)]):
            subprocess.run([*git, *words], check=True)
        files = {"sums/core.py": SUMS.format("*"), "later.txt": "later\n"}
    commit = subprocess.run([*git, "rev-parse", "HEAD~1"], check=True, capture_output=True, text=True).stdout.strip()
    added = "".join(f"+{line}\n" for line in TESTS.splitlines())
    tests_diff = f"--- /dev/null\n+++ b/tests/test_sums.py\n@@ -0,0 +1,{len(TESTS.splitlines())} @@\n{added}"
    return {
        "instance_id": "sums-1",
        "repo": "someone/sums",
        "base_commit": commit,
        "problem_statement": "add(2, 3) is -1",
        "patch": CORE_DIFF,
        "test_patch": tests_diff,
        "FAIL_TO_PASS": json.dumps(["test_sum (tests.test_sums.TestAdd)"]),
        "PASS_TO_PASS": ["tests.test_sums.TestAdd.test_zero"],
    }


def make_swe(tmp_path, row):
    swe_tasks = importlib.import_module("swe_tasks")
    folder = tmp_path / "tasks" / row["instance_id"]
    swe_tasks.write(folder, swe_tasks.task_files(row, tmp_path / "clones", 60))
    return folder


def test_a_row_becomes_a_task_of_the_older_commit_without_its_tests(tmp_path, swe):
    task = importlib.import_module("task_folder").read_task(make_swe(tmp_path, swe))
    assert set(task.files) == {"sums/__init__.py", "sums/core.py", "old.txt"}
    assert task.files["sums/core.py"].decode() == SUMS.format("-")
    assert task.instruction.endswith("\n\nadd(2, 3) is -1\n")


@needs_root
def test_the_tests_of_a_row_judge_and_are_not_to_be_edited(tmp_path, swe):
    folder = make_swe(tmp_path, swe)
    assert importlib.import_module("swe_tasks").is_valid(folder)
    passing = TESTS.replace("add(2, 3), 5", "0, 0")
    wrong = {"sums/__init__.py": b"", "sums/core.py": SUMS.format("-").encode()}
    assert judge(folder, wrong | {"tests/test_sums.py": passing.encode()}) == {"reward": 0.0}
    for cheat in ("import os; os._exit(0)", "raise SystemExit(0)", "print('[\"tests.test_sums.TestAdd.test_sum\"]')"):
        assert judge(folder, wrong | {"sums/__init__.py": f"{cheat}\n".encode()}) == {"reward": 0.0}
    for module in ("json", "unittest", "sitecustomize"):
        assert judge(folder, wrong | {f"{module}.py": b"import os; os._exit(0)\n"}) == {"reward": 0.0}
    assert judge(folder, {"sums/__init__.py": b"", "sums/core.py": SUMS.format("+").encode()}) == {"reward": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_commit": "0" * 40}, "has no commit"),
        ({"base_commit": "--output=x"}, "has no commit"),
        ({"patch": CORE_DIFF.replace("first - second", "first / second")}, "does not apply"),
        ({"test_patch": CORE_DIFF.replace("sums/core.py", "../core.py")}, "does not apply"),
        ({"FAIL_TO_PASS": "[]", "PASS_TO_PASS": []}, "got no tests"),
        ({"repo": None}, "expected a text"),
        ({"repo": "someone/.."}, "expected letters"),
        ({"instance_id": "../sums"}, "expected letters"),
    ],
)
def test_rows_that_cannot_be_used_are_named(tmp_path, swe, changes, message):
    with pytest.raises(ValueError, match=message):
        make_swe(tmp_path, swe | changes)


def test_names_with_colons_are_pytests(tmp_path):
    """Without a machine, whose Python has no pytest."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("def test_right(): print('x')\n\ndef test_wrong(): assert False\n")
    names = ["tests/test_it.py::test_right", "tests/test_it.py::test_wrong", "tests/test_it.py::test_missing"]
    command = [sys.executable, "-I", "-B", "-c", importlib.import_module("swe_tasks").RUN_TESTS]
    order = json.dumps({"secret": "5ecret", "tests": names})
    ended = subprocess.run(command, cwd=tmp_path, input=order, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == f'5ecret["{names[0]}"]'
