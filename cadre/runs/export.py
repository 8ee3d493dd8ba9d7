"""What leaves a run folder: weights for other libraries, samples as a table, and a Markdown summary with plots."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from cadre.config.experiment import dump
from cadre.config.resolve import find_model
from cadre.engines.factory import TorchSpec
from cadre.errors import ConfigError, nearest, one_line
from cadre.files import publish_atomically, require_no_link
from cadre.plugins import install_command
from cadre.runs import jsonl
from cadre.runs.annotations import ANNOTATIONS
from cadre.runs.folder import Run
from cadre.runs.kept_trees import read_entries, read_tree
from cadre.runs.model_card import escape, format_model_card
from cadre.runs.records import AnnotationLine
from cadre.runs.resume import changed_bases
from cadre.runs.tree_format import encode, iterate_samples
from cadre.team import Weights
from cadre.training.checkpoint import LATEST, CheckpointChoice, read_state

log = logging.getLogger(__name__)
# Where transformers writes chat templates.
DEFAULT_TEMPLATE, NAMED_TEMPLATES = "chat_template.jinja", "additional_chat_templates"


# ---- Weights: `cadre export`


def export_policy(run: Run, policy: str, out: Path, merge: bool, choice: CheckpointChoice = LATEST) -> None:
    """Write the policy of a checkpoint of the run to `out`: a Hugging Face folder, or a PEFT folder for an adapter that
    is not to be merged into its base, with a model card.

    Nothing else of the run is read. Raises ConfigError if the run has not trained the policy.
    """
    trained = [name for name, settings in run.policies.items() if not settings.frozen]
    if policy not in trained:
        raise ConfigError(
            f"export: got policy {policy!r}; expected one that {run.folder} trained: {', '.join(trained)}. "
            f"Name one of them.{nearest(policy, trained)}"
        )
    saved = choice.find(run.folder)
    settings = run.policies[policy]
    model = find_model(policy, settings)
    if changed_bases(run, {policy: model}):
        log.warning("export: the model in %s has other weights than that which %s was begun with.", model, run.folder)
    engine = TorchSpec(model, {policy: settings}, run.train.seed).make()
    with closing(engine):
        asyncio.run(engine.load(Weights(policy, 0, saved / policy)))
        with publish_atomically(out) as (partial,):
            engine.work(engine.export, policy, partial, merge)
            _copy_templates(saved / policy, partial)
            is_adapter = settings.lora is not None and not merge
            card = format_model_card(run, policy, read_state(saved).step, is_adapter)
            (partial / "README.md").write_text(card, encoding="utf-8")


def _copy_templates(saved: Path, out: Path) -> None:
    """Write the chat templates of the checkpoint to the export: those of the model's folder may have changed since it
    was trained. Links are not followed, as the folder may be a stranger's."""
    if not (saved / DEFAULT_TEMPLATE).is_file() or (saved / DEFAULT_TEMPLATE).is_symlink():
        return
    shutil.copyfile(saved / DEFAULT_TEMPLATE, out / DEFAULT_TEMPLATE)
    shutil.rmtree(out / NAMED_TEMPLATES, ignore_errors=True)
    for template in [] if (saved / NAMED_TEMPLATES).is_symlink() else sorted((saved / NAMED_TEMPLATES).glob("*.jinja")):
        if template.is_file() and not template.is_symlink():
            (out / NAMED_TEMPLATES).mkdir(exist_ok=True)
            shutil.copyfile(template, out / NAMED_TEMPLATES / template.name)


# ---- Samples as a table, for Parquet and `datasets`

Row = dict[str, Any]


def sample_rows(folder: Path) -> Iterator[Row]:
    """Yield every sample of every kept tree with its credit, in the order in which they were kept.

    Rewards are means over the branches that hold the sample; `selected` is True if the tree continues from one.
    """
    require_no_link(folder / ANNOTATIONS)
    credit: dict[tuple[int, int, int, str, int], Row] = {}
    for line in jsonl.records(folder / ANNOTATIONS / "credit.jsonl", AnnotationLine):
        for annotation in line["samples"]:
            position = (line["step"], line["tree"], annotation["node"], annotation["role"], annotation["index"])
            credit[position] = {name: annotation.get(name) for name in NO_CREDIT}
    for entry in read_entries(folder):
        for number, node, role, index, sample in iterate_samples(read_tree(folder, entry).tree):
            branches = [branch for branch in node.branches if branch.choice.get(role) == index]
            weight = 1 / len(branches) if branches else 0.0
            yield {
                "step": entry.step,
                "tree": entry.tree,
                "task": entry.task,
                "node": number,
                "turn": node.turn,
                "role": role,
                "index": index,
                "policy": sample.policy,
                "version": sample.version,
                "messages": encode(node.observations[role].messages),
                "text": sample.text,
                "finish": sample.finish,
                "prompt_ids": list(sample.prompt_ids),
                "token_ids": list(sample.token_ids),
                "logprobs": list(sample.logprobs),
                "team_reward": weight * sum(branch.reward.team for branch in branches),
                "local_reward": weight * sum(branch.reward.local.get(role, 0.0) for branch in branches),
                "parts": json.dumps([dict(branch.reward.parts) for branch in branches]),
                "selected": any(branch.selected for branch in branches),
                "over": any(branch.over for branch in branches),
                "success": any(branch.success for branch in branches),
            } | credit.get((entry.step, entry.tree, number, role, index), NO_CREDIT)


NO_CREDIT: Row = {"return": None, "advantage": None, "weight": None, "left_out": None}


