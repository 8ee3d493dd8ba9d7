"""AT-GRPO from top to bottom: a team of two learns Plan-Path, in one file without configuration.

    python examples/minimal.py               about two minutes on two cores: 4% -> 97% of held-out mazes

The role `tool` writes a program that prints moves, the role `planner` decides which moves are made. Both are played by
one model, each with its own prompt. The main loop has four stages, as in the paper (arXiv 2510.11062, algorithm 1):

    grow        sample K completions at every decision, try each on a copy of the game, go on with the best
    compare     the advantage of a completion is its reward against those of the other K - 1, divided by their deviation
    learn       one step of gradient ascent on the clipped ratio, averaged over the sampled tokens
    evaluate    play mazes that were not trained on, greedily

`cadre train plan-path` does the same with batches over many trees, prefix sharing, checkpoints and logs.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, pstdev

import torch
from torch import Tensor

from cadre import Env, Task, random_keys
from cadre.engines.torch import TorchEngine
from cadre.learn.loss import Tokens, policy_loss
from cadre.settings import LossConfig, PolicyConfig
from cadre.team import Weights
from cadre.types import Request, Sample, Sampling
from cadre_tasks.games.plan_path import PlanPath

K = 8  # completions at a decision
TASKS = 16  # trees a step
ALPHA = 1.0  # weight of the team's reward beside a role's own
LEARNING_RATE = 1e-3
SETTINGS = {"prompts": "compact", "turns": 2}
SAMPLING = Sampling(temperature=1.0, max_tokens=96)
GREEDY = Sampling(temperature=0.0, max_tokens=96)


@dataclass(frozen=True)
class Decision:
    """K completions of one prompt, and the reward of each: a comparison group."""

    samples: list[Sample]
    rewards: list[float]

    def advantages(self) -> list[float]:
        """Return `(r - mean) / std` of each completion; zeros if all rewards are equal."""
        mean, std = fmean(self.rewards), pstdev(self.rewards)
        return [(reward - mean) / std if std > 1e-6 else 0.0 for reward in self.rewards]


async def sample(engine: TorchEngine, env: Env, count: int, sampling: Sampling, key: int) -> list[Sample]:
    """Sample `count` completions for the role that acts now; in this game one role acts at a time."""
    ((role, observation),) = env.observe().items()
    return await engine.sample(Request(role, "shared", observation.messages, count, sampling, key))


async def grow(engine: TorchEngine, task: Task, key: int) -> list[Decision]:
    """Return the decisions of one tree: at each, K completions are tried and the best is selected."""
    env, decisions = PlanPath(task, **SETTINGS), []
    while env.observe():
        samples = await sample(engine, env, K, SAMPLING, random_keys.fold(key, len(decisions)))
        # Every completion acts on its own copy of the game, so that all K face the same state.
        copies = [env.fork() for _ in samples]
        steps = [await copy.step({one.role: one.text}) for copy, one in zip(copies, samples, strict=True)]
        rewards = [ALPHA * step.team + step.local.get(one.role, 0.0) for step, one in zip(steps, samples, strict=True)]
        decisions.append(Decision(samples, rewards))
        env = copies[max(range(len(rewards)), key=rewards.__getitem__)]
    return decisions


def minibatches(decisions: list[Decision], size: int = 64) -> Iterator[tuple[list[Sample], list[float]]]:
    """Yield the completions whose advantage is not zero, longest first so that little padding is computed."""
    pairs = [
        (one, advantage)
        for decision in decisions
        for one, advantage in zip(decision.samples, decision.advantages(), strict=True)
        if advantage != 0.0
    ]
    pairs.sort(key=lambda pair: len(pair[0].prompt_ids) + len(pair[0].token_ids), reverse=True)
    for start in range(0, len(pairs), size):
        chunk = pairs[start : start + size]
        yield [one for one, _ in chunk], [advantage for _, advantage in chunk]


def sequence_tensors(samples: list[Sample]) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids, the mask of sampled tokens and the sampler's log-probabilities, [B, T], padded on the right.

    Under causal attention, padding on the right changes nothing to its left, so no attention mask is needed.
    """
    length = max(len(one.prompt_ids) + len(one.token_ids) for one in samples)
    ids = torch.zeros(len(samples), length, dtype=torch.long)
    mask = torch.zeros(len(samples), length, dtype=torch.bool)
    logprobs = torch.zeros(len(samples), length)
    for row, one in enumerate(samples):
        start, end = len(one.prompt_ids), len(one.prompt_ids) + len(one.token_ids)
        ids[row, :end] = torch.tensor(one.prompt_ids + one.token_ids)
        mask[row, start:end] = True
        logprobs[row, start:end] = torch.tensor(one.logprobs)
    return ids, mask, logprobs


