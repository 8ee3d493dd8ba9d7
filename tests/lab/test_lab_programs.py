"""Every program of lab/ starts and explains itself, and those that take seconds measure something small."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.common import ROOT
from tests.helpers.extras import skip_without

SOURCES = {path.stem: path.read_text() for path in sorted((ROOT / "lab").glob("*.py"))}
# What a program imports that not every environment has, and the smallest work of those that record nothing unasked.
NEEDS = {"pictures": "playwright", "vllm_faults": "vllm", "gpu_trl": "trl"}
SMALLEST = {"fuzz": ["--inputs", "200", "--envs", "plan-path"]}


def run(name: str, *arguments: str) -> str:
    if name in NEEDS:
        skip_without(NEEDS[name])
    command = [sys.executable, "-m", f"lab.{name}", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if "__main__" in source])
def test_a_program_explains_itself(name: str) -> None:
    assert "usage: " in run(name, "--help")


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_a_program_does_its_smallest_work(name: str) -> None:
    initial = {path: path.stat().st_size for path in (ROOT / "results").iterdir()}
    run(name, *SMALLEST[name])
    assert {path: path.stat().st_size for path in (ROOT / "results").iterdir()} == initial


@pytest.mark.parametrize("name", SOURCES)
def test_lab_imports_of_bench_its_helpers_alone(name: str) -> None:
    allowed = (
        "from bench import",
        "from bench.common ",
        "from bench.hostile",
        "from bench.tiny_models ",
        "from bench.answering ",
    )
    assert [
        item for item in imports(SOURCES[name]) if "bench" in item.split()[1] and not item.startswith(allowed)
    ] == []


def test_nothing_of_the_tests_is_imported() -> None:
    sources = [path.read_text() for folder in ("bench", "lab") for path in (ROOT / folder).rglob("*.py")]
    assert [item for source in sources for item in imports(source) if item.split()[1].startswith("tests")] == []


def imports(source: str) -> list[str]:
    return [line.strip() for line in source.splitlines() if line.strip().startswith(("from ", "import "))]
