"""What TensorBoard draws, written as it comes: no thread, no queue, and no name of the machine in the file's.

What this leaves out: everything but numbers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from cadre.experiment.trackers.story import Story


class TensorBoard:
    """One file of events in `tensorboard/` of the run's folder; each number is in it when `draw` returns.

    A disk that refuses it is the run's own business: OSError is raised.
    """

    def __init__(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.errors: tuple[type[Exception], ...] = ()
        self._event: Any = Event
        self._summary: Any = Summary
        self._writer: Any = RecordWriter

    def begin(self, story: Story) -> None:
        folder = story.folder / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}").open("ab", buffering=0)
        self._records = self._writer(self._file)
        self._write(file_version="brain.Event:2")

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            shown = self._summary.Value(tag=name, simple_value=value)
            self._write(step=step, summary=self._summary(value=[shown]))

    def close(self) -> None:
        self._file.close()

    def _write(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
