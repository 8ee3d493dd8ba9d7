"""What leaves a run folder: weights for other libraries with a model card, and samples as a table."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from cadre.config.resolve import find_model
from cadre.engines.factory import TorchSpec
from cadre.errors import ConfigError, RunError, first_line, nearest, one_line
from cadre.files import publish_atomically, require_no_link
from cadre.plugins import package
from cadre.runs import jsonl
from cadre.runs.folder import Run
from cadre.runs.kept_trees import ANNOTATIONS, read_entries, read_tree
from cadre.runs.records import AnnotationLine
from cadre.runs.resume import changed_bases
from cadre.runs.tree_format import encode, iterate_samples
from cadre.team import Weights
from cadre.training.checkpoint import LATEST, CheckpointChoice, read_state

log = logging.getLogger(__name__)
# A repository of the hub, OWNER/NAME.
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Where transformers writes chat templates.
DEFAULT_TEMPLATE, NAMED_TEMPLATES = "chat_template.jinja", "additional_chat_templates"


# ---- Weights: `cadre export`


def export_policy(run: Run, policy: str, out: Path, merge: bool, choice: CheckpointChoice = LATEST) -> None:
    """Write the policy of a checkpoint of the run to `out`: a Hugging Face folder, or a PEFT folder for an adapter that
    is not to be merged into its base, with a model card. Nothing else of the run is read. Raises ConfigError if the run
    has not trained the policy."""
    trained = [name for name, settings in run.policies.items() if not settings.frozen]
    if policy not in trained:
        expected = f"expected one that {run.folder} trained: {', '.join(trained)}. Name one.{nearest(policy, trained)}"
        raise ConfigError(f"export: got policy {policy!r}; {expected}")
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


# ---- The model card of an exported policy, and its upload to the Hugging Face hub


def escape(text: str) -> str:
    """Return a text of a run's records as one line without Markdown and HTML, as a stranger may have written it."""
    return re.sub(r"([`\[\]|!])", r"\\\1", html.escape(one_line(text), quote=False))


def format_model_card(run: Run, policy: str, step: int, is_adapter: bool) -> str:
    """Return the card of a policy after `step` updates: what it was trained from, on what, with what result, and how it
    is loaded, with the metadata of the hub at its top. The records of the run may be a stranger's: what they hold is
    escaped."""
    config, settings = run.config, run.policies[policy]
    roles = [role for role, owner in config.team.roles.items() if owner == policy]
    metadata: dict[str, Any] = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["cadre", "reinforcement-learning", "multi-agent", config.algorithm.name],
    }
    if REPOSITORY.fullmatch(settings.model) and not Path(settings.model).exists():
        metadata["base_model"] = settings.model
    recipe, overrides = run.command()
    command = one_line(" ".join(filter(None, ["cadre train", recipe, *overrides]))).replace("`", "'")

    merged = "A model with its adapter merged in" if settings.lora is not None else "A model"
    kind = "A LoRA adapter" if is_adapter else merged
    paragraphs = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---",
        f"# {escape(policy)}",
        f"{kind}, trained from {escape(settings.model)} with reinforcement learning as part of a team "
        f"(Cadre): {step} updates of {escape(config.algorithm.name)} on {escape(config.env)}. "
        f"It plays {', '.join(map(escape, roles))}.",
        f"`{command}`" if recipe else "",
    ]
    reports = [report for report in run.evaluations() if report["step"] in (0, step)]
    if reports:
        rows = ["| updates | success of the team | 95% interval | held-out tasks |", "|---|---|---|---|"]
        for report in reports:
            interval = f"{report['low']:.1%} to {report['high']:.1%}"
            rows.append(f"| {report['step']} | {report['success']:.1%} | {interval} | {report['tasks']} |")
        paragraphs += ["\n".join(rows), "The interval is over tasks; it leaves out what another training would give."]
    template = "The chat template is the one that it was trained with; other prompts are outside of its training."
    return "\n\n".join(filter(None, [*paragraphs, template])) + "\n"


def check_repository(name: str) -> None:
    """Raise ConfigError unless `name` is OWNER/NAME."""
    if REPOSITORY.fullmatch(name) is None:
        raise ConfigError(f"--push: got {name!r}; expected a repository of the hub, OWNER/NAME. Name one.")


def push_to_hub(folder: Path, repository: str, public: bool) -> str:
    """Upload an exported folder to the hub as one commit, to a new private repository or one that is there; return its
    address. The token is that of `hf auth login` or HF_TOKEN. Raises RunError if the hub refuses or is not reached.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repository, private=not public, exist_ok=True)
        commit = api.upload_folder(repo_id=repository, folder_path=str(folder), commit_message="Export of Cadre")
    except Exception as error:  # noqa: BLE001 - errors of the network are those of the hub's HTTP library
        got = f"{folder} is written, and the upload to {repository} failed: {first_line(error)}"
        advice = f"Run hf auth login, then hf upload {repository} {folder}."
        raise RunError(f"--push: {got}; expected a hub that answers and a token that may write. {advice}") from None
    return str(commit.repo_url)


# ---- Samples as a table, for Parquet and `datasets`

Row = dict[str, Any]


def sample_rows(folder: Path) -> Iterator[Row]:
    """Yield every sample of every kept tree with its credit, in the order in which they were kept. Rewards are means
    over the branches that hold the sample; `selected` is True if the tree continues from one."""
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
    pyarrow, parquet = package("pyarrow", "data", "trees:"), package("pyarrow.parquet", "data", "trees:")
    table = pyarrow.Table.from_pylist(list(sample_rows(folder)))
    with publish_atomically(out) as (partial,):
        parquet.write_table(table, partial)
    return int(table.num_rows)


def to_dataset(folder: Path) -> Any:
    """Return the table as a `datasets.Dataset`. Raises ConfigError if datasets is not installed."""
    return package("datasets", "data", "dataset:").Dataset.from_list(list(sample_rows(folder)))
