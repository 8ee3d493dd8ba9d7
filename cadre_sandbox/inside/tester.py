"""A job of kind `tester`: run tests against a solution in another process, and write one line per test.

A verdict counts only with the nonce that the trainer gave to this process, and nothing that the solution does can write
it. Tests that a model wrote run here too; they can falsify only their own verdict.
"""

import os
import socket
from typing import Any

from . import codec, units
from .boundary import Raised, Returned, attempt
from .program import execute
from .remote import Peer, Remote, SolutionGone

MAX_TESTS = 20_000
MAX_TEXT = 400
# Only so many failed tests are described: the verdict must fit into its file.
MAX_DESCRIBED = 50


class Report:
    """Writes the verdict to the file of stdout, and redirects stdout to /dev/null. Lives as long as the tester."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.file = os.dup(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)

    def write(self, *words: object) -> None:
        """Write one line: the nonce, then the words, of which the last one may be any text."""
        # Escaped, so that a test's text cannot start a new line.
        text = " ".join(str(word) for word in words)[:MAX_TEXT].encode("unicode_escape").decode("ascii")
        os.write(self.file, f"{self.nonce} {text}\n".encode("ascii"))


def write_verdict(nonce: str, results: list[Any]) -> None:
    """Write the verdict of a job that is no test: one line `value` per result."""
    report = Report(nonce)
    for result in results:
        report.write("value", result)


def test(job: dict[str, Any], peer: socket.socket | None) -> None:
    """Run the tests of `job` against the solution at the other end of `peer`."""
    assert peer is not None
    report = Report(job["nonce"])
    prepared = attempt(lambda: prepare(job, Peer(peer)))
    # An exception here keeps all tests from running; it is the verdict.
    if isinstance(prepared, Raised):
        report.write("broken", 0, prepared.described)
        return
    report.write("total", len(prepared.value))
    failures, is_gone = 0, False
    for number, (text, run) in enumerate(prepared.value):
        outcome = attempt(run)
        failures += isinstance(outcome, Raised)
        # The line `gone` marks the first test at which the solution had ended; `check_calls` goes on from there.
        if not is_gone and isinstance(outcome, Raised) and isinstance(outcome.error, SolutionGone):
            is_gone = True
            report.write("gone", number)
        if isinstance(outcome, Returned):
            report.write("pass", number)
        elif failures <= MAX_DESCRIBED:
            report.write("fail", number, f"{text} -> {outcome.described}")


def prepare(job: dict[str, Any], peer: Peer) -> list[units.Unit]:
    """Run the trusted setup, bind the solution's names, and split the tests into units."""
    greeting = peer.read()
    if "names" not in greeting:
        raise SolutionGone(f"the program failed: {greeting.get('type')}: {greeting.get('message')}")
    used = units.names_used(job["setup"] + "\n" + job["tests"])
    namespace: dict[str, Any] = {"__name__": "tests", **units.load_known_names(used)}
    names = job["names"] or units.solution_names(used, namespace, greeting["names"])
    remotes = {name: Remote(peer, name=name) for name in names}
    namespace.update(remotes)  # the setup may call the solution
    execute(job["setup"], "<setup>", namespace)
    namespace.update({name: remotes[name] for name in job["names"]})  # and must not replace what is tested
    candidate = remotes[job["names"][0]] if job["names"] else None
    tests = [units.call_unit(candidate, *codec.decode(case)) for case in job["calls"]]
    tests += units.split(job["tests"], namespace, candidate)
    if not 0 < len(tests) <= MAX_TESTS:
        raise ValueError(f"{len(tests)} tests; expected 1 to {MAX_TESTS}")
    return tests
