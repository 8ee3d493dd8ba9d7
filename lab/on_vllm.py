"""vLLM as a sampler against the torch engine: `python -m lab.on_vllm [PART ...] --smollm2 DIR [--write]`.

samplers  two adapters beside the plain base, then a whole model, in float32: log-probabilities of what vLLM drew and
          the torch engine's on the same tokens; what is drawn after two pushes against a fresh engine that was given
          the same weights; a role's completions while the other's adapter is replaced against those drawn alone
bfloat16  the log-probabilities in bfloat16, and beside them the floor: the torch engine's own between both precisions
speed     rounds of 64 samples of two adapters on both engines in turn, samples a second
training  20 steps of a team of two adapters on the embedded model: its mismatch, and samples a second on both engines

Needs an environment that has vLLM (`make vllm`). `--write` appends to results/vllm.jsonl. Everything but the last part
runs SmolLM2-135M-Instruct from the folder that --smollm2 names, or the embedded model where none is named.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import torch
from rich.console import Console

from bench.common import record
from cadre.advantages import batch
from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.engines.vllm import VllmSampler
from cadre.engines.vllm.engine import Options
from cadre.rollout.batching import gather
from cadre.runs.folder import Run
from cadre.settings import LearnerConfig, LoraConfig, PolicyConfig, VllmConfig
from cadre.team import Sampler, Weights
from cadre.training.loop import run_training
from cadre.types import Message, Request, Sample, Sampling
from lab.vllm_faults import MODEL

OPTIONS = Options(VllmConfig(context=512, sequences=64), memory=1 << 28)
STEPS, ROUNDS = 20, 5
# Log-probabilities that differ by more are other ones: the same kernels compute both.
SAME = 1e-4
console = Console(soft_wrap=True, highlight=False)


@dataclass(frozen=True)
class Bench:
    """One call: the model, and whether figures are kept."""

    model: str
    write: bool

    def keep(self, name: str, values: Sequence[float], unit: str, count: int) -> None:
        console.print(f"{name}: {median(values):.4g} {unit} ({min(values):.4g} to {max(values):.4g}, n={count})")
        if self.write:
            record("vllm", name, values, unit, "python -m lab.on_vllm --smollm2 DIR --write", count, [0])

    def policies(self, *adapters: str, dtype: str = "float32", frozen: Sequence[str] = ()) -> dict[str, PolicyConfig]:
        """A policy that is trained whole, named `whole`, or these adapters beside the plain base."""
        plain = {"model": self.model, "device": "cpu", "dtype": dtype}
        named = {name: PolicyConfig(**plain, lora=LoraConfig(rank=8, alpha=16)) for name in adapters}
        named |= {name: PolicyConfig(**plain, frozen=True) for name in frozen}
        return named or {"whole": PolicyConfig(**plain)}


def asked(policies: Sequence[str], count: int = 4, tokens: int = 16, first: int = 0) -> list[Request]:
    """Eight requests, dealt to the policies in turn."""
    texts = [f"Describe the number {first + index} in a few words." for index in range(8)]
    return [
        Request("r", policies[n % len(policies)], (Message("user", text),), count, Sampling(max_tokens=tokens), n + 1)
        for n, text in enumerate(texts)
    ]


def draw(sampler: Sampler, requests: Sequence[Request]) -> list[Sample]:
    completions = asyncio.run(gather(*(sampler.sample(request) for request in requests)))
    return [sample for siblings in completions for sample in siblings]


def learner_of(engine: TorchEngine) -> TorchLearner:
    learned = {name: LearnerConfig() for name, policy in engine.policies.items() if not policy.frozen}
    return TorchLearner(engine, TrainingSettings(learned))


def logprobs(learner: TorchLearner, samples: Sequence[Sample]) -> list[float]:
    """Return the torch engine's log-probabilities of the sampled tokens, one after the other."""
    data = [batch.sequence_of(sample, 1.0, 1.0) for sample in samples]
    values_by_sequence = learner.rank._runner.compute_logprobs(data)
    masked = (zip(values, datum.mask, strict=True) for values, datum in zip(values_by_sequence, data, strict=True))
    return [value for values in masked for value, is_sampled in values if is_sampled]


def drawn_logprobs(samples: Sequence[Sample]) -> list[float]:
    return [value for sample in samples for value in sample.logprobs]


