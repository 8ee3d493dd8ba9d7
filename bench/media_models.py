"""What the figures of vision-language and of audio-language models share: `bench/vision.py` and `bench/audio.py`."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import common
from cadre import train
from cadre.advantages import batch
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.settings import LearnerConfig, LoraConfig
from tests.cadre.engines import tiny


@dataclass(frozen=True)
class MediaBench:
    """The measurements of one kind of medium.

    script      name of the bench, as in `python bench/SCRIPT.py`
    prefix, task   names of the result lines: PREFIX.logits.max_diff, PREFIX.TASK.success
    tiny_models   the tests' module of tiny random models: KINDS, build, request, own
    token       name of the medium's token in a model's configuration
    media       images or sounds of different sizes
    load_model, load_processor   transformers' own readers of a folder
    recipe      the training of `learn`, without team and seed
    roles       the roles of its task
    """

    script: str
    prefix: str
    task: str
    tiny_models: ModuleType
    token: str
    media: Sequence[Any]
    load_model: Callable[[Path], Any]
    load_processor: Callable[[str], Any]
    recipe: Mapping[str, Any]
    roles: tuple[str, ...]

    def differences(self, kind: str, lora: LoraConfig | None, folder: Path) -> list[float]:
        """Return the largest differences of sampler and learner from the model's own forward, two a completion."""
        source = str(self.tiny_models.build(folder / "model", kind))
        policies, settings = {"p": tiny.policy(source, lora=lora)}, TrainingSettings({"p": LearnerConfig()})
        learner = TorchLearner(TorchEngine(source, policies, 0), settings)
        model = learner.engine.loaded.model
        if lora is not None:
            with torch.no_grad():
                for weight in learner.engine.parameters("p").values():
                    weight.normal_(0.0, 0.05)
            learner.export("p", folder / "merged", merge=True)
            model = self.load_model(folder / "merged").eval()
        processor = self.load_processor(source)
        requests = [self.tiny_models.request("one", medium) for medium in self.media]
        requests += [self.tiny_models.request("two", *pair) for pair in itertools.pairwise(self.media)]
        drawn = [sample for siblings in tiny.sample(learner, *requests) for sample in siblings]
        samples = [sample for sample in drawn if getattr(model.config, self.token) not in sample.token_ids]
        learned = learner.rank._runner.compute_logprobs([batch.sequence_of(sample, 1.0, 1.0) for sample in samples])
        learner.close()
        differences = []
        for sample, values in zip(samples, learned, strict=True):
            expected = self.tiny_models.own(model, processor, sample)
            for logprobs in (sample.logprobs, values[len(sample.prompt_ids) :]):
                differences.append(float((torch.tensor(logprobs) - expected).abs().max()))
        return differences

    def logits(self, write: bool) -> None:
        """Compare tiny random models of every kind, with and without an adapter."""
        found: list[float] = []
        for kind in self.tiny_models.KINDS:
            for lora in (None, LoraConfig(rank=2, alpha=4.0)):
                with tempfile.TemporaryDirectory() as folder:
                    found += self.differences(kind, lora, Path(folder))
                print(f"{kind}{' with an adapter' if lora else ''}: {max(found):.2e} so far", flush=True)
        if write:
            command = f"python bench/{self.script}.py logits --write"
            common.record("vision", f"{self.prefix}.logits.max_diff", [max(found)], "nats", command, len(found))

    def learn(self, model: str, seeds: list[int], write: bool) -> None:
        """Train and evaluate on held-out tasks, a run a seed."""
        before, after = [], []
        for seed in seeds:
            run = {**self.recipe, "train": {**self.recipe["train"], "seed": seed}}
            team = {"policies": {"shared": model}, "roles": dict.fromkeys(self.roles, "shared")}
            with tempfile.TemporaryDirectory() as folder:
                trained = train({**run, "team": team}, run=Path(folder) / "run", quiet=True)
                successes = [report["success"] for report in trained.evaluations()]
                trained.close()
            before.append(successes[0])
            after.append(successes[-1])
            print(f"seed {seed}: {', '.join(f'{success:.1%}' for success in successes)}", flush=True)
        if write:
            command, count = (
                f"python bench/{self.script}.py learn --model {model} --write",
                self.recipe["evaluate"]["tasks"],
            )
            common.record("vision", f"{self.prefix}.{self.task}.base.success", before, "share", command, count, seeds)
            common.record("vision", f"{self.prefix}.{self.task}.success", after, "share", command, count, seeds)


def main(bench: MediaBench, description: str | None, model: str) -> None:
    """Run the command line of a bench; `model` is the default folder of `learn`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["logits", "learn"])
    parser.add_argument("--model", default=model, help=f"a folder that cadre_tasks.models.make_{bench.script} wrote")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    if chosen.what == "logits":
        bench.logits(chosen.write)
    else:
        bench.learn(chosen.model, chosen.seeds, chosen.write)
