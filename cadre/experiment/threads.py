"""How threads of the numerical libraries wait for each other; set before those libraries load, which read it then."""

from __future__ import annotations

import os


def settle_threads() -> None:
    """Let threads spin for a moment before they sleep, unless the user has said how they shall wait.

    Threads that spin for long while they wait make a step several times slower as soon as anything else wants a core;
    those that sleep at once take twice as long to wake as a small product takes. Has no effect once torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
