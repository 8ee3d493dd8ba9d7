"""A sound task end to end: sampled, learned, kept, read again, and its steps in flight; errors before a model loads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cadre.config.experiment import Config, parse
from cadre.config.resolve import resolve
from cadre.errors import ConfigError
from cadre.rollout.episodes import SampledTrees
from cadre.runs.tree_format import SOUNDS, read_medium
from cadre.training import loop
from cadre.training.checkpoint import latest_checkpoint, read_state
from cadre.training.interrupt import Interrupt
from cadre.training.loop import Training, sample_step
from cadre_tasks.games.melody import Melody
from tests.cadre.engines import tiny_audio
from tests.helpers.training import lines, play


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_audio.build(tmp_path_factory.mktemp("model") / "qwen2_audio", "qwen2_audio")


def configured(folder: Path, **sections: Any) -> Config:
    policy = {"model": str(folder), "lora": {"rank": 2}}
    return parse(
        {
            "env": f"{Melody.__module__}:Melody",
            "settings": {"notes": 3, "pitches": 4, "prompts": "compact"},
            "team": {"policies": {"p": policy}, "roles": {"listener": "p", "player": "p"}},
            "algorithm": {"name": "at_grpo", "k": 3},
            "sampling": {"max_tokens": 4},
            "loss": {"entropy": 0.01},
            "train": {"steps": 3, "tasks_per_step": 2, "max_staleness": 1, "trees_kept": 2},
            "evaluate": {"tasks": 2},
        }
        | sections
    )


@pytest.mark.slow
def test_a_run_goes_on_as_if_unbroken_with_its_sounds(
    folder: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = configured(folder)
    _, trained_run = play(chosen, tmp_path / "whole", quiet)
    interrupts: list[Interrupt] = []
    monkeypatch.setattr(loop, "Interrupt", lambda **_: interrupts.append(Interrupt()) or interrupts[-1])

    async def stopping(training: Training, step: int) -> SampledTrees:
        if step == 2:
            interrupts[-1]()
        return await sample_step(training, step)

    monkeypatch.setattr(loop, "sample_step", stopping)
    play(chosen, tmp_path / "run", quiet)
    newest = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert newest is not None
    (waiting,) = read_state(newest).sampled_steps
    (heard,) = waiting.sampled.trees[0].root.samples["listener"][0].images
    assert heard.wav == read_medium(newest, heard.digest, SOUNDS)  # type: ignore[union-attr]
    monkeypatch.setattr(loop, "sample_step", sample_step)
    _, run = play(chosen, tmp_path / "run", quiet, resume=True)
    for name in ("metrics.jsonl", "evaluations.jsonl", "trees.jsonl"):
        assert lines(run.folder, name) == lines(trained_run.folder, name)
    assert all(value > 0.0 for line in run.metrics() for name, value in line.items() if name.endswith("grad_norm"))
    digests = set(re.findall(r'"digest": "([0-9a-f]{64})"', (run.folder / "trees.jsonl").read_text()))
    assert digests == {path.stem for path in (run.folder / SOUNDS).glob("*.wav")}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"learner": {"pack": "prefix_tree"}},
            "learner.pack: got prefix_tree for policy p, whose model of type qwen2",
        ),
        ({"learner": {"ranks": 2}}, "learner.ranks: got 2 for policy p, whose model of type qwen2_audio reads sounds"),
        ({"sampling": {"engine": "vllm"}}, "whose model of type qwen2_audio reads sounds, which"),
    ],
)
def test_what_cannot_be_done_is_an_error_before_a_model_loads(folder: Path, sections: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        resolve(configured(folder, **sections))
