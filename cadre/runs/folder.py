"""The run folder: everything that one training run leaves behind, and the only place that writes it.

config.yaml         the whole configuration, defaults written out
command.json        the recipe and overrides that the run was started with, in which folder, and its own path
environment.json    versions, machine, how programs are confined
metrics.jsonl       one object per step
evaluations.jsonl   one object per evaluation; evaluations-1.jsonl where the run was resumed with other held-out tasks
failures.jsonl      the first failed episode of each reason and text, with its traceback
trees.jsonl         the first trees of every step, whole, with trees.index.jsonl beside it (docs/view.md)
annotations/        annotations of their samples: credit, critic, tokens
vocabulary.jsonl    how their tokens are spelt
left_out.jsonl      what steps did not learn from or keep, with the reason
resumed.jsonl       the step from which the run was resumed, each time that it was
tensorboard/        the same metrics for TensorBoard, rewritten from the files above when a run is resumed
wandb/              of the tracker of that name, where it is on
status.json         the current state of the run, see `cadre.runs.progress`
checkpoints/        step-000030/: what `cadre.training.checkpoint` saves
opponents/          weights of the present members of the pool in self-play (team.opponents)
.lock               held by the one process that writes here

A run may be moved: files that it was started from are found where they were, or where they were moved together with it.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import logging
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from heapq import merge
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeVar

from cadre import __version__
from cadre.config.experiment import Config, dump, load
from cadre.config.recipes import describe_root
from cadre.config.trusted_runs import record_begun_run
from cadre.errors import RunError, TakenError, as_sentence
from cadre.files import (
    OpenRecord,
    Record,
    explain_disk_errors,
    open_plain,
    path_exists,
    publish_atomically,
    read_record,
    sync_to_disk,
    write_text_atomically,
)
from cadre.rollout.episodes import Failure
from cadre.runs import jsonl
from cadre.runs.kept_trees import StepRecord, StepRecorder, Vocabulary, forget_steps
from cadre.runs.records import CommandRecord, EnvironmentRecord, EvaluationLine, StepMetrics
from cadre.runs.trackers import TrackedRun, Trackers
from cadre.runs.tree_format import MediaStore
from cadre.settings import CreditConfig, PolicyConfig, TrainConfig
from cadre.settings.trust import only_reading

METRICS, EVALUATIONS = "metrics.jsonl", "evaluations.jsonl"
log = logging.getLogger(__name__)
T = TypeVar("T")
PACKAGES = ("torch", "transformers", "tokenizers", "peft", "numpy")


class Run:
    """One run folder: writes what a training logs, and reads it back. Owned by the process that trains in it."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder, self.config = folder, config
        self.vocabulary, self._media = Vocabulary({}), MediaStore(folder)
        self._trackers: Trackers | None = None
        # Why its training ended by itself, "" before that; not recorded.
        self.ended = ""

    @property
    def train(self) -> TrainConfig:
        """The settings of the training loop that the run records."""
        return self.config.train

    @property
    def policies(self) -> Mapping[str, PolicyConfig]:
        """The policies of the team that the run records."""
        return self.config.team.policies

    @classmethod
    def create(
        cls,
        folder: Path,
        config: Config,
        recipe: str = "",
        overrides: Sequence[str] = (),
        forked_at: int | None = None,
        fill: Callable[[Run], None] = lambda run: None,
    ) -> Run:
        """Create a new run; `forked_at` is the step after which it begins if it is a fork, and `fill` writes what else
        it begins with. It appears whole, so that of runs started at the same moment each sees the other or not. Raises
        TakenError for a folder that holds anything, and for one that another process is making."""
        check_folder_free(folder)
        with publish_atomically(folder) as (partial,):
            check_folder_free(folder)  # another process may have made it before the lock was ours
            partial.mkdir()
            record: dict[str, Any] = {"recipe": recipe, "overrides": list(overrides), **describe_root(folder)}
            if forked_at is not None:
                record["forked_at"] = forked_at
            write_text_atomically(partial / "command.json", json.dumps(record) + "\n")
            run = cls(partial, config)
            run.write_config(config)
            record_begun_run(partial, folder, config.model_dump(mode="json"))
            fill(run)
        return cls(folder, config)

    @classmethod
    def open(cls, folder: Path, overrides: Sequence[str] = ()) -> Run:
        """Open an existing run, with its own configuration; no code that it names is run."""
        if not (folder / "config.yaml").is_file():
            advice = "See the folder runs/. Each checkpoint of a run has a copy of its config.yaml."
            raise RunError(f"run: {folder} holds no config.yaml; expected the folder of a run. {advice}")
        open_plain(folder / "config.yaml").close()  # raises for a link
        with only_reading():
            return cls(folder, load(str(folder / "config.yaml"), overrides))

    def write_config(self, config: Config) -> None:
        """Make `config` the run's own, all of it or nothing."""
        write_text_atomically(self.folder / "config.yaml", dump(config))
        self.config = config

    def command(self) -> tuple[str, list[str]]:
        """Return the recipe and the overrides that the run was started with; no recipe if it was started from
        Python."""
        record = self._command_record()
        return record.recipe, record.overrides

    def forked_at(self) -> int | None:
        """Return the step after which the run begins if it was forked from another one."""
        return self._command_record().forked_at

    def _command_record(self) -> CommandRecord:
        path = self.folder / "command.json"
        return _read_optional(path, CommandRecord) or CommandRecord(recipe="", overrides=[])

    def record_environment(self, **found: Mapping[str, Any]) -> None:
        """Write what the run runs on, and what was found when it began: the `sandbox`, digests of its `tasks` by split,
        the GiB that each policy may be sampled in, on which rounding depends (`sampling_memory`), what samples each
        policy (`engines`), and fingerprints of the models that it began with (`bases`)."""
        record = {
            "cadre": __version__,
            "commits": git_commits(),
            "python": sys.version.split()[0],
            "packages": {name: _package_version(name) for name in PACKAGES},
            "machine": describe_machine(),
            **found,
        }
        write_text_atomically(self.folder / "environment.json", json.dumps(record, indent=1) + "\n")

    def environment(self) -> dict[str, Any]:
        """Return what `record_environment` wrote; empty before that."""
        record = _read_optional(self.folder / "environment.json", EnvironmentRecord)
        return {} if record is None else record.model_dump(exclude_unset=True)

    def sampling_memory(self) -> dict[str, float]:
        """Return the GiB that each policy was sampled in; empty if that was on another machine."""
        record = self.environment()
        memory: dict[str, float] = record.get("sampling_memory", {})
        return memory if record.get("machine") == describe_machine() else {}

    def keep(self, step: int, record: StepRecord, credit: CreditConfig) -> None:
        """Write the kept trees of a step, as the settings say."""
        StepRecorder(self.folder, self.train, credit, self.vocabulary, self._media).keep(step, record)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step's metrics, after all else of it: a step that has metrics is logged completely."""
        jsonl.append(self.folder / METRICS, {"step": step, **metrics})
        self.trackers.draw(step, metrics)

    def log_evaluation(self, step: int, report: Mapping[str, Any]) -> None:
        """Write one evaluation, made after `step` updates."""
        jsonl.append(self.folder / EVALUATIONS, {"step": step, **report})
        self.trackers.draw(step, _tracked_figures(report))

    def metrics(self) -> list[dict[str, Any]]:
        """Return one object per step, first to last."""
        return jsonl.read_all(self.folder / METRICS, StepMetrics)

    def evaluations(self) -> list[dict[str, Any]]:
        """Return one object per evaluation, first to last."""
        return jsonl.read_all(self.folder / EVALUATIONS, EvaluationLine)

    def steps_logged(self) -> Iterator[int]:
        """Yield the steps that have metrics, first to last, however long the run is."""
        return (line["step"] for line in jsonl.records(self.folder / METRICS, StepMetrics))

    def total(self, name: str) -> float:
        """Return the sum of a metric over the steps so far."""
        return sum(line.get(name) or 0.0 for line in jsonl.records(self.folder / METRICS, StepMetrics))

    def flush(self) -> None:
        """Flush all logs to the disk, so that a checkpoint that is written later finds its lines there."""
        with explain_disk_errors(self.folder):
            for path in (*self.folder.glob("*.json*"), *(self.folder / "annotations").glob("*.jsonl")):
                if path.is_file() and not path.is_symlink():
                    sync_to_disk(path)
            for folder in (self.folder / "annotations", self.folder):
                if folder.is_dir():
                    sync_to_disk(folder)

    def rewind(self, step: int) -> None:
        """Remove what was logged at or after `step`: a resumed run makes it again. Trackers plot the rest anew."""
        jsonl.append(self.folder / "resumed.jsonl", {"step": step})
        jsonl.truncate(self.folder / METRICS, lambda line: line["step"] >= step, StepMetrics)
        forget_steps(self.folder, step)
        jsonl.truncate(self.folder / EVALUATIONS, lambda line: line["step"] > step, EvaluationLine)
        # Event files cannot be cut, so they are written again from the logs.
        self.close()
        shutil.rmtree(self.folder / "tensorboard", ignore_errors=True)
        for logged_step, numbers in self._logged():
            self.trackers.draw(logged_step, numbers)

    def _logged(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield all that trackers received, as (step, numbers), in the order in which it was logged."""
        reports = ((report["step"], _tracked_figures(report)) for report in self.evaluations())
        lines = ((line.pop("step"), line) for line in jsonl.records(self.folder / METRICS, StepMetrics))
        # Of equals the first comes first: an evaluation is made before the step that has its number.
        return merge(reports, lines, key=lambda line: line[0])

    @property
    def trackers(self) -> Trackers:
        """The trackers of the settings, started when first used. Raises ConfigError if one cannot start."""
        if self._trackers is None:
            self._trackers = Trackers(TrackedRun(self.folder, self.config))
        return self._trackers

    def close(self) -> None:
        if self._trackers is not None:
            self._trackers.close()
            self._trackers = None


def _tracked_figures(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of an evaluation that trackers plot."""
    return {f"evaluate/{name}": report[name] for name in ("success", "reward")}


# ---- New run folders


def check_folder_free(folder: Path) -> None:
    """Raise RunError if a new run's folder is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        advice = f"Name another, or go on with it: {resume_command(folder)}."
        raise TakenError(f"--run: {folder} exists and is not empty; expected a new folder. {advice}")


def _read_optional(path: Path, model: type[Record]) -> Record | None:
    """Return a record of a run, or None if there is none. A damaged one is skipped with a warning."""
    if not path_exists(path):
        return None
    try:
        return read_record(path, model)
    except RunError as error:
        _warn_once(f"{error} It is left out.")
        return None


@cache
def _warn_once(warning: str) -> None:
    """Log a warning once, however often the record is read."""
    log.warning("%s", warning)


def resume_command(folder: Path, command: str = "train") -> str:
    """Return the shell command that resumes a run with its own configuration."""
    return shlex.join(["cadre", command, "--run", str(folder), "--resume"])


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the name of each of different folders, with as many of those above it as tell it from the others."""
    paths = [folder.resolve() for folder in folders]

    def shortest(path: Path) -> str:
        for length in range(1, len(path.parts)):
            ends = [path.parts[-length:] for path in paths]
            if ends.count(path.parts[-length:]) == 1:
                return "/".join(path.parts[-length:])
        return str(path)

    return list(map(shortest, paths))


def create_in_free_folder(folder: Path | None, recipe: str, create: Callable[[Path], T]) -> T:
    """Return what `create` makes in `folder`, or by default in `runs/RECIPE-001` or the next number that no run takes,
    one that is started at the same moment included."""
    if folder is not None:
        return create(folder)
    _, colon, name = Path(recipe).name.rpartition(":")
    stem = re.sub(r"\W", "", name) if colon else re.sub(r"\.(yaml|yml|jsonl|json|parquet|csv)$", "", name)
    for number in count(1):
        numbered = Path("runs") / f"{stem}-{number:03d}"
        with suppress(TakenError):
            if not os.path.lexists(numbered):
                return create(numbered)
    raise AssertionError("numbers do not end")


# ---- The folder of a sweep: its record, and the runs that it holds

# In the folder of a sweep: what all its runs have in common.
SWEEP_RECORD = "sweep.json"


class SweepRecord(OpenRecord):
    """What the runs of a sweep have in common, and what is set in each of them."""

    recipe: str
    overrides: list[str]
    runs: dict[str, list[str]] = {}


def expand_sweeps(folders: Sequence[Path]) -> list[Path]:
    """Return the folders with that of a sweep replaced by those of its runs that have begun, in the sweep's order."""
    expanded = []
    for folder in folders:
        if (folder / SWEEP_RECORD).is_file():
            # The record may be a stranger's: a run lies in the folder itself.
            names = [name for name in read_record(folder / SWEEP_RECORD, SweepRecord).runs if Path(name).name == name]
            begun = [folder / name for name in names if (folder / name / "config.yaml").is_file()]
            if not begun:
                raise RunError(f"{folder} holds a sweep without any run; expected one that has begun. Go on with it.")
            expanded += begun
        else:
            expanded.append(folder)
    return expanded


# ---- The machine and the code that a run was made with


@cache
def describe_machine() -> str:
    """Return the machine in general words, with its GPUs if the driver's own tool lists some; never its name."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        gpus = []
    return ", ".join([f"{os.cpu_count()} cores", platform.machine(), platform.system(), *gpus])


def _package_version(package: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


# ---- One writer per run folder


TOUCH_SECONDS = 2.0  # between two touches of a lock's file by its owner


class RunLock:
    """Holds `FOLDER/.lock` from `__enter__` to `__exit__`; a second holder is refused. The lock goes with the process,
    however it ends, kill -9 too.

    Some shared file systems (Lustre, NFS) may have no locks, or locks that hold on one host only. So the owner writes
    who it is into the file, touches it every few seconds, and empties it at the end. Of two processes that start there
    at the same moment neither sees the other.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self._released = threading.Event()
        self._toucher = threading.Thread(target=self._touch, daemon=True)

    def __enter__(self) -> Self:
        here = f" on {socket.gethostname()}"
        with explain_disk_errors(self.path):  # a link would lead to a file of somebody else, which is written here
            self._descriptor = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644
            )
            owner = os.pread(self._descriptor, 300, 0).decode(errors="replace").strip()
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = owner != "" and not owner.endswith(here) and self._is_touched()
        except BlockingIOError:
            is_held = True
        except OSError:  # no locks here
            is_held = owner != "" and self._is_touched()
        if is_held:
            os.close(self._descriptor)
            got = f"{self.path.parent} is being written by another process ({owner or 'unknown'})"
            raise RunError(f"run: {got}; expected one at a time. Wait for it, stop it, or name another.")
        try:
            with explain_disk_errors(self.path):
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, f"{os.getpid()}{here}".encode(), 0)
        except RunError:
            os.close(self._descriptor)
            raise
        self._toucher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._toucher.join()
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    def _touch(self) -> None:
        while not self._released.wait(TOUCH_SECONDS):
            with suppress(OSError):
                os.utime(self._descriptor)

    def _is_touched(self) -> bool:
        """Wait, and return whether the file was touched meanwhile."""
        times = []
        for seconds in (0, 3 * TOUCH_SECONDS):
            time.sleep(seconds)
            with open_plain(self.path) as file:  # opened anew, as a client of NFS then asks the server
                times.append(os.fstat(file.fileno()).st_mtime_ns)
        return times[0] != times[1]


