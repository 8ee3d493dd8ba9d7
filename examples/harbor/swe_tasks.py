"""Write Harbor tasks from rows like SWE-bench's.

    python examples/harbor/swe_tasks.py ROWS TASKS --clones FOLDER --check

ROWS is a jsonl. A row has `instance_id`, `repo`, `base_commit`, `problem_statement`, the diffs `test_patch` and
`patch` (the reference), and FAIL_TO_PASS and PASS_TO_PASS, lists of tests: names of unittest
(tests.test_sums.TestSums.test_one), or of pytest with ::, for which pytest has to be in the image. FOLDER has a clone
of each `repo`, by the last part of its name. The files of the tests are put over those that the agent leaves, and its
code runs as user 65534. --check runs every verifier on the reference and on the repository as it is, and keeps the
tasks whose rewards are 1 and 0.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from make_tasks import DOCKERFILE, TEAM, TEST_SH  # noqa: E402
from task_folder import PLAIN, read_task  # noqa: E402

TOML = """schema_version = "1.1"

[task]
name = {name}

[verifier]
timeout_sec = {seconds}.0

[environment]
build_timeout_sec = 600.0
"""
RECIPE = f"""# As root. With a real model: team.policies.coder.model=Qwen/Qwen3-4B team.policies.coder.dtype=bfloat16
{TEAM}algorithm: {{{{name: grpo, k: 4}}}}
sampling: {{{{max_tokens: 1024}}}}
"""
COPY_TESTS = "cp -r --remove-destination /tests/files/. ."
CALL = "python3 -I /tests/check.py"
CHECK = '''"""Exit with 0 if all tests pass, as their process reports with a secret, which it reads first."""

import json
import secrets
import subprocess
import sys
from pathlib import Path

NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}
tests = json.loads(Path("/tests/tests.json").read_text())
secret = secrets.token_hex(16)
order = json.dumps({"secret": secret, "tests": tests})
command = [sys.executable, "-I", "-B", "-c", Path("/tests/run_tests.py").read_text()]
try:
    ended = subprocess.run(command, input=order, capture_output=True, text=True, errors="replace", **NOBODY)
    lines = [line for line in ended.stdout.splitlines() if line.startswith(secret)]
    passed = json.loads(lines[-1][len(secret) :]) if lines else []
finally:
    # What it left running would write the reward once that may be written again.
    subprocess.run([sys.executable, "-I", "-c", "import os; os.kill(-1, 9)"], stderr=subprocess.DEVNULL, **NOBODY)
sys.exit(sorted(passed) != sorted(tests))
'''
RUN_TESTS = '''"""Run tests by name, and print the names of those that passed after the secret."""

import json
import os
import sys
import unittest


def is_passed(name):
    if "::" in name:
        import pytest

        return pytest.main(["-q", "-p", "no:cacheprovider", name]) == 0
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromName(name).run(result)
    return result.testsRun > 0 and result.wasSuccessful() and not result.skipped


def main():
    order = json.load(sys.stdin)
    sys.path.insert(0, os.getcwd())
    passed = [name for name in order["tests"] if is_passed(name)]
    sys.__stdout__.write("\\n" + order["secret"] + json.dumps(passed) + "\\n")


main()
'''


def patched(files: dict[str, bytes], diff: str) -> tuple[dict[str, bytes], list[str]]:
    """Return the files that a diff changes or makes, and the paths that it removes. Raises ValueError."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), files)
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        ended = subprocess.run(command, cwd=name, input=diff.encode(), capture_output=True)
        if ended.returncode:
            raise ValueError(f"a diff does not apply: {ended.stderr.decode(errors='replace').strip()[:200]}")
        after = read(Path(name))
    changed = {path: content for path, content in after.items() if files.get(path) != content}
    if not changed:
        raise ValueError("a diff changes no file; expected one that changes or adds some")
    return changed, sorted(files.keys() - after.keys())


def remove_lines(paths: list[str]) -> str:
    return "".join(f"rm -f {shlex.quote(path)}\n" for path in paths)


