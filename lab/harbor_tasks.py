"""Our verdicts against Harbor's on the twenty tasks of examples/harbor, with solutions, without, and with cheats.

    python -m lab.harbor_tasks --harbor DIR/bin/harbor --write

Harbor (0.26.0, Python 3.12) runs its own agents `oracle` and `nop`, and its own verifier, on the same folders; a cheat
is put in the place of a solution. There is no docker in between: its environment is `harbor_machine.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.common import ROOT, record
from lab.trainings import console

EXAMPLE = ROOT / "examples" / "harbor"
sys.path.insert(0, str(EXAMPLE))
import make_tasks  # noqa: E402
from harbor_env import judge, read_task, total  # noqa: E402

COMMAND = "python -m lab.harbor_tasks --harbor DIR/bin/harbor --write"
# By what is left in the working folder: the script that leaves it, and Harbor's agent.
KINDS = {"reference": ("solution/solve.sh", "oracle"), "empty": ("", "nop"), "cheating": ("cheats/cheat.sh", "oracle")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harbor", required=True, help="the command of Harbor's environment")
    parser.add_argument("--write", action="store_true", help="append to results/programs.jsonl")
    options = parser.parse_args()
    equal, right, count = 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        make_tasks.main(Path(name) / "tasks")
        for kind, (script, agent) in KINDS.items():
            folder = Path(name) / kind
            shutil.copytree(Path(name) / "tasks", folder)
            for task in sorted(folder.glob("repair-*")) if kind == "cheating" else ():
                shutil.copy(task / script, task / "solution" / "solve.sh")
            theirs = run_harbor(options.harbor, folder, agent, Path(name) / "jobs")
            for task in sorted((Path(name) / "tasks").glob("repair-*")):
                read = read_task(task)
                ours = total(judge(read, read.files, task / script if script else None))
                count += 1
                equal += ours == theirs[task.name]
                right += ours == float(kind == "reference")
                console.print(f"{task.name} {kind}: ours {ours}, Harbor's {theirs[task.name]}", highlight=False)
    console.print(f"{equal} of {count} verdicts are equal, {right} are what they should be", highlight=False)
    if options.write:
        record("programs", "harbor.tasks_equal", [equal], f"of {count} verdicts", COMMAND, count)


def run_harbor(command: str, folder: Path, agent: str, jobs: Path) -> dict[str, float | None]:
    """Return Harbor's rewards by task; None where its verifier has none."""
    words = ["run", "-p", str(folder), "-a", agent, "--jobs-dir", str(jobs), "--job-name", folder.name, "-n", "2"]
    words += ["-y", "-q", "-e", "harbor_machine:MachineEnvironment"]
    offline = {"HARBOR_TELEMETRY": "off", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    subprocess.run([command, *words], env={**os.environ, **offline, "PYTHONPATH": str(EXAMPLE)}, check=True)
    rewards: dict[str, float | None] = {}
    for path in (jobs / folder.name).glob("*/result.json"):
        trial = json.loads(path.read_text())
        result = trial["verifier_result"] or {}
        rewards[Path(trial["config"]["task"]["path"]).name] = (result.get("rewards") or {}).get("reward")
    return rewards


if __name__ == "__main__":
    main()