def learn(engine: TorchEngine, optimizer: torch.optim.Optimizer, decisions: list[Decision]) -> float:
    """Do one update by gradients summed over minibatches; return the mean entropy of the sampled tokens, in nats."""
    batches = list(minibatches(decisions))
    total = sum(len(one.token_ids) for samples, _ in batches for one in samples)
    entropies = []
    optimizer.zero_grad()
    for samples, advantages in batches:
        ids, mask, sampled = sequence_tensors(samples)
        # Position t predicts token t + 1: the first token has no prediction, the last logits predict nothing.
        logits = engine.loaded.model(input_ids=ids[:, :-1]).logits.float()
        distribution = torch.log_softmax(logits, dim=-1)
        logprobs = distribution.gather(2, ids[:, 1:, None]).squeeze(2)
        entropy = -(distribution.exp() * distribution).sum(2)
        mask, sampled = mask[:, 1:], sampled[:, 1:]
        tokens = Tokens(
            logprobs=logprobs,
            old=logprobs.detach(),  # one update per batch: the ratio is 1 and carries the gradient
            rollout_logprobs=sampled,
            advantages=torch.tensor(advantages)[:, None].expand_as(logprobs),
            mask=mask,
            entropy=entropy,
            reference=logprobs.detach(),
        )
        # Each token weighs 1 / (tokens of the batch), so the loss is the mean over all of them.
        loss, _ = policy_loss(tokens, torch.full((len(samples),), 1 / total), LossConfig())
        loss.backward()
        entropies.append(float(entropy.detach()[mask].mean()))
    torch.nn.utils.clip_grad_norm_(engine.parameters("shared").values(), 1.0)
    optimizer.step()
    return fmean(entropies) if entropies else 0.0


async def evaluate(engine: TorchEngine, tasks: list[Task]) -> float:
    """Return the fraction of tasks solved with one greedy completion at each decision."""

    async def play(task: Task) -> bool:
        env = PlanPath(task, **SETTINGS)
        while env.observe():
            (one,) = await sample(engine, env, 1, GREEDY, 0)
            await env.step({one.role: one.text})
        return env.success

    return fmean(await asyncio.gather(*map(play, tasks)))


async def train(steps: int, held_out: int = 100) -> tuple[float, float]:
    """Train for `steps` updates; return the success on held-out tasks before and after."""
    engine = TorchEngine("seed", {"shared": PolicyConfig(model="seed")}, seed=0)
    parameters = [parameter.requires_grad_() for parameter in engine.parameters("shared").values()]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0)
    tasks, test = PlanPath.tasks("train"), list(PlanPath.tasks("test")[:held_out])
    before = await evaluate(engine, test)
    print(f"before: {before:.0%} of {held_out} held-out tasks")
    for step in range(steps):
        began = time.monotonic()
        chosen = [tasks[(step * TASKS + index) % len(tasks)] for index in range(TASKS)]
        keys = [random_keys.key("minimal", step, task.id) for task in chosen]
        # All trees grow at once; the engine batches what they ask for.
        trees = await asyncio.gather(*(grow(engine, task, key) for task, key in zip(chosen, keys, strict=True)))
        decisions = [decision for tree in trees for decision in tree]
        entropy = learn(engine, optimizer, decisions)
        # The optimizer changed the engine's own tensors: this forgets the prefixes cached under the old weights.
        await engine.load(Weights("shared", step + 1, tensors=engine.parameters("shared")))
        reward = fmean(reward for decision in decisions for reward in decision.rewards)
        print(f"step {step + 1}  reward {reward:+.2f}  entropy {entropy:.2f}  {time.monotonic() - began:.1f} s")
    after = await evaluate(engine, test)
    print(f"after: {after:.0%} of {held_out} held-out tasks")
    engine.close()
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=12)
    asyncio.run(train(parser.parse_args().steps))
