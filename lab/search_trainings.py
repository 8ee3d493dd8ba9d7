"""A searcher and a writer who learn: a tiny model that now and then does what is needed, trained on whole episodes.

    python -m lab.search_trainings make FOLDER
    python -m lab.search_trainings train FOLDER [--seeds 0 1 2] [--write]

make   a tiny model, pre-trained on compact prompts of training tasks (a library of four people, questions of one fact):
       half of them of both roles, half of one agent that searches and answers in one conversation. In a third of its
       answers it does what is needed; else it opens a passage at random or ends the search, and leaves out the second
       word of the name
train  the recipe `search`: two policies that begin as that model, GRPO over whole episodes; success on held-out
       questions before and after. `--write` appends `worlds.search.base.success` and `worlds.search.success` to
       results/worlds.jsonl

Whether two roles are better than one agent is asked by `python -m lab.proofs context`.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from cadre.config.recipes import read_recipe
from cadre_tasks.worlds.search import Search, SearchSingleAgent
from lab.taught import record_success, teach, train_success, training_parser

TASKS = 200
NEEDED = 1 / 3


def needed(env: Search) -> str:
    """Return the command that is needed next, or the right answer."""
    (number,) = env.needed
    if not env.inquiring:
        return f"Answer: {env.right} [{number}]"
    if number in env.read:
        return "Open: 0"
    return f"Open: {number}" if f"[{number}]" in "\n".join(env.log) else f"Search: {env.chain[0]}"


def mixed(env: Search, draw: random.Random) -> str:
    """Return what is needed in a third of the cases, else something of the same form."""
    if draw.random() < NEEDED:
        return needed(env)
    if not env.inquiring:
        return f"Answer: {env.right.split()[0]} [{env.needed[0]}]"
    return f"Open: {draw.choice((0, draw.randint(1, len(env.passages))))}"


def examples(count: int, form: type[Search] = Search) -> list[dict[str, Any]]:
    """Return prompts and answers of episodes of the training split, and of one agent what was said `before`."""
    draw, lines = random.Random("search"), list[dict[str, Any]]()
    settings = read_recipe("search")["settings"]
    tasks = Search.tasks("train", **settings)

    async def play(env: Search) -> None:
        while observed := env.observe():
            ((role, observation),) = observed.items()
            # A writer who was not shown the passage has no right answer.
            if env.inquiring or env.needed[0] in env.read:
                *history, (_, prompt) = [(message.role, message.content) for message in observation.messages]
                lines.append({"role": role, "before": history, "prompt": prompt, "answer": mixed(env, draw)})
            # What is needed is done more often than it is written, so that later prompts are read too.
            await env.step({role: needed(env) if draw.random() < 0.5 else mixed(env, draw)})

    game = 0
    while len(lines) < count:
        asyncio.run(play(form(tasks[game], **settings)))
        game += 1
    return lines


def make(folder: Path, count: int, steps: int) -> None:
    """Write a model that was taught both roles and, as often, one agent."""
    lines = [*examples(count // 2, Search), *examples(count // 2, SearchSingleAgent)]
    teach(lines, folder, steps, vocabulary=800, spread=0.08)


def train(model: Path, seed: int, steps: int) -> list[float]:
    """Return the success on held-out questions, before and during the training."""
    experiment = read_recipe("search")
    experiment["team"]["policies"] = dict.fromkeys(experiment["team"]["policies"], str(model))
    experiment["train"] |= {"steps": steps}
    experiment["evaluate"]["tasks"] = TASKS
    return train_success(experiment, seed)


def main() -> None:
    parser = training_parser(__doc__, ["make", "train"], "models/search")
    parser.add_argument("--examples", type=int, default=8000, help="for make")
    parser.add_argument("--make-steps", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    if options.part == "make":
        make(options.folder, options.examples, options.make_steps)
        return
    results = [train(options.folder, seed, options.steps) for seed in options.seeds]
    if options.write:
        record_success("worlds", "worlds.search.base", "worlds.search", results, TASKS, options.seeds)


if __name__ == "__main__":
    main()
