"""Runs that a power cut, a full disk or a hand has damaged: what is lost is named, and the last whole state is used."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cadre.files import _sha256
from tests.cadre.cli.bad_calls import plain_recipe
from tests.cadre.cli.calling import Done, call
from tests.helpers.slow import few_of

READING = [
    ["view", "RUN", "--export", "OUT.html"],
    ["status", "RUN"],
    ["play", "RUN", "--step", "1"],
    ["export", "RUN", "shared", "OUT"],
    ["fork", "RUN", "--at", "1", "--run", "OUT"],
    ["eval", "RUN", "--tasks", "1"],
]


@pytest.fixture(scope="module")
def trained(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps, each with a checkpoint that is kept."""
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "RECIPE").write_text(plain_recipe(speaker))
    settings = "train.steps=3 train.checkpoint_every=1 train.trees_kept=1 evaluate.tasks=2 evaluate.every=1".split()
    assert call("train", str(folder / "RECIPE"), *settings, "--run", str(folder / "RUN")).code == 0
    return folder / "RUN"


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "RUN")
    return tmp_path / "RUN"


def resumed() -> Done:
    return call("train", "train.steps=4", "--run", "RUN", "--resume")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in lines(run / "metrics.jsonl")]


def told(result: Done) -> str:
    return " ".join((result.out + result.err).split())


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        pytest.param(
            lambda all_of: all_of[:1], "metrics.jsonl lacks the lines of step 1 to 2, ", marks=pytest.mark.slow
        ),
        (lambda all_of: [all_of[0], all_of[2]], "metrics.jsonl lacks the lines of step 1, "),
        pytest.param(
            lambda all_of: [all_of[0], all_of[1][:20], "\n", all_of[2]], "line 2: not JSON", marks=pytest.mark.slow
        ),
        pytest.param(
            lambda all_of: [all_of[0], "\0" * 200],
            "metrics.jsonl lacks the lines of step 1 to 2, ",
            marks=pytest.mark.slow,
        ),
        (lambda all_of: [all_of[0], "\0" * 200, "\n", all_of[2]], "line 2: not JSON"),
        (lambda all_of: [all_of[0], '{"step": "1"}\n', all_of[2]], "line 2: step: input should be a valid integer"),
        (
            lambda all_of: [all_of[0], "[]\n", '{"step": 1, "x": "y"}\n', all_of[2]],
            "line 2: got list, expected an object",
        ),
        (lambda all_of: [], "metrics.jsonl lacks the lines of step 0 to 2, "),
    ],
)
def test_lost_metrics_are_named(damage: Callable[[list[str]], list[str]], named: str, run: Path) -> None:
    path = run / "metrics.jsonl"
    stored = damage(lines(path))
    path.write_text("".join(stored))
    result = resumed()
    assert result.code == 0, result.err
    assert named in told(result)
    assert "metrics.jsonl lacks the lines of step" in told(result)
    assert steps(run)[-1] == 3
    if "line 2" in named:
        assert (run / "metrics.jsonl.damaged").read_text() == "".join(stored)


def test_a_whole_run_says_nothing_of_losses(run: Path) -> None:
    result = resumed()
    assert result.code == 0
    assert "lacks" not in told(result)
    assert "damaged" not in told(result)


@pytest.mark.parametrize("name", ["trees.jsonl", "annotations/credit.jsonl", "trees.index.jsonl"])
def test_other_logs_that_are_cut(name: str, run: Path) -> None:
    path = run / name
    path.write_text(lines(path)[0])
    result = resumed()
    assert result.code == 0, result.err
    entries = [json.loads(line) for line in lines(run / "trees.index.jsonl")]
    assert len(entries) == len(lines(run / "trees.jsonl"))


def test_a_damaged_report_is_left_out_and_named(run: Path) -> None:
    path = run / "evaluations.jsonl"
    first, *others = lines(path)
    path.write_text("".join([first, "\0" * 200, "\n", *others]))
    result = resumed()
    assert result.code == 0, result.err
    assert "evaluations.jsonl was damaged: line 2: not JSON" in told(result)
    assert [json.loads(line)["step"] for line in lines(path)] == [0, 1, 2, 3, 4]


def test_a_lost_report_of_the_best_evaluation(run: Path) -> None:
    (run / "evaluations.jsonl").unlink()
    result = resumed()
    assert result.code == 0, result.err
    assert "evaluations.jsonl lacks the report after 0 steps" in told(result)


