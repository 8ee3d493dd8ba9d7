"""Names of roles and policies: what stands in metrics and file names, and what cannot."""

import pytest

from cadre.settings.team import find_name_fault


@pytest.mark.parametrize("name", ["planner", "second-worker", "qwen2.5", "rolle_1", "Prüfer", "loss", "a" * 64])
def test_what_can_be_used(name: str) -> None:
    assert find_name_fault(name) is None


@pytest.mark.parametrize(
    "name",
    ["", "../x", "/abs", "a/b", "a\\b", "..", ".", ".hidden", "x.", "a b", "a\0b", "a\n"]
    + ["rollout", "time", "parts", "evaluate", "step", "state.json", "manifest.json", "a" * 65, "\ud800"],
)
def test_what_cannot(name: str) -> None:
    fault = find_name_fault(name)
    assert fault is not None
    assert "expected" in fault
    assert len(fault) < 300