def gap(first: Sequence[float], second: Sequence[float]) -> float:
    return fmean(abs(a - b) for a, b in zip(first, second, strict=True))


def changed(engine: TorchEngine, policy: str, version: int) -> Weights:
    """New weights of a policy, in place."""
    generator = torch.Generator().manual_seed(version)
    tensors = engine.parameters(policy)
    with torch.no_grad():
        for tensor in tensors.values():
            scale = 0.02 * (float(tensor.std()) or 1.0)
            tensor.add_(scale * torch.randn(tensor.shape, generator=generator))
    return Weights(policy, version, tensors={name: tensor.detach().clone() for name, tensor in tensors.items()})


def mismatches(left: Sequence[Sample], right: Sequence[Sample]) -> int:
    """Tokens that are not the same, or not with the same log-probability."""
    wrong = 0
    for first, second in zip(left, right, strict=True):
        wrong += abs(len(first.token_ids) - len(second.token_ids))
        pairs = zip(first.token_ids, first.logprobs, second.token_ids, second.logprobs, strict=False)
        wrong += sum(a != b or abs(x - y) > SAME for a, x, b, y in pairs)
    return wrong


def samplers(bench: Bench) -> None:
    """Adapters beside the plain base, then a whole model, each with a fresh engine to compare with: four engines."""
    wrong, compared = 0, 0
    for policies in (bench.policies("planner", "tool", frozen=("judge",)), bench.policies()):
        learner = learner_of(TorchEngine(bench.model, policies, 0))
        sampler = VllmSampler(bench.model, policies, OPTIONS)
        kind = "adapters" if "judge" in policies else "whole"
        parity(bench, sampler, learner, "vllm.logprob.mean_abs_diff" + ("" if kind == "adapters" else f".{kind}"))
        if kind == "adapters":
            decoding(bench, sampler, learner.engine)
        result = push(bench, sampler, learner.engine)
        wrong, compared = wrong + result[0], compared + result[1]
        learner.close()
    bench.keep("vllm.push.mismatches", [wrong], "tokens", compared)


def parity(bench: Bench, sampler: VllmSampler, learner: TorchLearner, name: str) -> list[Sample]:
    """Compare vLLM's log-probabilities of its samples with the torch engine's."""
    samples = draw(sampler, asked(list(sampler.policies)))
    bench.keep(name, [gap(logprobs(learner, samples), drawn_logprobs(samples))], "nats", len(drawn_logprobs(samples)))
    return samples


def decoding(bench: Bench, sampler: VllmSampler, engine: TorchEngine) -> None:
    """A role decodes while the other's adapter is replaced five times."""
    asyncio.run(sampler.load(changed(engine, "planner", 1)))
    request = asked(["planner"], 8, 64)[0]
    single = draw(sampler, [request])
    late: list[bool] = []

    async def beside() -> list[Sample]:
        work = asyncio.create_task(sampler.sample(request))
        for version in range(1, 6):
            await asyncio.sleep(0.2)
            await sampler.load(changed(engine, "tool", version))
            late.append(work.done())
        return await work

    meanwhile = asyncio.run(beside())
    if all(late):
        raise SystemExit("decoding: every adapter came after the last token, which shows nothing; take more tokens")
    bench.keep("vllm.decoding.mismatches", [mismatches(single, meanwhile)], "tokens", len(drawn_logprobs(single)))
    bench.keep("vllm.decoding.adapters_meanwhile", [late.count(False)], "adapters", 5)


def push(bench: Bench, sampler: VllmSampler, engine: TorchEngine) -> tuple[int, int]:
    """Two pushes in a row against a fresh engine with the last weights, and how many tokens were compared. Keys and
    values of the prompts are kept from before. Closes the sampler."""
    policies, requests = sampler.policies, asked(list(sampler.policies))
    trained = [name for name, policy in policies.items() if not policy.frozen]
    unchanged = draw(sampler, requests)
    for version in (11, 12):
        last = [changed(engine, name, version) for name in trained]
        began = time.perf_counter()
        for weights in last:
            asyncio.run(sampler.load(weights))
        console.print(f"handing over {', '.join(trained)}: {time.perf_counter() - began:.2f} s")
        pushed = draw(sampler, requests)
    sampler.close()
    fresh = VllmSampler(bench.model, policies, OPTIONS)
    for weights in last:
        asyncio.run(fresh.load(weights))
    renewed = draw(fresh, requests)
    fresh.close()
    console.print(f"tokens that the pushes changed: {mismatches(unchanged, pushed)} of {len(drawn_logprobs(pushed))}")
    return mismatches(pushed, renewed), len(drawn_logprobs(pushed))


