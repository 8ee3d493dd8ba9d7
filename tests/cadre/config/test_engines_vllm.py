"""vLLM as what samples a team: who is refused before anything loads, and who is made for whom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from cadre.config import checks
from cadre.config import resolve as resolver
from cadre.config.checks import ignored_settings
from cadre.config.engines import build_team
from cadre.config.experiment import Experiment, dump
from cadre.config.resolve import resolve
from cadre.engines.torch import TorchEngine
from cadre.engines.vllm import engine as vllm_engine
from cadre.engines.vllm import sampler as vllm_sampler
from cadre.engines.vllm.weight_sync import AsyncLearner, ColocatedLearner
from cadre.errors import ConfigError
from tests.cadre.engines import tiny
from tests.cadre.engines.vllm.fake_backend import FakeBackend
from tests.helpers.training import configured, play

ADAPTERS = {"lora": {"rank": 2}}
VLLM = {"sampling": {"engine": "vllm", "max_tokens": 2}}


def team(model: Path, **policies: dict) -> dict:
    named = {name: {"model": str(model), "device": "cpu", **settings} for name, settings in policies.items()}
    return {"policies": named, "roles": dict(zip(("left", "right"), policies, strict=True))}


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM is installed, and every engine of it is a stand-in."""
    monkeypatch.setattr(checks, "find_spec", lambda name: object())
    monkeypatch.setattr(vllm_sampler, "start_engine", FakeBackend.start)


def played(speaker: Path, **sections) -> Experiment:
    return resolve(configured(speaker, env="Handshake", **({"sampling": {"engine": "vllm"}} | sections)))


def refused(speaker: Path, message: str, **sections) -> None:
    with pytest.raises(ConfigError, match=message):
        played(speaker, **sections)


