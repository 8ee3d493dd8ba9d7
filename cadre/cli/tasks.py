"""Commands for authors of tasks: check, init."""

from __future__ import annotations

import keyword
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import cadre
from cadre.cli.terminal import (
    AsJson,
    console,
    print_error,
    print_lines,
    reject_beside,
    reject_without,
    require_new,
    visible,
)
from cadre.concurrency import run_coroutine
from cadre.config.experiment import parse
from cadre.config.recipes import read_recipe
from cadre.envs.check import ExaminedByOwnRules, examine, tasks_by_process
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.files import publish_atomically, to_json
from cadre.plugins import program_sandbox
from cadre.settings import PolicyConfig
from cadre.settings.yaml_file import apply_overrides, parse_settings
from cadre.types import media_of

# ---- cadre check

# Lines of a first prompt that are shown at its beginning, and as many at its end, where a task's own text is.
PROMPT_LINES = 12
AGREEMENT = "agreement {agreement:.0%} ({low:.0%} to {high:.0%}): {right} of {pairs} pairs in order, {tied} tied"


def check(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="FILE.py:Env, a bundled environment, RECIPE.yaml, or sandbox")],
    settings: Annotated[list[str] | None, typer.Argument(help="turns=2, or of a recipe settings.turns=2")] = None,
    step_seconds: Annotated[float, typer.Option(min=0.001, help="limit of one call of the environment")] = 30.0,
    model: Annotated[
        str, typer.Option(help="model whose template writes the prompts: seed, a folder, a name")
    ] = "seed",
    exploit: Annotated[
        float | None, typer.Option(min=0.001, metavar="MINUTES", help="search for rewards without success, for so long")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="compare the reward of the recipe TARGET with labelled answers")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Test an environment against the contract, or show what the sandbox confines on this machine."""
    if target == "sandbox":
        reject_beside(context, "sandbox", ["settings", "step_seconds", "model", "exploit", "labels", "as_json"])
        sandbox = program_sandbox()
        if sandbox is None:
            raise ConfigError("check sandbox: no installed package brings one; expected one. Install cadre-rl anew.")
        table = Table("what", "here", "detail")
        for row in sandbox.table():
            table.add_row(row.name, "yes" if row.given else "no", row.detail)
        console.print(table)
        return
    if labels is not None:
        reject_beside(context, "--labels", ["step_seconds", "model", "exploit"])
        agreement = cadre.label_agreement(target, labels, settings or [])
        print_lines([to_json(agreement) if as_json else AGREEMENT.format(**agreement)])
        return
    if target.endswith((".yaml", ".yml")):
        recipe = parse(apply_overrides({"team": "seed", **read_recipe(target)}, settings or []))
        target, env_settings = recipe.env, recipe.settings
    else:
        env_settings = parse_settings(settings or [])
    if exploit is not None:
        reject_beside(context, "--exploit", ["step_seconds", "model"])
        found = cadre.find_exploits(target, exploit, env_settings, report=sys.stderr.write)
        print_lines([to_json(asdict(found))] if as_json else map(visible, found.lines()))
        raise typer.Exit(int(found.is_exploitable))
    reject_without(context, "--exploit or --labels", ["as_json"])
    env_spec = EnvSpec(target, env_settings)
    declared = env_spec.declared
    from cadre.config.estimate import render_first_prompts
    from cadre.config.resolve import find_model

    source = find_model("--model", PolicyConfig(model=model))
    if isinstance(declared, ExaminedByOwnRules):
        reject_beside(context, f"{target}, whose settings have limits", ["step_seconds"])
        report = run_coroutine(declared.examine(env_spec))
    else:
        report = run_coroutine(examine(env_spec, step_seconds=step_seconds))
        if not report.broken and (fault := tasks_by_process(target, env_settings)):
            report = replace(report, broken=(fault,))

    # The first prompts as the model reads them; the embedded model reads no images.
    has_images = model == "seed" and any(map(media_of, report.prompts.values()))
    if has_images:
        console.print("note: the prompts hold pictures or sounds; --model names a model that reads them, to show them")
    shown = {} if has_images else report.prompts
    prompts, faults = render_first_prompts(shown, source, model, report.tools)
    for fault in (*report.broken, *faults):
        print_error(fault)
    called = [f"ok  tools that were called: {', '.join(report.called)}"] if report.called else []
    print_lines([*(f"ok  {rule}" for rule in report.passed), *called, *(f"note: {note}" for note in report.notes)])
    if len(prompts) > 1:
        print_lines(["If a prompt below quotes another role, that text was made up by the check."])
    reader = "the embedded model" if model == "seed" else model
    for role, prompt in prompts.items():
        console.print(f"First prompt of {role} as {reader} reads it ({prompt.tokens:,} tokens):", highlight=False)
        lines = prompt.text.rstrip("\n").split("\n")
        if left_out := lines[PROMPT_LINES:-PROMPT_LINES]:
            lines = [*lines[:PROMPT_LINES], f"({len(left_out)} more lines)", *lines[-PROMPT_LINES:]]
        print_lines(f"    {visible(line)}" for line in lines)
    if report.broken or faults:
        raise typer.Exit(2)


# ---- cadre init

# Names that mean something in the files below, or hide a module that they import.
RESERVED_NAMES = {"Env", "Message", "Observation", "Reward", "Task", "cadre", *sys.stdlib_module_names}
TASK = '''\
"""{title}: a lookout sees a light and raises a flag; the pilot sees only the flag. Change observations and rewards."""

from cadre import Env, Message, Observation, Reward, Task

FLAGS = {{"Red": "Left", "Green": "Right"}}
ORDERS = {{"Red": "Pass", "Green": "Bet"}}  # words of the embedded model `games`, which knows few


class {title}(Env):
    roles = ("lookout", "pilot")

    def __init__(self, task: Task) -> None:  # one instance per episode
        super().__init__(task)
        self.light = task.data["light"]
        self.flag: str | None = None
        self.order: str | None = None

    @classmethod
    def tasks(cls, split: str) -> list[Task]:  # train and test share no task
        numbers = [n for n in range(200) if (n % 5 == 0) == (split == "test")]
        return [Task(f"ship-{{n}}", {{"ship": n, "light": "Green" if n % 2 else "Red"}}) for n in numbers]

    def observe(self) -> dict[str, Observation]:  # the prompt of each role that acts now; {{}} ends the episode
        if self.flag is None:
            text = f"light {{self.light}}\\nmoves: Left Right"
            return {{"lookout": Observation("lookout", (Message("user", text),))}}
        if self.order is None:
            text = f"flag {{self.flag}}\\nmoves: Pass Bet"
            return {{"pilot": Observation("pilot", (Message("user", text),))}}
        return {{}}

    async def step(self, actions: dict[str, str]) -> Reward:  # receives the completions of the roles that acted
        if "lookout" in actions:
            self.flag = actions["lookout"].strip()[:20]
            return Reward(local={{"lookout": float(self.flag == FLAGS[self.light])}})
        self.order = actions["pilot"].strip()
        return Reward(team=float(self.success))

    @property
    def success(self) -> bool:  # reported, not trained on
        return self.order == ORDERS[self.light]
'''
RECIPE = """\
env: {name}.py:{title}
team:
  policies: {{first: games, second: games}}   # embedded models; or causal language models of transformers
  roles: {{lookout: first, pilot: second}}
