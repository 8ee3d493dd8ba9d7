"""Actors of Ray: the run is that of one process to the bit, also when every kind of actor is killed in it."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cadre.config import checks
from cadre.config.experiment import Config, dump
from cadre.config.resolve import resolve
from cadre.engines import factory
from cadre.errors import ConfigError, EngineError
from cadre.rollout.episodes import SampledTrees
from cadre.runs import jsonl
from cadre.runs.folder import Run
from cadre.runs.records import StepLine
from cadre.training import loop
from cadre.training.loop import Training, sample_step
from cadre_ray import ray_actors
from cadre_ray.ray_actors import SupervisedActor
from cadre_ray.remote import RemoteEnvSpec, RemoteLearner, SamplerPool
from tests.cadre.engines import tiny
from tests.cadre.engines.vllm.fake_backend import FakeVllmSpec
from tests.cadre.training.test_training_distillation import HINTED
from tests.helpers.extras import skip_without
from tests.helpers.forked import Forked
from tests.helpers.training import configured, lines, play, weights

skip_without("ray")
FILES = ("metrics.jsonl", "evaluations.jsonl")


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[None]:
    yield
    ray_actors.close()


def chosen(speaker: Path, **cluster: Any) -> Config:
    train = {"steps": 4, "tasks_per_step": 4, "max_staleness": 1}
    return configured(speaker, "Pair", train=train, evaluate={"tasks": 4}, cluster=cluster or None)


@pytest.fixture(scope="module")
def single(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run in one process."""
    _, run = play(chosen(speaker), tmp_path_factory.mktemp("single") / "run", Console(quiet=True))
    return run


def kill(member: SupervisedActor) -> None:
    """End an actor's process as the kernel would where memory is short."""
    os.kill(member.call(lambda handle: handle.pid.remote()), signal.SIGKILL)
    time.sleep(0.1)


