"""What programs a known model writes under each prompt of the games: the share that is cut off, runs and is solved.

    python bench/prompts.py plan-path sokoban sudoku --model DIR [--prompts full function] [--temperatures 0.3 0.5 0.7]
        [--programs 48] [--max-tokens 512] [--programs-to FILE] [--write]

DIR is the folder of a model, such as Qwen2.5-Coder-0.5B-Instruct. The tasks are of the training split,
four programs each, and a program is the first of its episode. `ran` is without an error, `answered` with an answer that
can be read, `solved` with one that solves the task; the intervals are Wilson's, 95%. All programs go to
`--programs-to` (runs/prompts.md), to be read. `--write` appends `prompts.MODEL.TASK.PROMPT.TEMPERATURE.SHARE` and the
token limit within which 95% end to results/prompts.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadre import random_keys
from cadre.engines.torch import TorchEngine
from cadre.envs.spec import EnvSpec
from cadre.rollout.batching import gather
from cadre.settings import PolicyConfig
from cadre.statistics import rate_interval
from cadre.types import Request, Sample, Sampling
from common import append_line, measurement, record

FIRST_TASK = 2_000  # of the training split
SAME_TASK = 4  # programs of one task
SHARES = ("cut", "ran", "answered", "solved")


@dataclass(frozen=True)
class Cell:
    """A task with a prompt and a temperature: one row of the table."""

    task: str
    prompt: str
    temperature: float


@dataclass(frozen=True)
class Completion:
    """A text of so many tokens, and how it ended: stop or length."""

    text: str
    finish: str
    tokens: int


@dataclass(frozen=True)
class Outcome:
    """One program and what came of it."""

    cell: Cell
    task_id: str
    completion: Completion
    status: str
    answer: str | None
    feedback: str
    solved: bool

    @property
    def shares(self) -> dict[str, bool]:
        return {
            "cut": self.completion.finish == "length",
            "ran": self.status == "ok",
            "answered": self.answer is not None,
            "solved": self.solved,
        }


def make_envs(cell: Cell, count: int) -> Iterator[Any]:
    """Yield environments of training tasks, several of each task."""
    spec = EnvSpec(cell.task, {"prompts": cell.prompt})
    tasks = spec.tasks("train")
    for number in range(count):
        yield spec.make(tasks[FIRST_TASK + number // SAME_TASK])


async def try_program(cell: Cell, env: Any, completion: Completion) -> Outcome:
    """Return what comes of a completion as the tool's first program."""
    tokens = (0,) * completion.tokens
    sample = Sample("tool", "model", completion.text, (), tokens, (0.0,) * len(tokens), completion.finish, 0)  # type: ignore[arg-type]
    reward = await env.step_samples({"tool": sample})
    run = env.run
    feedback = "\n".join(filter(None, (run.returned, run.stderr.strip()[-400:])))
    return Outcome(cell, env.task.id, completion, run.status, run.answer, feedback, reward.parts["tool/goal"] == 1.0)


def measure(engine: TorchEngine, cells: Sequence[Cell], count: int, limits: dict[str, int], seed: int) -> list[Outcome]:
    """Sample the programs of all cells in batches that fit into memory, and try each."""
    made = [(cell, env) for cell in cells for env in make_envs(cell, count)]

    async def sample(number: int) -> Completion:
        cell, env = made[number]
        sampling = Sampling(temperature=cell.temperature, max_tokens=limits[cell.prompt])
        messages = env.observe()["tool"].messages
        request = Request("tool", "model", messages, 1, sampling, random_keys.key(seed, number))
        (drawn,) = await engine.sample(request)
        return Completion(drawn.text, drawn.finish, len(drawn.token_ids))

    async def try_all() -> list[Outcome]:
        completions = await gather(*map(sample, range(len(made))))
        pairs = zip(made, completions, strict=True)
        return [await try_program(cell, env, completion) for (cell, env), completion in pairs]

    return asyncio.run(try_all())


