"""`kl.reference`: the base model, or the policy as it was when reinforcement learning began."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from cadre.config.engines import build_team
from cadre.config.experiment import Config
from cadre.config.resolve import resolve
from cadre.errors import ConfigError, RunError
from cadre.runs.folder import Run
from cadre.runs.resume import fork_run
from cadre.team import Team
from cadre.training.checkpoint import find_start, latest_checkpoint, restore_latest
from cadre.types import TrainingSequence
from cadre_tasks.warm_start import WarmStart
from tests.cadre_tasks.test_warm_start import warmed
from tests.helpers.training import configured

ONE_STEP = WarmStart(steps=1, examples=4, learning_rate=3e-2)
ASKED = TrainingSequence("shared", "speaker", (3, 4, 5, 6), (False, True, True, True), (-1.0,) * 4, (1.0,) * 4, 0)


def recipe(model: Path, reference: str, **policy: object) -> Config:
    team = {"policies": {"shared": {"model": str(model), **policy}}, "roles": {"speaker": "shared"}}
    return configured(model, team=team, loss={"kl": 0.1}, kl={"reference": reference})


def by_transformers(folder: Path) -> list[float]:
    """Return the log-probabilities of the tokens that are asked for, by the library itself."""
    logits = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([ASKED.token_ids])).logits[0, :-1]
    picked = logits.log_softmax(-1).gather(1, torch.tensor(ASKED.token_ids)[1:, None]).flatten()
    return [0.0, *picked.tolist()]


def opened(chosen: Config, run: Run) -> Team:
    """Return the team as a training of the run begins with it."""
    experiment = resolve(chosen)
    team = build_team(experiment, train=True, start=find_start(experiment, run))
    restore_latest(run.folder / "checkpoints", team)
    return team


def reference_of(team: Team) -> list[float]:
    (logprobs,) = team.reference_logprobs([ASKED])
    return list(logprobs)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_the_reference_is_the_base_or_the_warmed_policy(lora: dict | None, speaker: Path, tmp_path: Path) -> None:
    """Both by the library's own forward, before an update and after one, which moves the policy alone."""
    policy = {} if lora is None else {"lora": lora}
    run = warmed(recipe(speaker, "base", **policy), tmp_path / "run", ONE_STEP)
    base = opened(run.config, run)
    assert reference_of(base) == pytest.approx(by_transformers(speaker), abs=1e-5)
    start = opened(recipe(speaker, "start", **policy), run)
    folder = tmp_path / "merged"
    start.learners[0].export("shared", folder, merge=lora is not None)
    expected = by_transformers(folder)
    assert reference_of(start) == pytest.approx(expected, abs=1e-5)
    assert expected != pytest.approx(by_transformers(speaker), abs=1e-2)

    reference = tuple(reference_of(start))
    asyncio.run(start.update([replace(ASKED, reference=reference)]))
    start.learners[0].export("shared", tmp_path / "moved", merge=lora is not None)
    assert by_transformers(tmp_path / "moved") != pytest.approx(expected, abs=1e-4)
    assert reference_of(start) == list(reference)
    for team in (base, start):
        team.close()


@pytest.mark.slow
def test_an_adapter_to_start_from_is_the_reference(speaker: Path, tmp_path: Path) -> None:
    """`lora.path` is the reference, also in a resumed run: the checkpoint is loaded over it."""
    run = warmed(recipe(speaker, "base", lora={"rank": 2}), tmp_path / "run", ONE_STEP)
    adapter = latest_checkpoint(run.folder / "warm_start" / "checkpoints") / "shared"
    chosen = recipe(speaker, "start", lora={"path": str(adapter), "rank": 2})
    team = build_team(
        resolve(chosen), train=True, start=find_start(resolve(chosen), Run.create(tmp_path / "b", chosen))
    )
    team.learners[0].export("shared", tmp_path / "merged", merge=True)
    expected = by_transformers(tmp_path / "merged")
    assert reference_of(team) == pytest.approx(expected, abs=1e-5)
    assert expected != pytest.approx(by_transformers(speaker), abs=1e-2)
    asyncio.run(team.update([replace(ASKED, reference=tuple(reference_of(team)))]))
    assert reference_of(team) == pytest.approx(expected, abs=1e-5)
    team.close()


@pytest.mark.parametrize("moves", [False, True])
def test_the_weights_of_the_start_are_read_where_there_are_some(moves: bool, speaker: Path, tmp_path: Path) -> None:
    """Without a warm start or an adapter the start is the base."""
    chosen, folder = recipe(speaker, "start"), speaker
    assert find_start(resolve(chosen), Run.create(tmp_path / "run", chosen)) == {"shared": ""}
    if moves:
        folder = tmp_path / "moved"
        model = AutoModelForCausalLM.from_pretrained(speaker)
        model.get_output_embeddings().weight.data[5] += 1.0
        model.save_pretrained(folder)
    team = build_team(resolve(chosen), train=True, start={"shared": str(folder) if moves else ""})
    assert reference_of(team) == pytest.approx(by_transformers(folder), abs=1e-5)
    assert (by_transformers(folder) != by_transformers(speaker)) == moves
    team.close()


@pytest.mark.slow
def test_a_start_that_is_gone_is_refused_and_a_fork_takes_it_along(speaker: Path, tmp_path: Path) -> None:
    run = warmed(recipe(speaker, "base"), tmp_path / "run", ONE_STEP)
    experiment = resolve(recipe(speaker, "start"))
    start = find_start(experiment, run)
    forked = fork_run(run.folder, 0, tmp_path / "fork", ["kl.reference=start"])
    copied = find_start(resolve(forked.config), forked)
    assert copied is not None
    assert start is not None
    for name in ("model.safetensors", "config.json"):
        assert (Path(copied["shared"]) / name).read_bytes() == (Path(start["shared"]) / name).read_bytes()
    assert forked.folder in Path(copied["shared"]).parents
    plain = fork_run(run.folder, 0, tmp_path / "plain")
    with pytest.raises(RunError, match=r"kl.reference: got start, and .* holds no weights of the warm start"):
        find_start(experiment, plain)
    shutil.rmtree(run.folder / "warm_start" / "checkpoints")
    with pytest.raises(RunError, match="holds no weights of the warm start"):
        find_start(experiment, run)
    assert find_start(resolve(run.config), run) is None


def test_a_warmed_run_in_a_cluster_and_a_reference_that_nobody_reads_are_refused(speaker: Path, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe(speaker, "base"))
    (run.folder / "warm_start").mkdir()
    experiment = resolve(recipe(speaker, "start"))
    object.__setattr__(experiment, "config", experiment.config.model_copy(update={"cluster": object()}))
    with pytest.raises(ConfigError, match=r"kl.reference: got start with a cluster"):
        find_start(experiment, run)
    with pytest.raises(ConfigError, match=r"kl.reference has no effect here"):
        resolve(configured(speaker, kl={"reference": "start"}), typed=["kl.reference"])
