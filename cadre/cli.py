"""The command line. It parses, calls, prints; errors that are the user's to fix are one paragraph, no traceback."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cadre import assemble, checkpoint, config, run, walk
from cadre.envs import ENVS
from cadre.errors import CadreError, ConfigError, RunError
from cadre.types import Tree

app = typer.Typer(help="Train teams of LLM agents with reinforcement learning.", no_args_is_help=True)
console = Console(soft_wrap=True)

RunFolder = Annotated[Path, typer.Argument(help="the folder of a run")]
Overrides = Annotated[list[str] | None, typer.Argument(help="changes, such as train.steps=20 algorithm.k=8")]


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="a bundled recipe or a YAML file (see: cadre list)")],
    overrides: Overrides = None,
    folder: Annotated[Path | None, typer.Option("--run", help="where to write; default runs/RECIPE-NNN")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --run")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="build all but the weights; say what it takes")] = False,
) -> None:
    """Train a team."""
    if dry_run:
        _dry_run(recipe, overrides or [])
        return
    if resume:
        here = _resumed(recipe, overrides or [], folder)
    else:
        chosen = config.load(recipe, overrides or [])
        assemble.check(chosen)
        here = run.Run.create(folder or run.new_folder(recipe), chosen)
    _train(here, resume)


def _dry_run(recipe: str, overrides: list[str]) -> None:
    from cadre import dry_run

    chosen = config.load(recipe, overrides)
    for line in dry_run.lines(chosen, dry_run.look(chosen)):
        console.print(line, markup=False, highlight=False)


def _resumed(recipe: str, overrides: list[str], folder: Path | None) -> run.Run:
    if folder is None:
        raise ConfigError("--resume: got no --run; expected the folder to go on with. Add --run DIR.")
    for pair in overrides:
        if not pair.startswith(("train.steps=", "train.checkpoint_every=", "evaluate.")):
            raise ConfigError(
                f"--resume: got {pair!r}, which would change what the run so far was made with; expected none, or "
                "train.steps, train.checkpoint_every, evaluate.*. Start a new run for anything else."
            )
    here = run.Run.open(folder, overrides)
    given, own = config.load(recipe), run.Run.open(folder).config
    if given.env != own.env or given.team.roles != own.team.roles:
        raise ConfigError(
            f"--resume: {recipe} is {given.env} with roles {', '.join(given.team.roles)}, but {folder} was made for "
            f"{own.env} with {', '.join(own.team.roles)}; expected the same. Name {folder}/config.yaml instead."
        )
    return here


def _train(here: run.Run, resume: bool) -> None:
    game, plan = assemble.check(here.config)
    from cadre import sandbox
    from cadre.progress import Progress
    from cadre.train import train as loop

    sandbox.configure(here.config.sandbox.level, cgroup=here.config.sandbox.cgroup)
    console.print(f"run {here.folder}  ({plan.shape.name}, {len(here.config.team.policies)} policies)", highlight=False)
    team = assemble.build_team(here.config, plan, diverged=here.folder / "diverged")
    here.record_environment(sandbox.record())
    start = checkpoint.State()
    if resume:
        start = checkpoint.load(checkpoint.latest(here.folder / "checkpoints"), team)
        here.rewind(start.step)
    goal, spent = here.config.train, here.total("rollout/tokens")
    with Progress(console, goal.steps, start.step, goal.max_tokens, spent) as progress:
        done = asyncio.run(loop(here.config, here, game, plan, team, progress, start))
    here.close()
    _after(here, done)


def _after(here: run.Run, done: int) -> None:
    """What came of it, and what to try next."""
    if done < here.config.train.steps and not 0 < here.config.train.max_tokens <= here.total("rollout/tokens"):
        console.print(
            f"Stopped after {done} of {here.config.train.steps} steps; saved. Go on with:\n"
            f"  cadre train {here.folder}/config.yaml --run {here.folder} --resume",
            highlight=False,
        )
        return
    reports = here.evaluations()
    if len(reports) > 1:
        first, last = reports[0], reports[-1]
        console.print(
            f"success on {last['tasks']} held-out tasks: {first['success']:.1%} before, {last['success']:.1%} after",
            highlight=False,
        )
    console.print(
        f"The run is in {here.folder}. Next:\n"
        f"  cadre play {here.folder}              one episode, to read\n"
        f"  cadre eval {here.folder} --tasks 500  more held-out tasks\n"
        f"  tensorboard --logdir {here.folder}    the curves",
        highlight=False,
    )


@app.command(name="eval")
def evaluate(
    folder: RunFolder,
    tasks: Annotated[int, typer.Option(min=1, help="how many of the test split")] = 200,
    first: Annotated[int, typer.Option(min=0, help="from this task on")] = 0,
    whole: Annotated[bool, typer.Option("--all", help="the whole test split, in place of --tasks")] = False,
    samples: Annotated[int, typer.Option(min=1, help="episodes a task, for pass@k and avg@k")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="of the samples; 0 is greedy")] = 0.0,
    ks: Annotated[list[int] | None, typer.Option("--k", help="the k of pass@k; default powers of two")] = None,
    seed: Annotated[int, typer.Option(help="names the random draws of the samples")] = 0,
    assign: Annotated[str, typer.Option(help="other policies for roles, such as tool=planner,planner=tool")] = "",
    base: Annotated[bool, typer.Option("--base", help="the models as they were before training")] = False,
    untrained: Annotated[str, typer.Option(help="roles, by comma, that play as before training")] = "",
    episodes: Annotated[Path | None, typer.Option(help="a new file for all that was seen and said, JSON lines")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Play held-out tasks: greedily with one sample a decision, or several times at a temperature."""
    from cadre import evaluate as evaluation

    here = run.Run.open(folder)
    evaluation.check_sampling(samples, temperature, ks or [])
    if episodes is not None:
        if episodes.exists():
            raise ConfigError(f"--episodes: {episodes} is there already and is not overwritten. Name a new file.")
        episodes.parent.mkdir(parents=True, exist_ok=True)
    team, game = _loaded(here, assign, base)
    if untrained:
        team = assemble.beside_untrained(here.config, team, untrained)
    chosen = game.tasks("test")[first : None if whole else first + tasks]
    if temperature == 0.0:
        report, trees = asyncio.run(evaluation.evaluate(team.greedy(), game, chosen, seed))
        budget = {role: sampling.max_tokens for role, sampling in team.sampling.items()}
        figures = {**report.as_dict(), "temperature": 0.0, "max_tokens": budget}
    else:
        play_all = evaluation.evaluate_sampled(team, game, chosen, samples, temperature, ks or [], seed)
        sampled, trees = asyncio.run(play_all)
        figures = sampled.as_dict()
    if episodes is not None:
        episodes.write_text("".join(json.dumps(asdict(tree)) + "\n" for tree in trees))
    if as_json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, json.dumps(value))
    console.print(table)


