"""Failed episodes as a person finds them: the first on the console, and each kind with its traceback in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cadre.experiment import jsonl
from cadre.rollout.episodes import Failure

# Kinds of failures that are written down by one process; an environment may raise another text each time.
MOST_KINDS = 100


class FailureLog:
    """Writes `failures.jsonl` in the folder of a run. Lives as long as the training."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.path, self._say = folder / "failures.jsonl", say
        self.step = 0
        self._seen: set[tuple[str, str]] = set()

    def begin(self, step: int) -> None:
        """What fails from here on belongs to this step."""
        self.step = step

    def __call__(self, failure: Failure) -> None:
        """Write a failure down where its kind is new, and tell of the first."""
        kind = (failure.reason, failure.error)
        if kind in self._seen or len(self._seen) >= MOST_KINDS:
            return
        if not self._seen:
            what = "A branch of a tree" if failure.branches else "An episode"
            self._say(f"{what} failed ({failure.reason}): {failure.error.rstrip('.')}. Tracebacks are in {self.path}.")
        self._seen.add(kind)
        record = {"task": failure.task.id, "reason": failure.reason, "error": failure.error}
        jsonl.append(self.path, {"step": self.step, **record, "traceback": failure.traceback})
