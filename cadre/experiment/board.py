"""What TensorBoard draws, written as it comes: no thread, no queue, and no name of the machine in the file's.

What this leaves out: everything but numbers.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


class Board:
    """One file of events in `folder`, owned by one run; each number is in the file when `add` returns."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._event: Any = Event
        self._file = (folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}").open("ab", buffering=0)
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")

    def add(self, name: str, value: float, step: int) -> None:
        """Draw a number. Raises OSError where the disk refuses it."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._write(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))

    def close(self) -> None:
        self._file.close()

    def _write(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