algorithm: {{name: at_grpo, k: 8}}            # 8 completions per prompt, compared with each other
sampling: {{max_tokens: 4}}
learner: {{learning_rate: 1.0e-3}}
train: {{steps: 60, tasks_per_step: 8}}
evaluate: {{tasks: 40}}
"""
TEST = '''\
"""The task keeps the contract and rewards the right order."""

import asyncio

from {name} import {title}

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec


def test_the_contract_holds() -> None:
    assert asyncio.run(check_env(EnvSpec("{name}.py:{title}", {{}})))


def test_a_right_order_is_rewarded() -> None:
    env = {title}({title}.tasks("test")[0])  # its light is red
    assert asyncio.run(env.step({{"lookout": "Left"}})).local == {{"lookout": 1.0}}
    assert asyncio.run(env.step({{"pilot": "Pass"}})).team == 1.0
    assert env.success
'''


def init(name: Annotated[str, typer.Argument(help="name of the task, such as parity: letters, digits and _")]) -> None:
    """Write a task to begin with: NAME.py, NAME.yaml and test_NAME.py."""
    if not (name.isidentifier() and name.islower()):
        raise ConfigError(f"init: got {name!r}; expected a name in small letters, digits and _, such as my_task.")
    title = "".join(part.capitalize() for part in name.split("_"))
    if {name, title} & RESERVED_NAMES or keyword.iskeyword(name) or keyword.iskeyword(title):
        got = f"got {name!r}, which has a meaning in Python or in the file itself"
        raise ConfigError(f"init: {got}; expected another name, such as my_{name}.")
    files = {f"{name}.py": TASK, f"{name}.yaml": RECIPE, f"test_{name}.py": TEST}
    outs = [Path(file) for file in files]
    require_new(outs, "init")
    with publish_atomically(*outs) as built:
        for path, text in zip(built, files.values(), strict=True):
            path.write_text(text.format(name=name, title=title), encoding="utf-8")
    check, test = f"cadre check {name}.py:{title}", f"pytest test_{name}.py  (pip install pytest, if it is missing)"
    print_lines([f"Wrote {', '.join(files)}. Next:", f"  {check}", f"  {test}", f"  cadre train {name}.yaml"])
