"""A searcher and a writer who learn: a tiny model that now and then does what is needed, trained on whole episodes.

    python -m lab.search_trainings make FOLDER [--alone]
    python -m lab.search_trainings train FOLDER [--alone] [--seeds 0 1 2] [--write]

make   a tiny model, pre-trained on compact prompts of both roles in training tasks (a library of four people, questions
       of one fact). In a third of its answers it does what is needed; else its searcher opens a passage at random or
       ends the search, and its writer leaves out the second word of the name
train  the recipe `search`: two policies that begin as that model, GRPO over whole episodes; success on held-out
       questions before and after

With `--alone` one agent searches and answers in one conversation, as many episodes. `--write` appends
`worlds.search.base.success` and `worlds.search.success`, or `worlds.search.alone.base.success` and
`worlds.search.alone.success`, to results/worlds.jsonl.
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


def train(model: Path, seed: int, steps: int, is_alone: bool) -> list[float]:
    """Return the success on held-out questions, before and during the training."""
    experiment = read_recipe("search")
    if is_alone:
        experiment |= {
            "env": "search-single-agent",
            "team": {"policies": {"one": str(model)}, "roles": {"agent": "one"}},
        }
    else:
        experiment["team"]["policies"] = dict.fromkeys(experiment["team"]["policies"], str(model))
    experiment["train"] |= {"steps": steps}
    experiment["evaluate"]["tasks"] = TASKS
    return train_success(experiment, seed)


def main() -> None:
    parser = training_parser(__doc__, ["make", "train"], "models/search")
    parser.add_argument("--alone", action="store_true", help="one agent in place of two")
    parser.add_argument("--examples", type=int, default=8000, help="for make")
    parser.add_argument("--make-steps", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    if options.part == "make":
        form = SearchSingleAgent if options.alone else Search
        teach(examples(options.examples, form), options.folder, options.make_steps, vocabulary=800, spread=0.08)
        return
    results = [train(options.folder, seed, options.steps, options.alone) for seed in options.seeds]
    if options.write:
        name = "worlds.search.alone" if options.alone else "worlds.search"
        record_success("worlds", f"{name}.base", name, results, TASKS, options.seeds)


if __name__ == "__main__":
    main()
