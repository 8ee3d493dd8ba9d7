"""Names of roles and policies, the settings of a policy that are rejected, and the stages that settings reach."""

from __future__ import annotations

from typing import Any

import pytest

from cadre.config.experiment import Config, parse
from cadre.config.resolve import resolve
from cadre.errors import ConfigError
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


def chosen(policies: dict[str, Any], **sections: Any) -> Config:
    roles = {"tool": next(iter(policies)), "planner": list(policies)[-1]}
    return parse(
        {"env": "plan-path", "team": {"policies": policies, "roles": roles}, "algorithm": "at_grpo", **sections}
    )


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:one", "tpu"])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=r"team\.policies\.a\.device"):
        chosen({"a": {"model": "seed", "device": device}})


def test_policies_share_a_base_on_one_device() -> None:
    frozen = {"model": "seed", "frozen": True}
    lora = {"model": "seed", "lora": {"rank": 2}}
    together = resolve(chosen({"a": frozen, "b": lora}))
    assert together.engines == [["a", "b"]]
    separate = resolve(chosen({"a": {**frozen, "device": "cpu"}, "b": lora}))
    assert separate.engines == [["a"], ["b"]]


def test_stop_strings_reach_the_roles() -> None:
    policies = {"a": "seed", "b": {"model": "seed", "sampling": {"stop": ["</plan>"]}}}
    experiment = resolve(chosen(policies, sampling={"stop": ["\n\n", "."]}))
    assert experiment.sampling["tool"].stop == ("\n\n", ".")
    assert experiment.sampling["planner"].stop == ("</plan>",)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sampling\.stop"):
        chosen({"a": "seed"}, sampling={"stop": [""]})


@pytest.mark.parametrize("betas", [[0.9, 1.0], [-0.1, 0.9], [1.5, 0.9]])
def test_moments_that_never_fade_are_refused(betas: list[float]) -> None:
    message = r"learner\.betas\.[01]: got \S+; expected (greater than or equal to 0|less than 1) "
    with pytest.raises(ConfigError, match=message):
        chosen({"a": "seed"}, learner={"betas": betas})
    with pytest.raises(ConfigError, match=rf"team\.policies\.a\.{message}"):
        chosen({"a": {"model": "seed", "learner": {"betas": betas}}})
    chosen({"a": "seed"}, learner={"betas": [0.0, 0.95]})


def test_an_adapter_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"team\.policies\.a\.lora\.targets\S*: got \(?\[?\]?.*at least 1 item"):
        chosen({"a": {"model": "seed", "lora": {"targets": []}}})
