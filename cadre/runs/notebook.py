"""The console of a training in a notebook: one display that changes, in place of an output for every line."""

from __future__ import annotations

import io
import warnings
from collections import deque
from html import escape
from threading import Lock
from typing import Any

from rich.console import Console
from rich.progress import Progress as Bars

WIDTH, LINES = 100, 15


class NotebookConsole(Console):
    """Shows the newest lines, and bars where work is going on, in one display of the running cell.

    A line is shown at once, but while there are `bars` only by `refresh`, which their owner calls once a second. Used
    by the thread of the training and that of its bars.
    """

    def __init__(self) -> None:
        self._written = io.StringIO()
        super().__init__(file=self._written, force_terminal=False, force_jupyter=False, soft_wrap=True, emoji=False)
        self.bars: Bars | None = None
        self.is_live = False
        self._lines: deque[str] = deque(maxlen=LINES)
        self._display: Any = None
        self._display_lock = Lock()
        # What loads the model imports tqdm, which misses widgets that nothing here draws.
        warnings.filterwarnings("ignore", message="IProgress not found")

    def print(self, *objects: Any, **options: Any) -> None:
        """Add lines to the display; options as of rich."""
        with self._display_lock:
            super().print(*objects, **options)
            self._lines.extend(self._written.getvalue().splitlines())
            self._written.seek(0)
            self._written.truncate()
        if not self.is_live:
            self.refresh()

    def refresh(self) -> None:
        """Show what was printed so far."""
        from IPython.display import display

        with self._display_lock:
            lines = list(self._lines)
            if self.bars is not None:
                plain = Console(file=io.StringIO(), width=WIDTH, force_terminal=False, force_jupyter=False)
                with plain.capture() as capture:
                    plain.print(self.bars.get_renderable())
                lines += capture.get().rstrip().splitlines()
            # Front ends without HTML show the last line alone.
            shown = {
                "text/plain": "".join(list(self._lines)[-1:])[:WIDTH],
                "text/html": f'<pre style="font-family: monospace">{escape(chr(10).join(lines))}</pre>',
            }
            if self._display is None:
                self._display = display(shown, raw=True, display_id=True)
            else:
                self._display.update(shown, raw=True)


def make_console(quiet: bool = False) -> Console:
    """Return the console for what Python code trains: a display in a notebook, else the terminal."""
    console = Console(soft_wrap=True, emoji=False, quiet=quiet)
    return NotebookConsole() if console.is_jupyter and not quiet else console
