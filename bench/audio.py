"""Audio-language models in figures: how far log-probabilities are from the model's own, and a sound task learned.

    python bench/audio.py logits [--write]
    python bench/audio.py learn --model FOLDER [--seeds 0 1 2] [--write]     FOLDER of cadre_tasks.models.make_audio

`audio.logits.max_diff` is the largest difference of a sampler's or learner's log-probability from that of the model's
own forward, over tiny random models of every kind, with and without an adapter. `audio.sound.success` is the share of
held-out melodies that a listener and a player play rightly after training; beside it that of the model before.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoFeatureExtractor, AutoModelForMultimodalLM

import common
from cadre import train
from cadre.advantages import batch
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.settings import LearnerConfig, LoraConfig
from tests.cadre.engines import tiny, tiny_audio

SECONDS = (0.1, 0.3, 0.47, 0.62, 0.8, 1.0)
RECIPE: dict[str, Any] = {
    "env": "melody",
    "settings": {"prompts": "compact"},
    "algorithm": {"name": "at_grpo", "k": 8},
    "sampling": {"max_tokens": 8},
    "learner": {"learning_rate": 5e-4},
    "train": {"steps": 60, "tasks_per_step": 16},
    "evaluate": {"tasks": 200, "every": 20},
}


def differences(kind: str, lora: LoraConfig | None, folder: Path) -> list[float]:
    """Return the largest differences of sampler and learner from the model's own forward, two for each completion."""
    source = tiny_audio.build(folder / "model", kind)
    policies, settings = {"p": tiny.policy(source, lora=lora)}, TrainingSettings({"p": LearnerConfig()})
    learner = TorchLearner(TorchEngine(str(source), policies, 0), settings)
    model = learner.engine.loaded.model
    if lora is not None:
        with torch.no_grad():
            for weight in learner.engine.parameters("p").values():
                weight.normal_(0.0, 0.05)
        learner.export("p", folder / "merged", merge=True)
        model = AutoModelForMultimodalLM.from_pretrained(folder / "merged").eval()
    extractor = AutoFeatureExtractor.from_pretrained(source)
    sounds = [tiny_audio.noise(seconds, seed=number) for number, seconds in enumerate(SECONDS)]
    requests = [tiny_audio.request("one", heard) for heard in sounds]
    requests += [tiny_audio.request("two", *pair) for pair in itertools.pairwise(sounds)]
    drawn = [one for siblings in tiny.sample(learner, *requests) for one in siblings]
    samples = [one for one in drawn if model.config.audio_token_id not in one.token_ids]
    learned = learner._runner.compute_logprobs([batch.sequence_of(one, 1.0, 1.0) for one in samples])
    learner.close()
    apart = []
    for one, values in zip(samples, learned, strict=True):
        expected = tiny_audio.own(model, extractor, one)
        for logprobs in (one.logprobs, values[len(one.prompt_ids) :]):
            apart.append(float((torch.tensor(logprobs) - expected).abs().max()))
    return apart


def logits(write: bool) -> None:
    apart: list[float] = []
    for kind in tiny_audio.KINDS:
        for lora in (None, LoraConfig(rank=2, alpha=4.0)):
            with tempfile.TemporaryDirectory() as folder:
                apart += differences(kind, lora, Path(folder))
            print(f"{kind}{' with an adapter' if lora else ''}: {max(apart):.2e} so far", flush=True)
    if write:
        command = "python bench/audio.py logits --write"
        common.record("vision", "audio.logits.max_diff", [max(apart)], "nats", command, len(apart))


def learn(model: str, seeds: list[int], write: bool) -> None:
    """Train and evaluate on held-out melodies, a run a seed."""
    before, after = [], []
    for seed in seeds:
        run = {**RECIPE, "train": {**RECIPE["train"], "seed": seed}}
        team = {"policies": {"shared": model}, "roles": {"listener": "shared", "player": "shared"}}
        with tempfile.TemporaryDirectory() as folder:
            trained = train({**run, "team": team}, run=Path(folder) / "run", quiet=True)
            first, *between, last = trained.evaluations()
            trained.close()
        curve = ", ".join(f"{line['success']:.1%}" for line in (first, *between, last))
        before.append(first["success"])
        after.append(last["success"])
        print(f"seed {seed}: {curve}", flush=True)
    if write:
        command, count = f"python bench/audio.py learn --model {model} --write", RECIPE["evaluate"]["tasks"]
        common.record("vision", "audio.sound.base.success", before, "share", command, count, seeds)
        common.record("vision", "audio.sound.success", after, "share", command, count, seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["logits", "learn"])
    parser.add_argument("--model", default="models/audio", help="a folder that cadre_tasks.models.make_audio wrote")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    if chosen.what == "logits":
        logits(chosen.write)
    else:
        learn(chosen.model, chosen.seeds, chosen.write)


if __name__ == "__main__":
    main()
