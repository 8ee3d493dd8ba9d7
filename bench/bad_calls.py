"""Counts how the command line takes wrong calls: `python bench/bad_calls.py [--write]`.

Plays the table of tests/cadre/cli/bad_calls.py in one process and appends to results/cli.jsonl: `cli.bad_calls`, how
many there are, and `cli.tracebacks`, how many end in anything but paragraphs and exit code 2. Prints the slow ones.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from common import record
from tests.cadre.cli import bad_calls
from tests.cadre.cli.calling import Done, call
from tests.helpers.coordination import write_speaker

COMMAND = "python bench/bad_calls.py --write"
# A call that has not ended by then has run away.
PATIENCE_S = 20
SLOW_S = 2.0


@dataclass(frozen=True)
class Outcome:
    """A call, what is wrong with how it ended (nothing where it ended well), and how long it took."""

    line: str
    fault: str
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help="append to results/cli.jsonl")
    parser.add_argument("--only", default="", help="the calls whose line holds this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        outcomes = play(Path(name), options.only)
    faults = [outcome for outcome in outcomes if outcome.fault]
    slowest = max(outcomes, key=lambda outcome: outcome.seconds)
    print(f"{len(outcomes)} bad calls, {len(faults)} not answered as they should be")
    print(f"slowest: {slowest.seconds:.2f} s, cadre {slowest.line}")
    if options.write:
        record("cli", "cli.bad_calls", [len(outcomes)], "calls", COMMAND, len(outcomes))
        record("cli", "cli.tracebacks", [len(faults)], "calls", COMMAND, len(outcomes))


def play(folder: Path, only: str) -> list[Outcome]:
    """Every call, one after the other, in a folder that holds what they name."""
    bad_calls.prepare(folder, write_speaker(folder / "model"))
    os.chdir(folder)
    os.environ.pop("CADRE_DATA", None)
    signal.signal(signal.SIGALRM, _give_up)
    assert call("train", "PLAIN", "--run", "RUN").code == 0  # also loads torch, which is no call's time
    return [_outcome(arguments) for arguments in bad_calls.calls() if only in shlex.join(arguments)]


def _outcome(arguments: list[str]) -> Outcome:
    """Play one call; what went wrong is printed at once."""
    began = time.monotonic()
    signal.alarm(PATIENCE_S)
    try:
        fault = _fault(arguments[0], call(*arguments))
    except TimeoutError:
        fault = "ran away"
    except Exception as error:  # noqa: BLE001 - what a shell would show as a traceback is what is counted
        fault = f"traceback: {type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.alarm(0)
    outcome = Outcome(shlex.join(arguments), fault, time.monotonic() - began)
    if fault or outcome.seconds > SLOW_S:
        print(f"{outcome.seconds:6.2f} s  cadre {outcome.line}\n          {fault or 'slow'}", flush=True)
    return outcome


def _fault(command: str, done: Done) -> str:
    if done.code != 2:
        return f"exit code {done.code}: {(done.err or done.out)[-200:]!r}"
    told = [line for line in done.err.splitlines() if not line.startswith("imports ")]
    # The contract of an environment is told with all that is wrong at once.
    good = told and all(line.startswith("error: ") for line in told) and (len(told) == 1 or command == "check")
    return "" if good else f"not one paragraph: {done.err[:300]!r}"


def _give_up(*_: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    main()
