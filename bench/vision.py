"""Vision-language models in figures: how far log-probabilities are from the model's own, and a picture task learned.

    python bench/vision.py logits [--write]
    python bench/vision.py learn --model FOLDER [--seeds 0 1 2] [--write]     FOLDER of cadre_tasks.models.make_vision

`vlm.logits.max_diff` is the largest difference of a sampler's or learner's log-probability from that of the model's own
forward, over tiny random models of every kind, with and without an adapter. `vlm.picture.success` is the share of
held-out Plan-Path pictures solved after training; beside it that of the model before.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoImageProcessor, AutoModelForImageTextToText

import common
from cadre import train
from cadre.advantages import batch
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.settings import LearnerConfig, LoraConfig
from tests.cadre.engines import tiny, tiny_vision

COUNT = 6
RECIPE: dict[str, Any] = {
    "env": "plan-path-picture",
    "settings": {"size": 6, "cell": 8, "prompts": "compact", "turns": 1, "reward": "outcome"},
    "algorithm": {"name": "grpo", "k": 8},
    "sampling": {"max_tokens": 24},
    "learner": {"learning_rate": 3e-4},
    "train": {"steps": 160, "tasks_per_step": 16},
    "evaluate": {"tasks": 200},
}


def differences(kind: str, lora: LoraConfig | None, folder: Path) -> list[float]:
    """Of every completion the sampler's largest difference from the model's own forward, and the learner's."""
    source = tiny_vision.build(folder / "model", kind)
    policies, settings = {"p": tiny.policy(source, lora=lora)}, TrainingSettings({"p": LearnerConfig()})
    learner = TorchLearner(TorchEngine(source, policies, 0), settings)
    model = learner.engine.loaded.model
    if lora is not None:
        with torch.no_grad():
            for weight in learner.engine.parameters("p").values():
                weight.normal_(0.0, 0.05)
        learner.export("p", folder / "merged", merge=True)
        model = AutoModelForImageTextToText.from_pretrained(folder / "merged").eval()
    found = list(_apart(learner, model, AutoImageProcessor.from_pretrained(source, backend="pil")))
    learner.close()
    return found


def _apart(learner: TorchLearner, model: Any, processor: Any) -> list[float]:
    shapes = [(40, 20), (16, 48), (64, 64), (20, 20), (33, 50), (48, 16)][:COUNT]
    pictures = [tiny_vision.noise(*shape, seed=number) for number, shape in enumerate(shapes)]
    asked = [tiny_vision.request("one", image) for image in pictures]
    asked += [tiny_vision.request("two", *pair) for pair in itertools.pairwise(pictures)]
    drawn = [one for siblings in tiny.sample(learner, *asked) for one in siblings]
    samples = [one for one in drawn if model.config.image_token_id not in one.token_ids]
    learned = learner._runner.compute_logprobs([batch.sequence_of(one, 1.0, 1.0) for one in samples])
    apart = []
    for one, values in zip(samples, learned, strict=True):
        expected = tiny_vision.own(model, processor, one)
        for said in (one.logprobs, values[len(one.prompt_ids) :]):
            apart.append(float((torch.tensor(said) - expected).abs().max()))
    return apart


def logits(write: bool) -> None:
    found: list[float] = []
    for kind in tiny_vision.KINDS:
        for lora in (None, LoraConfig(rank=2, alpha=4.0)):
            with tempfile.TemporaryDirectory() as folder:
                found += differences(kind, lora, Path(folder))
            print(f"{kind}{' with an adapter' if lora else ''}: {max(found):.2e} so far", flush=True)
    if write:
        common.record(
            "vision", "vlm.logits.max_diff", [max(found)], "nats", "python bench/vision.py logits --write", len(found)
        )


def learn(model: str, seeds: list[int], write: bool) -> None:
    """Train and evaluate on held-out pictures, a run a seed."""
    before, after = [], []
    for seed in seeds:
        run = {**RECIPE, "train": {**RECIPE["train"], "seed": seed}}
        team = {"policies": {"shared": model}, "roles": {"planner": "shared"}}
        with tempfile.TemporaryDirectory() as folder:
            trained = train({**run, "team": team}, run=Path(folder) / "run", quiet=True)
            first, *_, last = trained.evaluations()
            trained.close()
        before.append(first["success"])
        after.append(last["success"])
        print(f"seed {seed}: {before[-1]:.1%} before, {after[-1]:.1%} after", flush=True)
    if write:
        command, count = f"python bench/vision.py learn --model {model} --write", RECIPE["evaluate"]["tasks"]
        common.record("vision", "vlm.picture.base.success", before, "share", command, count, seeds)
        common.record("vision", "vlm.picture.success", after, "share", command, count, seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["logits", "learn"])
    parser.add_argument("--model", default="models/vision", help="a folder that cadre_tasks.models.make_vision wrote")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    if chosen.what == "logits":
        logits(chosen.write)
    else:
        learn(chosen.model, chosen.seeds, chosen.write)


if __name__ == "__main__":
    main()
