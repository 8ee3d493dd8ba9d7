"""The benchmarks of real models: measures by hand, rows that are sound, slices that go on, without a real model."""

import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import common
import real
import real_measures as measures
import real_tables
import slices
from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.runs.tree_format import encode
from cadre.types import Task, Tree
from real_tasks import COMMON, JUDGE, KNOWN, Line, lines_of
from slices import Clock, OutOfTimeError
from tests.cadre.advantages.trees import sequential
from tests.cadre.engines import tiny
from tests.helpers.playing import source


def step(team: float, parts: dict[str, float], child: Any = None, over: bool = False) -> dict[str, Any]:
    said = {"aux": [{"token_ids": [1, 2], "finish": "stop"}], "main": [{"token_ids": [1], "finish": "length"}]}
    reward = {"team": team, "local": {"aux": 0.5}, "parts": parts}
    return {"samples": said, "branches": [{"reward": reward, "success": over, "child": child}]}


def test_measures_by_hand() -> None:
    """Two turns: main calls aux in both, and only in the second the call changes what the tests say."""
    second = step(1.0, {"calls": 0.5, "ignored": 0.0}, over=True)
    tree = {"root": step(2.0, {"calls": 0.5, "ignored": -0.5}, second)}
    assert measures.reward(tree) == pytest.approx(4.0)
    assert (measures.success(tree), measures.calls(tree), measures.helps(tree)) == (1.0, 1.0, 1.0)
    assert (measures.tokens(tree), measures.whole(tree)) == (6.0, 0.5)
    assert measures.helps({"root": step(2.0, {"calls": 0.5, "ignored": -0.5})}) == 0.0
    assert measures.part("codebleu")(tree) == 0.0
    lost = {"root": step(2.0, {}, step(0.0, {}), over=True)}
    assert (measures.at_first(tree), measures.repaired(tree)) == (0.0, 1.0)
    assert (measures.at_first(lost), measures.repaired(lost), measures.success(lost)) == (1.0, 0.0, 0.0)
    assert measures.repaired({"root": step(2.0, {}, over=True)}) == measures.repaired({"root": step(2.0, {})}) == 0.0


def test_pass_at_k_by_hand() -> None:
    """Five episodes of two turns, two of them solved: 2 of 5; and of the ten pairs three have no solved one."""
    roots = [step(0.0, {}, step(0.0, {}, over=won)) for won in (True, False, False, True, False)]
    tree = {"root": {**roots[0], "branches": [root["branches"][0] for root in roots]}}
    assert (measures.passes(1)(tree), measures.passes(2)(tree), measures.passes(5)(tree)) == (0.4, 0.7, 1.0)


def test_lines_are_played_as_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], str, int]] = []
    monkeypatch.setattr(
        real, "evaluate", lambda _, changes, folder, *rest: asked.append((changes, folder.name, rest[-1]))
    )
    monkeypatch.setattr(real.Work, "train", lambda work, name, row, seed: tmp_path / f"{row}-{seed}")
    work, lines = real.Work(tmp_path, "hub", tmp_path, Clock(0.0)), lines_of(KNOWN["code"])
    for title, seed in (("magrpo", 1), ("magrpo-512", 1), ("magrpo-sampled", 1), ("before-sampled", None)):
        work.play("code", lines[title], seed)
    warm = ["--samples", "5", "--temperature", "0.8"]
    assert asked[:3] == [
        ([], "magrpo-1", 50),
        (["sampling.max_tokens=512"], "magrpo-1-longer", 50),
        (warm, "magrpo-1-sampled", 10),
    ]
    assert (asked[3][0][-4:], asked[3][1]) == (warm, "magrpo-sampled")
    work.play("code", lines["ippo-humaneval"], 0)
    assert asked[4][:2] == (["settings.test=humaneval"], "ippo-0-elsewhere")
    work.play("code", lines["ippo-humaneval-512"], 0)
    assert asked[5][:2] == (["sampling.max_tokens=512", "settings.test=humaneval"], "ippo-0-longer-elsewhere")
    assert not any(line.sampled for line in lines_of(KNOWN["writing"]).values())