def bfloat16(bench: Bench) -> None:
    """The same in bfloat16, and the floor beside it: the torch engine's own difference between the precisions."""
    half = bench.policies("planner", dtype="bfloat16")
    sampler, learner = VllmSampler(bench.model, half, OPTIONS), learner_of(TorchEngine(bench.model, half, 0))
    samples = parity(bench, sampler, learner, "vllm.logprob.mean_abs_diff.bfloat16")
    sampler.close()
    full = learner_of(TorchEngine(bench.model, bench.policies("planner"), 0))
    floor = gap(logprobs(full, samples), logprobs(learner, samples))
    bench.keep("vllm.logprob.bfloat16_floor", [floor], "nats", len(drawn_logprobs(samples)))
    learner.close()
    full.close()


def speed(bench: Bench) -> None:
    """The same rounds on both engines in turn, one thread each; the first of each does not count."""
    policies = bench.policies("planner", "tool")
    engines: dict[str, Sampler] = {
        "vllm": VllmSampler(bench.model, policies, OPTIONS),
        "torch": TorchEngine(bench.model, policies, 0),
    }
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(ROUNDS + 1):
        for name, engine in engines.items():
            began = time.perf_counter()
            samples = draw(engine, asked(list(policies), 8, 32, 100 * number))
            rates[name].append(len(samples) / (time.perf_counter() - began))
    for name, engine in engines.items():
        engine.close()
        bench.keep(f"vllm.speed.{name}.samples_per_s", rates[name][1:], "samples/s", ROUNDS)
    ratios = [vllm_rate / torch_rate for vllm_rate, torch_rate in zip(rates["vllm"], rates["torch"], strict=True)][1:]
    bench.keep("vllm.speed.vs_torch", ratios, "ratio", ROUNDS)


def training(bench: Bench) -> None:
    """The same team on both engines, a run each; samples a second of the steps but the first."""
    rates: dict[str, float] = {}
    for engine in ("vllm", "torch"):
        lines = trained(engine)
        samples = [line["coder/sequences"] + line["mover/sequences"] for line in lines]
        rates[engine] = sum(samples[1:]) / sum(line["time/sample_s"] for line in lines[1:])
        bench.keep(f"vllm.training.{engine}.samples_per_s", [rates[engine]], "samples/s", len(lines) - 1)
        for role in ("tool", "planner"):
            gaps = [line[f"{role}/logprob_diff"] for line in lines if f"{role}/logprob_diff" in line]
            bench.keep(f"vllm.training.{engine}.mismatch.{role}", gaps, "nats", len(gaps))
    bench.keep("vllm.training.vs_torch", [rates["vllm"] / rates["torch"]], "ratio", STEPS - 1)


def trained(engine: str) -> list[dict[str, float]]:
    """The metrics of every step of plan-path with an adapter a role."""
    changes = (
        f"train.steps={STEPS}",
        "train.tasks_per_step=4",
        "evaluate.tasks=0",
        "sampling.max_tokens=48",
        f"sampling.engine={engine}",
        *(("vllm.context=512", "sampling.memory=0.25") if engine == "vllm" else ()),
    )
    chosen = load("plan-path-lora", changes)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / engine, chosen)
        team, _ = run_training(resolve(chosen), run, Console(quiet=True))
        team.close()
        return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


PARTS: dict[str, Callable[[Bench], None]] = {
    "samplers": samplers,
    "bfloat16": bfloat16,
    "speed": speed,
    "training": training,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--smollm2", type=Path, default=MODEL, help="a folder of SmolLM2-135M-Instruct")
    parser.add_argument("--write", action="store_true", help="append to results/vllm.jsonl")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for part in options.parts or PARTS:
        console.print(f"[bold]{part}[/bold]")
        PARTS[part](Bench(str(options.smollm2), options.write))


if __name__ == "__main__":
    main()