@app.command()
def play(
    folder: RunFolder,
    task: Annotated[int, typer.Option(min=0, help="which task of the test split")] = 0,
    assign: Annotated[str, typer.Option(help="other policies for roles")] = "",
    base: Annotated[bool, typer.Option("--base", help="the models as they were before training")] = False,
) -> None:
    """Play one held-out episode and print what everybody saw and said."""
    from cadre.evaluate import evaluate as play_all

    here = run.Run.open(folder)
    team, game = _loaded(here, assign, base)
    _, trees = asyncio.run(play_all(team.greedy(), game, [game.tasks("test")[task]]))
    for tree in trees:
        _print_episode(tree)


def _loaded(here: run.Run, assign: str, base: bool) -> tuple[Any, assemble.Game]:
    """The team of a run with its latest weights."""
    game, plan = assemble.check(here.config)
    changes = assemble.assignment(here.config, assign)
    from cadre import sandbox

    sandbox.configure(here.config.sandbox.level, cgroup=here.config.sandbox.cgroup)
    team = assemble.build_team(here.config, plan)
    if not base:
        checkpoint.load(checkpoint.latest(here.folder / "checkpoints"), team)
    return team.assigned(changes), game


def _print_episode(tree: Tree) -> None:
    for node, branch in next(walk.episodes(tree.root)):
        for role, observation in node.observations.items():
            said = node.samples[role][branch.choice[role]]
            console.rule(f"{role} sees", align="left")
            console.print(observation.messages[-1].content, markup=False, highlight=False)
            console.rule(f"{role} ({said.policy}) says", align="left")
            console.print(said.text, markup=False, highlight=False)
        parts = "  ".join(f"{name} {value:+.2f}" for name, value in branch.reward.parts.items())
        console.print(f"reward: team {branch.reward.team:+.2f}  local {dict(branch.reward.local)}  ({parts})")
        if branch.over:
            console.print("success" if branch.success else "no success", style="bold")