def test_vllm_that_is_not_there_is_told_of_before_anything_loads(
    speaker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    refused(speaker, r"sampling\.engine: got vllm for shared, and vLLM is not installed.*pip install .*\[vllm\]")


def test_an_unknown_engine_is_refused_with_the_nearest_name(speaker: Path) -> None:
    refused(speaker, r"sampling\.engine: got 'vlm'", sampling={"engine": "vlm"})


@pytest.mark.usefixtures("fake_vllm")
def test_what_vllm_does_not_take(speaker: Path) -> None:
    in_turns = {"vllm": {"colocated": True}, "learner": {"ranks": 2}}
    refused(speaker, r"learner\.ranks: got 2 for shared with vllm\.colocated", **in_turns)
    dropped = {"vllm": {"sleep": "discard", "colocated": True}}
    refused(speaker, r"vllm\.sleep: got discard, and a keeps", team=team(speaker, a=ADAPTERS, b={}), **dropped)
    second = team(speaker, a={"device": "cuda:1"}, b=ADAPTERS)
    refused(speaker, r"policies\.a\.device: got cuda:1.*CUDA_VISIBLE_DEVICES", team=second)


@pytest.mark.usefixtures("fake_vllm")
def test_adapters_of_one_base_share_one_engine_of_vllm_and_one_learner(speaker: Path) -> None:
    built_team = build_team(played(speaker, team=team(speaker, a=ADAPTERS, b=ADAPTERS)), train=True)
    assert built_team.samplers["a"] is built_team.samplers["b"]
    assert not isinstance(built_team.samplers["a"], TorchEngine)
    assert [learner.policies for learner in built_team.learners] == [("a", "b")]
    built_team.close()


@pytest.mark.usefixtures("fake_vllm")
def test_policies_choose_for_themselves(speaker: Path) -> None:
    chosen = team(speaker, a={**ADAPTERS, "sampling": {"engine": "torch"}}, b=ADAPTERS)
    built_team = build_team(played(speaker, team=chosen), train=True)
    assert isinstance(built_team.samplers["a"], TorchEngine)
    assert not isinstance(built_team.samplers["b"], TorchEngine)
    built_team.close()


@pytest.mark.usefixtures("fake_vllm")
def test_who_only_plays_needs_no_torch_model(speaker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchEngine, "__init__", lambda *arguments: pytest.fail("a model was loaded twice"))
    team = build_team(played(speaker))
    team.close()


@pytest.mark.usefixtures("fake_vllm")
def test_the_settings_reach_the_engine(speaker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = []

    async def start(chosen):
        recorded.append(chosen.arguments)
        return await FakeBackend.start(chosen)

    monkeypatch.setattr(vllm_sampler, "start_engine", start)
    sections = {"sampling": {"engine": "vllm", "memory": 0.5}, "vllm": {"context": 40, "sequences": 7}}
    build_team(played(speaker, **sections)).close()
    expected = {"max_model_len": 40, "max_num_seqs": 7, "kv_cache_memory_bytes": 1 << 29, "dtype": "float32"}
    assert expected.items() <= recorded[0].items()


@pytest.mark.usefixtures("fake_vllm")
@pytest.mark.parametrize("chosen", [None, True, False])
def test_the_pace_reaches_the_engine(speaker: Path, monkeypatch: pytest.MonkeyPatch, chosen: bool | None) -> None:
    """Unset it is that of a CPU, where equal seeds give equal runs."""
    recorded = []

    async def start(launch):
        recorded.append(launch.deterministic)
        return await FakeBackend.start(launch)

    monkeypatch.setattr(vllm_sampler, "start_engine", start)
    build_team(played(speaker, train={"deterministic": chosen})).close()
    assert recorded == [chosen is not False]


def test_a_run_says_which_engine_samples(speaker: Path, tmp_path: Path) -> None:
    config = configured(speaker, train={"steps": 1, "tasks_per_step": 1}, evaluate={"tasks": 0})
    assert "engine: auto" in dump(config)
    play(config, tmp_path / "run", Console(quiet=True))
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["engines"] == {"shared": "torch"}


@pytest.mark.usefixtures("fake_vllm")
@pytest.mark.parametrize(("engine", "colocated", "separate"), [("vllm", False, True), ("vllm", True, False)])
def test_sampling_goes_on_beside_learning_but_for_one_card(
    speaker: Path, monkeypatch: pytest.MonkeyPatch, engine: str, colocated: bool, separate: bool
) -> None:
    monkeypatch.setattr(vllm_engine, "check_gpu_settings", lambda config, on_gpu: None)
    sections = {"vllm": {"colocated": colocated}, "train": {"steps": 4, "tasks_per_step": 4, "max_staleness": 1}}
    team = build_team(played(speaker, **sections), train=True)
    assert team.own_weights is separate
    assert isinstance(team.learners[0], AsyncLearner if separate else ColocatedLearner)
    team.close()
    assert not build_team(played(speaker, sampling={})).own_weights


@pytest.mark.usefixtures("fake_vllm")
def test_a_training_hands_every_version_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: Console) -> None:
    started: list[FakeBackend] = []

    async def start(chosen):
        started.append(await FakeBackend.start(chosen))
        return started[-1]

    monkeypatch.setattr(vllm_sampler, "start_engine", start)
    model = tiny.build(tmp_path / "model")
    adapters = team(model, a=ADAPTERS, b=ADAPTERS)
    chosen = configured(model, "Handshake", **VLLM, team=adapters, train={"steps": 2, "tasks_per_step": 2})
    _, run = play(chosen, tmp_path / "run", quiet)
    (backend,) = started
    handed = [call[1] for call in backend.calls if call[0] == "adapter"]
    assert sorted(handed) == ["a-v0", "a-v1", "a-v2", "b-v0", "b-v1", "b-v2"]
    assert sorted(backend.loras.values()) == ["a-v2", "b-v2"]
    assert [line["left/staleness"] for line in run.metrics()] == [0.0, 0.0]
    for line in run.metrics():
        assert 0.0 < line["time/sync_s"] < line["time/learn_s"]
        assert line["time/sleep_s"] == line["time/wake_s"] == 0.0


@pytest.fixture
def large_models_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM is installed, torch sees one GPU, and every model counts as large."""
    monkeypatch.setattr(checks, "find_spec", lambda name: object())
    monkeypatch.setattr(resolver, "find_spec", lambda name: object())
    monkeypatch.setattr(resolver, "count_gpus", lambda: 1)
    monkeypatch.setattr(resolver, "LARGE_MODEL", 1)


AUTO = {"sampling": {"engine": "auto"}}
LARGE = {"device": "auto", "dtype": "bfloat16"}


@pytest.mark.usefixtures("large_models_on_one_gpu")
def test_auto_is_vllm_for_large_models_on_a_gpu(speaker: Path) -> None:
    experiment = played(speaker, team=team(speaker, a=LARGE, b=LARGE), **AUTO)
    assert experiment.vllm_policies == ["a", "b"]
    assert experiment.colocated
    assert experiment.config.sampling.engine == "auto"  # so that a run's configuration suits other machines
    assert "colocated: null" in dump(experiment.config)


@pytest.mark.usefixtures("large_models_on_one_gpu")
@pytest.mark.parametrize(
    ("policy", "sections"),
    [
        ({"device": "cpu"}, {}),
        ({"device": "cuda:1"}, {}),
        ({"dtype": "float32"}, {}),
        ({"lora": {"rank": 600}}, {}),
        ({}, {"sampling": {"engine": "auto", "graphs": True}}),
        ({}, {"sampling": {"engine": "auto", "turns_memory": 1.0}}),
        ({}, {"sampling": {"engine": "torch"}}),
        ({}, {"learner": {"ranks": 2}}),
        ({}, {"cluster": {}}),
    ],
)
def test_auto_is_torch_for_what_vllm_would_not_take(speaker: Path, policy: dict, sections: dict) -> None:
    config = configured(
        speaker, env="Handshake", **(AUTO | {"team": team(speaker, a=LARGE | policy, b=LARGE | policy)} | sections)
    )
    learners = resolver._merge_learners(config, config.team.policies)
    models, samplers = {"a": str(speaker), "b": str(speaker)}, dict.fromkeys("ab", config.sampling)
    engines = resolver.choose_engines(config, config.team.policies, models, samplers, learners)
    assert engines == {"a": "torch", "b": "torch"}
    assert not resolver.is_colocated(config, engines, learners)


@pytest.mark.usefixtures("large_models_on_one_gpu")
@pytest.mark.parametrize("missing", ["package", "gpu", "size"])
def test_auto_is_torch_where_vllm_has_no_place(speaker: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    changes = {
        "package": ("find_spec", lambda name: None),
        "gpu": ("count_gpus", lambda: 0),
        "size": ("LARGE_MODEL", 1 << 40),
    }
    monkeypatch.setattr(resolver, *changes[missing])
    assert played(speaker, team=team(speaker, a=LARGE, b=LARGE), **AUTO).vllm_policies == []


@pytest.mark.usefixtures("large_models_on_one_gpu")
def test_two_gpus_are_not_shared_unless_asked(speaker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "count_gpus", lambda: 2)
    assert not played(speaker, team=team(speaker, a=LARGE, b=LARGE), **AUTO).colocated
    assert played(speaker, team=team(speaker, a=LARGE, b=LARGE), vllm={"colocated": True}, **AUTO).colocated


def test_settings_of_vllm_wait_in_a_recipe_that_says_auto(speaker: Path) -> None:
    assert played(speaker, vllm={"context": 64}, **AUTO).vllm_policies == []
    assert list(ignored_settings(played(speaker, vllm={"context": 64}, **AUTO))) == []
    ((setting, _),) = ignored_settings(played(speaker, sampling={}, vllm={"context": 64}))
    assert setting == "vllm"
