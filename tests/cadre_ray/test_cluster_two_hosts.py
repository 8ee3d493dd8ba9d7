"""Two machines without a shared network, address or disk, as namespaces of this one: what a lost or unreachable one
leaves of a run. Needs root."""

import os
import re
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from lab import hosts, worth_tasks
from lab.hosts import disturbed
from lab.worth import speaker
from tests.helpers.extras import skip_without

skip_without("ray")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces")]


def test_a_host_may_be_lost_or_out_of_reach(tmp_path: Path) -> None:
    outcomes = disturbed(tmp_path, 2)
    assert [outcome.how for outcome in outcomes] == ["killed", "out of reach"]
    assert all(outcome.equal and outcome.missing == 0 and outcome.replaced for outcome in outcomes)


def test_a_model_that_is_not_on_the_other_host_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, model = tmp_path / "recipe.yml", speaker(tmp_path / "models", 32, 64)
    sections = {
        "env": f"{worth_tasks.__file__}:Relay",
        "team": {"policies": {"both": str(model)}, "roles": {"first": "both", "second": "both"}},
        "algorithm": {"name": "at_grpo", "k": 2},
        "sampling": {"max_tokens": 1},
        "train": {"steps": 1, "tasks_per_step": 1},
        "evaluate": {"tasks": 0},
        "cluster": {"address": "10.77.0.1:6379", "sampler_gpus": 1},
    }
    recipe.write_text(yaml.safe_dump(sections))
    with closing(hosts.Hosts(tmp_path)) as two:
        # Its own mount namespace has an empty folder where the model is on the first host.
        monkeypatch.setattr(hosts, "RAY", f"mount -t tmpfs none {tmp_path / 'models'} && {hosts.RAY}")
        two.join()
        log = tmp_path / "train.log"
        with log.open("w") as output:
            driver = two.run(0, *hosts.command(recipe, tmp_path / "run"), output=output)
        assert driver.wait(180) != 0
    words = " ".join(log.read_text().split())
    assert re.search(
        rf"On 10\.77\.0\.2, which reads models and files from its own disk: .*{re.escape(str(model))}", words
    )
    assert "Traceback" not in words
