"""A job of kind `tester`: run tests against a solution that lives in another process, and write one line a test.

A verdict counts only with the nonce that the trainer gave to this process; nothing that the solution can do writes
one. Tests that a model wrote run here too: they can only speak for themselves.
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
MAX_TOLD = 50  # failed tests that are told of at length: the verdict must fit into its file


class Report:
    """Writes the verdict to the file that was stdout, which then leads nowhere. Lives as long as the tester."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.file = os.dup(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)

    def write(self, *words: object) -> None:
        """One line: the nonce, then the words, the last of which may hold anything."""
        text = " ".join(str(word) for word in words)[:MAX_TEXT].encode("unicode_escape").decode("ascii")
        os.write(self.file, f"{self.nonce} {text}\n".encode("ascii"))


def write_verdict(nonce: str, results: list[Any]) -> None:
    """The verdict of a job that is no test, in the same form: one line `value`, and what it is."""
    report = Report(nonce)
    for result in results:
        report.write("value", result)


def test(job: dict[str, Any], peer: socket.socket | None) -> None:
    """Run the tests of `job` against the solution at the other end of `peer`."""
    assert peer is not None
    report = Report(job["nonce"])
    prepared = attempt(lambda: prepare(job, Peer(peer)))
    if isinstance(prepared, Raised):  # what keeps all the tests from running is the verdict on them
        report.write("broken", 0, prepared.described)
        return
    report.write("total", len(prepared.value))
    failed, gone = 0, False
    for number, (text, run) in enumerate(prepared.value):
        outcome = attempt(run)
        failed += isinstance(outcome, Raised)
        if not gone and isinstance(outcome, Raised) and isinstance(outcome.error, SolutionGone):
            gone = True
            report.write("gone", number)
        if isinstance(outcome, Returned):
            report.write("pass", number)
        elif failed <= MAX_TOLD:
            report.write("fail", number, f"{text} -> {outcome.described}")


def prepare(job: dict[str, Any], line: Peer) -> list[units.Unit]:
    """Load the trusted setup, bind the solution's names over it, and split the tests into units."""
    told = line.read()
    if "names" not in told:
        raise SolutionGone(f"the program failed: {told.get('type')}: {told.get('message')}")
    used = units.names_used(job["setup"] + "\n" + job["tests"])
    namespace: dict[str, Any] = {"__name__": "tests", **units.known_names(used)}
    wanted = job["names"] or units.names_wanted(used, namespace, told["names"])
    theirs = {name: Remote(line, name=name) for name in wanted}
    namespace.update(theirs)  # the setup may use what the solution has
    execute(job["setup"], "<setup>", namespace)
    namespace.update({name: theirs[name] for name in job["names"]})  # and must not stand in for what is tested
    candidate = theirs[job["names"][0]] if job["names"] else None
    tests = [units.call_unit(candidate, *codec.decode(case)) for case in job["calls"]]
    tests += units.split(job["tests"], namespace, candidate)
    if not 0 < len(tests) <= MAX_TESTS:
        raise ValueError(f"{len(tests)} tests; expected 1 to {MAX_TESTS}")
    return tests
