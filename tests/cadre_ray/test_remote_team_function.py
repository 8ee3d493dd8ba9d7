"""A team's function, and rows with a reward, whose steps run in a process of Ray: the run is that of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cadre
from cadre_ray import ray_actors
from tests.cadre.envs.test_episode import ROWS, TRAINING, essay, weights_and_metrics
from tests.helpers.extras import skip_without

skip_without("ray")


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[None]:
    yield
    ray_actors.close()


def short(completion: str) -> float:
    return -float(len(completion))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["team", "rows"])
def test_steps_in_another_process_are_those_of_this_one(form: str, tmp_path: Path) -> None:
    def train(name: str, **sections: Any) -> Any:
        if form == "team":
            trained = cadre.train(essay, tasks=ROWS, run=tmp_path / name, **TRAINING, **sections)
        else:
            rows = [{"prompt": f"topic {row['topic']}\nmoves: Left Right"} for row in ROWS]
            trained = cadre.train(tasks=rows, reward=short, run=tmp_path / name, **TRAINING, **sections)
        results = weights_and_metrics(trained)
        trained.close()
        return results

    assert train("remote", cluster={"environments": 1}) == train("local")
