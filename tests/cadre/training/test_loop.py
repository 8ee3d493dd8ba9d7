"""The loop end to end on tiny models: it learns, equal seeds are equal, and it goes on where it stopped."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from rich.console import Console

from cadre.algorithms import ALGORITHMS
from cadre.config.experiment import dump, parse
from cadre.config.resolve import resolve
from cadre.errors import ContractError, DivergedError, RunError
from cadre.runs.folder import Run, create_in_free_folder
from cadre.training.checkpoint import checkpoint_steps, latest_checkpoint
from cadre.training.loop import pick_tasks, run_training
from tests.helpers.coordination import experiment
from tests.helpers.forked import Forked, run
from tests.helpers.games import Broken, Moody
from tests.helpers.slow import few_of
from tests.helpers.training import configured, play, weights

# In a game of one decision these are, to the last number, what others do that are trained here.
THE_SAME_HERE = {"grpo_by_role", "matpo", "arpo", "tree_grpo", "bpo"}


PRESETS = sorted(ALGORITHMS.keys() - THE_SAME_HERE - {"custom"} | {"gdpo"})
# Of these the kinds of credit differ: of groups, pairs, critics, trees, and of a central or a single model.
QUICK = [
    "at_grpo",
    "c3",
    "counterfactual",
    "dr_mas",
    "ippo",
    "m_grpo",
    "ma_dpo",
    "magrpo_central",
    "mappo",
    "sirius",
    "spiral",
    "tree_rl",
]


@pytest.mark.slow  # that a reward is learned at all is seen in tests/cadre/engines/torch/test_trainer.py
@pytest.mark.parametrize("preset", PRESETS)
def test_two_roles_learn_to_agree(preset: str, tmp_path: Path, quiet: Console) -> None:
    _, run = play(parse(experiment(preset, tmp_path)), tmp_path / "run", quiet)
    initial_evaluations, final_evaluations = run.evaluations()
    assert initial_evaluations["reward"] <= 0.5
    assert final_evaluations["reward"] == 1.0


@pytest.mark.parametrize("preset", few_of(PRESETS, QUICK))
def test_every_preset_makes_its_steps(preset: str, tmp_path: Path, quiet: Console) -> None:
    """Two of them, with few samples; that it learns too is seen above, which takes its time."""
    chosen = experiment(preset, tmp_path)
    chosen["algorithm"]["k"] = 4
    chosen["train"] = {"steps": 2, "tasks_per_step": 2}
    _, run = play(parse(chosen), tmp_path / "run", quiet)
    assert [report["step"] for report in run.evaluations()] == [0, 2]
    assert checkpoint_steps(run.folder / "checkpoints") == [0, 2]
    figures = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in figures] == [0, 1]


def test_equal_seeds_give_equal_runs_and_others_differ(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    runs = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        play(configured(speaker, train={"steps": 2, "tasks_per_step": 4, "seed": seed}), tmp_path / name, quiet)
        runs[name] = weights(tmp_path / name, "shared")
    assert runs["a"] == runs["b"]
    assert runs["a"] != runs["c"]


def test_resuming_restores_every_policy_exactly(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    """Mistake: resume restores the first policy only. Two policies, stopped half way, equal an unbroken run."""
    policies = ("one", "two")
    full, half = (
        configured(speaker, "Pair", policies, train={"steps": steps, "tasks_per_step": 4}) for steps in (4, 2)
    )
    play(full, tmp_path / "whole", quiet)
    play(half, tmp_path / "half", quiet)
    middle = {policy: weights(tmp_path / "half", policy) for policy in policies}
    play(full, tmp_path / "half", quiet, resume=True)
    for policy in policies:
        assert weights(tmp_path / "half", policy) == weights(tmp_path / "whole", policy)
        assert weights(tmp_path / "half", policy) != middle[policy]
    steps = [json.loads(line)["step"] for line in (tmp_path / "half" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2, 3]


def test_each_policy_learns_from_its_own_roles_only(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    chosen = configured(speaker, "Pair", ("one", "two"))
    experiment = resolve(chosen)
    run = Run.create(tmp_path / "run", chosen)
    run_training(experiment, run, quiet)
    figures = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[0])
    assert figures["one/sequences"] == figures["two/sequences"] == 4 * 8
    assert figures["left/tokens"] > 0
    assert abs(figures["one/kl_to_sampler"]) < 1e-4


def test_a_run_is_never_overwritten(speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = configured(speaker)
    Run.create(tmp_path / "run", chosen)
    with pytest.raises(RunError, match="exists and is not empty"):
        Run.create(tmp_path / "run", chosen)
    monkeypatch.chdir(tmp_path)
    Path("runs/digit-001").mkdir(parents=True)
    assert create_in_free_folder(None, "recipes/digit.yaml", lambda folder: folder) == Path("runs/digit-002")


def test_what_a_run_leaves_behind(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    _, run = play(
        configured(speaker, train={"steps": 2, "tasks_per_step": 4, "trees_kept": 2}), tmp_path / "run", quiet
    )
    trees = [json.loads(line) for line in (run.folder / "trees.jsonl").read_text().splitlines()]
    assert [tree["step"] for tree in trees] == [0, 0, 1, 1]
    assert len(trees[0]["nodes"][0]["samples"]["speaker"]) == 8
    assert list((run.folder / "tensorboard").glob("events*"))
    assert checkpoint_steps(run.folder / "checkpoints") == [0, 2]
    assert not list(run.folder.rglob("*.pt"))


def test_tasks_come_in_epochs_without_repetition(speaker: Path) -> None:
    game = resolve(configured(speaker)).env_spec
    first = [task.id for step in range(2) for task in pick_tasks(game.tasks("train"), 4, step, seed=0)]
    second = [task.id for step in range(2, 4) for task in pick_tasks(game.tasks("train"), 4, step, seed=0)]
    assert sorted(first) == sorted(second) == sorted(task.id for task in game.tasks("train"))
    assert first != second


@pytest.mark.slow  # tests/cadre/training/test_interrupt_signals.py stops a process too
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_interrupting_saves_and_says_how_to_go_on(speaker: Path, tmp_path: Path) -> None:
    chosen = configured(speaker, train={"steps": 100_000, "tasks_per_step": 4})
    (tmp_path / "digit.yaml").write_text(dump(chosen))
    command = ["train", "digit.yaml", "--run", "out"]
    process = Forked(command, tmp_path)
    metrics = tmp_path / "out" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "cadre train --run out --resume" in printed
    assert "Traceback" not in printed
    saved = latest_checkpoint(tmp_path / "out" / "checkpoints")
    result = json.loads((saved / "state.json").read_text())["step"]
    assert result == metrics.read_text().count("\n") >= 3
    code, printed = run([*command, "--resume", f"train.steps={result + 2}"], tmp_path)
    assert code == 0, printed
    assert metrics.read_text().count("\n") == result + 2


def test_a_step_is_evaluated_once(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    """The last step is due and the tokens are spent; a resumed run that is at its end adds nothing."""
    sections = {"train": {"steps": 9, "tasks_per_step": 4, "max_tokens": 1}, "evaluate": {"tasks": 2, "every": 1}}
    chosen = configured(speaker, **sections)
    _, run = play(chosen, tmp_path / "run", quiet)
    assert [report["step"] for report in run.evaluations()] == [0, 1]
    play(chosen, tmp_path / "run", quiet, resume=True)
    assert [report["step"] for report in run.evaluations()] == [0, 1]


def test_a_step_that_was_too_long_is_found_at_once_and_the_last_good_checkpoint_stays(
    speaker: Path, tmp_path: Path, quiet: Console
) -> None:
    chosen = configured(speaker, learner={"learning_rate": 1e10}, evaluate={"tasks": 0})
    with pytest.raises(DivergedError, match=r"log-probabilities after the update are not finite"):
        play(chosen, tmp_path / "run", quiet)
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == [0]


def test_a_training_in_which_every_episode_failed_ends_with_an_error(
    speaker: Path, tmp_path: Path, quiet: Console
) -> None:
    """Each step has too few of them to stop it: failures that the samples cause are no error of a step."""
    few = {"algorithm": {"name": "at_grpo", "k": 2}, "train": {"steps": 2, "tasks_per_step": 2}}
    chosen = configured(speaker, Broken.__name__, evaluate={"tasks": 0}, **few)
    with pytest.raises(ContractError, match=r"Every episode of the training failed.*failures\.jsonl: mend"):
        play(chosen, tmp_path / "run", quiet)
    assert checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] == 2


def test_an_environment_that_fails_too_often_stops_the_run_saved_with_the_reason(
    speaker: Path, tmp_path: Path, quiet: Console
) -> None:
    chosen = configured(speaker, Moody.__name__, train={"steps": 9, "tasks_per_step": 4, "checkpoint_minutes": 0})
    with pytest.raises(ContractError, match=r"3 of 4 episodes failed .3 raised.; .* 50%.*in a mood at line"):
        play(chosen, tmp_path / "run", quiet)
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == [0, 2]
    content = [json.loads(line) for line in (tmp_path / "run" / "failures.jsonl").read_text().splitlines()]
    assert {line["reason"] for line in content} == {"raised"}
    assert "Traceback" in content[0]["traceback"]
    figures = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout/failed"] for line in figures] == [0.25, 0.25]
    assert [line["rollout/failed/raised"] for line in figures] == [0.25, 0.25]
    assert [line["rollout/retried"] for line in figures] == [1, 1]
