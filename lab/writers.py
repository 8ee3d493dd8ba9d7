"""Two writers beside CoMLRL: `python -m lab.writers --model DIR --data DIR --comlrl PYTHON [--steps N] [--write]`.

The task of CoMLRL's own example, two whole models that write a short and a long summary for a joint reward (MAGRPO, one
turn, four completions), on SciTLDR and with a model that two cores can train. Both libraries have the same prompts, in
the same order, as text with the model's template; the same reward function, rate, length and plain sampling; two
prompts a step. All else is each library's default. Ours runs first, then CoMLRL with the Python of an environment that
has it. Seconds of a step, the first left out, and the mean reward by step go to results/writers.jsonl.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

PROMPTS, K, LENGTH, RATE = 2, 4, 64, 2e-5
ROLES = ("short", "long")


def train_ours(model: str, data: str, steps: int, folder: Path) -> tuple[list[float], list[float], list[Any]]:
    """Return the seconds and the mean reward of each step, and the prompts of all roles by step."""
    import cadre

    policies = {role: {"model": model, "dtype": "float32"} for role in ROLES}
    trained = cadre.train(
        "tldr-smollm2",
        run=folder,
        team={"policies": policies, "roles": {role: role for role in ROLES}},
        settings={"source": data, "data": "scitldr", "reward": "published"},
        algorithm={"name": "magrpo", "k": K, "joint": "aligned"},
        sampling={"temperature": 1.0, "max_tokens": LENGTH},
        learner={"learning_rate": RATE},
        train={"steps": steps, "tasks_per_step": PROMPTS, "trees_kept": PROMPTS},
        evaluate={"tasks": 0},
        quiet=True,
    )
    seconds = [line["time/sample_s"] + line["time/learn_s"] for line in trained.metrics()]
    roots = [[kept.tree.root for kept in trained.trees() if kept.step == step] for step in range(steps)]
    rewards = [fmean(branch.reward.team for root in each for branch in root.branches) for each in roots]
    words = [[{role: root.observations[role].messages[0].content for role in ROLES} for root in each] for each in roots]
    trained.close()
    return seconds, rewards, words


def train_theirs(model: str, prompts: Sequence[Any]) -> None:
    """Train on these prompts by CoMLRL, in its own environment, and print the times and the values of all rewards."""
    from comlrl.trainers.reinforce.magrpo import MAGRPOConfig, MAGRPOTrainer
    from transformers import AutoTokenizer

    from cadre_tasks.writing.text import TLDR, graded

    tokenizer = AutoTokenizer.from_pretrained(model)
    # CoMLRL takes the first padding token for the end of the prompt; SmolLM2's is the one that ends each message.
    tokenizer.pad_token = tokenizer.unk_token

    def templated(text: str) -> str:
        messages = [{"role": "user", "content": text}]
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    words = [{role: templated(text) for role, text in row.items()} for row in prompts]
    rewarded: list[tuple[float, float]] = []

    def reward(short: Sequence[str], long: Sequence[str]) -> list[float]:
        values = [sum(graded(first, second, TLDR).values()) for first, second in zip(short, long, strict=True)]
        rewarded.extend((time.perf_counter(), value) for value in values)
        return values

    trainer = MAGRPOTrainer(
        agent_model=model,
        num_agents=2,
        tokenizer=tokenizer,
        model_config={"dtype": "float32"},
        train_dataset=[{"prompt": row["short"], **row} for row in words],
        formatters=[lambda row, role=role: row[role] for role in ROLES],
        reward_func=reward,
        args=MAGRPOConfig(
            num_train_epochs=1,
            agent_learning_rate=RATE,
            agent_devices="cpu",
            num_generations=K,
            max_new_tokens=LENGTH,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            num_turns=1,
            eval_interval=0,
            rollout_buffer_size=PROMPTS,
            train_batch_size=PROMPTS,
        ),
    )
    trainer.verbose = False
    trainer.train()
    print(json.dumps([*rewarded, (time.perf_counter(), 0.0)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", help="the folder of SciTLDR")
    parser.add_argument("--comlrl", help="the Python of an environment with CoMLRL")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--prompts", type=Path, help="used by the program itself")
    options = parser.parse_args()
    if options.prompts:
        train_theirs(options.model, json.loads(options.prompts.read_text()))
        return
    from bench.common import record

    with tempfile.TemporaryDirectory() as name:
        ours, our_rewards, words = train_ours(options.model, options.data, options.steps, Path(name) / "run")
        file = Path(name) / "prompts.json"
        file.write_text(json.dumps([row for step in words for row in step]))
        command = [options.comlrl, "-m", "lab.writers", "--model", options.model, "--prompts", str(file)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = json.loads(printed.splitlines()[-1])
    starts, values = [at for at, _ in lines[:: PROMPTS * K]], [value for _, value in lines[:-1]]
    # From the first reward of a step to that of the next: another prompt's generation counts in place of its own.
    # The first step and the last, after which nothing is generated, are left out.
    theirs = [after - before for before, after in pairwise(starts)][1:-1]
    their_rewards = [fmean(values[at : at + PROMPTS * K]) for at in range(0, len(values), PROMPTS * K)]
    figures = {
        "writers.ours.step_s": (ours[1:], "s"),
        "writers.comlrl.step_s": (theirs, "s"),
        "writers.vs_comlrl": ([other / own for own, other in zip(ours[1:-1], theirs, strict=True)], "ratio"),
        "writers.ours.reward": (our_rewards, "reward"),
        "writers.comlrl.reward": (their_rewards, "reward"),
    }
    for figure, (measured, unit) in figures.items():
        sys.stdout.write(f"{figure}: {' '.join(f'{value:.3g}' for value in measured)} {unit}\n")
        if options.write:
            command_line = (
                f"python -m lab.writers --model DIR --data DIR --comlrl PYTHON --steps {options.steps} --write"
            )
            record("writers", figure, measured, unit, command_line, len(measured), [0])


if __name__ == "__main__":
    main()
