"""A node that is lost with a learner: all that a successor needs is on the machine of the training process."""

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cadre.errors import EngineError
from cadre_ray import ray_actors
from cadre_ray.ray_actors import MAX_DEATHS_PER_CALL, SupervisedActor
from cadre_ray.remote import RemoteLearner, StoredWeights
from tests.helpers.extras import skip_without

skip_without("ray")
# Bytes that Ray keeps in a store and does not hand over with the answer.
LARGE = 2_000_000


class CountingEnv:
    """A learner whose state and weights are how many updates it has made."""

    async def begin(self) -> None:
        self.updates = 0

    async def call_learner(self, method: str, data: Any) -> dict[str, dict[str, float]]:
        assert method == "update"
        self.updates += 1
        return {"p": {"updates": float(self.updates)}}

    async def publish(self, policy: str) -> tuple[int, Any]:
        return self.updates, self._content()

    async def state(self) -> tuple[None, Any]:
        return None, self._content()

    async def load(self, *states: Any) -> None:
        self.updates = int(states[0]["p/state"][0])

    def _content(self) -> dict[str, Any]:
        return {"p/state": np.full(LARGE, self.updates, np.uint8)}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """This machine as a node for the training process, and two for learners."""
    from ray.cluster_utils import Cluster

    ray_actors.close()
    os.environ |= ray_actors.SETTINGS
    cluster = Cluster(initialize_head=True, connect=False, head_node_args={"num_cpus": 1})
    for _ in range(2):
        cluster.add_node(num_cpus=1, resources={"learner": 1})
    cluster.wait_for_nodes()
    ray_actors.connect(cluster.address)
    yield cluster
    ray_actors.close()
    cluster.shutdown()


def node_of(member: SupervisedActor) -> str:
    import ray

    named: str = ray.get(member.handle.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
    return named


@pytest.mark.slow
def test_what_was_on_a_lost_node_is_elsewhere(cluster: Any) -> None:
    """Mistake: the copy of the state, and the weights, are in the store of the learner's node alone."""
    import ray

    member = SupervisedActor(CountingEnv, (), {"num_cpus": 0, "resources": {"learner": 1}}, 3)
    learner = RemoteLearner(member, ["p"], copy_interval=2)
    for _ in range(3):
        asyncio.run(learner.update([]))
    weights = asyncio.run(learner.publish("p"))
    assert isinstance(weights, StoredWeights)
    lost = node_of(member)
    cluster.remove_node(next(node for node in cluster.list_all_nodes() if node.node_id == lost), allow_graceful=False)
    time.sleep(1)
    assert asyncio.run(learner.update([])) == {"p": {"updates": 4.0}}
    assert member.deaths == 1
    assert node_of(member) != lost
    assert weights.version == 3
    assert ray.get(weights.content)["p/state"][0] == 3


class Answering(SupervisedActor):
    """An actor whose answers are there, and whose second ones are lost before they are fetched."""

    def __init__(self) -> None:
        self.made = 0
        super().__init__(int, (), {}, 100)

    def _create(self) -> tuple[Any, Any]:
        self.made += 1
        return self.made, None

    def _kill(self, handle: Any) -> None:
        pass

    def _get(self, reference: Any) -> Any:
        return reference


def test_what_is_lost_before_it_is_fetched_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an end to it, which says how to go on."""
    from ray.exceptions import ObjectReconstructionFailedError

    def here(reference: Any) -> Any:
        if reference < result:
            raise ObjectReconstructionFailedError("00", None, "")
        return reference

    result = 3
    monkeypatch.setattr(ray_actors, "_to_local_store", here)
    requests = Answering()
    assert requests.call_and_store(lambda handle: (f"of {handle}", handle)) == ("of 3", [3])
    assert requests.deaths == 2
    result = 1000
    with pytest.raises(EngineError, match=f"died {MAX_DEATHS_PER_CALL + 1} times in a row.* --resume goes on"):
        requests.call_and_store(lambda handle: (None, handle))
