"""Adapters: four in one step against one and against PEFT, mixed training against training alone, PEFT on our files.

    python bench/adapters.py [--model seed] [--write]

`--write` appends the figures to results/adapters.jsonl; without it they are printed only.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load

from cadre.advantages import batch
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.engines.torch.forward import Precision, Scorer
from cadre.engines.torch.lora import segments
from cadre.engines.torch.model import load_weights, locate, project_only
from cadre.learn.batching import collate
from cadre.rollout.batching import gather
from cadre.settings import LearnerConfig, LoraConfig, PolicyConfig
from cadre.types import Message, Request, Sample, Sampling, TrainingSequence
from common import record

REPEATS = 5
RANKS = {"planner": 4, "tool": 8, "critic": 16, "scribe": 32}
SEQUENCES, PROMPT, COMPLETION = 64, 200, 32


def learner(model: str, ranks: Mapping[str, int]) -> TorchLearner:
    """Adapters of these ranks on all linear layers of the model."""
    policies = {
        name: PolicyConfig(model=model, lora=LoraConfig(rank=rank, alpha=2.0 * rank)) for name, rank in ranks.items()
    }
    learners = {name: LearnerConfig(learning_rate=1e-4, tokens_per_microbatch=4096) for name in ranks}
    return TorchLearner(TorchEngine(model, policies, 0), TrainingSettings(learners))


def random_data(policies: Sequence[str], vocabulary: int) -> list[TrainingSequence]:
    """Sequences of random tokens; the policies take turns, so every policy has sequences all over the batch."""
    draw = random.Random(0)
    before, after = (0.0,) * PROMPT, (1.0,) * COMPLETION
    return [
        TrainingSequence(
            policy=policies[index % len(policies)],
            role="any",
            token_ids=tuple(draw.randrange(vocabulary) for _ in range(PROMPT + COMPLETION)),
            mask=(False,) * PROMPT + (True,) * COMPLETION,
            logprobs=before + tuple(-value for value in after),
            advantages=before + after if index % 2 else before + tuple(-value for value in after),
            version=0,
        )
        for index in range(SEQUENCES)
    ]


def time_ratios(model: str) -> list[float]:
    """Four adapters of rank 16 in one update over one of them on the same tokens, in pairs run in turn."""
    four, one = learner(model, dict.fromkeys(RANKS, 16)), learner(model, {"planner": 16})
    vocabulary = len(four.engine.tokenizer)
    work = ((four, random_data(tuple(RANKS), vocabulary)), (one, random_data(("planner",), vocabulary)))
    pairs = [[seconds(*each) for each in work] for _ in range(REPEATS + 1)][1:]
    for each, _ in work:
        each.close()
    return [four_seconds / one_seconds for four_seconds, one_seconds in pairs]


def peft_ratios(model: str) -> list[float]:
    """Our forward and backward with four adapters over that of PEFT's mixed batch (`adapter_names`), in turn."""
    ours = learner(model, dict.fromkeys(RANKS, 16))
    data = sorted(random_data(tuple(RANKS), len(ours.engine.tokenizer))[:16], key=lambda one: one.policy)
    batch = collate(data, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        ours.save(Path(folder))
        base = load_weights(locate(model), PolicyConfig(model=model), torch.float32)
        theirs = PeftModel.from_pretrained(base, f"{folder}/planner", "planner", is_trainable=True).eval()
        for name in RANKS:
            theirs.load_adapter(f"{folder}/{name}", name, is_trainable=True)

    def mine() -> torch.Tensor:
        with ours.engine.loaded.adapters.rows(segments(batch.policies)):
            return Scorer(ours.engine.loaded.model)(batch, Precision()).logprobs.sum()

    def peft() -> torch.Tensor:
        rows, columns = batch.mask.nonzero(as_tuple=True)
        with project_only(base, rows, columns - 1):
            logits = theirs(input_ids=batch.token_ids, use_cache=False, adapter_names=list(batch.policies)).logits[0]
        own = logits.log_softmax(dim=-1).gather(1, batch.token_ids[rows, columns].unsqueeze(1))
        return own.sum()

    ours.close()
    return [backward_seconds(mine) / backward_seconds(peft) for _ in range(REPEATS + 1)][1:]


def backward_seconds(value: Callable[[], torch.Tensor]) -> float:
    """Processor time of one forward and backward."""
    started = time.process_time()
    torch.autograd.backward(value())
    return time.process_time() - started


def seconds(learner: TorchLearner, data: Sequence[TrainingSequence]) -> float:
    """Processor time of one update on one thread, which other programs on the machine disturb least."""
    started = time.process_time()
    asyncio.run(learner.update(data))
    return time.process_time() - started


def rollouts(learner: TorchLearner, policies: Sequence[str]) -> list[Sample]:
    """Samples of several prompts and lengths by every policy."""

    asked = [
        Request(name, name, (Message("user", f"{name} {turn} " * 9 * turn),), 4, Sampling(max_tokens=16 * turn), turn)
        for name in policies
        for turn in (1, 2, 3)
    ]
    drawn = asyncio.run(gather(*(learner.engine.sample(request) for request in asked)))
    return [sample for siblings in drawn for sample in siblings]


def update_data(learner: TorchLearner, policies: Sequence[str]) -> list[TrainingSequence]:
    """The training sequences of fresh samples, with advantages 1 and -1 in turn."""
    samples = rollouts(learner, policies)
    return [batch.sequence_of(one, (-1.0) ** index, 1.0) for index, one in enumerate(samples)]


def mixed_difference(model: str, names: Sequence[str]) -> float:
    """The largest difference, over parameters and optimiser state, of one mixed step from steps alone."""
    mixed = learner(model, {name: RANKS[name] for name in names})
    data = update_data(mixed, names)
    asyncio.run(mixed.update(data))
    worst = 0.0
    for name in names:
        alone = learner(model, {name: RANKS[name]})
        asyncio.run(alone.update([one for one in data if one.policy == name]))
        own, other = state(mixed, name), state(alone, name)
        worst = max(worst, *(float((own[key] - other[key]).detach().abs().max()) for key in own))
        alone.close()
    mixed.close()
    return worst


def state(learner: TorchLearner, policy: str) -> dict[str, torch.Tensor]:
    """All that training changes: the adapter's parameters and its moments."""
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder))
        files = (f"{policy}/adapter_model.safetensors", f"{policy}/optimiser/optimiser.safetensors")
        # Read into memory: the files are gone before the tensors are.
        return {key: value for file in files for key, value in load((Path(folder) / file).read_bytes()).items()}