@app.command()
def export(
    folder: RunFolder,
    policy: Annotated[str, typer.Argument(help="which policy of the run")],
    out: Annotated[Path, typer.Argument(help="the folder to write; must be new")],
    merge: Annotated[
        bool, typer.Option("--merge", help="add an adapter to its base and write the whole model")
    ] = False,
) -> None:
    """Write a trained policy as a Hugging Face or PEFT folder, for use without Cadre."""
    here = run.Run.open(folder)
    trained = [name for name, one in here.config.team.policies.items() if not one.frozen]
    if policy not in trained:
        raise ConfigError(
            f"export: got policy {policy!r}; expected one that {folder} trained: {', '.join(trained)}."
            f"{config.nearest(policy, trained)}"
        )
    if out.exists():
        raise RunError(f"export: {out} exists; expected a new folder, as nothing is ever overwritten. Name another.")
    team, _ = _loaded(here, "", False)
    for learner in team.learners:
        if policy in learner.policies:
            learner.export(policy, out, merge)
    console.print(f"wrote {policy} to {out}", highlight=False)


@app.command()
def check(
    target: Annotated[str, typer.Argument(help="FILE.py:Env, a bundled environment, or sandbox")],
    settings: Annotated[list[str] | None, typer.Argument(help="environment settings, such as turns=2")] = None,
) -> None:
    """Test an environment against the contract, or show what this machine's sandbox holds."""
    if target == "sandbox":
        from cadre import sandbox

        table = Table("what", "here", "detail")
        for row in sandbox.table():
            table.add_row(row.name, "yes" if row.given else "no", row.detail)
        console.print(table)
        return
    from cadre.check import check_env

    game = assemble.Game(target, config.settings_of(settings or []))
    for line in asyncio.run(check_env(game)):
        console.print(f"ok  {line}", highlight=False)


@app.command(name="preference-pairs")
def preference_pairs(
    recipe: Annotated[str, typer.Argument(help="a bundled recipe or a YAML file; its models are the untrained team")],
    out: Annotated[Path, typer.Option(help="the JSONL file to write; must be new")],
    overrides: Overrides = None,
    tasks: Annotated[int, typer.Option(min=1, help="how many of the training split")] = 100,
) -> None:
    """Sample siblings of the untrained team and write them as pairs, the better paid first; ties are left out."""
    chosen = config.load(recipe, overrides or [])
    game, plan = assemble.check(chosen)
    _must_be_new(out, "preference-pairs")
    from cadre import noise, reward_model, rollout, sandbox

    sandbox.configure(chosen.sandbox.level)
    team = assemble.build_team(chosen, plan)
    key, alpha = noise.key(chosen.train.seed, "pairs"), plan.credit.alpha
    trees, _ = asyncio.run(rollout.grow_many(game.tasks("train")[:tasks], game.make, team, plan.shape, alpha, key))
    pairs = reward_model.pairs_of(trees, plan.credit)
    out.write_text("".join(reward_model.line_of(pair) + "\n" for pair in pairs))
    console.print(f"wrote {len(pairs)} pairs of {len(trees)} tasks to {out}", highlight=False)


