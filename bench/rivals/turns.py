"""The worker's half of the talk with bench/side.py: a line that asks for a turn, the work, a line of figures.

Workers run in virtual environments of their own, so this needs the standard library only. All sides stay loaded and
wait while another has its turn. A JSON object a line goes out over what was standard output; whatever a library prints
goes to standard error instead.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def reward(text: str) -> float:
    """A reward in [0, 1) of what was said, the same on every side; siblings differ, so every one has a gradient."""
    return (zlib.crc32(text.encode()) % 10_007) / 10_007


class Turns:
    """The talk of one worker. `job` is what it was started with: the model, the prompts, how much to sample."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self.job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
        self._began = self._processor = 0.0
        self._waiting = False

    def wait(self) -> bool:
        """Say that this side is ready, and wait until it is asked; False once there is no more to do."""
        if not self._waiting:
            forget_peak()
            self._say({"ready": True})
            self._waiting = True
        is_turn = sys.stdin.readline().strip() == "go"
        self._began, self._processor = time.perf_counter(), time.process_time()
        return is_turn

    def elapsed(self) -> float:
        """Seconds of the present turn."""
        return time.perf_counter() - self._began

    def done(self, generating: float, prompts: Iterable[Sequence[int]], sampled: int, trained: int) -> None:
        """Answer a turn: seconds of it spent generating, the prompts' ids, and completion tokens drawn and trained."""
        seconds = self.elapsed()
        ids = sorted(tuple(map(int, prompt)) for prompt in prompts)
        self._say(
            {
                "seconds": seconds,
                "generating": generating,
                "learning": seconds - generating,
                "processor": time.process_time() - self._processor,
                "prompts": zlib.crc32(repr(ids).encode()),
                "prompt_tokens": sum(map(len, ids)),
                "sampled": sampled,
                "trained": trained,
                "peak_mb": peak_mb(),
            }
        )

    def _say(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message) + "\n")


def forget_peak() -> None:
    """Let the peak start from what is resident now, so that loading does not count."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """The most memory that was resident since `forget_peak`, in MB."""
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in status if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1e6
