"""Freed memory stays with the process once it was asked to, and can be given back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers import forked

SCRIPT = """
import resource, sys
import torch
from cadre.engines.torch import memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(open("/proc/self/statm").read().split()[1])

if sys.argv[1] == "keep":
    assert memory.keep_freed_memory()
def four():
    [torch.ones(1_000_000) for _ in range(4)]

four()
before, began = resident(), faults()
for _ in range(5):
    four()
again = faults() - began
memory.release_freed_memory()
print(again, before - resident())
"""


def pages(what):
    """Pages that five times four blocks of 4 MB took anew after a first four, and how many giving back set free."""
    code, printed = forked.run([what], Path("/"), SCRIPT)
    assert code == 0, printed
    again, freed = map(int, printed.split())
    return again, freed


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_used_again_and_can_be_given_back():
    left, _ = pages("leave")
    again, freed = pages("keep")
    assert 3 * again < left
    assert freed > 0.9 * 16_000_000 / 4096
