"""Injects faults into small runs: does each end as it should, and is nothing lost that was written before?

A case trains the tests' tiny model for a few steps and says what went wrong, or nothing. Writes `faults.injected`, how
many faults met the runs, and `faults.lost`, in how many cases a run ended otherwise than it should or left something
broken, to results/faults.jsonl with --write. Full and read-only disks need the right to mount.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common
from cadre.files import find_damage
from cadre.training.checkpoint import latest_checkpoint
from faulty import Faulty, Programs
from tests.helpers.coordination import write_speaker

CLOCK = (
    "import time, itertools\n_n, _t = itertools.count(), time.time\ntime.time = lambda: _t() + (-1) ** next(_n) * 1e8\n"
)
STEPS = 12


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code and what it told."""

    code: int
    told: str

    def as_told(self, code: int, *words: str) -> str:
        """What is wrong where it should have ended with this code and told these words, without a traceback."""
        if self.code != code:
            return f"exit code {self.code} in place of {code}: {self.told[-300:]}"
        missing = [word for word in words if word not in self.told]
        if "Traceback (most" in self.told:
            return f"a traceback: {self.told[-300:]}"
        return f"{missing} not told: {self.told[-300:]}" if missing else ""


@dataclass
class Bench:
    """A scratch folder with a model, and how many faults have met its runs. Lives as long as the bench."""

    folder: Path
    injected: int = 0
    environment: dict[str, str] = field(
        default_factory=lambda: {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(common.ROOT)}
    )

    def recipe(self, env: str = Faulty.__name__, **sections: Any) -> str:
        path = self.folder / f"{env}-{time.monotonic_ns()}.yaml"
        plain = {
            "env": f"{common.ROOT}/bench/faulty.py:{env}",
            "team": str(self.folder / "model"),
            "algorithm": {"name": "at_grpo", "k": 4},
            "sampling": {"max_tokens": 2},
            "train": {"steps": STEPS, "tasks_per_step": 8, "trees_kept": 1, "checkpoint_every": 4},
            "episodes": {"step_seconds": 0.5, "retries": 2},
            "evaluate": {"tasks": 4},
        }
        path.write_text(json.dumps(plain | sections))
        return str(path)

    def begun(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "cadre", "train", *arguments]
        pipe, environment = subprocess.PIPE, os.environ | self.environment
        return subprocess.Popen(
            command, cwd=self.folder, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment
        )

    def train(self, *arguments: str) -> Ended:
        process = self.begun(*arguments)
        told, _ = process.communicate(timeout=300)
        return Ended(process.returncode, told)