def read(folder: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def write(folder: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def checkout(clone: Path, commit: str) -> dict[str, bytes]:
    """Return the files of a commit; links are left out. Raises ValueError if it is not in the clone."""
    with tempfile.TemporaryDirectory() as name:
        # A name that begins with a hyphen would be an option.
        command = ["git", "-C", str(clone), "archive", "--format=tar", "--end-of-options", commit]
        packed = subprocess.run(command, capture_output=True)
        if packed.returncode:
            raise ValueError(
                f"{clone} has no commit {commit!r}: {packed.stderr.decode(errors='replace').strip()[:200]}"
            )
        subprocess.run(["tar", "-x", "-C", name], input=packed.stdout, check=True)
        return read(Path(name))


def task_files(row: dict, clones: Path, seconds: int) -> dict[str, bytes]:
    """Return the files of a row's task. Raises ValueError for rows that cannot be used."""
    for key in ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch"):
        if not isinstance(row.get(key), str):
            raise ValueError(f"{key}: got {row.get(key)!r}; expected a text")
    repository = row["repo"].split("/")[-1]
    for key, name in (("instance_id", row["instance_id"]), ("repo", repository)):
        if not PLAIN.fullmatch(name) or name.startswith("."):
            raise ValueError(f"{key}: got {row[key]!r}; expected letters, digits and ._@+-")
    tests = []
    for key in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        names = json.loads(row[key]) if isinstance(row.get(key), str) else row.get(key, [])  # SWE-bench has JSON texts
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{key}: got {names!r}; expected names of tests")
        # Django's tests are named as unittest prints them: test_one (tests.test_sums.TestSums).
        tests += [re.sub(r"^(\w+) \(([\w.]+?)(\.\1)?\)$", r"\2.\1", name) for name in names]
    if not tests:
        raise ValueError("FAIL_TO_PASS: got no tests; expected one or more")
    base = checkout(clones / repository, row["base_commit"])
    test_files, removed = patched(base, row["test_patch"])
    solution, gone = patched(base, row["patch"])
    instruction = "The repository in /app has an issue. Mend it; tests that you do not have will be run.\n\n"
    texts = {
        "task.toml": TOML.format(name=json.dumps(f"swe/{row['instance_id']}"), seconds=seconds),
        "instruction.md": f"{instruction}{row['problem_statement']}\n",
        "environment/Dockerfile": DOCKERFILE,
        "tests/test.sh": TEST_SH.replace(CALL, f"{remove_lines(removed)}{COPY_TESTS} && {CALL}"),
        "tests/check.py": CHECK,
        "tests/run_tests.py": RUN_TESTS,
        "tests/tests.json": json.dumps(tests),
        "solution/solve.sh": f"#!/bin/bash\ncp -r /solution/files/. .\n{remove_lines(gone)}",
    }
    places = {"environment/repository": base, "tests/files": test_files, "solution/files": solution}
    copied = {f"{place}/{path}": content for place, files in places.items() for path, content in files.items()}
    return {path: text.encode() for path, text in texts.items()} | copied


def is_valid(folder: Path) -> bool:
    """Return True if the verifier rewards the reference, and not the repository as it is."""
    from harbor_env import judge

    task = read_task(folder)
    rewards = [judge(task, task.files, script) for script in (folder / "solution" / "solve.sh", None)]
    print(f"{task.name}: reference {rewards[0]}, as it is {rewards[1]}", flush=True)
    return rewards == [{"reward": 1.0}, {"reward": 0.0}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--clones", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=600, help="after which a verifier is ended")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.tasks.exists():
        parser.error(f"{options.tasks} exists; expected a new folder")
    options.tasks.mkdir(parents=True)
    for number, line in enumerate(options.rows.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            files = task_files(row, options.clones, options.seconds)
            folder = options.tasks.absolute() / row["instance_id"]
            write(folder, files)
            read_task(folder)
        except (AttributeError, ValueError) as error:
            parser.error(f"{options.rows}, line {number}: {error}")
        if options.check and not is_valid(folder):
            shutil.rmtree(folder)
    (options.tasks / "harbor.yaml").write_text(RECIPE.format(here=HERE, target=options.tasks.absolute()))


if __name__ == "__main__":
    main()