def test_a_paired_interval_is_narrower_than_the_tasks_differ() -> None:
    """Every task gains a tenth, give or take 0.05, and tasks differ by as much as they can."""
    generator = random.Random(1)
    before = [generator.random() for _ in range(100)]
    after = [value + 0.1 + generator.uniform(-0.05, 0.05) for value in before]
    mean, low, high = measures.gain(before, after)
    assert low < 0.1 < high
    assert low < mean < high
    assert high - low < 0.03
    # all gain alike: as if a third task might have moved by 2, the largest that there is
    assert measures.gain([0.0, 1.0], [1.0, 2.0]) == pytest.approx((1.0, 1.0 - 2 / 3, 1.0 + 2 / 3))
    assert measures.gain([0.0] * 9, [0.0] * 9) == pytest.approx((0.0, -0.1, 0.1))
    with pytest.raises(ValueError, match="shorter"):
        measures.gain([0.0], [])


def models(folder: Path) -> Path:
    for name, architecture in {"smollm2": "llama", "qwen-coder": "qwen2"}.items():
        tiny.build(folder / name, architecture)
    return folder


@pytest.mark.parametrize(("name", "row"), [(name, row) for name, known in KNOWN.items() for row in known.rows])
def test_every_row_is_an_experiment(
    name: str, row: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("checkout"))
    Path(JUDGE).mkdir(parents=True)
    known = KNOWN[name]
    work = real.Work(models(tmp_path_factory.mktemp("models")), source(), Path("runs"), Clock(0.0))
    chosen = load(known.recipe, work.overrides(known, known.rows[row]))
    experiment = resolve(chosen)
    assert set(experiment.env_spec.roles) == set(chosen.team.roles)
    assert known.headline in {*COMMON, *known.measures}