def peft_difference(model: str) -> float:
    """The largest difference of an adapter's own log-probabilities from those of plain PEFT on its saved files."""
    names = ("planner", "tool")
    trained = learner(model, {name: RANKS[name] for name in names})
    for _ in range(2):
        asyncio.run(trained.update(update_data(trained, names)))
    samples = rollouts(trained, names)
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        trained.save(Path(folder))
        for name in names:
            base = load_weights(locate(model), PolicyConfig(model=model), torch.float32)
            plain = PeftModel.from_pretrained(base, f"{folder}/{name}").eval()
            worst = max(worst, *(gap(plain, one) for one in samples if one.policy == name))
    trained.close()
    return worst


@torch.no_grad()
def gap(model: PeftModel, sample: Sample) -> float:
    """From one forward of plain PEFT over the whole sequence."""
    ids = torch.tensor([sample.prompt_ids + sample.token_ids])
    start = len(sample.prompt_ids)
    scores = model(input_ids=ids).logits[0, start - 1 : -1].float().log_softmax(dim=-1)
    own = scores.gather(1, ids[0, start:, None]).squeeze(1)
    return float((own - torch.tensor(sample.logprobs)).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="seed", help="seed, a folder or a hub name")
    parser.add_argument("--write", action="store_true", help="append to results/adapters.jsonl")
    options = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python bench/adapters.py --model {options.model} --write"
    measured = (
        ("adapters.four_vs_one.time_ratio", time_ratios(options.model), "ratio"),
        (
            "adapters.mixed_vs_alone.max_diff",
            [max(mixed_difference(options.model, names) for names in (("planner", "tool"), tuple(RANKS)))],
            "absolute",
        ),
        ("adapters.ours_vs_peft.time_ratio", peft_ratios(options.model), "ratio"),
        ("adapters.peft_logprob.max_diff", [peft_difference(options.model)], "nats"),
    )
    for name, values, unit in measured:
        print(f"{name}: {statistics.median(values):.3g} {unit} ({min(values):.3g} to {max(values):.3g})")
        if options.write:
            record("adapters", name, values, unit, command, len(values), [0])


if __name__ == "__main__":
    main()
