"""A picture task end to end: sampled, learned, stopped with steps in flight, resumed, kept, shown, refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cadre.config.experiment import Config, dump, parse
from cadre.config.resolve import resolve
from cadre.errors import ConfigError, EngineError
from cadre.rollout.episodes import SampledTrees
from cadre.runs.tree_format import IMAGES, read_medium
from cadre.training import loop
from cadre.training.checkpoint import latest_checkpoint, read_state
from cadre.training.interrupt import Interrupt
from cadre.training.loop import Training, sample_step
from cadre.view import export
from cadre.view.reading import RunReader
from tests.cadre.cli.calling import call
from tests.cadre.engines import tiny_vision
from tests.helpers.training import lines, play


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision.build(tmp_path_factory.mktemp("model") / "smolvlm", "smolvlm")


def configured(folder: Path, steps: int = 3, **sections: Any) -> Config:
    return parse(
        {
            "env": "plan-path-picture",
            "settings": {"size": 4, "cell": 8, "prompts": "compact", "turns": 2},
            "team": {"policies": {"p": {"model": str(folder), "lora": {"rank": 2}}}, "roles": {"planner": "p"}},
            "algorithm": {"name": "at_grpo", "k": 3},
            "sampling": {"max_tokens": 4},
            "loss": {"entropy": 0.01},
            "train": {"steps": steps, "tasks_per_step": 2, "max_staleness": 1, "trees_kept": 2},
            "evaluate": {"tasks": 2},
        }
        | sections
    )


def shown(run: Path) -> set[str]:
    """The digests that the kept trees of a run name."""
    return set(re.findall(r'"digest": "([0-9a-f]{64})"', (run / "trees.jsonl").read_text()))


def test_a_run_goes_on_as_if_unbroken_with_its_pictures(
    folder: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = configured(folder)
    _, trained_run = play(chosen, tmp_path / "whole", quiet)
    real, interrupts = sample_step, []
    monkeypatch.setattr(loop, "Interrupt", lambda **_: interrupts.append(Interrupt()) or interrupts[-1])

    async def stopping(training: Training, step: int) -> SampledTrees:
        if step == 2:
            interrupts[-1]()
        return await real(training, step)

    monkeypatch.setattr(loop, "sample_step", stopping)
    play(chosen, tmp_path / "run", quiet)
    newest = latest_checkpoint(tmp_path / "run" / "checkpoints")
    (waiting,) = read_state(newest).sampled_steps
    images = waiting.sampled.trees[0].root.samples["planner"][0].images
    assert (images[0].width, images[0].height) == (32, 32)
    assert images[0].png == read_medium(newest, images[0].digest)
    monkeypatch.setattr(loop, "sample_step", real)
    _, run = play(chosen, tmp_path / "run", quiet, resume=True)
    for name in ("metrics.jsonl", "evaluations.jsonl", "trees.jsonl"):
        assert lines(run.folder, name) == lines(trained_run.folder, name)
    assert all(value > 0.0 for line in run.metrics() for name, value in line.items() if name.endswith("grad_norm"))
    assert shown(run.folder) == {path.stem for path in (run.folder / IMAGES).glob("*.png")}
    _look_at(run.folder, tmp_path)


def _look_at(folder: Path, tmp_path: Path) -> None:
    """The reader has the pictures of every tree, and so has a saved page."""
    reader = RunReader(folder, "run")
    (message,) = reader.tree(0)["nodes"][0]["observations"]["planner"]["messages"]
    assert reader.image(message["images"][0]["digest"]).startswith(b"\x89PNG")
    export.write_page([reader], tmp_path / "run.html", megabytes=8.0)
    data = json.loads(re.search(r'id="saved">(.*?)</script>', (tmp_path / "run.html").read_text())[1])
    assert set(data["runs"][0]["pictures"]) == shown(folder)


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (
            {"learner": {"pack": "prefix_tree"}},
            "learner.pack: got prefix_tree for policy p, whose model of type smo",
        ),
        ({"learner": {"flex_attention": True}}, "learner.flex_attention: got True for policy p"),
        ({"learner": {"ranks": 2}}, "learner.ranks: got 2 for policy p, whose model of type smolvlm reads pictures"),
        ({"sampling": {"engine": "vllm"}}, "sampling.engine: got vllm for policy p, whose model of type smolvlm"),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_model_loads(folder: Path, sections: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        resolve(configured(folder, **sections))


def test_a_model_of_text_is_refused_by_name(tmp_path: Path, quiet: Console) -> None:
    seed = {"team": {"policies": {"p": "seed"}, "roles": {"planner": "p"}}}
    with pytest.raises(EngineError, match="is read as text alone here; expected a model of the type idefics3"):
        play(configured(Path("seed"), **seed), tmp_path / "run", quiet)


def test_episodes_of_an_evaluation_name_their_pictures(folder: Path, tmp_path: Path) -> None:
    """Mistake: all that was played lost at its end, as the bytes of a picture are no JSON."""
    (tmp_path / "look.yaml").write_text(dump(configured(folder)))
    episodes = tmp_path / "episodes.jsonl"
    result = call("eval", str(tmp_path / "look.yaml"), "--tasks", "1", "--episodes", str(episodes), "--json")
    assert result.code == 0, result.err
    (image,) = json.loads(episodes.read_text())["nodes"][0]["observations"]["planner"]["messages"][-1]["images"]
    assert (image["width"], "png" in image, len(image["digest"])) == (32, False, 64)
