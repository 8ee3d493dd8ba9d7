"""Arithmetic behind docs/scale.md: what a run of a two-role Qwen3-8B needs on so many cards. Nothing here is measured.

    python bench/scale.py

L0 is one model for both roles, L1 an adapter a role, L2 a model a role. The workload is that of plan-path-qwen3-8b: 128
trees a step, 4,096 samples, 8 rounds one after the other. What is assumed stands in `Card` and `Load`; change it there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GB, TERA = 1e9, 1e12


@dataclass(frozen=True)
class Model:
    """Qwen3-8B, counted by `cadre train plan-path-qwen3-8b-L1 --dry-run`; `kv` are bytes a token in bfloat16."""

    parameters: float = 8.191e9
    embedding: float = 0.622e9
    adapter: float = 43.6e6
    kv: float = 147_456.0


@dataclass(frozen=True)
class Card:
    """80 GB, 3.35 TB/s, 989 TFLOP/s in bfloat16; of which sampling reaches 60% of the first and learning 40% of the
    second. Bytes a second to another card of the machine, and to another machine."""

    memory: float = 80 * GB
    bandwidth: float = 0.6 * 3.35 * TERA
    flops: float = 0.4 * 989 * TERA
    inside: float = 450 * GB
    outside: float = 50 * GB


@dataclass(frozen=True)
class Load:
    """A step: samples, their mean and their longest length, the share of tokens that are distinct in learning, rounds
    one after the other, and tokens in one forward of a rank."""

    samples: int = 4_096
    mean: float = 1_500.0
    longest: float = 4_096.0
    distinct: float = 1.05
    rounds: int = 8
    microbatch: float = 4_096.0

    @property
    def tokens(self) -> float:
        return self.samples * self.mean


MODEL, CARD, LOAD = Model(), Card(), Load()


def trained_bytes(level: str) -> float:
    """Float32 masters, gradients and two moments of all policies."""
    each = MODEL.adapter if level == "L1" else MODEL.parameters
    return 16 * each * (1 if level == "L0" else 2)


def frozen_bytes(level: str) -> float:
    """The base that adapters sit on, in bfloat16."""
    return 2 * MODEL.parameters if level == "L1" else 0.0


def sequences(weights: float) -> float:
    """So many sequences of mean length (and as long a prompt's tenth) fit beside a sampler's weights."""
    room = 0.9 * CARD.memory - weights
    return max(0.0, room / (1.1 * LOAD.mean * MODEL.kv))


def sampled_per_second(batch: float) -> float:
    """Tokens that one card decodes: every step reads the weights and the keys and values."""
    return batch / ((2 * MODEL.parameters + batch * 1.1 * LOAD.mean * MODEL.kv) / CARD.bandwidth)


def floor_seconds() -> float:
    """Every round waits for its longest completion, a token after the other, the weights being read for each."""
    return LOAD.rounds * LOAD.longest * 2 * MODEL.parameters / CARD.bandwidth


def learned_per_second(level: str) -> float:
    """Tokens that one card learns with activations computed twice: 8 floating-point operations a weight and token, 6
    where the weights have no gradient."""
    return CARD.flops / ((6 if level == "L1" else 8) * (MODEL.parameters - MODEL.embedding))


def gathered_seconds(cards: int) -> float:
    """Of one micro-batch, to gather the weights twice and scatter gradients once over the ranks of a group."""
    wire = CARD.inside if cards <= 8 else CARD.outside
    return (2 * 2 * MODEL.parameters + 4 * MODEL.parameters) / wire


@dataclass(frozen=True)
class Outlook:
    """What comes of a number of cards: how they are split, GB on a learner's card, seconds of a step."""

    samplers: int
    learners: int
    learner_gb: float
    sampling: float
    learning: float

    @property
    def ahead(self) -> float:
        return max(self.sampling, self.learning)

    @property
    def synchronous(self) -> float:
        return self.sampling + self.learning


def outlook(level: str, cards: int, load: Load) -> Outlook | None:
    """The best split of so many cards, None where the learner's state does not fit beside a sampler."""
    splits = [split(level, learners, cards - learners, load) for learners in range(1, cards)]
    fitting = [one for one in splits if one.learner_gb * GB <= 0.9 * CARD.memory]
    return min(fitting, key=lambda one: one.ahead, default=None)


def split(level: str, learners: int, samplers: int, load: Load) -> Outlook:
    """What so many cards of each kind come to."""
    activations = 4.5 * GB
    held = (trained_bytes(level) + frozen_bytes(level)) / learners + activations
    batch = sequences(2 * MODEL.parameters)
    rate = sampled_per_second(min(batch, load.samples / load.rounds / samplers))
    sampling = max(load.tokens / (samplers * rate), floor_seconds())
    distinct = load.distinct * load.tokens / learners
    micro = load.microbatch / learned_per_second(level)
    wire = gathered_seconds(learners) if learners > 1 and level != "L1" else 0.0
    learning = distinct / load.microbatch * max(micro, wire)
    return Outlook(samplers, learners, held / GB, sampling, learning)


def pushed_bytes(level: str) -> float:
    """What one sampler takes at an update: bfloat16 weights or adapters of its policies."""
    return {"L0": 2 * MODEL.parameters, "L1": 2 * 2 * MODEL.adapter, "L2": 2 * MODEL.parameters}[level]


def lines() -> list[str]:
    rows = [
        "| level, GPUs, samples per step | samplers : learners | GB on a learner's GPU | sampling, learning (s) | "
        "tokens/s with `max_staleness` 0 and 1 |",
        "|---|---|---|---|---|",
    ]
    for level in ("L0", "L1", "L2"):
        rows += [row(level, cards, load) for cards, load in ((8, LOAD), (64, LOAD), (64, grown(64)), (512, grown(512)))]
    return rows


def grown(cards: int) -> Load:
    """A step with as many samples a card as the recipe has on eight."""
    return replace(LOAD, samples=LOAD.samples * cards // 8)


def row(level: str, cards: int, load: Load) -> str:
    head = f"| {level}, {cards}, {load.samples:,} |"
    best = outlook(level, cards, load)
    if best is None:
        return f"{head} does not fit | | | |"
    rates = [load.tokens / seconds for seconds in (best.synchronous, best.ahead)]
    seconds = f"{best.sampling:.0f}, {best.learning:.0f}"
    return (
        f"{head} {best.samplers} : {best.learners} | {best.learner_gb:.0f} | {seconds} | "
        f"{rates[0]:,.0f}, {rates[1]:,.0f} |"
    )


def main() -> None:
    at_once = sequences(2 * MODEL.parameters)
    print("\n".join(lines()))
    print(
        f"floor of a step {floor_seconds():.0f} s; a card decodes {sampled_per_second(at_once):,.0f} tokens/s", end=""
    )
    print(f" with {at_once:.0f} sequences at once")
    for level in ("L0", "L1", "L2"):
        print(
            f"{level}: {trained_bytes(level) / GB:.1f} GB trained, {frozen_bytes(level) / GB:.1f} frozen, "
            f"{pushed_bytes(level) / GB:.2f} pushed; a card learns {learned_per_second(level):,.0f} tokens/s"
        )
    print(
        f"gathering {gathered_seconds(8):.2f} s inside, {gathered_seconds(64):.2f} s outside; "
        f"a micro-batch computes {LOAD.microbatch / learned_per_second('L0'):.2f} s"
    )


if __name__ == "__main__":
    main()
