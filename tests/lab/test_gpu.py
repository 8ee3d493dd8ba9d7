"""The GPU benchmark on the CPU, on tiny shapes: every part runs, both devices agree, and lines go where they should."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench import common
from lab import gpu, gpu_models, gpu_runs
from lab.gpu_models import END, STEP_SIZES, TINY, TINY_SIZES, Card, Shape, Sizes
from lab.gpu_runs import Steps


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a call's lines, and another one for results/."""
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    return tmp_path / "out"


def read_figures(out: Path) -> dict[str, float]:
    """Return the values by name."""
    lines = map(json.loads, (out / "gpu.jsonl").read_text().splitlines())
    return {line["name"]: line["value"] for line in lines}


def run_tiny(out: Path, *parts: str) -> dict[str, float]:
    gpu.main([*parts, "--tiny", "--out", str(out)])
    return read_figures(out)


@pytest.mark.slow  # sampling and both devices' numbers are tried below
def test_engine_and_learner_run_in_every_form_and_agree_with_the_cpu(out: Path) -> None:
    figures = run_tiny(out, "parity", "shapes", "sampling")
    assert figures["gpu.parity.float32.max"] <= max(figures["gpu.parity.float32.padded"], 1e-5)
    assert max(value for name, value in figures.items() if name.startswith("gpu.parity.float32.")) < 1e-4
    assert max(value for name, value in figures.items() if name.startswith("gpu.parity.")) < 0.05
    for shape in ("tiny", "tiny-adapters"):
        assert figures[f"gpu.learning.{shape}.mfu"] > 0
        for way in ("steps", "graphs"):
            assert figures[f"gpu.sampling.{shape}.{way}.tokens_per_s"] > 0


@pytest.mark.slow
def test_steps_of_the_command_line_are_measured(out: Path) -> None:
    figures = run_tiny(out, "step", "tree")
    engine = "vllm" if importlib.util.find_spec("vllm") else "torch"
    for name in (f"gpu.step.tiny.{engine}", f"gpu.step.tiny-adapters.{engine}", f"gpu.tree.tiny.{engine}.barrier"):
        assert figures[f"{name}.step_s"] == pytest.approx(
            figures[f"{name}.wait_s"] + figures[f"{name}.learn_s"], rel=0.7
        )
        assert figures[f"{name}.sampling.tokens_per_s"] > 0
    assert 0 < figures[f"gpu.step.tiny.{engine}.learning.mfu"] < 1


def test_sections_are_measured_in_the_order_of_their_patterns_each_once(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "measure_decoding", lambda bench, shape: begun.append(bench.section))
    monkeypatch.setattr(gpu, "compare_devices", lambda bench, dtype: begun.append(bench.section))
    begun: list[str] = []
    only = ["sampling.tiny-*", "parity.*[0-9]", "sampling.*"]
    gpu.main(["parity", "sampling", "--tiny", "--out", str(out), "--only", *only])
    assert begun == ["sampling.tiny-adapters", "parity.float32", "parity.bfloat16", "sampling.tiny"]


def test_a_step_is_compared_with_one_of_trl_in_the_same_call(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda package: None if package == "vllm" else package)
    measured: list[str] = []

    def work(bench: gpu.Bench, *_: object, **__: object) -> None:
        measured.append(bench.section)
        bench.step_s[bench.section] = [8.0, 9.0, 13.0] if bench.section.startswith("rivals") else [3.0, 2.0]

    monkeypatch.setattr(gpu, "measure_step", work)
    monkeypatch.setattr(gpu, "measure_trl", work)
    gpu.main(["rivals", "--tiny", "--out", str(out)])
    assert measured == ["step.tiny.torch", "rivals.tiny.generate"]
    (line,) = map(json.loads, (out / "gpu.jsonl").read_text().splitlines())
    # 8, 9 and 13 s over the median of 2 and 3 s.
    assert line["name"] == "gpu.step.vs_trl_generate"
    assert (line["low"], line["value"], line["high"]) == (3.2, 3.6, 5.2)