def write_parquet(folder: Path, out: Path) -> int:
    """Write the table to a Parquet file; return the number of rows. Raises ConfigError if pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(_missing_package("pyarrow", install_command("data"))) from None
    table = pyarrow.Table.from_pylist(list(sample_rows(folder)))
    with publish_atomically(out) as (partial,):
        parquet.write_table(table, partial)
    return int(table.num_rows)


def to_dataset(folder: Path) -> Any:
    """Return the table as a `datasets.Dataset`. Raises ConfigError if datasets is not installed."""
    try:
        import datasets
    except ImportError:
        raise ConfigError(_missing_package("datasets", "pip install datasets")) from None
    return datasets.Dataset.from_list(list(sample_rows(folder)))


def _missing_package(package: str, install: str) -> str:
    return f"trees: {package} is not installed; expected it, to write the table. Run: {install}"


# ---- The summary: `cadre report`

# The plots: title, and the suffixes of the names of the metrics in it.
PLOTS = {
    "success in training": ("rollout/success",),
    "reward by role": ("/reward",),
    "zero-variance groups by role": ("/zero_variance_groups",),
    "entropy": ("/entropy",),
    "completion length by role": ("/tokens",),
}
Line = Mapping[str, Any]


def write_summary(run: Run, out: Path, price: float = 0.0) -> None:
    """Write the summary of a run to `out`, its plots beside it; with its cost if an hour has a `price`. Raises
    ConfigError if matplotlib is not installed."""
    with publish_atomically(out, *plot_paths(out)) as (page, *paths):
        pictures = draw_plots(run.metrics(), paths)
        links = [f"![{title}]({picture.name})" for title, picture in pictures]
        page.write_text("\n".join([*summary_lines(run, price), "", "## Curves", "", *links, ""]), encoding="utf-8")


def summary_lines(run: Run, price: float = 0.0) -> Iterator[str]:
    """Yield the page without its plots."""
    steps, config = run.metrics(), run.config
    recipe, overrides = run.command()
    yield from (f"# {escape(run.folder.resolve().name)}", "")
    command = " ".join(filter(None, ["cadre train", recipe, *overrides]))
    yield from (f"`{one_line(command).replace('`', chr(39))}`", "") if recipe else ()
    goal = config.train
    yield f"{escape(config.env)}, {config.algorithm.name}, seed {goal.seed}; {len(steps)} of {goal.steps} steps."

    yield from ("", "## Held-out tasks", "")
    reports = run.evaluations()
    if reports:
        yield from ("| after step | success | 95% interval | tasks | reward | tokens |", "|---|---|---|---|---|---|")
    else:
        yield "None was played."
    for report in reports:
        interval = f"{report['low']:.1%} to {report['high']:.1%}"
        yield (
            f"| {report['step']} | {report['success']:.1%} | {interval} | {report['tasks']} | {report['reward']:+.2f} "
            f"| {report['tokens']:,.0f} |"
        )

    yield from ("", "## Cost", "")

    def total(name: str) -> float:
        return float(sum(line.get(name) or 0.0 for line in steps))

    sampling, learning = total("time/sample_s"), total("time/learn_s")
    hours = (sampling + learning) / 3600
    yield f"- {total('rollout/tokens'):,.0f} tokens sampled, {total('rollout/env_steps'):,.0f} steps of the environment"
    yield f"- {hours:.2f} hours: {sampling:,.0f} s sampling, {learning:,.0f} s learning"
    if price:
        yield f"- {hours * price:,.2f} at {price:,.2f} an hour"
    yield f"- {total('rollout/failures'):,.0f} failed episodes"

    yield from ("", "## Made on", "")
    environment = run.environment()
    packages = {name: environment.get(name) for name in ("cadre", "python")} | environment.get("packages", {})
    yield f"- {escape(environment.get('machine', 'an unknown machine'))}"
    yield "- " + ", ".join(escape(f"{name} {version}") for name, version in packages.items() if version)
    names = {"cadre": "Cadre", "here": "the folder that it was begun in"}
    commits = [
        f"{label} at {escape(environment['commits'][name])}"
        for name, label in names.items()
        if name in environment.get("commits", {})
    ]
    yield f"- commits: {', '.join(commits) or 'none is known'}; a plus is for changes that were not committed"

    # The settings may hold backticks themselves: the fence is longer than any row of them.
    settings = dump(config).rstrip()
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", settings)), default=0))
    yield from ("", "## Settings", "", f"{fence}yaml", settings, fence)


def plot_paths(out: Path) -> list[Path]:
    """Return the paths of a page's plots: `PAGE-1.png` and so on."""
    stem = out.with_suffix("")
    return [stem.with_name(f"{stem.name}-{number}.png") for number in range(1, len(PLOTS) + 1)]


def draw_plots(steps: Sequence[Line], paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Draw each figure of `PLOTS` that the run has values for, at the first of the paths; return titles and paths."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "report: matplotlib is not installed, which draws the curves; expected the extra plots. Run: "
            f"{install_command('plots')}"
        ) from None
    plots: list[tuple[str, Path]] = []
    for title, ends in PLOTS.items():
        names = sorted({name for line in steps for name in line if name.endswith(ends)} - {"rollout/tokens"})
        if not names:
            continue
        figure = Figure(figsize=(6.4, 2.8), layout="constrained")
        axes = figure.subplots()
        for name in names:
            points = [(line["step"] + 1, line[name]) for line in steps if line.get(name) is not None]
            if not points:
                continue
            axes.plot(*zip(*points, strict=True), label=name.rpartition("/")[0])
        axes.set(title=title, xlabel="step")
        axes.legend(frameon=False)
        path = paths[len(plots)]
        figure.savefig(path, dpi=130)
        plots.append((title, path))
    return plots
