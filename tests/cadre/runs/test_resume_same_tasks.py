"""Going on with a run whose files of data or weights have changed meanwhile, and reading a file again that has."""

import json
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file

from cadre.config.experiment import Config, load, parse
from cadre.config.resolve import resolve
from cadre.engines.model_folder import fingerprint_weights
from cadre.env import GeneratedTasks
from cadre.errors import RunError
from cadre.evaluation.evaluate import hash_tasks
from cadre.runs.folder import Run
from cadre.runs.resume import open_to_resume, task_digests
from cadre.settings.run import CurriculumConfig
from cadre.training.loop import run_training
from cadre.types import Task
from tests.helpers.training import configured


def written(file: Path, answers: list[str], time: int) -> str:
    """A file of problems, changed at a time of its own, as clocks are coarse."""
    rows = [json.dumps({"id": str(n), "question": f"Which? {n}", "answer": answer}) for n, answer in enumerate(answers)]
    file.write_text("\n".join(rows) + "\n")
    os.utime(file, (time, time))
    return str(file)


def maths(speaker: Path, train: str, test: str, **sections) -> Config:
    settings = {"train": train, "test": test}
    trained = {"steps": 1, "tasks_per_step": 1}
    team = {"policies": {"agent": str(speaker)}, "roles": {"agent": "agent"}}
    algorithm = {"name": "grpo", "k": 2}
    return parse(
        {
            "env": "maths-single-agent",
            "settings": settings,
            "team": team,
            "algorithm": algorithm,
            "train": trained,
            "sampling": {"max_tokens": 2},
            "evaluate": {"tasks": 1},
        }
        | sections
    )


def start(chosen: Config, folder: Path, console: Console, resume: bool = False, force: bool = False) -> None:
    run = Run.open(folder) if resume else Run.create(folder, chosen)
    team, _ = run_training(resolve(chosen), run, console, resume, force)
    team.close()


@pytest.mark.parametrize(("split", "expected"), [("train", "training"), ("test", "held-out")])
def test_other_tasks_need_force(split: str, expected: str, speaker: Path, tmp_path: Path, quiet: Console) -> None:
    files = {name: written(tmp_path / f"{name}.jsonl", ["1", "2"], 100) for name in ("train", "test")}
    files["test"] = str(tmp_path / "test.jsonl")
    (tmp_path / "test.jsonl").write_text('{"question": "Which? 9", "answer": "9"}\n')
    chosen = maths(speaker, files["train"], files["test"])
    start(chosen, tmp_path / "run", quiet)
    start(chosen, tmp_path / "run", quiet, resume=True)
    initial_content = (tmp_path / "run" / "environment.json").read_text()
    Path(files[split]).write_text('{"question": "Which? 7", "answer": "8"}\n')
    with pytest.raises(RunError, match=f"the {expected} tasks are not those .* --force"):
        start(chosen, tmp_path / "run", quiet, resume=True)
    assert (tmp_path / "run" / "environment.json").read_text() == initial_content
    reports = [len(Run.open(tmp_path / "run").evaluations())]
    start(chosen, tmp_path / "run", quiet, resume=True, force=True)
    start(chosen, tmp_path / "run", quiet, resume=True)  # which made them its own
    # Reports of other held-out tasks are set aside, and no best checkpoint is chosen among both.
    stored = Run.open(tmp_path / "run").evaluations()
    assert (tmp_path / "run" / "evaluations-1.jsonl").exists() == (split == "test")
    assert ([report["step"] for report in stored], *reports) == ([1] if split == "test" else [0, 1], 2)


