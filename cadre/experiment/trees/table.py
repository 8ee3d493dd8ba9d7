"""Kept trees as one flat table, a row a sample, for Parquet and `datasets`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cadre.data.atomic import whole
from cadre.errors import ConfigError
from cadre.experiment import jsonl
from cadre.experiment.records import Annotation, refuse_link
from cadre.experiment.trees import stream
from cadre.experiment.trees.annotate import FOLDER
from cadre.experiment.trees.format import KeptTree, samples

Row = dict[str, Any]
Place = tuple[int, int, int, str, int]


def rows(folder: Path) -> Iterator[Row]:
    """Every sample of every kept tree with what was said of it, in the order in which they were kept."""
    credit = dict(_credit(folder))
    for entry in stream.entries(folder):
        tree = stream.read(folder, entry)
        for node, role, index, sample in samples(tree):
            yield _row(tree, (node, role, index), sample) | credit.get(
                (entry.step, entry.tree, node, role, index), NONE
            )


NONE: Row = {"return": None, "advantage": None, "weight": None, "left_out": None}


def _row(tree: KeptTree, place: tuple[int, str, int], sample: Row) -> Row:
    """Rewards are means over the branches that hold the sample; `carried` says that the tree went on from one."""
    number, role, index = place
    node = tree["nodes"][number]
    branches = [branch for branch in node["branches"] if branch["choice"].get(role) == index]
    share = 1 / len(branches) if branches else 0.0
    return {
        "step": tree["step"],
        "tree": tree["tree"],
        "task": tree["task"]["id"],
        "node": number,
        "turn": node["turn"],
        "role": role,
        "index": index,
        "policy": sample["policy"],
        "version": sample["version"],
        "messages": node["observations"][role]["messages"],
        "text": sample["text"],
        "finish": sample["finish"],
        "prompt_ids": sample.get("prompt_ids") or node["prompts"][role],
        "token_ids": sample["token_ids"],
        "logprobs": sample["logprobs"],
        "team_reward": share * sum(branch["reward"]["team"] for branch in branches),
        "local_reward": share * sum(branch["reward"]["local"].get(role, 0.0) for branch in branches),
        "parts": json.dumps([branch["reward"]["parts"] for branch in branches]),
        "carried": any(branch["carried"] for branch in branches),
        "over": any(branch["over"] for branch in branches),
        "success": any(branch["success"] for branch in branches),
    }


def _credit(folder: Path) -> Iterator[tuple[Place, Row]]:
    refuse_link(folder / FOLDER)
    for line in jsonl.records(folder / FOLDER / "credit.jsonl", Annotation):
        for said in line["samples"]:
            place = (line["step"], line["tree"], said["node"], said["role"], said["index"])
            yield place, {name: said.get(name) for name in NONE}


def write_parquet(folder: Path, out: Path) -> int:
    """Write the table to a Parquet file; how many rows. Raises ConfigError where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(_missing("pyarrow", "'cadre-rl[data]'")) from None
    table = pyarrow.Table.from_pylist(list(rows(folder)))
    with whole(out) as (built,):
        parquet.write_table(table, built)
    return int(table.num_rows)


def as_dataset(folder: Path) -> Any:
    """The table as a `datasets.Dataset`. Raises ConfigError where datasets is not installed."""
    try:
        import datasets
    except ImportError:
        raise ConfigError(_missing("datasets", "datasets")) from None
    return datasets.Dataset.from_list(list(rows(folder)))


def _missing(package: str, install: str) -> str:
    return f"trees: {package} is not installed; expected it, to write the table. pip install {install}"