def broken(run: Path) -> str:
    """What is not whole of what a run left: every line of its files, and its newest checkpoint."""
    for path in run.glob("*.jsonl"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                json.loads(line)
            except ValueError:
                return f"{path.name}, line {number} is broken"
    return find_damage(latest_checkpoint(run / "checkpoints")) or ""


def metrics(run: Path) -> list[dict[str, Any]]:
    if not (run / "metrics.jsonl").exists():
        return []
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def total(run: Path, name: str) -> int:
    return int(sum(line[name] for line in metrics(run)))


def weights(run: Path) -> bytes:
    (file,) = latest_checkpoint(run / "checkpoints").glob("*/model.safetensors")
    return file.read_bytes()


def flaky(bench: Bench, **settings: float) -> str:
    """Some steps go wrong: the episodes are tried again, and the run ends as if nothing had happened."""
    run = bench.folder / f"flaky-{'-'.join(settings)}"
    ended = bench.train(bench.recipe(settings=settings), "--run", str(run))
    fault = ended.as_told(0) or broken(run)
    met = total(run, "rollout/retried") + total(run, "rollout/failures")
    bench.injected += met
    return fault or ("" if met else "nothing went wrong")


def raising(bench: Bench) -> str:
    return flaky(bench, raises=0.05)


def hanging(bench: Bench) -> str:
    return flaky(bench, hangs=0.01)


def always(bench: Bench) -> str:
    """An environment that is broken stops the run with the reason, saved."""
    run = bench.folder / "always"
    ended = bench.train(bench.recipe(settings={"raises": 1.0}), "evaluate.tasks=0", "--run", str(run))
    bench.injected += 1
    return ended.as_told(2, "error: ", "a step that raises", "episodes.failed_fraction") or broken(run)


def dead_sandbox(bench: Bench) -> str:
    """Warm parents are killed again and again: nobody is paid for that, however the run ends."""
    run = bench.folder / "programs"
    process = bench.begun(
        bench.recipe(Programs.__name__, episodes={"retries": 2}),
        "train.steps=2",
        "train.tasks_per_step=3",
        "--run",
        str(run),
    )
    while process.poll() is None:
        if (run / "checkpoints" / "step-000000").exists():  # before, the sandbox is chosen by what it can do
            bench.injected += sum(kill(pid) for pid in children(process.pid))
        time.sleep(1.5)
    told, _ = process.communicate()
    words = ["error: ", "sandbox"] if process.returncode else []
    fault = Ended(process.returncode, told).as_told(2 if process.returncode else 0, *words) or broken(run)
    paid = {line["speaker/reward"] for line in metrics(run) if "speaker/reward" in line}
    return fault or (f"programs were paid {paid}" if paid - {1.0} else "")


def children(pid: int) -> Iterator[int]:
    """The processes that this one has started."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(path.parent.name)
        except OSError:
            continue


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def full_disk(bench: Bench) -> str:
    """With less and less room: what was written is whole, and with room again the run goes on."""
    for left in (200_000, 60_000, 8_192):
        with mounted(bench.folder / "disk", "size=4m") as disk:
            run, recipe = disk / "run", bench.recipe()
            bench.train(recipe, "train.steps=2", "--run", str(run))
            room = os.statvfs(disk)
            (disk / "filler").write_bytes(bytes(max(0, room.f_bavail * room.f_frsize - left)))
            ended = bench.train(recipe, "train.steps=40", "--run", str(run), "--resume")
            bench.injected += 1
            fault = ended.as_told(2, "error: ", "No space left") or broken(run)
            (disk / "filler").unlink()
            fault = fault or bench.train(recipe, "train.steps=4", "--run", str(run), "--resume").as_told(0)
            if fault:
                return f"{left} bytes left: {fault}"
    return ""


def read_only(bench: Bench) -> str:
    """A folder that cannot be written to, at the start and later."""
    with mounted(bench.folder / "fixed", "size=8m") as disk:
        recipe = bench.recipe()
        bench.train(recipe, "train.steps=2", "--run", str(disk / "run"))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        bench.injected += 2
        again = bench.train(recipe, "train.steps=4", "--run", str(disk / "run"), "--resume")
        new = bench.train(recipe, "--run", str(disk / "new"))
        words = ("error: ", "Read-only file system")
        return again.as_told(2, *words) or new.as_told(2, *words) or broken(disk / "run")


def as_unbroken(bench: Bench, name: str, breaks: Callable[[Path], None]) -> str:
    """What is broken between two halves of a run is passed over: it ends with the weights of an unbroken one."""
    whole, run, recipe = bench.folder / f"{name}-whole", bench.folder / name, bench.recipe()
    bench.train(recipe, "--run", str(whole))
    bench.train(recipe, f"train.steps={STEPS // 2}", "--run", str(run))
    breaks(run)
    bench.injected += 1
    ended = bench.train(recipe, f"train.steps={STEPS}", "--run", str(run), "--resume")
    fault = ended.as_told(0) or broken(run)
    return fault or ("" if weights(run) == weights(whole) else "other weights than the unbroken run's")


def half_checkpoint(bench: Bench) -> str:
    def cut(run: Path) -> None:
        (file,) = latest_checkpoint(run / "checkpoints").glob("*/model.safetensors")
        os.truncate(file, file.stat().st_size // 2)

    return as_unbroken(bench, "half", cut)


def torn_lines(bench: Bench) -> str:
    def tear(run: Path) -> None:
        for path in run.glob("*.jsonl"):
            os.truncate(path, path.stat().st_size - 7)

    return as_unbroken(bench, "torn", tear)


def clock_jump(bench: Bench) -> str:
    """The system's time jumps by three years back and forth at every look at it."""
    (bench.folder / "clock").mkdir()
    (bench.folder / "clock" / "sitecustomize.py").write_text(CLOCK)
    path = f"{bench.folder / 'clock'}:{common.ROOT}"
    jumping = Bench(bench.folder, environment=bench.environment | {"PYTHONPATH": path})
    whole, run, recipe = bench.folder / "steady", bench.folder / "jumping", bench.recipe()
    bench.train(recipe, "--run", str(whole))
    bench.injected += 1
    fault = jumping.train(recipe, "--run", str(run)).as_told(0) or broken(run)
    return fault or ("" if weights(run) == weights(whole) else "other weights than with a steady clock")


def diverging(bench: Bench) -> str:
    run = bench.folder / "diverging"
    bench.injected += 1
    ended = bench.train(bench.recipe(), "learner.learning_rate=1e10", "--run", str(run))
    return ended.as_told(2, "error: ", "not finite") or broken(run)


CASES = (raising, hanging, always, dead_sandbox, full_disk, read_only)
CASES += (half_checkpoint, torn_lines, clock_jump, diverging)


def lost(bench: Bench, cases: Sequence[Callable[[Bench], str]]) -> int:
    """How many cases went wrong; each is told as it ends."""
    wrong = 0
    for case in cases:
        fault = case(bench)
        wrong += bool(fault)
        print(f"{case.__name__}: {fault or 'as it should'} ({bench.injected} faults so far)", flush=True)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[case.__name__ for case in CASES])
    parser.add_argument("--write", action="store_true", help="append to results/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write_speaker(Path(scratch) / "model")
        bench = Bench(Path(scratch))
        wrong = lost(bench, [case for case in CASES if case.__name__ in options.only])
    if options.write:
        command = "python bench/faults.py --write"
        common.record("faults", "faults.injected", [bench.injected], "faults", command, len(CASES))
        common.record("faults", "faults.lost", [wrong], "cases", command, len(CASES))


if __name__ == "__main__":
    main()
