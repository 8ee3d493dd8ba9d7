"""Write tasks.jsonl and hidden/: small repositories of `repair` with a seeded bug and a test that shows it."""

import json
from pathlib import Path

from cadre_tasks.worlds.repair import Repair

HERE = Path(__file__).parent
TEST = '''"""Run it with: python -m unittest -q"""

import unittest

from {package}.main import run


class TestRun(unittest.TestCase):
    def test_example(self):
        self.assertEqual(run(*{call!r}), {expected!r})
'''


def write_tasks(folder, repositories, file="tasks.jsonl", first=0):
    """Write repositories (data of `repair`) as tasks of a recipe in the folder, numbered from `first`, and their hidden
    calls in files beside it."""
    (folder / "hidden").mkdir(exist_ok=True)
    lines = []
    for number, data in enumerate(repositories, first):
        name = f"{number}-{data['package']}"
        test = TEST.format(package=data["package"], call=data["calls"][0], expected=data["expected"][0])
        issue = "A test of this repository fails: `python -m unittest -q`. Mend the package, not the test. README.md"
        issue += " describes what it does; further calls are tested."
        lines.append({"name": name, "issue": issue, "files": data["files"] | {"test_run.py": test}})
        hidden = {"package": data["package"], "calls": data["calls"][1:], "expected": data["expected"][1:]}
        (folder / "hidden" / f"{name}.json").write_text(json.dumps(hidden | {"fixed": data["fixed"]}) + "\n")
    (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    write_tasks(HERE, [task.data for task in Repair.tasks("train")[:8]])
