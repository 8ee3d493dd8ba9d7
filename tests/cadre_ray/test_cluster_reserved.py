"""Cards that are reserved together are given back when the team that asked for them is closed. The card is Ray's alone:
everything here computes on the processor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cadre.engines.factory import LearnerSpec, TorchSpec
from cadre.engines.torch import TrainingSettings
from cadre.errors import EngineError
from cadre.settings import ClusterConfig, LearnerConfig
from cadre_ray import ray_actors
from cadre_ray.cluster import Cluster
from tests.cadre.engines import tiny
from tests.helpers.extras import skip_without

skip_without("ray")


@pytest.fixture
def card() -> Iterator[None]:
    import ray

    ray_actors.close()
    os.environ |= ray_actors.SETTINGS
    ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray_actors.close()


def states() -> list[str]:
    from ray.util import placement_group_table

    return [group["state"] for group in placement_group_table().values()]


@pytest.mark.slow
def test_what_is_closed_or_cannot_begin_leaves_the_card(card: None, tmp_path: Path) -> None:
    model = tiny.build(tmp_path / "model")
    engine = TorchSpec(str(model), {"p": tiny.policy(model)}, 0, memory=1 << 28)
    recipe = LearnerSpec(engine, TrainingSettings({"p": LearnerConfig()}), 1, 2)
    config = ClusterConfig(learner_gpus=1, colocated=True)

    cluster = Cluster(config)
    learner, pool = cluster.make_learner(recipe), cluster.make_pool(engine, trains=True)
    assert states() == ["CREATED"]
    for _ in range(2):
        learner.close()
        pool.close()
    assert states() == ["REMOVED"]

    with pytest.raises(EngineError, match="no-such-model"):
        Cluster(config).make_pool(replace(engine, model=str(tmp_path / "no-such-model")), trains=True)
    assert states() == ["REMOVED", "REMOVED"]