@app.command(name="reward-model")
def reward_model(
    pairs: Annotated[Path, typer.Argument(help='JSONL of {"prompt": ..., "chosen": ..., "rejected": ...}')],
    model: Annotated[str, typer.Option(help="seed, a checkpoint folder, or a hub name")],
    out: Annotated[Path, typer.Option(help="the folder to write; must be new")],
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps")] = 200,
    learning_rate: Annotated[float, typer.Option(min=1e-12, help="of AdamW, constant")] = 1e-5,
    seed: Annotated[int, typer.Option(help="of the head, the order of pairs and what is held out")] = 0,
    validate: Annotated[float, typer.Option(min=0.0, max=0.9, help="share of the prompts that is held out")] = 0.1,
    pairs_per_step: Annotated[int, typer.Option(min=1, help="pairs a step")] = 16,
) -> None:
    """Train a reward model on preference pairs (Bradley-Terry) and write it as a Hugging Face folder."""
    from cadre import reward_model as preferences

    read = preferences.read_pairs(pairs)
    _must_be_new(out, "reward-model")
    from cadre.engines.torch import reward

    settings = reward.Settings(steps, learning_rate, seed, validate, pairs_per_step)
    every = max(1, steps // 10)

    def tell(step: int, loss: float) -> None:
        if (step + 1) % every == 0:
            console.print(f"step {step + 1}/{steps}  loss {loss:.4f}", highlight=False)

    report = reward.train(read, model, out, settings, tell)
    if report.held_out:
        console.print(
            f"held-out accuracy on {report.held_out} pairs: {report.before:.1%} before, {report.after:.1%} after",
            highlight=False,
        )
    console.print(f"wrote {out}", highlight=False)


def _must_be_new(out: Path, command: str) -> None:
    if out.exists():
        raise RunError(f"{command}: {out} exists; expected a new path, as nothing is ever overwritten. Name another.")


@app.command()
def data(
    name: Annotated[str, typer.Argument(help="a data set, such as math500 or mbpp")],
    source: Annotated[str, typer.Option("--from", help="a folder of JSONL, or hub; default $CADRE_DATA")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Read a data set, check its counts, splits and leaks, and show three items. Exit code 1 where it is not sound."""
    from cadre.data import examine

    found = examine.examine(name, source)
    if as_json:
        sys.stdout.write(json.dumps(found.as_dict()) + "\n")
    else:
        for line in examine.lines(found):
            console.print(line, markup=False, highlight=False)
    raise typer.Exit(0 if found.sound else 1)


@app.command(name="list")
def list_all() -> None:
    """The bundled recipes and environments."""
    table = Table("recipe", "what it trains")
    for name, path in config.recipes().items():
        table.add_row(name, path.read_text().splitlines()[0].removeprefix("# "))
    console.print(table)
    console.print("environments: " + ", ".join(ENVS), highlight=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def bench(context: typer.Context) -> None:
    """Measure speed on this machine against other trainers; `cadre bench --help` lists the parts and options."""
    script = Path(__file__).parent.parent / "bench" / "speed.py"
    if not script.exists():
        raise RunError(
            f"bench: got no {script}; expected a checkout of the repository, as the benchmarks are not in the package. "
            "Clone it and install it with pip install -e ."
        )
    sys.exit(subprocess.run([sys.executable, str(script), *context.args], check=False).returncode)


def main() -> None:
    """Run the command line; `CadreError` is printed as one paragraph, exit code 2."""
    # Threads that spin for long while they wait make a step several times slower as soon as anything else wants a core;
    # those that sleep at once take twice as long to wake as a small product takes.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    try:
        app(standalone_mode=True)
    except CadreError as error:
        Console(stderr=True, soft_wrap=True).print(f"error: {error}", markup=False, highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