def summarise(outcomes: Sequence[Outcome]) -> str:
    """Return the row of a cell: the shares with their intervals, and the tokens of the median and of 95%."""
    parts = []
    for name in SHARES:
        values = [float(outcome.shares[name]) for outcome in outcomes]
        _, low, high = rate_interval(values)
        parts.append(f"{name} {sum(values):.0f} ({100 * low:.0f} to {100 * high:.0f}%)")
    tokens = sorted(outcome.completion.tokens for outcome in outcomes)
    return f"n {len(outcomes)}, {', '.join(parts)}; tokens {tokens[len(tokens) // 2]}, 95% within {quantile(tokens)}"


def quantile(ordered: Sequence[int]) -> int:
    """Return the value within which 95% lie."""
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


def write_programs(file: Path, outcomes: Sequence[Outcome]) -> None:
    """Append every program with what came of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        for one in outcomes:
            facts = f"{one.status}, {one.completion.finish} after {one.completion.tokens} tokens, answer {one.answer}"
            out.write(f"## {one.cell.task} {one.cell.prompt} {one.cell.temperature} {one.task_id}\n\n")
            out.write(f"{'solved' if one.solved else 'not solved'}: {facts}\n\n{one.completion.text}\n\n")
            out.write(f"> {one.feedback}\n\n" if one.feedback else "")


def write_results(cell: Cell, outcomes: Sequence[Outcome], model: str, command: str, seed: int) -> None:
    """Append the shares of a cell, and its token limit, to results/prompts.jsonl."""
    name = f"prompts.{model}.{cell.task}.{cell.prompt}.{cell.temperature:g}"
    for share in SHARES:
        interval = rate_interval([float(outcome.shares[share]) for outcome in outcomes])
        line = measurement(f"{name}.{share}", interval, "fraction", command, len(outcomes), [seed])
        append_line("prompts", line | dict(zip(("value", "low", "high"), interval, strict=True)))
    tokens = quantile(sorted(outcome.completion.tokens for outcome in outcomes))
    record("prompts", f"{name}.tokens95", [tokens], "tokens", command, len(outcomes), [seed])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", help="plan-path, sokoban, sudoku")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", nargs="+", default=["full", "function"])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.3, 0.5, 0.7])
    parser.add_argument("--programs", type=int, default=48, help="of each task, prompt and temperature")
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[512], help="one limit, or one a prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs-to", type=Path, default=Path("runs/prompts.md"))
    parser.add_argument("--write", action="store_true", help="append to results/prompts.jsonl")
    options = parser.parse_args()
    limits = dict(zip(options.prompts, itertools.cycle(options.max_tokens), strict=False))
    # Frozen, as weights that are trained are held in float32.
    policy = PolicyConfig(model=str(options.model), frozen=True, dtype="bfloat16")
    engine = TorchEngine(options.model, {"model": policy}, options.seed, is_trained=False)
    cells = [Cell(*row) for row in itertools.product(options.tasks, options.prompts, options.temperatures)]
    started = time.monotonic()
    outcomes = measure(engine, cells, options.programs, limits, options.seed)
    write_programs(options.programs_to, outcomes)
    rate = engine.sampled_tokens / (time.monotonic() - started)
    print(f"{rate:.1f} tokens a second, prompts and programs included", flush=True)
    command = (
        f"python bench/prompts.py {' '.join(options.tasks)} --model DIR --prompts {' '.join(options.prompts)} "
        f"--temperatures {' '.join(map(str, options.temperatures))} --programs {options.programs} "
        f"--max-tokens {' '.join(map(str, options.max_tokens))}"
    )
    for cell in cells:
        own = [outcome for outcome in outcomes if outcome.cell == cell]
        print(f"{cell.task}, {cell.prompt} at {cell.temperature:g}: {summarise(own)}", flush=True)
        if options.write:
            write_results(cell, own, options.model.name, command, options.seed)


if __name__ == "__main__":
    main()