def test_held_out_tasks_that_settings_change_are_no_other_data(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    files = [written(tmp_path / f"{name}.jsonl", [name], 100) for name in ("1", "2", "3")]
    train = written(tmp_path / "train.jsonl", ["0", "0", "0", "0"], 100)
    (tmp_path / "1.jsonl").write_text('{"question": "Who? 1", "answer": "1"}\n')
    (tmp_path / "2.jsonl").write_text('{"question": "Who? 2", "answer": "1"}\n')
    start(maths(speaker, train, files[0]), tmp_path / "run", quiet)
    other_reopened = open_to_resume(tmp_path / "run", overrides=[f"evaluate.settings.test={files[1]}"])
    team, _ = run_training(resolve(other_reopened.config), other_reopened, quiet, True)
    team.close()


def test_what_is_made_by_rule_has_no_digest(speaker: Path) -> None:
    assert task_digests(resolve(configured(speaker))).keys() <= {"train", "test"}
    chosen = load("plan-path")
    assert task_digests(resolve(chosen)) == {}


def test_the_digest_of_training_tasks_is_of_all_levels_of_a_curriculum(speaker: Path, tmp_path: Path) -> None:
    easy, hard, held = (str(tmp_path / f"{name}.jsonl") for name in ("easy", "hard", "held"))
    for number, file in enumerate((easy, hard, held)):
        Path(file).write_text(f'{{"question": "Who? {number}", "answer": "1"}}\n')
    chosen = maths(speaker, easy, held)
    chosen = chosen.model_copy(update={"curriculum": CurriculumConfig(levels=[{}, {"train": hard}])})
    before = task_digests(resolve(chosen))
    Path(hard).write_text('{"question": "Which? 7", "answer": "8"}\n')
    after = task_digests(resolve(chosen))
    assert before["train"] != after["train"]
    assert before["test"] == after["test"]


def test_a_digest_is_of_what_tasks_hold_and_of_their_order() -> None:
    task, two = Task("1", {"a": [1, "x"]}), Task("2", {"b": None})
    assert hash_tasks([task, two]) == hash_tasks([Task("1", {"a": (1, "x")}), two])
    rest = [[two, task], [task], [Task("3", task.data), two], [Task("1", {"a": [1, "y"]}), two]]
    assert len({hash_tasks(tasks) for tasks in rest} | {hash_tasks([task, two])}) == 5
    assert hash_tasks([Task("1", {"held": object()})]) == hash_tasks([Task("1", {"held": object()})])
    assert hash_tasks(GeneratedTasks(2, lambda index: {"n": index}, "t", read=True)) == hash_tasks(
        [Task("t-0", {"n": 0}), Task("t-1", {"n": 1})]
    )


def test_another_model_of_the_same_shape_needs_force(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    """An adapter went on upon another base in the same folder, or in one that was named in its place."""
    base = tmp_path / "base"
    shutil.copytree(speaker, base)
    policies = {"policies": {"shared": {"model": str(base), "lora": {"rank": 2}}}, "roles": {"speaker": "shared"}}
    chosen = configured(speaker, team=policies, train={"steps": 1, "tasks_per_step": 2}, evaluate={"tasks": 0})
    start(chosen, tmp_path / "run", quiet)
    tensors = load_file(base / "model.safetensors")
    half = len(tensors) // 2
    # The same weights in two files are the same model.
    save_file(dict(list(tensors.items())[:half]), base / "a.safetensors")
    save_file(dict(list(tensors.items())[half:]), base / "b.safetensors")
    (base / "model.safetensors").unlink()
    assert fingerprint_weights(base) == fingerprint_weights(speaker) != ""
    for file in ("a", "b"):
        (base / f"{file}.safetensors").unlink()
    # Another conversion beside the weights that are loaded does not matter.
    save_file(tensors, base / "model.safetensors")
    save_file({name: tensor + 1.0 for name, tensor in tensors.items()}, base / "model.fp16.safetensors")
    assert fingerprint_weights(base) == fingerprint_weights(speaker)
    (base / "model.fp16.safetensors").rename(base / "model.safetensors")
    with pytest.raises(RunError, match=r"the model of shared in .*base has other weights .* --force"):
        start(chosen, tmp_path / "run", quiet, resume=True)
    start(chosen, tmp_path / "run", quiet, resume=True, force=True)
    start(chosen, tmp_path / "run", quiet, resume=True)  # it was begun again with these


# Offsets whose difference, -1, would read the whole file.
ENTRY = b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [1, 0]}}'
BACKWARDS = len(ENTRY).to_bytes(8, "little") + ENTRY + bytes(8)


def test_weights_that_cannot_be_read_have_no_fingerprint(tmp_path: Path) -> None:
    assert fingerprint_weights(tmp_path) == ""
    for content in (b"", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"[]", b"\x08" + b"\0" * 7 + b'{"a": 1}', BACKWARDS):
        (tmp_path / "model.safetensors").write_bytes(content)
        assert fingerprint_weights(tmp_path) == ""
