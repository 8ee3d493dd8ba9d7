"""The memory that sampling may take: a setting, else the device's, and the same again where a run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cadre.config.engines import build_team, make_engine_spec, measured_sampling_memory
from cadre.config.resolve import resolve
from cadre.engines.torch import engine as engine_module
from cadre.engines.torch import memory
from cadre.engines.torch.engine import graphs_for
from cadre.errors import EngineError
from cadre.settings import PolicyConfig
from tests.helpers.training import configured, play

GIB = 1 << 30


def has(monkeypatch: pytest.MonkeyPatch, gib: float) -> None:
    monkeypatch.setattr(memory, "total_and_free", lambda device: (int(gib * GIB), int(gib * GIB)))


def recorded(folder: Path) -> dict[str, float]:
    memory: dict[str, float] = json.loads((folder / "environment.json").read_text())["sampling_memory"]
    return memory


def test_by_the_device_or_as_set(speaker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines share a quarter of 32 GiB."""
    has(monkeypatch, 32.1)
    results = []
    for policies, sampling in ((("p",), {}), (("p", "q"), {}), (("p", "q"), {"memory": 1.5})):
        team = build_team(resolve(configured(speaker, "Pair", policies, sampling={"max_tokens": 2, **sampling})))
        results.append(measured_sampling_memory(team))
        for engine in {*team.samplers.values()}:
            engine.close()
    assert results == [{"p": 8.0}, {"p": 4.0, "q": 4.0}, {"p": 1.5, "q": 1.5}]


@pytest.mark.parametrize(
    ("cluster", "sharing"),
    [
        (None, 2),
        ({}, 2),
        ({"samplers": 3}, 6),
        ({"samplers": 3, "policies": {"q": {"samplers": 1}}}, 4),
        ({"samplers": 3, "sampler_gpus": 1, "learner_gpus": 1}, 2),
        ({"samplers": 2, "learner_gpus": 1, "colocated": True}, 6),
    ],
)
def test_samplers_of_a_cluster_share_what_is_not_their_own(speaker: Path, cluster: dict | None, sharing: int) -> None:
    """Two base models that are trained, on the processor or each with its learner on one card; or with cards each."""
    experiment = resolve(configured(speaker, "Pair", ("p", "q"), cluster=cluster))
    for names in experiment.engines:
        assert make_engine_spec(experiment, names, None, None).engine.sharing == sharing


def test_policies_of_one_base_take_the_least(speaker: Path) -> None:
    frozen = {"model": str(speaker), "frozen": True}
    policies = {"p": {"model": str(speaker), "lora": {"rank": 2}, "sampling": {"memory": 2}}, "q": frozen}
    team = {"policies": policies, "roles": {"left": "p", "right": "q"}}
    built = build_team(resolve(configured(speaker, "Pair", team=team, sampling={"memory": 3, "max_tokens": 2})))
    assert measured_sampling_memory(built) == {"p": 2.0, "q": 2.0}
    built.samplers["p"].close()


def test_graphs_are_refused_on_a_cpu_before_a_model_is_loaded(speaker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "load", lambda *arguments: pytest.fail("a model was loaded"))
    team = {"policies": {"p": {"model": str(speaker), "device": "cpu"}}, "roles": {"left": "p", "right": "p"}}
    chosen = configured(speaker, "Pair", team=team, sampling={"max_tokens": 2, "graphs": True})
    with pytest.raises(EngineError, match=r"sampling\.graphs: got true, and p would be on the CPU"):
        build_team(resolve(chosen))


@pytest.mark.parametrize(
    ("team", "policy", "chosen"),
    [(None, None, None), (None, False, False), (True, None, True), (False, None, False), (False, True, True)],
)
def test_graphs_are_as_the_policies_say(speaker: Path, team: bool | None, policy: bool | None, chosen: object) -> None:
    """And nobody's word leaves them to the device."""
    own_settings = {} if policy is None else {"graphs": policy}
    policies = {"p": {"model": str(speaker), "sampling": own_settings}, "q": {"model": str(speaker)}}
    roles = {"policies": policies, "roles": {"left": "p", "right": "q"}}
    resolved = resolve(configured(speaker, "Pair", team=roles, sampling={"max_tokens": 2, "graphs": team}))
    assert make_engine_spec(resolved, ["p"], None, None).engine.graphs is chosen


def test_graphs_are_usual_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = {"p": PolicyConfig(model="seed")}
    for device, usual in (("cpu", False), ("cuda", True)):
        monkeypatch.setattr(engine_module, "pick_device", lambda name, device=device: torch.device(device))
        assert (graphs_for(policies, None), graphs_for(policies, False)) == (usual, False)
    assert graphs_for(policies, True)


def test_a_run_goes_on_with_what_it_had(
    speaker: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though there is less now; a setting comes first, and another machine has its own."""
    folder, chosen = tmp_path / "run", configured(speaker, train={"steps": 1, "tasks_per_step": 2})
    has(monkeypatch, 32.1)
    play(chosen, folder, quiet)
    assert recorded(folder) == {"shared": 8.0}
    has(monkeypatch, 8.1)
    play(chosen, folder, quiet, resume=True)
    assert recorded(folder) == {"shared": 8.0}
    play(configured(speaker, sampling={"memory": 0.5, "max_tokens": 2}), folder, quiet, resume=True)
    assert recorded(folder) == {"shared": 0.5}
    elsewhere = json.loads((folder / "environment.json").read_text()) | {"machine": "another"}
    (folder / "environment.json").write_text(json.dumps(elsewhere))
    play(chosen, folder, quiet, resume=True)
    assert recorded(folder) == {"shared": 2.0}
