"""Runs made up for the page: of any size, and with texts that would do harm where they were taken for HTML."""

from __future__ import annotations

import json
import random
from pathlib import Path

from cadre.config.experiment import dump, parse
from cadre.runs import jsonl
from cadre.runs.kept_trees import LEFT_OUT, KeptTree, append_tree, write_annotations
from cadre.runs.tree_format import iterate_samples
from cadre.types import Branch, Drawing, Message, Node, Observation, Reward, Sample, Task, Tree

ROLES = ("tool", "planner")
HOSTILE = (
    "<script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 1'>",
    "</script><script>window.harmed = 1</script><!--",
    "javascript:window.harmed=1",
    "a \u202e reversed \u2066 and \u0000\u0007\u001b[31m control\u200f",
    "${window.harmed = 1} {{constructor.constructor('window.harmed=1')()}}",
    "x" * 1_000_000,
)
GRID: Drawing = {
    "kind": "grid",
    "rows": ["S.#", "..G"],
    "legend": {"S": "walker", "#": "wall", "G": "goal"},
    "boxes": 0,
}


def sample(role: str, text: str, version: int) -> Sample:
    size = min(12, max(1, len(text)))
    logprobs = tuple(-0.1 * (position + 1) for position in range(size))
    return Sample(role, "shared", text, (1, 2, 3), tuple(range(4, 4 + size)), logprobs, "stop", version)


def decision(depth: int, texts: list[str], child: Node | None, step: int) -> Node:
    """One role's answers, of which the best goes on."""
    role = ROLES[depth % 2]
    best = len(texts) - 1
    branches = tuple(
        Branch(
            {role: index},
            Reward(float(index == best), {role: -0.1 * index}, {"goal": float(index == best)}),
            over=child is None,
            success=child is None and index == best and step % 2 == 1,
            selected=index == best,
            child=child if index == best else None,
            drawing=GRID,
        )
        for index in range(len(texts))
    )
    recorded = Observation(role, (Message("user", f"Decide, turn {depth // 2}. The way is {texts[0][:40]}"),))
    samples = {role: tuple(sample(role, text, step) for text in texts)}
    return Node(depth // 2, {role: recorded}, samples, branches, drawing=GRID)


def tree(step: int, depth: int, siblings: int, words: random.Random, text: tuple[str, ...] = ()) -> Tree:
    child: Node | None = None
    for level in reversed(range(depth)):
        texts = list(text) or [f"moves {words.choice('UDLR')}{words.randrange(10**6)} go on" for _ in range(siblings)]
        child = decision(level, texts, child, step)
    assert child is not None
    return Tree(Task(f"train-{step * 7 % 1000}", {"grid": ["S.#", "..G"]}), child)


def begin(folder: Path, steps: int, seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    config = parse(
        {
            "env": "plan-path",
            "team": {"policies": {"shared": "seed"}, "roles": dict.fromkeys(ROLES, "shared")},
            "algorithm": {"name": "at_grpo", "k": 4},
            "train": {"steps": steps, "seed": seed},
        }
    )
    (folder / "config.yaml").write_text(dump(config))
    (folder / "vocabulary.jsonl").write_text(
        json.dumps({"policy": "shared", "tokens": {str(i): chr(96 + i) for i in range(1, 17)}}) + "\n"
    )
    return folder


def step_of(folder: Path, step: int, tree: Tree) -> None:
    """Write all that a step leaves: its tree, what is said of it, what was left out, and last its metrics."""
    append_tree(folder, KeptTree(step, 0, tree))
    positions = [
        (number, role, index, len(sample.token_ids)) for number, _, role, index, sample in iterate_samples(tree)
    ]
    named = [{"node": node, "role": role, "index": index} for node, role, index, _ in positions]
    credit = [
        {
            **position,
            "return": position["index"] * 0.5,
            "penalty": 0.0,
            "advantage": position["index"] - 1.5,
            "weight": 1.0,
        }
        for position in named
    ]
    tokens = [
        {**position, "logprobs": [-0.2] * size, "entropy": [0.5] * size}
        for position, (*_, size) in zip(named, positions, strict=True)
    ]
    critic = [{**position, "values": [0.25], "return": 0.5} for position in named]
    write_annotations(folder, step, {"credit": {0: credit}, "tokens": {0: tokens}, "critic": {0: critic}})
    group = {"role": "tool", "decision": 0, "samples": 4, "return": 0.5}
    message = {"kind": "no spread", "task": tree.task.id, "tree": 0, "reason": "1 of 2 groups", "groups": [group]}
    jsonl.append(folder / LEFT_OUT, {"step": step, **message})
    failed = {"kind": "failed", "task": "train-9", "reason": "raised: ValueError: no goal", "error": "Traceback ..."}
    jsonl.append(folder / LEFT_OUT, {"step": step, **failed})
    jsonl.append(folder / "metrics.jsonl", {"step": step, **metrics(step)})


def metrics(step: int) -> dict[str, float]:
    rise = step / (step + 20)
    by_role = {
        f"{role}/{name}": value * rise
        for role in ROLES
        for name, value in (("reward", 2.0), ("tokens", 40), ("zero_variance_groups", 1.0), ("gradient_fraction", 0.5))
    }
    return {
        "rollout/success": rise,
        "rollout/tokens": 900,
        "shared/entropy": 1 - rise,
        "shared/kl_to_sampler": 0.001 * rise,
        "parts/goal": rise,
        "time/sample_s": 1.5,
        **by_role,
    }


def synthetic(folder: Path, steps: int, decisions: int, siblings: int = 4, seed: int = 0) -> Path:
    """A run of `steps` steps with one tree of so many decisions each."""
    begin(folder, steps, seed)
    words = random.Random(seed)
    for step in range(steps):
        step_of(folder, step, tree(step, decisions, siblings, words))
    return folder


def hostile(folder: Path) -> Path:
    """A run whose models and tasks say what would do harm."""
    begin(folder, 1)
    created = tree(0, 2, 0, random.Random(0), HOSTILE)
    step_of(folder, 0, Tree(Task(HOSTILE[0], {"grid": [HOSTILE[1]]}), created.root))
    return folder
