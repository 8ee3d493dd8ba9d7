"""The reward: the fraction of hidden calls whose results are right, once the agent has ended.

The agent's files come back as text and run in Cadre's sandbox. Its calls and the expected results are in a file that
the program is not given, and are compared outside of the sandbox.
"""

import json
from pathlib import Path

from cadre_sandbox import FunctionProgram
from cadre_tasks import sandbox
from cadre_tasks.worlds.repair import IMPORT_FILES, LIMITS, RUN

HIDDEN = Path(__file__).parent / "hidden"


async def score(task, transcript, result):
    hidden = json.loads((HIDDEN / f"{task['name']}.json").read_text())
    files = {path: text for path, text in result["files"].items() if path.startswith(f"{hidden['package']}/")}
    program = f"FILES = {files!r}\n{IMPORT_FILES}{RUN.format(package=hidden['package'])}"
    calls = f"arguments = ({hidden['calls']!r},)"
    called = await sandbox.call(FunctionProgram(program, "run_calls", calls), limits=LIMITS)
    values = called.value if called.returned and isinstance(called.value, list) else []
    right = sum(value == expected for value, expected in zip(values, hidden["expected"], strict=False))
    return {"team": right / len(hidden["expected"]), "success": right == len(hidden["expected"])}
