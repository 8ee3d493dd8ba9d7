"""The GPU benchmark on the CPU, on tiny shapes: every part runs, both devices agree, and lines go where they should."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import common
import gpu
import gpu_models
import gpu_runs
import gpu_tables
import gpu_update
import gpu_words
from gpu_models import END, STEP_SIZES, TINY, TINY_SIZES, Card, Shape, Sizes
from gpu_runs import Steps


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a call's lines; results/ and the page of figures are others."""
    page = tmp_path / "one_gpu.md"
    page.write_text("before\n<!-- gpu -->\nold\n<!-- gpu -->\nafter\n")
    monkeypatch.setattr(gpu_tables, "PAGE", page)
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
    figures = run_tiny(out, "parity", "shapes", "learning", "sampling", "largest")
    assert figures["gpu.parity.float32.max"] <= max(figures["gpu.parity.float32.padded"], 1e-5)
    assert max(value for name, value in figures.items() if name.startswith("gpu.parity.float32.")) < 1e-4
    assert max(value for name, value in figures.items() if name.startswith("gpu.parity.")) < 0.05
    for shape in ("tiny", "tiny-adapters"):
        assert figures[f"gpu.learning.{shape}.mfu"] > 0
        for way in ("steps", "graphs"):
            assert figures[f"gpu.sampling.{shape}.{way}.tokens_per_s"] > 0
    for form in ("default", "tree", "padded"):
        assert figures[f"gpu.learning.tiny.{form}.mfu"] > 0
    assert figures["gpu.largest.adapters"] == figures["gpu.largest.models"] > 0


@pytest.mark.slow
def test_steps_of_the_command_line_are_measured(out: Path) -> None:
    figures = run_tiny(out, "step", "tree")
    engine = "vllm" if importlib.util.find_spec("vllm") else "torch"
    for name in (f"gpu.step.tiny.{engine}", f"gpu.step.tiny-adapters.{engine}", f"gpu.tree.tiny.{engine}.barrier"):
        assert figures[f"{name}.step_s"] == pytest.approx(
            figures[f"{name}.wait_s"] + figures[f"{name}.learn_s"], rel=0.7
        )
        assert figures[f"{name}.sampling.tokens_per_s"] > 0
    assert figures[f"gpu.step.tiny.{engine}.update.processor_s"] > 0
    assert "aten::mm" in (out / "runs" / f"tiny-{engine}" / "updates.txt").read_text()
    assert 0 < figures[f"gpu.step.tiny.{engine}.learning.mfu"] < 1


def test_updates_are_measured_on_other_trees_and_with_their_counters(out: Path) -> None:
    figures = run_tiny(out, "colocation")
    for what in ("alone", "start_once", "start_repeated", "instructions_once", "instructions_repeated"):
        name = f"gpu.colocation.tiny.{what}"
        assert 0 < figures[f"{name}.update_s"] < 5
        assert figures[f"{name}.processor_s"] > 0
        assert figures[f"{name}.gpu_allocations"] == figures[f"{name}.kernel_s"] == 0  # on a CPU
        assert "aten::mm" in (out / f"colocation-{what}.txt").read_text()


def test_prompts_begin_alike() -> None:
    first, *_, last = gpu_models.make_sequences(Sizes(3, 10, 2, 4), ["p"], 500, start=4)
    assert first.token_ids[:4] == last.token_ids[:4] == (8, 9, 10, 11)
    assert first.token_ids[4:10] != last.token_ids[4:10]
    assert len(first.token_ids) == len(last.token_ids) == 14


def test_counters_see_garbage_collection() -> None:
    result, counters = gpu_update.count(lambda: [gc.collect() for _ in range(3)])
    assert len(result) == 3
    assert 0 < counters["garbage_s"] < counters["seconds"]


