"""A model that learns on a CPU to mend repositories with mini-swe-agent, alone or after a planner.

    python -m venv mini && mini/bin/pip install mini-swe-agent
    python examples/harnesses/small_model.py FOLDER --python mini/bin/python
    cadre train FOLDER/small_model.yaml

The folder gets tasks, a model that was taught conversations of mini-swe-agent with a script that mostly fails, and a
recipe, FOLDER/small_model.yaml. The tasks are the easiest of `repair`: in a small package one operator, index or call
is wrong. The script reads the files, replaces what may be such a bug (mostly the first that it sees), runs the test,
and ends at random whatever the test printed. With --planner a second role names the first edit, having read the files,
and each role learns by an adapter of its own on the model.

train.jsonl     the tasks of the conversations
easy.jsonl      of these it learns by reward: at most seven texts may be wrong
test.jsonl      as easy, packages with other names and calls, drawn by other seeds; the bugs are those of training
new_bugs.jsonl  as easy, with bugs that no other task has
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from make_tasks import HERE, write_tasks

from cadre import random_keys
from cadre.types import Task
from cadre_programs.program import Program
from cadre_programs.settings import InstanceLimits
from cadre_tasks.models.make_seed import batches_of, byte_level, encode, pretrain, tiny_llama
from cadre_tasks.models.transcripts import Transcript
from cadre_tasks.worlds.repair_repositories import PACKAGES, RULES, draw_repository

FILES = ("mini_swe_agent.py", "planned.py", "repository.py", "judge.py", "short_prompts.yaml")
SPLITS = {"train": 300, "easy": 120, "test": 40, "new_bugs": 16}
MOST_EDITS = 7  # of an easy repository
TEST_PACKAGES = PACKAGES[::3]
LOOK, END = "cat */*.py", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
UNDO, FILES_AND_TEST = "git checkout -q .; ", " */*.py; python -m unittest -q 2>&1 | tail -1"
# How often the script makes the right edit, the first that it sees, or any; how often it ends after a test, and how
# often it takes its edits back before another.
CHANCES, END_CHANCE, UNDO_CHANCE = (0.3, 0.5, 0.2), 0.35, 0.7
AT_ONCE = 8  # conversations
# A word is one token wherever it stands, so that copying it is one look; what every command has is one token too.
PIECES = r"```\w+\n|\n```|git checkout.+?; |sed -i 's/|/' .+|\w+ ?|\s+|[<>+\-]=? ?|[^\w\s] ?"
VOCABULARY, CONTEXT = 600, 1024
RECIPE = """env: program
settings:
  run: mini_swe_agent.py:main
  reward: judge.py:verdict
  roles: [coder]
  tasks: easy.jsonl
  test: test.jsonl
  python: {python}
  environment: {{SSL_CERT_DIR: /nonexistent, MSWEA_MINI_CONFIG_PATH: {folder}/short_prompts.yaml}}
  limits: {{seconds: 120, calls: 30}}
  errors: 0  # whoever writes too much has not solved it
team:
  policies: {{coder: {folder}/model}}
  roles: {{coder: coder}}
algorithm: {{name: grpo, k: 8}}
sampling: {{max_tokens: 40}}
learner: {{learning_rate: 3.0e-4, minibatches: 4}}
train: {{steps: 20, tasks_per_step: 4}}
evaluate: {{tasks: 40}}
"""


def find_edits(files: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the texts of a package that may be a bug by a rule, with the words beside them, and what to write, in
    the order of the text."""
    code = "".join(files[path] for path in sorted(files) if re.fullmatch(r"\w+/\w+\.py", path))
    found = [
        (match.start(), match[0], match[0].replace(wrong, right, 1))
        for _, right, wrong in RULES
        if wrong
        for match in re.finditer(rf"\w*{re.escape(wrong)}\w*", code)
    ]
    return list(dict.fromkeys((old, new) for _, old, new in sorted(found)))


def draw_repositories(split: str) -> Iterator[dict[str, Any]]:
    """Yield the repositories of a split."""
    draw, count = random_keys.generator("small model", split), SPLITS[split]
    while count:
        data = draw_repository(draw)
        edits = data and find_right_edits(data["files"], data["fixed"])
        # One right edit in seven is that of a new bug. Where something was left out, no edit is right.
        if not edits or (random_keys.key("small model", *edits[0]) % 7 == 0) != (split == "new_bugs"):
            continue
        is_easy = len(find_edits(data["files"])) <= MOST_EDITS
        if (data["package"] in TEST_PACKAGES) == (split in ("test", "new_bugs")) and (is_easy or split == "train"):
            count -= 1
            yield data