def test_a_training_that_fails_keeps_the_steps_before(
    out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(command: list[str], log: Path, seconds: float) -> None:
        lines = [json.dumps({"step_s": 4.0 + step, "sample_s": 1, "learn_s": 3, "tokens": 9}) for step in range(4)]
        (log.parent / "steps.jsonl").write_text("\n".join([*lines, '{"step_s": 5']))
        raise RuntimeError("out of time")

    monkeypatch.setattr(gpu_runs, "run_logged", run)
    steps = gpu_runs.train_trl(tmp_path, TINY_SIZES, [], tmp_path / "trl", 1.0)
    assert steps["step_s"] == [6.0, 7.0]
    with pytest.raises(RuntimeError, match="out of time"):
        steps.check()

    with pytest.raises(RuntimeError, match="out of time"):  # of two steps both are warm-up
        Steps.of([{"step_s": 4.0}] * 2, failure=RuntimeError("out of time"))


def test_parity_is_kept_when_the_sampler_fails(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no sampling")

    monkeypatch.setattr(gpu, "sample_sequences", fail)
    with pytest.raises(SystemExit, match=r"parity\.float32\.sampling failed"):
        gpu.main(["--tiny", "--out", str(out), "--only", "parity.float32*"])
    assert read_figures(out)["gpu.parity.float32.max"] < 1e-4


def test_trl_learns_as_many_sequences_at_once_as_memory_holds() -> None:
    small, middle, large = gpu_models.SHAPES
    # 72 bytes for each of 773 tokens, layers and units of width: 1.6 GB a sequence of 0.6B, 3.2 of 1.7B, 8.2 of 8B.
    # Of 150 GB 97.5 are free, less 4.8, 13.8 (8 bytes a weight) and 16.4 GB (2 bytes of a frozen one).
    assert [gpu.trl_batch(shape, STEP_SIZES, int(150e9)) for shape in (small, middle, large)] == [32, 16, 8]
    # Of 85 GB 55.
    assert [gpu.trl_batch(shape, STEP_SIZES, int(85e9)) for shape in (small, middle, large)] == [16, 8, 4]


def test_one_turn_has_as_many_samples_and_tokens_as_the_tree() -> None:
    # Six turns of 16 prompts; answers of 48 to 192 tokens.
    assert gpu_runs.one_turn(gpu.TREE_SIZES) == Sizes(96, 256, 8, 120)


def test_nothing_is_begun_without_time(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main(["--tiny", "--minutes", "0.5", "--out", str(out)])
    assert "sampling.tiny: no time left" in capsys.readouterr().out
    assert not out.exists()


def test_only_lines_of_a_gpu_are_merged_each_once(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "validate_commit", lambda commit: None)
    common.RESULTS.mkdir()
    line = {"name": "gpu.learning.qwen3-0.6b.mfu", "value": 0.35123, "low": 0.3, "high": 0.4, "unit": "share"}
    line |= {"commit": "abc", "date": "2026-11-27", "machine": "16 cores, NVIDIA H200"}
    out.mkdir()
    (out / "gpu.jsonl").write_text(json.dumps(line | {"section": "step"}) + "\n")
    for _ in range(2):
        gpu.main(["--merge", str(out / "gpu.jsonl")])
    assert [json.loads(text) for text in (common.RESULTS / "gpu.jsonl").read_text().splitlines()] == [line]

    (out / "gpu.jsonl").write_text(json.dumps(line | {"tiny": True}) + "\n")
    with pytest.raises(SystemExit, match="lines of --tiny, which measure nothing"):
        gpu.main(["--merge", str(out / "gpu.jsonl")])


def test_tiny_shapes_are_not_written_to_the_results(out: Path) -> None:
    gpu.main(["sampling", "--tiny", "--write", "--out", str(out)])
    assert not common.RESULTS.exists()


def test_without_a_gpu_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA card here"):
        gpu.main([])


@pytest.mark.parametrize("tied", [True, False])
def test_no_model_can_end_an_answer(tmp_path: Path, tied: bool) -> None:
    keys = {**TINY[0].config_keys, "tie_word_embeddings": tied}
    gpu_models.save_model(Shape("tiny", keys), tmp_path, torch.device("cpu"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == END
    text = gpu_models.random_words(0, 20, TINY[0].vocabulary)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
    )
    assert len(ids) == 20 + 5
    assert tokenizer.decode(ids[2:22]) == text
    logits = model(torch.tensor([[*ids, *range(8, 40)]])).logits[0, len(ids) - 1 :]
    rest = torch.cat([logits[:, :END], logits[:, END + 1 :]], dim=1)
    assert float((rest.min(dim=1).values - logits[:, END]).min().detach()) > 30


def test_arithmetic_of_a_shape() -> None:
    # 0.6B has its head's weights in its embeddings; 8B has both, of which the embeddings are only looked up.
    small, _, large = gpu_models.SHAPES
    assert small.multiplied == small.parameters == 596_049_920
    assert large.parameters - large.multiplied == 151_936 * 4_096
    assert small.learning_flops(10) == 60 * 596_049_920
    assert large.learning_flops(10) == 40 * large.multiplied
    # 28 layers of 8 heads of 128 numbers, keys and values, 2 bytes each.
    assert small.slot_bytes == 28 * 8 * 128 * 2 * 2
    card = Card(torch.device("cpu"), "", 0, bandwidth=1e12, flops=1.0)
    read = 2 * 596_049_920 + 4 * 114_688 * (100 + 25)
    assert small.sampling_bound(card, 4, prompt=100, longest=50) == pytest.approx(4e12 / read)


def test_steps_leave_out_the_warm_up() -> None:
    lines = [{"step": n, "time/learn_s": 10.0 - n, "rate": None if n == 3 else 1.0} for n in range(5)]
    steps = Steps.of(lines)
    assert steps["time/learn_s"] == [8.0, 7.0, 6.0]
    assert steps["rate"] == [1.0, 1.0]
    assert "other" not in steps
    with pytest.raises(RuntimeError, match="got 2 steps; expected more than 2"):
        Steps.of(lines[:2])


def test_a_process_that_is_late_is_ended_with_its_children_also_in_another_group(tmp_path: Path) -> None:
    mark, moved = tmp_path / "alive", tmp_path / "moved"
    child = f"import os, time; os.setpgrp(); open({str(moved)!r}, 'w'); time.sleep(3); open({str(mark)!r}, 'w')"
    command = f'{sys.executable} -c "{child}" & echo begun; sleep 60'
    with pytest.raises(RuntimeError, match="not done after 2 s"):
        gpu_runs.run_logged(["sh", "-c", command], tmp_path / "log", 2.0)
    assert (tmp_path / "log").read_text() == "begun\n"
    assert moved.exists()
    time.sleep(2.5)
    assert not mark.exists()


def test_a_process_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with 3; its last lines:\nno luck"):
        gpu_runs.run_logged(["sh", "-c", "echo no luck; exit 3"], tmp_path / "log", 10.0)
