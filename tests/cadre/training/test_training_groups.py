"""A learner of several ranks in a training: what is refused, the same run as with one, and a rank that dies."""

import asyncio
from pathlib import Path

import pytest
from rich.console import Console

from cadre.config.resolve import resolve
from cadre.engines.torch.group import GroupLearner
from cadre.errors import ConfigError, EngineError
from cadre.evaluation.loaded_team import load_team
from cadre.runs.folder import Run
from cadre.training.checkpoint import latest_checkpoint, read_state
from cadre.training.loop import run_training
from cadre.types import Message, TrainingSequence
from tests.cadre.training.test_training_distillation import HINTED
from tests.helpers.training import configured


def test_what_ranks_cannot_be_is_refused_before_a_model_loads(speaker: Path) -> None:
    def team(first: dict, second: dict) -> dict:
        policies = {"one": {"model": str(speaker), **first}, "two": {"model": str(speaker), **second}}
        return {"policies": policies, "roles": {"left": "one", "right": "two"}}

    lora = {"lora": {"rank": 2}}
    unlike = configured(speaker, "Pair", team=team(lora, {**lora, "learner": {"ranks": 3}}), learner={"ranks": 2})
    with pytest.raises(ConfigError, match=r"learner\.ranks: got one: 2, two: 3 for policies on one model"):
        resolve(unlike)
    numbered = configured(speaker, "Pair", team=team({"device": "cuda:1"}, {}), learner={"ranks": 2})
    with pytest.raises(ConfigError, match=r"one\.device: got cuda:1 with learner\.ranks=2, .* expected cuda, cpu"):
        resolve(numbered)


@pytest.mark.slow
@pytest.mark.parametrize(
    "teacher",
    [{"weights": "initial"}, {"hint": True, "alone": True}, {"policy": "two"}],
    ids=["initial", "hint", "policy"],
)
def test_two_ranks_learn_from_a_teacher_as_one_does(
    teacher: dict, speaker: Path, tmp_path: Path, quiet: Console
) -> None:
    (tmp_path / "hinted.py").write_text(HINTED)
    runs = []
    for ranks in (1, 2):
        chosen = configured(
            speaker,
            "Pair",
            ("one", "two"),
            algorithm={"name": "grpo", "k": 4},
            loss={"kl": 0.1},
            kl={"reference": "start"},
            teacher=teacher,
            learner={"learning_rate": 1e-2, "ranks": ranks},
            train={"steps": 2, "tasks_per_step": 2},
            evaluate={"tasks": 0},
        ).model_copy(update={"env": f"{tmp_path}/hinted.py:Hinted"})
        run = Run.create(tmp_path / f"of-{ranks}", chosen)
        team, _ = run_training(resolve(chosen), run, quiet)
        team.close()
        runs.append(run.metrics())
    for reference_metrics, metrics in zip(*runs, strict=True):
        same = {key: value for key, value in reference_metrics.items() if "time/" not in key and "_per_s" not in key}
        assert {key: metrics[key] for key in same} == pytest.approx(same, rel=1e-4, abs=1e-5)
        assert "left/kl_to_teacher" in metrics


@pytest.mark.slow
def test_two_ranks_train_as_one_does_and_end_together(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    goal = {"train": {"steps": 3, "tasks_per_step": 2}, "evaluate": {"tasks": 2}}

    def start(ranks: int):
        chosen = configured(speaker, **goal, learner={"learning_rate": 1e-3, "ranks": ranks})
        run = Run.create(tmp_path / f"of-{ranks}", chosen)
        team, _ = run_training(resolve(chosen), run, quiet)
        return team, run

    (single, run_alone), (team, run) = start(1), start(2)
    for group_metric, metric in zip(run.metrics(), run_alone.metrics(), strict=True):
        same = {key: value for key, value in metric.items() if "time/" not in key and "_per_s" not in key}
        assert {key: group_metric[key] for key in same} == pytest.approx(same, rel=1e-4, abs=1e-5)

    # A team that plays needs no ranks to read what they wrote.
    playing = load_team(resolve(run.config), run.folder).team
    final = [dict(engine.samplers["shared"].parameters("shared")) for engine in (single, team, playing)]
    assert all(float((final[0][name] - final[1][name]).detach().abs().max()) < 1e-5 for name in final[0])
    assert all(final[1][name].equal(final[2][name]) for name in final[1])
    assert read_state(latest_checkpoint(run.folder / "checkpoints")).step == 3

    (learner,) = team.learners
    assert isinstance(learner, GroupLearner)
    assert list(Path(learner._folder).glob("cadre-weights-*/shared/v*/model.safetensors"))
    for process in learner._processes:
        process.terminate()  # as a scheduler asks every process of a group, where the trainer saves first
    assert learner.encode("shared", [Message("user", "Go.")])
    datum = TrainingSequence("shared", "solver", (2, 3), (False, True), (0.0, -1.0), (0.0, 1.0), 3)
    learner._processes[1].kill()
    with pytest.raises(EngineError, match=r"Rank 1 of the 2 that train shared failed: its process ended \(exit code"):
        asyncio.run(learner.update([datum]))
    assert not any(process.is_alive() for process in learner._processes)
    assert not Path(learner._folder).exists()
    with pytest.raises(EngineError, match="group was closed"):
        learner.values([datum])
    for item in (single, team, playing):
        item.close()
