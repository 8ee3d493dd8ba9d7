"""The reward: the fraction of hidden calls whose results are right, once the agent has ended.

The agent's files come back as text and run in Cadre's sandbox. Its calls and the expected results are in a file that
the program is not given, and are compared outside of the sandbox.
"""

import json
from pathlib import Path

from cadre_tasks.worlds.repair import call_package

HIDDEN = Path(__file__).parent / "hidden"


async def score(task, transcript, result):
    hidden = json.loads((HIDDEN / f"{task['name']}.json").read_text())
    if f"{hidden['package']}/main.py" not in task["files"]:
        raise ValueError(
            f"{task['name']}: there is no {hidden['package']}/main.py; expected one with `run`, which is called"
        )
    files = {path: text for path, text in result["files"].items() if path.startswith(f"{hidden['package']}/")}
    values = await call_package(hidden["package"], files, hidden["calls"])
    pairs = zip(values if isinstance(values, list) else [], hidden["expected"], strict=False)
    right = sum(value == expected for value, expected in pairs)
    return {"team": right / len(hidden["expected"]), "success": right == len(hidden["expected"])}


async def verdict(task, transcript, result):
    """Return 1 if all hidden calls are right, else 0. Of calls that are right with the bug too, `score` rewards whoever
    changes nothing."""
    outcome = await score(task, transcript, result)
    return outcome | {"team": float(outcome["success"])}