@pytest.mark.slow
def test_every_kind_of_actor_may_die(
    speaker: Path, tmp_path: Path, single: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler, an environment's process and the learner, each in the middle of its work, one a step; the learner
    with updates since the last copy of its state."""
    real, killed = sample_step, []

    async def dying(training: Training, step: int) -> SampledTrees:
        pool, spec = training.team.samplers["shared"], training.experiment.env_spec
        (learner,) = training.team.learners
        assert isinstance(pool, SamplerPool)
        assert isinstance(learner, RemoteLearner)
        assert isinstance(spec, RemoteEnvSpec)
        victims = {1: pool.actors[0], 2: spec.pool.actors[0], 3: learner.actor}
        if step in victims:
            kill(victims[step])
            killed.append(victims[step])
        return await real(training, step)

    monkeypatch.setattr(loop, "sample_step", dying)
    team, run = play(chosen(speaker, environments=1), tmp_path / "run", Console(quiet=True))
    assert [member.deaths for member in killed] == [1, 1, 1]
    for name in FILES:
        assert lines(run.folder, name) == lines(single.folder, name)
    assert weights(run.folder, "shared") == weights(single.folder, "shared")
    team.close()


@pytest.mark.slow  # starting Ray takes most of it; test_remote.py and test_ray_actors.py pretend the actors
def test_a_run_goes_on_elsewhere(speaker: Path, tmp_path: Path, single: Run, quiet: Console) -> None:
    """A step in one process, the others in actors: where something runs is no setting that a run depends on. What
    an actor's own code raises is raised here as it was."""
    first = chosen(speaker)
    one_step = first.model_copy(update={"train": first.train.model_copy(update={"steps": 3, "max_tokens": 1})})
    play(one_step, tmp_path / "run", quiet)
    team, run = play(chosen(speaker, learner_kept=1), tmp_path / "run", quiet, resume=True)
    assert lines(run.folder, "metrics.jsonl") == lines(single.folder, "metrics.jsonl")
    assert weights(run.folder, "shared") == weights(single.folder, "shared")
    (learner,) = team.learners
    with pytest.raises(EngineError, match="no adapter to merge"):
        learner.export("shared", tmp_path / "out", merge=True)
    learner.export("shared", tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == weights(run.folder, "shared")
    team.close()


@pytest.mark.slow
def test_a_killed_driver_loses_the_updates_since_its_checkpoint(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    """The run that goes on is the undisturbed one to the bit, and the actors of the dead one have ended."""
    longer = chosen(speaker, samplers=1)
    longer = longer.model_copy(update={"train": longer.train.model_copy(update={"steps": 40})})
    _, single = play(longer.model_copy(update={"cluster": None}), tmp_path / "single", quiet)
    (tmp_path / "pair.yaml").write_text(dump(longer))
    command, metrics = ["train", "pair.yaml", "--run", "run", "--resume-if-exists"], tmp_path / "run" / "metrics.jsonl"
    driver = Forked(command, tmp_path, env={"CADRE_TEST_DRIVER": str(tmp_path)})
    until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3)
    assert len(processes_with(str(tmp_path))) > 2  # Ray's and the actors
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    assert metrics.read_text().count("\n") < 40
    until(lambda: not processes_with(str(tmp_path)))
    resumed = Forked(command, tmp_path)
    printed, _ = resumed.communicate(120)
    assert resumed.returncode == 0, printed
    assert jsonl.read_all(tmp_path / "run" / "resumed.jsonl", StepLine) == [{"step": 0}]  # its only checkpoint
    for name in FILES:
        assert lines(tmp_path / "run", name) == lines(single.folder, name)
    assert weights(tmp_path / "run", "shared") == weights(single.folder, "shared")


def processes_with(text: str) -> list[str]:
    """Return the processes that have the text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if text.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow  # test_remote.py pretends the actor
@pytest.mark.parametrize("teacher", [{"hint": True}, {"policy": "two"}])
def test_a_teacher_scores_in_the_learners_process(
    teacher: dict[str, Any], speaker: Path, tmp_path: Path, quiet: Console
) -> None:
    """The policy itself with a hint, and another one that is trained: the run is that of one process."""
    (tmp_path / "hinted.py").write_text(HINTED)
    runs = {}
    for name, cluster in (("single", None), ("actors", {})):
        sections = {"train": {"steps": 2, "tasks_per_step": 2}, "evaluate": {"tasks": 2}, "teacher": teacher}
        created = configured(speaker, "Pair", ("one", "two"), **sections, cluster=cluster)
        team, runs[name] = play(
            created.model_copy(update={"env": f"{tmp_path}/hinted.py:Hinted"}), tmp_path / name, quiet
        )
        team.close()
    for file in FILES:
        assert lines(runs["actors"].folder, file) == lines(runs["single"].folder, file)
    assert "left/kl_to_teacher" in lines(runs["actors"].folder, "metrics.jsonl")[0]
    assert all(weights(runs["actors"].folder, item) == weights(runs["single"].folder, item) for item in ("one", "two"))


@pytest.mark.slow
def test_a_pool_of_vllm_samplers_is_handed_every_adapter(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them, of which one dies and is given the adapters again: the run is that of one sampler in one process."""
    monkeypatch.setattr(checks, "find_spec", lambda name: object())
    monkeypatch.setattr(factory, "VllmSpec", FakeVllmSpec)
    model = tiny.build(tmp_path / "model")
    policies = {name: {"model": str(model), "device": "cpu", "lora": {"rank": 2}} for name in "ab"}
    team = {"policies": policies, "roles": {"left": "a", "right": "b"}}
    sections = {"team": team, "sampling": {"engine": "vllm", "max_tokens": 2}}
    sections["train"] = {"steps": 2, "tasks_per_step": 2}
    _, single = play(configured(model, "Handshake", **sections), tmp_path / "single", quiet)
    real, members = sample_step, list[SupervisedActor]()

    async def dying(training: Training, step: int) -> SampledTrees:
        pool = training.team.samplers["a"]
        assert pool is training.team.samplers["b"]
        assert isinstance(pool, SamplerPool)
        members[:] = pool.actors
        if step == 1:
            kill(members[1])
        return await real(training, step)

    monkeypatch.setattr(loop, "sample_step", dying)
    trained_run, run = play(
        configured(model, "Handshake", **sections, cluster={"samplers": 2}), tmp_path / "run", quiet
    )
    assert [member.deaths for member in members] == [0, 1]
    for name in FILES:
        assert lines(run.folder, name) == lines(single.folder, name)
    trained_run.close()


def test_what_is_refused_before_anything_starts(speaker: Path) -> None:
    for cluster, message in (
        ({"policies": {"shred": {"samplers": 2}}}, r"cluster\.policies\.shred: there is no such policy"),
        ({"sampler": 2}, r"Did you mean samplers"),
        ({"colocated": True, "sampler_gpus": 1}, r"cluster\.sampler_gpus has no effect here"),
        ({"colocated": True, "learner_gpus": 2}, "divides single GPUs"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve(chosen(speaker, **cluster), typed=[f"cluster.{name}" for name in cluster])
    ranks = {"learner": {"ranks": 4}, "cluster": {"learner_gpus": 2}}
    with pytest.raises(ConfigError, match=r"learner_gpus: got 2 .*with learner\.ranks=4.* expected 4, or 0"):
        resolve(configured(speaker, "Pair", **ranks))