def test_a_table_is_filled_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with some of the lines each, as on several machines: gains are of the lines and seeds of all, of those
    alone that are new, on the tasks of both, and of the same seed where both are trained."""
    told: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    used: dict[str, list[int]] = {}
    values = {"before": 0.0, "magrpo": 1.0, "alone": 0.25, "ippo": 0.5, "magrpo-longer": 0.5, "before-longer": 0.25}

    def play(work: real.Work, name: str, line: Line, seed: int | None) -> slices.Played:
        title = "before" if line.row == "magrpo" and seed is None else line.row
        return slices.Played([Path(title + "-longer" * line.longer)], float(seed or 0))

    def note(_file: str, name: str, found: list[float], _unit: str, _command: str, count: int, seeds: Any) -> None:
        told[name], counts[name], used[name] = found, count, list(seeds)

    def measured(known: real.Known, line: Line, played: slices.Played) -> dict[str, list[float]]:
        pay = values[str(played.files[0])] + played.seconds
        return {what: [pay, pay + 2.0][: work.tasks] for what in {**COMMON, **known.measures}}

    monkeypatch.setattr(real.Work, "play", play)
    monkeypatch.setattr(real, "measured", measured)
    monkeypatch.setattr(real_tables, "RESULTS", tmp_path)
    monkeypatch.setattr(real_tables, "record", note)
    work = real.Work(tmp_path, "hub", tmp_path, Clock(0.0), tasks=2)
    real.compare(work, "writing", ["before", "magrpo"], [0, 1])
    assert told["real.writing.magrpo.reward"] == [2.0, 2.5, 3.0]
    # both tasks gain alike, and the largest value is 3.5: as if a third might have moved by that
    alike = pytest.approx([1.5 - 3.5 / 3, 1.5, 1.5 + 3.5 / 3])
    assert told["real.writing.gain.reward"] == alike
    assert told["real.writing.gain.faithful"] == alike
    assert told["real.writing.gain.seeds"] == [1.0, 1.5, 2.0]
    assert (told["real.writing.faithful.before"], told["real.writing.faithful.after"]) == ([1.0] * 3, [2.0, 2.5, 3.0])
    assert told["real.writing.gain"] == alike
    assert (used["real.writing.gain"], used["real.writing.before.reward"]) == ([0, 1], [])
    told.clear()
    real.compare(work, "writing", ["alone", "before-256", "magrpo-256"], [0])
    assert told["real.writing.gain-over-alone.reward"][1] == 0.75  # seed 0 alone: what the other one has
    assert told["real.writing.gain-over-before-256.reward"][1] == 0.25
    assert told["real.writing.alone"] == [1.25] * 3
    assert (
        not {"real.writing.gain", "real.writing.gain.reward", "real.writing.gain-over-alone.reward.seeds"} & told.keys()
    )
    real.compare(work, "writing", ["magrpo"], [2])
    assert told["real.writing.magrpo.reward"] == [2.0, 3.0, 4.0]
    assert (told["real.writing.gain.reward.seeds"], used["real.writing.gain.reward"]) == ([1.0, 2.0, 3.0], [0, 1, 2])
    real.compare(work, "writing", ["alone"], [2])
    assert told["real.writing.alone.reward"] == [1.25, 2.25, 3.25]
    assert used["real.writing.gain-over-alone.reward"] == [0, 2]
    work = replace(work, tasks=1)
    real.compare(work, "writing", ["ippo"], [0])
    assert counts["real.writing.ippo.reward"] == counts["real.writing.gain-over-ippo.reward"] == 1
    real.compare(work, "writing", ["magrpo"], [3])
    assert (counts["real.writing.magrpo.reward"], counts["real.writing.gain.reward"]) == (1, 1)
    assert told["real.writing.magrpo.reward"] == [1.0, 2.5, 4.0]
    assert real_tables.alike({"7": {"reward": [1.0]}}, {"0": {"reward": [2.0]}}) == []


def test_what_goes_on_with_the_teams_training_is_compared_with_no_training_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, list[float]] = {}
    monkeypatch.setattr(real_tables, "RESULTS", tmp_path)
    monkeypatch.setattr(real_tables, "record", lambda file, name, found, *_: told.update({name: found}))
    for line, seed, value in (("before", None, 0.25), ("magrpo", 0, 0.5), ("magrpo", 1, 1.0), ("further", 1, 0.75)):
        real_tables.keep("code", line, seed, {"pass": [value, value]})
        real_tables.keep("code", f"{line}-sampled", seed, {"pass@1": [value, value], "pass@5": [1.0, 1.0]})
    told.clear()
    real_tables.gains("code", ["further", "further-sampled"])
    assert {name: mean for name, (_, mean, _) in told.items()} == {
        "real.code.gain-over-further.pass": 0.25,  # of seed 1, which both have
        "real.code.further.gain.pass": 0.5,
        "real.code.gain-over-further-sampled.pass@1": 0.25,
        "real.code.gain-over-further-sampled.pass@5": 0.0,
        "real.code.further-sampled.gain-over-before-sampled.pass@1": 0.5,
        "real.code.further-sampled.gain-over-before-sampled.pass@5": 0.0,
    }
    # two tasks that gain alike: as if a third might have moved by 1
    assert all(high - low == pytest.approx(2 / 3) for low, _, high in told.values())


def test_a_longer_training_has_steps_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Baselines have the team's tokens, what goes on with its training has not."""
    asked: dict[str, list[str]] = {}
    monkeypatch.setattr(real, "train", lambda recipe, changes, folder, clock: asked.update({folder.name: changes}))
    monkeypatch.setattr(real, "latest", lambda: {"real.code.tokens.1": {"value": 70.0}})
    work = real.Work(tmp_path, "hub", tmp_path, Clock(0.0))
    for row in ("magrpo", "further", "ippo"):
        work.train("code", row, 1)
    steps = {row: [change for change in changes if "train.steps=" in change] for row, changes in asked.items()}
    assert steps["magrpo-1"] == ["train.steps=75"]
    assert steps["further-1"] == ["train.steps=75", "train.steps=200"]
    assert "train.max_tokens=70" not in asked["further-1"]
    assert "train.max_tokens=70" in asked["ippo-1"]


def test_equal_tokens_are_those_of_the_training_or_of_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, list[float]]] = []
    monkeypatch.setattr(real, "latest", lambda: {"real.code.tokens.3": {"value": 70.0}})
    monkeypatch.setattr(real, "record", lambda file, name, found, *_: told.append((name, found)))
    monkeypatch.setattr(real, "train", lambda recipe, changes, folder, clock: None)
    work = real.Work(tmp_path, "hub", tmp_path, Clock(0.0))
    assert (work.tokens("code", 3), told) == (70.0, [])
    run = tmp_path / "code" / "magrpo-3"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"rollout/tokens": 50}\n{"rollout/tokens": 25}\n')
    assert work.tokens("code", 3) == 75
    assert told == [("real.code.tokens.3", [75])]


