"""Settings of the engines: names of earlier versions, which stand in the recipes of old runs."""

from cadre.settings.engines import ClusterConfig, VllmConfig


def test_gpus_were_cards() -> None:
    old = {"sampler_cards": 1, "learner_cards": 2, "policies": {"shared": {"sampler_cards": 4}}}
    config = ClusterConfig.model_validate(old)
    assert (config.sampler_gpus, config.learner_gpus) == (1, 2)
    assert config.policies["shared"].sampler_gpus == 4
    assert VllmConfig.model_validate({"cards": 2}).gpus == 2