def find_right_edits(files: Mapping[str, str], fixed: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the edits that give the right files."""
    right = {**files, **fixed}
    return [e for e in find_edits(files) if {path: substitute(text, *e) for path, text in files.items()} == right]


def substitute(text: str, old: str, new: str) -> str:
    """Return the text after the script's sed, which replaces the first occurrence in each line."""
    return "\n".join(line.replace(old, new, 1) for line in text.split("\n"))


def expression(old: str, new: str) -> str:
    """Return the script's sed for an edit."""
    return "sed -i 's/{}/{}/'".format(*(text.replace("[", r"\[") for text in (old, new)))


def script(
    edits: Sequence[tuple[str, str]], right: Sequence[tuple[str, str]], draw: random.Random, is_planned: bool
) -> Iterator[str]:
    """Yield what the script answers, the planner's plan first if there is one: the coder tries it before it looks."""

    def drawn() -> str:
        (kind,) = draw.choices((right, edits[:1], edits), CHANCES)
        return expression(*draw.choice(kind))

    if is_planned:
        plan = drawn()
        yield plan
        yield as_command(f"{plan}{FILES_AND_TEST}")
        if draw.random() < END_CHANCE:
            yield as_command(END)
    yield as_command(LOOK)
    has_tried = is_planned
    while True:
        undo = UNDO if has_tried and draw.random() < UNDO_CHANCE else ""
        yield as_command(f"{undo}{drawn()}{FILES_AND_TEST}")
        has_tried = True
        if draw.random() < END_CHANCE:
            yield as_command(END)


def as_command(command: str) -> str:
    return f"```mswea_bash_command\n{command}\n```"


async def play(
    task: Task, fixed: Mapping[str, str], settings: Mapping[str, Any], draw: random.Random
) -> tuple[list[Transcript], bool]:
    """Return each role's conversation with the script, and whether the task was solved."""
    edits, talks, env = find_edits(task.data["files"]), dict[str, Transcript](), Program(task, **settings)
    answers = script(edits, find_right_edits(task.data["files"], fixed), draw, "planner" in settings["roles"])
    try:
        await env.until_ready()
        while observations := env.observe():
            ((role, observation),), answer = observations.items(), next(answers)
            talks[role] = [(message.role, message.content) for message in observation.messages]
            talks[role].append(("assistant", answer))
            await env.step({role: answer})
        return [*talks.values()], env.success
    finally:
        env.close()


def write_experiment(folder: Path, python: str, is_planned: bool) -> None:
    """Write the harness, the tasks with their hidden calls, and the recipe."""
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(HERE / name, folder)
    first = 0
    for split, count in SPLITS.items():
        write_tasks(folder, draw_repositories(split), f"{split}.jsonl", first)
        first += count
    recipe = yaml.safe_load(RECIPE.format(folder=folder.absolute(), python=python))
    if is_planned:
        model, roles = str(folder.absolute() / "model"), ["planner", "coder"]
        recipe["settings"] |= {"run": "planned.py:main", "roles": roles}
        policies = {role: {"model": model, "lora": {"rank": 16, "alpha": 32}} for role in roles}
        recipe["team"] = {"policies": policies, "roles": {role: role for role in roles}}
        recipe["learner"]["learning_rate"] = 1e-3  # of adapters
    (folder / "small_model.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))


async def converse(folder: Path, count: int) -> dict[str, list[Transcript]]:
    """Return all conversations of the script with mini-swe-agent, and those on easy repositories; print how many
    episodes solved their task."""
    settings = yaml.safe_load((folder / "small_model.yaml").read_text())["settings"]
    tasks = Program.tasks("train", tasks=str(folder / "train.jsonl"), test=str(folder / "test.jsonl"))
    del settings["tasks"], settings["test"]
    settings |= {name: str(folder / settings[name]) for name in ("run", "reward")}
    settings["limits"] = InstanceLimits(**settings["limits"])
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> tuple[list[Transcript], bool]:
        async with turns:
            task = tasks[number % len(tasks)]
            hidden = json.loads((folder / "hidden" / f"{task.data['name']}.json").read_text())
            return await play(task, hidden["fixed"], settings, random.Random(number))

    played = await asyncio.gather(*map(one, range(count)))
    print(f"{sum(success for _, success in played)} of {count} episodes solved their task", flush=True)
    easy = [len(find_edits(tasks[number % len(tasks)].data["files"])) <= MOST_EDITS for number in range(count)]
    return {
        "all": [talk for talks, _ in played for talk in talks],
        "easy": [talk for (talks, _), is_easy in zip(played, easy, strict=True) if is_easy for talk in talks],
    }


def teach(talks: Mapping[str, list[Transcript]], folder: Path, steps: int) -> None:
    """Write a Llama of a quarter of a million parameters, with a tokenizer of its own, that was taught what the script
    said in all conversations, and then in those on easy repositories. Equal ones give equal weights on one machine."""
    torch.manual_seed(0)
    tokenizer = byte_level(PIECES, (text for talk in talks["all"] for _, text in talk), VOCABULARY)
    # Of this spread attention looks somewhere from the start, as in lab/taught.py.
    model = tiny_llama(tokenizer, len(tokenizer), hidden=64, mlp=176, layers=4, context=CONTEXT, spread=0.08)
    stages = ((talks["all"], steps, 3e-3), (talks["easy"] or talks["all"], steps * 5 // 7, 1e-3))
    for seed, (stage, stage_steps, rate) in enumerate(stages):
        rows = [encode(talk, tokenizer) for talk in stage]
        pretrain(model, batches_of(rows, 16, random.Random(seed)), stage_steps, rate)
    for part in (model, tokenizer):
        part.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what it has already is kept, but for the model")
    parser.add_argument("--python", required=True, help="of an environment with mini-swe-agent")
    parser.add_argument("--planner", action="store_true", help="a planner, and an adapter for each role")
    parser.add_argument("--conversations", type=int, default=500, help="episodes of the script")
    parser.add_argument("--steps", type=int, default=700, help="of teaching")
    options = parser.parse_args()
    conversations = options.folder / "conversations.json"
    if not options.folder.exists():
        write_experiment(options.folder, options.python, options.planner)
    if not conversations.exists():
        conversations.write_text(json.dumps(asyncio.run(converse(options.folder, options.conversations))))
    teach(json.loads(conversations.read_text()), options.folder / "model", options.steps)


if __name__ == "__main__":
    main()
