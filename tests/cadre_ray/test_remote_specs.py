"""Ray resources of actors, by hand."""

import pytest

from cadre.errors import ConfigError
from cadre.settings import ClusterConfig
from cadre.settings.engines import Placement
from cadre_ray.remote import split_batch


def test_gpus_apart_and_shared() -> None:
    apart = ClusterConfig(samplers=3, sampler_gpus=2, learner_gpus=4)
    assert apart.place(["a"], trains=True) == Placement(3, 2.0, 4.0, False)
    assert apart.place(["a"], trains=False) == Placement(3, 2.0, 0.0, False)
    shared = ClusterConfig(samplers=3, learner_gpus=1, colocated=True)
    assert shared.place(["a"], trains=True) == Placement(3, 0.25, 0.25, True)


def test_a_policy_may_have_its_own_numbers_and_its_base_has_one_placement() -> None:
    config = ClusterConfig(samplers=2, learner_gpus=1, policies={"b": {"samplers": 5}})
    assert config.place(["a"], trains=True) == Placement(2, 0.0, 1.0, False)
    assert config.place(["b"], trains=True) == Placement(5, 0.0, 1.0, False)
    with pytest.raises(ConfigError, match=r"cluster\.policies\.b: got other numbers than for a"):
        config.place(["a", "b"], trains=True)


def test_requests_are_dealt_in_turn() -> None:
    assert split_batch("abcdefg", 3) == ["adg", "be", "cf"]
    assert split_batch("ab", 3) == ["a", "b"]
