"""The speed benchmark's own logic: equal material on all sides, turns in turn, and refusals where the work differs."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import material
import run_ours
import side
import speed
import turns
import venvs
from cadre.plugins import embedded_models

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return material.small_model(tmp_path_factory.mktemp("small"))


def test_the_small_model_is_the_same_every_time(small: Path, tmp_path: Path) -> None:
    again = material.small_model(tmp_path)
    assert (again / "model.safetensors").read_bytes() == (small / "model.safetensors").read_bytes()
    assert AutoModelForCausalLM.from_pretrained(small).num_parameters() == 3_049_920


def test_prompts_have_their_length_and_differ(small: Path) -> None:
    texts = material.prompts(small, 4, 50)
    ids = AutoTokenizer.from_pretrained(small)(texts).input_ids
    assert [len(row) for row in ids] == [50] * 4
    assert len(set(texts)) == 4
    assert texts == material.prompts(small, 4, 50)


def test_the_copy_of_a_model_never_stops(tmp_path: Path) -> None:
    source = embedded_models()["seed"]
    folder = material.endless_copy(source, tmp_path / "copy")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == model.config.vocab_size
    assert (folder / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    assert AutoTokenizer.from_pretrained(source).eos_token_id < model.config.vocab_size


def test_an_end_within_reach_is_refused(small: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small)
    tokenizer.eos_token = "w5"
    with pytest.raises(ValueError, match="beyond the model's 2048 ids, but it has id 5"):
        material.endless(tmp_path, AutoModelForCausalLM.from_pretrained(small).config, tokenizer, 0)


def job(folder: Path, **changes: object) -> dict:
    plain = {"k": 4, "completion": 6, "threads": 1, "dtype": "float32", "adapters": False, "learn": True}
    return {"model": str(folder), "prompts": material.prompts(folder, 2, 10), **plain, **changes}


def test_our_side_draws_and_trains_every_token(small: Path) -> None:
    own_job = job(small)
    engine, learner = run_ours.load(own_job)
    nodes = asyncio.run(run_ours.play(engine, own_job, 1))
    samples = [sample for node in nodes for sample in node.samples["agent"]]
    assert [len(sample.token_ids) for sample in samples] == [6] * 8
    assert [len(sample.prompt_ids) for sample in samples] == [10] * 8
    assert run_ours.learn(learner, nodes) == 48
    engine.close()


def test_a_reward_is_a_fixed_number_of_the_text() -> None:
    assert turns.reward("w1 w2") == turns.reward("w1 w2") != turns.reward("w1 w3")
    assert turns.reward("") == 0.0  # the CRC-32 of nothing is 0


ECHO = """
import sys
sys.path.insert(0, {rivals!r})
from turns import Turns
turns = Turns()
print("a library that prints")
while turns.wait():
    with open({order!r}, "a") as order:
        order.write(turns.job["name"])
    if turns.job["name"] == "x":
        raise SystemExit("broken on purpose")
    turns.done(0.0, [[1, 2], [3]], turns.job["sampled"], 0)
"""


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A worker script that does nothing but note its turn in a file."""
    order = tmp_path / "order"
    script = textwrap.dedent(ECHO).format(rivals=str(BENCH / "rivals"), order=str(order))
    (tmp_path / "echo.py").write_text(script)
    monkeypatch.setattr(side, "WORKERS", tmp_path)
    return order


def worker(name: str, sampled: int = 8) -> side.Worker:
    return side.Worker(name, Path(sys.executable), "echo.py", {"name": name, "threads": 1, "sampled": sampled})


def test_sides_take_turns_after_two_to_warm_up(echo: Path, tmp_path: Path) -> None:
    rounds = side.rounds([worker("a"), worker("b")], 3, tmp_path / "logs")
    assert echo.read_text() == "abab" + "ab" + "ba" + "ab"
    assert [len(rounds[name]) for name in "ab"] == [3, 3]
    assert rounds["a"][0]["prompt_tokens"] == 3
    assert rounds["a"][0]["peak_mb"] > 1.0


def test_a_side_that_breaks_says_why(echo: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)x ended with 1.*broken on purpose"):
        side.rounds([worker("a"), worker("x")], 1, tmp_path / "logs")


