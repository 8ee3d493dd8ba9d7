"""Rows and reward functions: where rows come from, what is held out, what a function is given and may return, relative
judges in trees, and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import cadre
from cadre.envs.rows import RowsEnv, read_tasks
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, ContractError, DataError
from cadre.rollout import shapes
from cadre.rollout.grow import Rollout, grow
from cadre.settings.user_code import reference_to
from cadre.types import Message, Observation, Reward, Sample, Task
from tests.cadre.cli.calling import call

ROWS = [{"prompt": f"What is {n}?\nmoves: Left Right", "answer": "Left" if n % 2 else "Right"} for n in range(200)]


def right(completion: str, row: Mapping[str, Any]) -> float:
    return float(row["answer"] in completion)


# ---- Tasks


def test_a_fraction_is_held_out_by_the_content_of_a_row() -> None:
    train, test = read_tasks("train", ROWS), read_tasks("test", ROWS)
    assert [task.data for task in train + test if task in train] == [
        row for row in ROWS if row in [t.data for t in train]
    ]
    assert len(train) + len(test) == 200
    assert 8 <= len(test) <= 35
    # Another order, and further rows, leave every row where it is.
    again = read_tasks("test", [*reversed(ROWS), {"prompt": "more"}])
    assert {task.data["prompt"] for task in test} == {t.data["prompt"] for t in again} - {"more"}
    assert read_tasks("test", ROWS, 0) == []
    assert len(read_tasks("train", ROWS, 0.0)) == 200
    assert 60 <= len(read_tasks("test", ROWS, 0.5)) <= 140


def test_rows_by_split_files_and_functions(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS[:5])))
    (tmp_path / "rows.json").write_text(json.dumps(ROWS[:5]))
    (tmp_path / "rows.csv").write_text(
        "prompt,answer\n" + "\n".join(f'"{r["prompt"]}",{r["answer"]}' for r in ROWS[:5])
    )
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS[:5]), tmp_path / "rows.parquet")
    for ending in ("jsonl", "json", "csv", "parquet"):
        tasks = read_tasks("train", str(tmp_path / f"rows.{ending}"), 0.0)
        assert [task.data for task in tasks] == ROWS[:5], ending
    by_split = {"train": ROWS[:3], "test": tmp_path / "rows.json"}
    assert [len(read_tasks(split, by_split)) for split in ("train", "test")] == [3, 5]  # type: ignore[arg-type]
    assert [t.data for t in read_tasks("test", lambda split: ROWS[:2] if split == "train" else ROWS[2:4])] == ROWS[2:4]
    assert [t.data for t in read_tasks("test", ROWS[:3], ROWS[3:5])] == ROWS[3:5]


def test_a_dataset_of_hugging_face_is_rows() -> None:
    datasets = pytest.importorskip("datasets")
    assert [t.data for t in read_tasks("train", datasets.Dataset.from_list(ROWS[:4]), 0)] == ROWS[:4]


@pytest.mark.parametrize(
    ("tasks", "options", "message"),
    [
        (None, {}, "tasks: missing"),
        (7, {}, "expected a list of rows"),
        ("rows.txt", {}, r"ends in .jsonl, .json, .parquet, .csv"),
        ({"training": ROWS}, {}, "expected the splits train and test"),
        (["text"], {}, "row 0 is 'text'; expected a mapping"),
        ([{"prompt": object()}], {}, "row 0 cannot be written to a file"),
        (ROWS, {"held_out": 1.5}, "held_out: got 1.5"),
        (ROWS[:5], {"held_out": ROWS[4:6]}, "1 of its 2 rows are also in tasks"),
        (ROWS, {"columns": {"answer": "answer.value"}}, "no 'answer.value'"),
        ([ROWS[0]] * 3, {}, "3 rows that are all equal"),
        (ROWS, {"columns": {"answer": "anwser"}}, "Did you mean answer"),
    ],
)
def test_rows_that_are_none(tasks: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, ConfigError), match=message):
        read_tasks("test", tasks, **options)


def test_a_csv_file_with_lines_of_unequal_length_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("prompt,answer\na,b\nc\n")
    with pytest.raises(DataError, match="line 3 has another number of columns"):
        read_tasks("train", tmp_path / "rows.csv")


# ---- Rewards


def step(reward: Any, *completions: str, row: Mapping[str, Any] = ROWS[1], **settings: Any) -> list[Reward]:
    """Return the rewards of completions of one prompt."""

    class Team:
        assignment = {"agent": "p"}

        async def sample(self, observation: Observation, count: int, key: int, previous: Any) -> Sequence[Sample]:
            return [Sample("agent", "p", text, (1,), (2,), (0.0,), "stop", 0) for text in completions]

    references = {"reward": reward if isinstance(reward, dict | list) else reference_to(reward, "reward")}
    spec = EnvSpec(RowsEnv, {**references, **settings})
    task = Task("row-1", row)
    rollout = Rollout(spec.make, Team(), shapes.greedy(len(completions)), 1.0)  # type: ignore[arg-type]
    root = asyncio.run(grow(spec.make(task), rollout, 7))
    assert root is not None
    return [branch.reward for branch in root.branches]


def refer(**functions: Any) -> dict[str, str]:
    return {name: reference_to(function, name) for name, function in functions.items()}


def test_a_function_gets_what_it_names() -> None:
    def named(completion: str, answer: str, prompt: str, role: str, messages: Any, row: Any, other: int = 3) -> float:
        assert (completion, answer, prompt, role, other) == ("Left", "Left", ROWS[1]["prompt"], "agent", 3)
        assert messages == [{"role": "user", "content": prompt}, {"role": "assistant", "content": "Left"}]
        assert row == ROWS[1]
        return 0.5

    async def of_all(**given: Any) -> float:
        assert given["answer"] == "Left"
        await asyncio.sleep(0)
        return 0.25

    assert step(named, "Left") == [Reward(0.5)]
    assert step(of_all, "Left") == [Reward(0.25)]


def test_functions_are_loaded_once_for_all_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(setting: str, reference: str, table: Any) -> Any:
        loaded.append(reference)
        return right

    monkeypatch.setattr("cadre.envs.rows.load_function", load)
    spec = EnvSpec(RowsEnv, {"reward": refer(r=right)["r"]})
    assert not loaded
    envs = [spec.make(Task(f"row-{number}", ROWS[1])) for number in range(3)]
    assert len(loaded) == 1
    assert [asyncio.run(env.step({"agent": "Left"})) for env in envs] == [Reward(1.0)] * 3


def test_parts_are_weighted_and_logged_by_name() -> None:
    functions = refer(right=right, brief=lambda completion: -len(completion), never=lambda completion: None)
    reward = {"right": [functions["right"], 2.0], "brief": [functions["brief"], 0.5], "never": functions["never"]}
    # 2 * 1 - 0.5 * 4 = 0, and 2 * 0 - 0.5 * 5 = -2.5
    assert step(reward, "Left", "Right") == [
        Reward(0.0, parts={"right": 1.0, "brief": -4.0}),
        Reward(-2.5, parts={"right": 0.0, "brief": -5.0}),
    ]
    many = reference_to(lambda completion: {"a": 1, "b": 0.5}, "many")
    assert step([many, functions["right"]], "Left")[0].team == 2.5
    assert step([many], "Left") == [Reward(1.5, parts={"a": 1.0, "b": 0.5})]


def test_a_relative_judge_sees_all_completions_of_a_prompt_once() -> None:
    calls: list[Any] = []

    def ranked(completions: list[str], answer: list[str], row: Any) -> list[float | None]:
        calls.append(completions)
        assert answer == ["Left"] * len(completions)
        return [None if text == "?" else float(sorted(completions).index(text)) for text in completions]

    functions = refer(right=right, ranked=ranked)
    rewards = step({"right": functions["right"], "ranked": [functions["ranked"], 0.1]}, "Left", "Right", "?", "Left")
    assert calls == [["Left", "Right", "?", "Left"]]
    assert [reward.team for reward in rewards] == pytest.approx([1.1, 0.3, 0.0, 1.1])
    assert rewards[2].parts == {"right": 0.0}


def test_a_judge_of_the_group_decides_success(tmp_path: Path) -> None:
    trained = cadre.train(
        model="games",
        tasks=ROWS[:20],
        reward=lambda completions: [1.0] * len(completions),
        steps=1,
        train={"tasks_per_step": 2},
        evaluate={"tasks": 0},
        run=tmp_path / "run",
        quiet=True,
    )
    assert trained.metrics()[0]["rollout/success"] == 1.0
    assert trained.evaluate(1).success == 1.0
    trained.close()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda completion: "good", "returned 'good'; expected a number, None"),
        (lambda completion: {"a": []}, "expected a number, None"),
        (lambda completion: float("nan"), "finite"),
        (lambda anwser: float(anwser), "takes 'anwser'; expected .* Did you mean answer"),
        (lambda completions: [1.0], "for 2 completions of one prompt; expected a list"),
        (lambda completion: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_functions_that_fail_are_named(function: Any, message: str) -> None:
    from cadre.rollout.deadlines import TimedEnv
    from cadre.settings.run import EpisodesConfig

    spec = EnvSpec(RowsEnv, {"reward": reference_to(function, "reward")})

    async def run() -> None:
        env = TimedEnv.made(spec.make, Task("row-1", ROWS[1]), ("agent",), EpisodesConfig())
        samples = [{"agent": Sample("agent", "p", text, (1,), (2,), (0.0,), "stop", 0)} for text in ("a", "b")]
        forks = [env.fork() for _ in samples]
        rewards = [await fork.step_samples(one) for fork, one in zip(forks, samples, strict=True)]
        await env.compare(forks, samples, rewards)

    with pytest.raises(ContractError, match=message):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ROWS}, "reward: missing"),
        ({"tasks": ROWS, "reward": 3}, "expected a function, FILE.py:NAME"),
        ({"tasks": [{"question": "a"}], "reward": refer(r=right)["r"], "held_out": 0}, "expected one named prompt"),
        ({"tasks": [{"prompt": [{"role": "me"}]}], "reward": refer(r=right)["r"], "held_out": 0}, "expected a role"),
        ({"tasks": ROWS, "reward": "notebook:gone"}, "Pass it: reward=gone"),
    ],
)
def test_settings_that_cannot_work_are_found_before_a_model_loads(settings: Any, message: str) -> None:
    with pytest.raises((ConfigError, DataError, ContractError), match=message):
        EnvSpec(RowsEnv, settings).tasks("train")


def test_messages_of_clients_are_prompts() -> None:
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    env = RowsEnv(Task("t", {"prompt": prompt}), reference_to(right, "right"))
    assert env.observe()["agent"].messages == (Message("system", "Be brief."), Message("user", "Hi"))


# ---- Training


def test_a_nested_column_and_a_judge_train_from_python(tmp_path: Path) -> None:
    rows = [{"question": row["prompt"], "truth": {"value": "Left"}} for row in ROWS]

    def ranked(completions: list[str]) -> list[float]:
        return [float(len(set(text))) for text in completions]

    trained = cadre.train(
        model="games",
        tasks=rows,
        columns={"prompt": "question", "answer": "truth.value"},
        reward={"right": right, "ranked": (ranked, 0.0)},
        k=8,
        steps=12,
        train={"tasks_per_step": 8},
        learner={"learning_rate": 3e-3},
        evaluate={"tasks": 20},
        run=tmp_path / "run",
        quiet=True,
    )
    before, after = trained.evaluations()[0], trained.evaluations()[-1]
    assert after["success"] > before["success"]
    assert "parts/ranked" in trained.metrics()[0]
    trained.close()


def test_rows_train_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    Path("mine.py").write_text("def right(completion, answer):\n    return float(answer in completion)\n")
    result = call("train", "rows.jsonl", "reward=mine.py:right", "model=games", "k=4", "steps=1", "evaluate.tasks=4")
    assert result.code == 0, result.err
    assert (tmp_path / "runs" / "rows-001" / "metrics.jsonl").is_file()
    missing = call("train", "rows.jsonl", "model=games")
    assert missing.code == 2
    assert "reward: missing" in missing.err