PACKAGE_FOLDER = Path(__file__).parents[1]


def git_commits() -> dict[str, str]:
    """Return the commits of Cadre, if it runs from a checkout, and of the current folder (`here`), if that is in
    git."""
    commits = {"cadre": git_commit(PACKAGE_FOLDER), "here": git_commit(Path())}
    return {name: commit for name, commit in commits.items() if commit}


def git_commit(folder: Path) -> str:
    """Return `629b2570a1b2`, with a plus if tracked files differ from it; empty without git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""


# Kinds of failures that one process writes; an environment may raise another text each time.
MAX_KINDS = 100


# ---- Failed episodes


class FailureLog:
    """Writes `failures.jsonl` in the folder of a run. Lives as long as the training."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.path, self._say = folder / "failures.jsonl", say
        self.step = 0
        self._seen: set[tuple[str, str]] = set()

    def begin(self, step: int) -> None:
        """Set the step that later failures belong to."""
        self.step = step

    def __call__(self, failure: Failure) -> None:
        """Write a failure if its kind is new, and print the first."""
        kind = (failure.reason, failure.error)
        if kind in self._seen or len(self._seen) >= MAX_KINDS:
            return
        if not self._seen:
            subject, error = "A branch of a tree" if failure.branches else "An episode", as_sentence(failure.error)
            self._say(f"{subject} failed ({failure.reason}): {error} Tracebacks are in {self.path}.")
        self._seen.add(kind)
        record = {"task": failure.task.id, "reason": failure.reason, "error": failure.error}
        jsonl.append(self.path, {"step": self.step, **record, "traceback": failure.traceback})