def test_sides_that_do_other_work_are_refused(echo: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"differ in sampled: \[\('a', 8\), \('b', 9\)\]"):
        side.rounds([worker("a"), worker("b", 9)], 1, tmp_path / "logs")


def turn(**changes: object) -> side.Turn:
    return {"prompts": 1, "prompt_tokens": 400, "sampled": 64, "trained": 64, "seconds": 2.0, **changes}


def test_leaving_out_more_than_the_last_token_is_refused() -> None:
    side.same_work({"ours": [turn()], "comlrl": [turn(trained=62)]})
    with pytest.raises(ValueError, match="comlrl drew 64 tokens but trained on 32"):
        side.same_work({"ours": [turn()], "comlrl": [turn(trained=32)]})


def test_ratios_are_of_the_same_round() -> None:
    result = {"ours": [turn(seconds=1.0), turn(seconds=2.0)], "trl": [turn(seconds=3.0), turn(seconds=8.0)]}
    assert side.ratios(result, "ours", "trl") == [3.0, 4.0]


def test_the_present_code_is_compared_with_a_commit_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed now over then, and an update's time now over then; with rounds of which the numbers are known."""
    code, trained, stored = tmp_path / "code", [], {}
    (code / "bench" / "rivals").mkdir(parents=True)
    (code / "bench" / "rivals" / "run_ours.py").write_text("")
    options = speed.parse(["e2e", "--models", "small", "--before", "abc1234", "--lengths", "200", "--repeats", "2"])
    options.work = tmp_path

    def rounds(workers: list[side.Worker], repeats: int, logs: Path) -> dict[str, list[side.Turn]]:
        now, then = workers
        assert (now.name, Path(then.script), now.job) == ("ours", code / "run_ours.py", then.job)
        times = {"ours": (1.0, 2.0), "before": (2.0, 3.0)}
        return {name: [turn(seconds=t, generating=t, learning=t) for t in seconds] for name, seconds in times.items()}

    def train(bench: speed.Bench, checkout: Path, run: Path, overrides: tuple[str, ...]) -> Path:
        trained.append(checkout)
        run.mkdir()
        times = (0.9, 0.3, 0.6) if checkout == code else (0.3, 0.2, 9.0)
        (run / "metrics.jsonl").write_text("".join(f'{{"time/learn_s": {t}}}\n' for t in times))
        return run

    monkeypatch.setattr(speed, "checked_out", lambda commit, folder: nullcontext(code))
    monkeypatch.setattr(speed, "rounds", rounds)
    monkeypatch.setattr(speed, "train_plan_path", train)
    monkeypatch.setattr(speed.Bench, "keep", lambda self, name, values, unit: stored.update({name: values}))
    speed.e2e(speed.Bench(options))
    assert stored["e2e.vs_before.p200"] == [2.0, 1.5]
    assert stored["e2e.vs_before.plan_path_update"] == [0.5, 0.5]  # medians 0.3 and 0.6
    assert trained == [code, speed.ROOT] * 2


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(venvs.subprocess, "run", lambda command, check: ran.append(command))
    (tmp_path / "trl").mkdir()
    python = venvs.interpreter("trl", tmp_path)
    assert python == tmp_path / "trl" / "bin" / "python"
    created, torch_first, everything = ran
    assert created[1:3] == ["-m", "venv"]
    assert torch_first[-1].startswith("torch==")
    assert everything[-3].startswith("torch==")
    assert everything[-1] == "trl==1.16.0"
    venvs.interpreter("trl", tmp_path)
    assert len(ran) == 3


@pytest.mark.parametrize(("arguments", "expected"), [(["e2f"], "got 'e2f'"), (["--rivals", "verl"], "invalid choice")])
def test_unknown_parts_are_refused(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        speed.parse(arguments)
    assert expected in capsys.readouterr().err


def test_the_recorded_command_is_what_anybody_would_give() -> None:
    arguments = ["e2e", "--smollm2", "/home/me/model", "--venvs", "/tmp/x", "--repeats", "3", "--write"]
    assert speed.parse(arguments).command == "python bench/speed.py e2e --smollm2 DIR --repeats 3"
    assert speed.parse(["generate"]).command == "python bench/speed.py generate"