PROGRAM = """
import json, pathlib, sys, time, signal
arguments = sys.argv[1:]
folder = pathlib.Path(arguments[arguments.index("--run") + 1])
folder.mkdir(exist_ok=True)
(folder / "config.yaml").touch()
made = folder / "steps"
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
begun = int(made.read_text()) if made.exists() else 0
assert ("--resume" in arguments) == bool(begun)
for step in range(begun, 4):
    made.write_text(str(step + 1))
    time.sleep(0.4)
"""


def test_a_training_is_stopped_in_time_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.setattr(slices, "CADRE", [sys.executable, str(tmp_path / "train.py")])
    folder, calls = tmp_path / "run", 0
    while not folder.with_suffix(".done").exists():
        calls += 1
        try:
            slices.train("recipe", ["a=1"], folder, Clock(time.monotonic(), 1.0))
        except OutOfTimeError:
            assert (folder / "steps").read_text() != "0"
    assert calls > 1
    assert (folder / "steps").read_text() == "4"
    slices.train("recipe", [], folder, Clock(0.0, 1.0))  # done: nothing is begun, so no time is needed


def test_held_out_tasks_are_played_once_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def play(arguments: list[str], file: Path, note: Path) -> None:
        asked.append(" ".join(arguments))
        file.write_text(json.dumps(encode(Tree(Task(str(len(asked)), {}), sequential()))) + "\n")
        note.write_text(json.dumps({"seconds": 2.0}))

    monkeypatch.setattr(slices, "_play", play)
    with pytest.raises(OutOfTimeError):
        slices.evaluate("r", [], tmp_path, range(50), Clock(time.monotonic() - 5, 1.0))
    assert asked == []
    played = slices.evaluate("r", ["a=1"], tmp_path, range(50), Clock(0.0))
    assert asked == [f"r a=1 --first {first} --tasks {count}" for first, count in ((0, 20), (20, 20), (40, 10))]
    assert slices.evaluate("r", ["a=1"], tmp_path, range(50), Clock(0.0)) == played
    assert (len(asked), played.seconds) == (3, 6.0)
    assert [tree["task"]["id"] for tree in measures.trees_of(played.files)] == ["1", "2", "3"]


def test_what_a_training_alone_is_told_is_left_out_of_its_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "eval.py").write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    monkeypatch.setattr(slices, "CADRE", [sys.executable, str(tmp_path / "eval.py")])
    changes = [
        "sampling.temperature=0.7",
        "train.checkpoint_minutes=2",
        "evaluate.tasks=0",
        "train.seed=3",
        "sampling.max_tokens=9",
    ]
    taken = ["train.checkpoint_minutes=2", "sampling.max_tokens=9"]
    assert slices._evaluated(["r", *changes, "--tasks", "2"]) == ["eval", "r", *taken, "--tasks", "2", "--json"]


def test_an_episode_that_failed_is_no_row_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its place would be taken by the next task's; and why it failed is seen."""
    (tmp_path / "eval.py").write_text(
        "import sys; sys.stderr.write('why: no sandbox'); print('{\"failures\": %s}' % sys.argv[2])"
    )
    monkeypatch.setattr(slices, "CADRE", [sys.executable, str(tmp_path / "eval.py")])
    with pytest.raises(RuntimeError, match=r"2 episodes of .*0-9.jsonl failed"):
        slices._play(["2"], tmp_path / "0-9.jsonl", tmp_path / "0-9.json")
    assert not (tmp_path / "0-9.json").exists()
    assert "why: no sandbox" in capfd.readouterr().err
    slices._play(["0"], tmp_path / "0-9.jsonl", tmp_path / "0-9.json")
    assert json.loads((tmp_path / "0-9.json").read_text())["failures"] == 0


def test_a_figure_without_git_is_of_an_unknown_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "ROOT", tmp_path)
    monkeypatch.delenv("BENCH_COMMIT", raising=False)
    assert common.commit() == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert common.commit() == "unknown"


def test_the_recorded_command_names_rows_and_seeds() -> None:
    told = real_tables.command("writing", ["before", "magrpo-256"], [0, 1], 100)
    expected = "writing --models DIR --data DIR --rows before magrpo-256 --seeds 0 1 --held-out 100"
    assert told == f"python bench/real.py {expected}"