def test_sections_are_measured_in_the_order_of_their_patterns_each_once(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "measure_decoding", lambda bench, shape: begun.append(bench.section))
    monkeypatch.setattr(gpu, "compare_devices", lambda bench, dtype: begun.append(bench.section))
    begun: list[str] = []
    only = ["sampling.tiny-*", "parity.*[0-9]", "sampling.*"]
    gpu.main(["parity", "sampling", "--tiny", "--out", str(out), "--only", *only])
    assert begun == ["sampling.tiny-adapters", "parity.float32", "parity.bfloat16", "sampling.tiny"]


def plan(out: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """Return the sections that a call would measure, in their order."""
    gpu.main(["--plan", "--out", str(out), *options])
    lines = capsys.readouterr().out.splitlines()[1:]
    return [line.partition(":")[0] for line in lines if line.endswith(" s") and "no time left" not in line]


def test_a_call_measures_what_the_description_names_and_the_next_one_goes_on(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = plan(out, capsys)
    assert " ".join(first) in " ".join((gpu.__doc__ or "").split())
    seconds = gpu.Bench(Card.any(), False, out, 0.0, False, "").needed
    assert sum(map(seconds, first)) <= 14 * 60
    assert plan(out, capsys, "--minutes", "9.8") == [*first[:4], "shapes.qwen3-1.7b"]

    for section in first:  # done on another day, so TRL's steps are compared with none of them
        gpu.append(out / "done.jsonl", {"section": section, "commit": common.commit(), "machine": "any", "boot": "1"})
    second = plan(out, capsys)
    assert not set(first) & set(second)
    assert second[1:3] == ["step.qwen3-1.7b.vllm", "rivals.qwen3-1.7b.vllm"]
    assert max(map(seconds, plan(out, capsys, "--minutes", "1000"))) < 300


def test_a_step_is_compared_with_one_of_trl_on_the_same_machine_since_its_boot(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda package: None if package == "vllm" else package)
    measured: list[str] = []

    def work(bench: gpu.Bench, *_: object, **__: object) -> None:
        measured.append(bench.section)
        bench.step_s[bench.section] = [8.0, 9.0, 13.0] if bench.section.startswith("rivals") else [3.0, 2.0]

    monkeypatch.setattr(gpu, "measure_step", work)
    monkeypatch.setattr(gpu, "measure_trl", work)

    def call(boot: str, *parts: str) -> None:
        card = replace(Card.here(tiny=True), boot=boot)
        monkeypatch.setattr(gpu.Card, "here", lambda tiny: card)
        gpu.main([*parts, "--tiny", "--out", str(out), "--only", "step.tiny.*", "rivals.*"])

    call("1", "step")
    call("2", "rivals")  # Cadre's step is measured again
    call("3", "step", "rivals")  # all is done
    sections = ["step.tiny.torch", "rivals.tiny.generate"]
    assert measured == [sections[0], *sections]
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


def test_a_section_is_begun_only_with_the_seconds_that_it_takes(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = gpu.Bench(Card.here(tiny=True), False, out, time.monotonic() + 150.0, False, "abc")
    done: list[str] = []
    for section in ("rivals.qwen3-8b.vllm", "tree.vllm.streamed", "shapes.qwen3-8b"):
        bench.run(section, lambda bench: done.append(bench.section))
    assert done == ["shapes.qwen3-8b"]
    assert "tree.vllm.streamed: no time left, 150 s of 200" in capsys.readouterr().out


def test_sections_that_are_done_are_skipped_and_failures_cost_no_other(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(bench: gpu.Bench, dtype: str) -> None:
        raise RuntimeError(f"no {dtype} here")

    with monkeypatch.context() as broken:
        broken.setattr(gpu, "compare_devices", fail)
        broken.setattr(gpu, "compare_sampler", lambda bench, dtype: None)
        with pytest.raises(SystemExit, match=r"parity\.float32, parity\.bfloat16 failed"):
            gpu.main(["parity", "sampling", "--tiny", "--out", str(out)])
    assert "no bfloat16 here" in capsys.readouterr().out
    before = (out / "gpu.jsonl").read_text()
    assert "gpu.sampling.tiny.steps.tokens_per_s" in before

    run_tiny(out, "sampling", "parity")
    after = (out / "gpu.jsonl").read_text()
    assert "sampling.tiny: done before" in capsys.readouterr().out
    assert after.startswith(before)
    assert "gpu.parity.float32.max" in after[len(before) :]
    assert "gpu.sampling" not in after[len(before) :]
    figures = read_figures(out)
    assert max(value for name, value in figures.items() if name.startswith("gpu.parity.float32.")) < 1e-4
    assert max(value for name, value in figures.items() if name.startswith("gpu.parity.")) < 0.05


def test_nothing_is_begun_without_time(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main(["--tiny", "--minutes", "0.5", "--out", str(out)])
    assert "training: no time left" in capsys.readouterr().out
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
    row = "| its MFU | 0.351 (0.3 to 0.4) | share | NVIDIA H200 | abc, 2026-11-27 |"
    head = "| | median (lowest to highest) | unit | GPU | commit, date |\n|---|---|---|---|---|"
    assert gpu_tables.PAGE.read_text() == f"before\n<!-- gpu -->\n{head}\n{row}\n<!-- gpu -->\nafter\n"

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


def test_a_gpu_of_unknown_peaks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = type("Facts", (), {"name": "NVIDIA XYZ", "total_memory": 1 << 30})()
    monkeypatch.setattr(gpu_models.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_models.torch.cuda, "get_device_properties", lambda index: facts)
    with pytest.raises(SystemExit, match="the peaks of a 'NVIDIA XYZ' are not known"):
        Card.here(tiny=False)


@pytest.mark.slow
def test_plan_path_is_trained(out: Path) -> None:
    assert run_tiny(out, "training")["gpu.training.minutes"] > 0


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
    others = torch.cat([logits[:, :END], logits[:, END + 1 :]], dim=1)
    assert float((others.min(dim=1).values - logits[:, END]).min().detach()) > 30


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


def test_gpu_memory_is_the_most_that_nvidia_smi_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nfor n in 10 70 30; do echo $n; done; echo '[N/A]'; exec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    memory = gpu_runs.GpuMemory()
    with memory.watching():
        end = time.monotonic() + 20
        while memory.peak < 70 * (1 << 20) and time.monotonic() < end:
            time.sleep(0.05)
    assert memory.peak == 70 * (1 << 20)


def test_sizes_count_sampled_tokens() -> None:
    assert Sizes(32, 512, 8, 256).sampled == 65_536
    assert TINY_SIZES.sampled == 24


def test_two_roles_speak_in_turn() -> None:
    env = gpu_words.Talk(gpu_words.Talk.tasks("train")[3], length=5, vocabulary=50, turns=2, longest=8)
    seen = []
    for text in ("w8", "w9", "w10", "w11"):
        ((role, observation),) = env.observe().items()
        seen.append((role, [message.role for message in observation.messages], observation.messages[-1].content))
        assert observation.max_tokens is not None
        assert 2 <= observation.max_tokens <= 8
        reward = asyncio.run(env.step({role: text}))
        assert reward.team == gpu_words.checksum(text)
    prompt = gpu_words.random_words(3, 5, 50)
    assert seen == [
        ("planner", ["user"], prompt),
        ("tool", ["user"], f"{prompt} w8"),
        ("planner", ["user", "assistant", "user"], "w9"),
        ("tool", ["user", "assistant", "user"], "w10"),
    ]
    assert env.observe() == {}
    train, test = ({task.id for task in gpu_words.Words.tasks(split)} for split in ("train", "test"))
    assert not train & test


def test_the_page_of_one_gpu_is_up_to_date() -> None:
    text = gpu_tables.PAGE.read_text()
    assert text == gpu_tables.render(text), "run: python bench/gpu_tables.py"
