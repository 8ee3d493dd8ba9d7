"""The ranks of a learner as actors on two nodes: what a group of children of the trainer comes to, to the bit."""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cadre.engines.factory import LearnerSpec, TorchSpec
from cadre.engines.torch import TrainingSettings
from cadre.engines.torch.group import GroupLearner
from cadre.errors import EngineError
from cadre.settings import LearnerConfig
from cadre.team import Learner
from cadre_ray import ray_actors
from cadre_ray.processes import RankProcess
from cadre_ray.ray_actors import SupervisedRanks
from cadre_ray.remote import RemoteLearner
from tests.cadre.engines import tiny
from tests.cadre.engines.torch.group.pool import data
from tests.helpers.extras import skip_without

skip_without("ray")


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[str]]:
    """Two nodes of one Ray cluster, both on this machine."""
    from ray.cluster_utils import Cluster

    ray_actors.close()
    os.environ |= ray_actors.SETTINGS
    cluster = Cluster(initialize_head=True, connect=False, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray_actors.connect(cluster.address)
    import ray

    yield [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    ray_actors.close()
    cluster.shutdown()


@pytest.fixture
def recipe(tmp_path: Path) -> LearnerSpec:
    """A model trained whole by two ranks, of which the latest two versions lie ready."""
    model = tiny.build(tmp_path / "model")
    training = TrainingSettings({"p": LearnerConfig(learning_rate=1e-3)})
    return LearnerSpec(TorchSpec(str(model), {"p": tiny.policy(model)}, 0), training, 2, 2)


def on(nodes: list[str], recipe: LearnerSpec, kept: int, most: int = 2) -> RemoteLearner:
    """A rank on each of the nodes."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    places = (NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes)
    options = [{"num_cpus": 0, "scheduling_strategy": place} for place in places]
    return RemoteLearner(SupervisedRanks(RankProcess, (1, recipe), options, most), ["p"], kept)


def updated(learner: Learner, steps: range) -> None:
    for step in steps:
        asyncio.run(learner.update(data(step=step)))


def kill(learner: RemoteLearner, rank: int) -> None:
    import ray

    assert isinstance(learner.actor, SupervisedRanks)
    os.kill(ray.get(learner.actor.handle[rank].pid.remote()), signal.SIGKILL)
    time.sleep(0.1)


def told(learner: RemoteLearner) -> list[object]:
    """What each rank returns of the log-probabilities that all have."""
    import ray

    return ray.get([rank.call_learner.remote("reference_logprobs", data(step=0)) for rank in learner.actor.handle])


def weights(learner: Learner, folder: Path) -> bytes:
    learner.export("p", folder)
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_ranks_on_two_nodes_are_the_group_of_one_machine_and_may_die(
    nodes: list[str], recipe: LearnerSpec, tmp_path: Path
) -> None:
    """One dies with updates since the last copy of the state, another right after it was taken."""
    assert len(nodes) == 2
    before = set(Path(tempfile.gettempdir()).glob("cadre-weights-*/p/*"))
    alone = GroupLearner(replace(recipe, ranks=2))
    updated(alone, range(4))
    known = weights(alone, tmp_path / "known")
    reference = alone.reference_logprobs(data(step=0))
    alone.save(tmp_path / "of children")
    alone.close()

    learner = on(nodes, recipe, kept=2)
    updated(learner, range(1))
    kill(learner, 1)
    updated(learner, range(1, 4))
    kill(learner, 0)
    assert learner.actor.deaths == 1
    assert weights(learner, tmp_path / "apart") == known
    assert learner.actor.deaths == 2
    assert learner.reference_logprobs(data(step=0)) == reference
    assert told(learner) == [reference, None]

    learner.save(tmp_path / "of actors")
    for folder in ("of children", "of actors"):
        files = sorted(path.name for path in (tmp_path / folder / "p").rglob("*.safetensors"))
        assert sum(name.startswith("shard-") for name in files) == 4, files
    updated(learner, range(4, 5))
    later = weights(learner, tmp_path / "later")
    learner.load(tmp_path / "of children")
    assert weights(learner, tmp_path / "loaded") == known
    updated(learner, range(4, 5))
    assert weights(learner, tmp_path / "later again") == later

    # What is wrong in itself is raised as it was, and nobody is replaced for it.
    with pytest.raises(EngineError, match="no adapter to merge"):
        learner.export("p", tmp_path / "out", merge=True)
    assert learner.actor.deaths == 2
    assert asyncio.run(learner.publish("p")).version == 5
    assert not [path for path in Path(tempfile.gettempdir()).glob("cadre-weights-*/p/*") if path not in before]
    learner.close()


@pytest.mark.slow
def test_a_rank_that_always_dies_ends_the_run(nodes: list[str], recipe: LearnerSpec) -> None:
    learner = on(nodes, recipe, kept=1, most=0)
    with pytest.raises(EngineError, match=r"RankProcess died 1 times.*Expected at most 0"):
        learner.actor.call(lambda handle: handle.call_learner.remote("update", "no data"))
    learner.close()
