"""Two machines without a shared network, address or disk, as namespaces of this one: what a lost or unreachable one
leaves of a run. Needs root."""

import os
from pathlib import Path

import pytest

from lab.hosts import disturbed
from tests.helpers.extras import skip_without

skip_without("ray")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces")]


def test_a_host_may_be_lost_or_out_of_reach(tmp_path: Path) -> None:
    outcomes = disturbed(tmp_path, 2)
    assert [outcome.how for outcome in outcomes] == ["killed", "out of reach"]
    assert all(outcome.equal and outcome.missing == 0 and outcome.replaced for outcome in outcomes)
