"""TRL's side of the GPU benchmark: what its trainer is told, which needs no TRL, and a step where TRL is installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from lab import gpu_models, gpu_trl, gpu_words
from lab.gpu_models import TINY


def test_a_step_is_one_update_on_all_completions() -> None:
    keys = gpu_trl.config_keys(gpu_trl.parse(["model", "out", "--vllm", "--batch", "16"]), "folder")
    # 32 prompts of 8 completions are 256 sequences, 16 at once.
    assert (keys["per_device_train_batch_size"], keys["gradient_accumulation_steps"]) == (16, 16)
    assert (keys["num_generations"], keys["max_completion_length"], keys["max_steps"]) == (8, 256, 6)
    assert (keys["use_vllm"], keys["vllm_gpu_memory_utilization"]) == (True, 0.3)
    assert keys["model_init_kwargs"] == {"dtype": "bfloat16"}


def test_a_batch_that_does_not_divide_a_step_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_trl.parse(["model", "out", "--batch", "48"])
    assert "got --batch 48; expected a divisor of the 256 sequences of a step" in capsys.readouterr().err


def test_an_adapter_has_the_rank_of_cadres() -> None:
    pytest.importorskip("peft")
    adapter = gpu_trl.adapter(gpu_trl.parse(["model", "out", "--lora-rank", "16", "--lora-alpha", "32"]))
    assert (adapter.r, adapter.lora_alpha, adapter.target_modules) == (16, 32.0, "all-linear")
    assert (gpu_models.LORA.rank, gpu_models.LORA.alpha, gpu_models.LORA.targets) == (16, 32.0, "all-linear")


def test_prompts_are_the_texts_that_cadre_reads() -> None:
    tokenizer = gpu_models.word_tokenizer(100)
    prompts = gpu_trl.make_prompts(tokenizer, words=5, count=2)
    for seed, prompt in enumerate(prompts):
        task = gpu_words.Words.tasks("train")[seed]
        (message,) = gpu_words.Words(task, length=5, vocabulary=100).observe()["writer"].messages
        assert message.content in prompt
        assert len(tokenizer(prompt)["input_ids"]) == 5 + gpu_models.TEMPLATE_TOKENS


def test_steps_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    gpu_models.save_model(TINY[0], tmp_path / "model", torch.device("cpu"))
    sizes = ["--prompts", "2", "--words", "6", "--completions", "2", "--tokens", "4", "--steps", "2"]
    command = [str(tmp_path / "model"), str(tmp_path / "out"), "--cpu", *sizes, "--batch", "2", "--lora-rank", "4"]
    monkeypatch.setattr(sys, "argv", ["gpu_trl.py", *command])
    gpu_trl.main()
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [line["tokens"] for line in lines] == [16, 16]
    assert [line["prompt_tokens"] for line in lines] == [4 * 11, 4 * 11]