def reseal(checkpoint: Path) -> None:
    """A manifest that fits whatever lies there."""
    files = [path for path in checkpoint.rglob("*") if path.is_file() and path.name != "manifest.json"]
    entries = {
        str(path.relative_to(checkpoint)): {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in files
    }
    (checkpoint / "manifest.json").write_text(json.dumps({"files": entries}))


def written(name: str, text: str) -> Callable[[Path], object]:
    def write(checkpoint: Path) -> None:
        (checkpoint / name).write_text(text)
        reseal(checkpoint)

    return write


def flipped(checkpoint: Path) -> None:
    path = checkpoint / "shared" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def cut_off(checkpoint: Path) -> None:
    path = checkpoint / "shared" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    reseal(checkpoint)


def removed(checkpoint: Path) -> None:
    (checkpoint / "shared" / "model.safetensors").unlink()
    reseal(checkpoint)


def replaced(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.write_text("a file")


def linked(checkpoint: Path) -> None:
    state = checkpoint / "state.json"
    shutil.move(state, checkpoint.parent.parent.parent / "state.json")
    state.symlink_to(checkpoint.parent.parent.parent / "state.json")


def emptied(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


OPTIMISER = "shared/optimiser/optimiser.json"
DAMAGES: dict[str, Callable[[Path], object]] = {
    "state empty": written("state.json", ""),
    "state of another form": written("state.json", '{"steps": 3}'),
    "state with another step": written("state.json", '{"step": 7}'),
    "state with text for a number": written("state.json", '{"step": "3"}'),
    "state with a huge number": written("state.json", '{"step": 1' + "0" * 400 + "}"),
    "state with NaN": written("state.json", '{"step": 3, "best_step": 3, "best": NaN}'),
    "state with infinity": written("state.json", '{"step": 3, "baselines": {"left": Infinity}}'),
    "state a list": written("state.json", "[]"),
    "state deep": written("state.json", "[" * 100_000),
    "optimiser empty": written(OPTIMISER, ""),
    "optimiser of another form": written(OPTIMISER, '{"updates": 1}'),
    "optimiser with text": written(OPTIMISER, '{"updates": "1", "applied": 1, "skips": 0, "skipped": 0, "steps": {}}'),
    "optimiser of other weights": written(
        OPTIMISER, '{"updates": 1, "applied": 1, "skips": 0, "skipped": 0, "steps": {"x": 1}}'
    ),
    "manifest of no files": lambda checkpoint: (checkpoint / "manifest.json").write_text('{"files": {}}'),
    "manifest a list": lambda checkpoint: (checkpoint / "manifest.json").write_text("[1]"),
    "manifest odd": lambda checkpoint: (checkpoint / "manifest.json").write_text('{"files": {"state.json": 3}}'),
    "manifest missing": lambda checkpoint: (checkpoint / "manifest.json").unlink(),
    "weights flipped": flipped,
    "weights cut": cut_off,
    "weights missing": removed,
    "a file in its place": replaced,
    "a link": linked,
    "empty": emptied,
}


# One of each file; tests/cadre/training/test_checkpoint.py has the checks themselves.
CHECKS = ["state with infinity", "manifest odd", "weights flipped", "a link"]
# What only loading finds, as the manifest was made to fit it.
UNFIT = [name for name in DAMAGES if name.startswith("optimiser") or name in ("weights cut", "weights missing")]


@pytest.mark.parametrize("name", few_of([name for name in DAMAGES if name not in UNFIT], CHECKS))
def test_the_checkpoint_before_a_damaged_one_is_used(name: str, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    DAMAGES[name](run / "checkpoints" / "step-000003")
    result = resumed()
    assert result.code == 0, result.err
    assert "step-000003" in caplog.text
    assert "is used: 1 steps after it are lost and made again" in caplog.text
    assert steps(run) == [0, 1, 2, 3]
    assert call("eval", "RUN", "--tasks", "1").code == 0


@pytest.mark.parametrize("name", few_of(UNFIT, ["optimiser of other weights"]))
def test_a_checkpoint_that_cannot_be_loaded_is_named_and_the_run_stays_as_it_is(name: str, run: Path) -> None:
    DAMAGES[name](run / "checkpoints" / "step-000003")
    before = (run / "metrics.jsonl").read_bytes()
    done = resumed()
    assert done.code == 2
    assert "RUN/checkpoints/step-000003" in told(done)
    assert (run / "metrics.jsonl").read_bytes() == before
    shutil.rmtree(run / "checkpoints" / "step-000003")
    assert resumed().code == 0


def test_where_no_checkpoint_is_whole_it_is_one_paragraph(run: Path) -> None:
    for checkpoint in (run / "checkpoints").iterdir():
        (checkpoint / "state.json").write_text("")
    result = resumed()
    assert result.code == 2
    assert "holds no whole checkpoint" in result.err


RECORDS = ["", "{}", "[]", '{"recipe": 1, "overrides": []}', '{"recipe": "", "overrides": "x"}']


@pytest.mark.parametrize(
    ("name", "text"),
    few_of(
        [(name, text) for name in ("command.json", "environment.json") for text in RECORDS],
        [("command.json", ""), ("command.json", RECORDS[3]), ("command.json", RECORDS[4]), ("environment.json", "[]")],
    ),
)
def test_damaged_records_are_named_and_left_out(
    name: str, text: str, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if name == "environment.json":
        text = text.replace("recipe", "machine").replace("overrides", "commits")
    (run / name).write_text(text)
    result = resumed()
    assert result.code == 0, result.err
    assert (name in caplog.text and "left out" in caplog.text) or text == "{}"


@pytest.mark.parametrize("text", few_of(["", "{", "a: [", "[]", "env: 3", "\0\0\0"], ["", "a: [", "env: 3"]))
def test_a_damaged_configuration_is_mended_by_its_copy(text: str, run: Path) -> None:
    (run / "config.yaml").write_text(text)
    done = resumed()
    assert done.code == 2
    assert done.err.startswith("error: ")
    shutil.copyfile("RUN/checkpoints/step-000003/config.yaml", "RUN/config.yaml")
    assert resumed().code == 0


ODD = [
    "",
    "{}",
    "[]",
    "null",
    '{"step": 0}',
    '{"step": -1, "tree": 0}',
    '{"step": NaN}',
    "\0" * 30,
    "[" * 50_000,
    "\udcff",
]
FILES = ["metrics.jsonl", "evaluations.jsonl", "trees.jsonl", "trees.index.jsonl", "left_out.jsonl", "vocabulary.jsonl"]
FILES += ["annotations/credit.jsonl", "status.json", "command.json", "environment.json", "resumed.jsonl", "config.yaml"]


@pytest.mark.parametrize("all_items", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", few_of(FILES, FILES[::3]))
def test_no_record_makes_a_reader_fail_with_a_traceback(name: str, all_items: bool, run: Path) -> None:
    """Every text in every file, or none and one more of them."""
    position = FILES.index(name)
    texts = ODD if all_items else [ODD[0], ODD[1 + position % (len(ODD) - 1)]]
    for number, text in enumerate(texts):
        (run / name).write_bytes(text.encode(errors="surrogateescape") + b"\n")
        for command in READING[:3] if number else READING:
            result = call(*command)  # raises what is no error of the user's
            assert result.code in (0, 2)
            for remaining in Path().glob("OUT*"):
                shutil.rmtree(remaining) if remaining.is_dir() else remaining.unlink()


PLACES = [*FILES, "checkpoints", "annotations"]
KINDS = ["link", "fifo", "folder"]


@pytest.mark.parametrize(
    ("kind", "name"),
    few_of(
        [(kind, name) for kind in KINDS for name in PLACES],
        [(KINDS[position // 2 % 3], name) for position, name in enumerate(PLACES) if position % 4 == 0]
        + [("link", "trees.jsonl"), ("link", "checkpoints")],
    ),
)
def test_links_and_other_things_are_not_followed(kind: str, name: str, run: Path, tmp_path: Path) -> None:
    target = run / name
    if not target.exists():
        target.write_text("")
    target.rename(tmp_path / "elsewhere")
    if kind == "link":
        target.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(target)
    else:
        target.mkdir()
    initial = (tmp_path / "elsewhere").stat().st_mtime_ns
    for command in READING:
        assert call(*command).code in (0, 2)
    if kind == "link":
        assert resumed().code in (0, 2)
        assert (tmp_path / "elsewhere").stat().st_mtime_ns == initial


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
def test_a_fork_of_a_log_whose_line_has_no_step(name: str, run: Path) -> None:
    (run / name).write_text("{}\n")
    result = call("fork", "RUN", "--at", "1", "--run", "OUT")
    assert result.code != 0
    assert f"{name}, line 1: step" in told(result)
    assert "Traceback" not in result.err
    assert not (run.parent / "OUT").exists()
