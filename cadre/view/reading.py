"""One run as plain JSON values for the page, read from its folder while it may still be written.

Trees leave out the ids of tokens; the page asks for the tokens of one sample at a time. The names of the values are the
page's (`page/*.js`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from cadre.algorithms import plan_of
from cadre.config.experiment import dump
from cadre.errors import ConfigError, RunError
from cadre.files import Record, open_plain, path_exists, replace_non_finite, to_json
from cadre.rollout.shapes import success_label
from cadre.runs import jsonl
from cadre.runs.annotation_index import AnnotationIndex
from cadre.runs.folder import Run, distinct_names
from cadre.runs.kept_trees import (
    LEFT_OUT,
    KeptTree,
    SampleKey,
    TreeEntry,
    read_annotations,
    read_entries,
    read_tree,
    read_vocabulary,
)
from cadre.runs.records import LeftOutLine, StepLine, StepMetrics
from cadre.runs.tree_format import Json, encode, iterate_samples, read_medium
from cadre.settings.trust import only_reading
from cadre.settings.yaml_file import flatten
from cadre.types import Tree

# Bytes of a file that are read for one request; the page asks again until it has all.
REQUEST_BYTES = 16 << 20
SAMPLE_FIELDS = ("policy", "text", "finish", "version", "history", "message")


def open_runs(folders: Sequence[Path]) -> list[RunReader]:
    """Return readers of the runs, each once and with distinct names, by which the page addresses them. Raises RunError
    for a folder that is no run."""
    different = list({folder.resolve(): folder for folder in folders}.values())
    return [RunReader(folder, name) for folder, name in zip(different, distinct_names(different), strict=True)]


class RunReader:
    """Reads one run. Lives as long as the run is shown. Raises RunError for a folder that is no run."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._run = Run.open(folder)
        self._annotation_indices: dict[str, AnnotationIndex] = {}

    def about(self) -> Json:
        """Return the configuration of the run. Only `generation`, the number of its resumptions, changes later."""
        config = self._run.config
        recipe, overrides = self._run.command()
        return {
            "name": self.name,
            "env": config.env,
            "seed": config.train.seed,
            "steps": config.train.steps,
            "assignment": dict(config.team.roles),
            "algorithm": config.algorithm.name,
            "config": dump(config),
            "settings": {name: to_json(value) for name, value in flatten(config.model_dump(mode="json"))},
            "command": {"recipe": recipe, "overrides": overrides},
            "environment": self._run.environment(),
            "generation": self.generation(),
            **self._plan,
        }

    @cached_property
    def _plan(self) -> Json:
        """The tree shape, the name of the training success, and alpha, which decides the selected branches; no shape if
        only the user's code knows it."""
        algorithm, roles = self._run.config.algorithm, self._run.config.team.roles
        try:
            with only_reading():
                plan = plan_of(algorithm)
            success = success_label(plan.shape, roles)
        except (ConfigError, KeyError):  # a KeyError where a foreign run's `algorithm.k` lacks a role
            return {"shape": "", "success": "success", "alpha": algorithm.model_dump().get("alpha", 1.0)}
        return {"shape": plan.shape.name, "success": success, "alpha": plan.credit.alpha}

    def generation(self) -> int:
        return sum(1 for _ in jsonl.records(self.folder / "resumed.jsonl", StepLine))

    def metrics(self, offset: int, max_bytes: int = REQUEST_BYTES) -> Json:
        """Return the steps from byte `offset` of the file, about `max_bytes` of it, by column, and the next offset."""
        lines, end = self._read_lines("metrics.jsonl", offset, max_bytes, StepMetrics)
        names = sorted({name for line in lines for name in line} - {"step"})
        columns = {name: [replace_non_finite(line.get(name)) for line in lines] for name in names}
        steps = [line["step"] for line in lines]
        return {"offset": end, "generation": self.generation(), "steps": steps, "columns": columns}

    def evaluations(self) -> list[Json]:
        """Return the reports of the evaluations, without the outcomes by task, which the page does not show."""
        reports = self._run.evaluations()
        return [{name: value for name, value in report.items() if name != "outcomes"} for report in reports]

    def left_out(self, offset: int, max_bytes: int = REQUEST_BYTES) -> Json:
        """Return the failures that were left out, from byte `offset` of the file, and the next offset."""
        lines, end = self._read_lines(LEFT_OUT, offset, max_bytes, LeftOutLine)
        return {"offset": end, "lines": lines}

    def entries(self, first: int) -> Json:
        """Return a short row for each kept tree from number `first`."""
        rows = [
            [x.step, x.tree, x.task, x.decisions, x.samples, x.episodes, x.wins, x.reward, list(x.roles)]
            for x in read_entries(self.folder)[first:]
        ]
        return {"first": first, "generation": self.generation(), "rows": rows}

    def table(self, first: int, count: int) -> list[list[list[Any]]]:
        """Return a row for each sample of `count` trees from number `first`, for filters."""
        alpha = self._plan["alpha"]
        return [
            sample_rows(read_tree(self.folder, entry).tree, self._annotations(entry), alpha)
            for entry in read_entries(self.folder)[first : first + count]
        ]

    def tree(self, number: int) -> Json:
        """Return a kept tree with the annotations of its samples, but those of single tokens."""
        entry, annotations = self.kept_tree(number)
        tree: Json = {"step": entry.step, "tree": entry.number, **encode(entry.tree, defaults=True)}
        for number, node in enumerate(tree["nodes"]):
            del node["prompts"]
            for role, siblings in node["samples"].items():
                for index, sample in enumerate(siblings):
                    fields = {name: sample[name] for name in SAMPLE_FIELDS}
                    # Annotations of single tokens are long; `tokens` returns them.
                    by_producer = {
                        producer: {name: value for name, value in line.items() if name not in ("node", "role", "index")}
                        for producer, line in annotations.get((number, role, index), {}).items()
                        if producer != "tokens"
                    }
                    siblings[index] = fields | {"tokens": len(sample["token_ids"]), "said": by_producer}
        return tree

    def tokens(self, number: int, only: SampleKey | None = None) -> dict[SampleKey, Json]:
        """Return the tokens of each sample of a tree, or of `only` one, prompt and completion, as texts, with their
        annotations."""
        record, annotations = self.kept_tree(number)
        vocabularies, tokens = read_vocabulary(self.folder), {}
        for node, _, role, index, sample in iterate_samples(record.tree):
            key = (node, role, index)
            if only is None or key == only:
                words, annotation = vocabularies.get(sample.policy, {}), annotations.get(key, {})
                tokens[key] = {
                    "prompt": [words.get(str(token), f"[{token}]") for token in sample.prompt_ids],
                    "tokens": [words.get(str(token), f"[{token}]") for token in sample.token_ids],
                    "logprobs": list(sample.logprobs),
                    "learner": annotation.get("tokens", {}).get("logprobs"),
                    "entropy": annotation.get("tokens", {}).get("entropy"),
                    "advantages": annotation.get("credit", {}).get("advantages"),
                }
        return tokens

    def image(self, digest: str) -> bytes:
        """Return the PNG file of an image in a tree."""
        return read_medium(self.folder, digest)

    def kept_tree(self, number: int) -> tuple[KeptTree, Mapping[SampleKey, Json]]:
        """Return a kept tree and the annotations of its samples, by producer."""
        entries = read_entries(self.folder)
        if not 0 <= number < len(entries):
            raise RunError(f"tree: got {number}; expected 0 to {len(entries) - 1} of {self.name}. Load the page again.")
        return read_tree(self.folder, entries[number]), self._annotations(entries[number])

    def _annotations(self, entry: TreeEntry) -> Mapping[SampleKey, Json]:
        return read_annotations(self.folder, entry.step, entry.tree, self._annotation_indices)

    def _read_lines(self, name: str, offset: int, max_bytes: int, model: type[Record]) -> tuple[list[Json], int]:
        """Return the complete lines of a file from a byte, about `max_bytes` of them, and the end of the last. If no
        line begins at that byte, the file was cut off and written on since: it is read from its start."""
        path = self.folder / name
        if not path_exists(path):
            return [], 0
        start = 0
        if 0 < offset <= path.stat().st_size:
            with open_plain(path) as file:
                file.seek(offset - 1)
                if file.read(1) == b"\n":
                    start = offset
        if max_bytes > jsonl.MAX_BYTES:
            jsonl.check_size(path)
        lines, end = [], start
        for line_end, line in jsonl.records_with_offsets(path, start, model):
            lines.append(line)
            end = line_end
            if end - start >= max_bytes:
                break
        return lines, end


def sample_rows(tree: Tree, annotations: Mapping[SampleKey, Json], alpha: float) -> list[list[Any]]:
    """Return a row for each sample: decision, role, index, text, reward, advantage, and bits. The reward is `alpha`
    times the team's and the role's own, the mean over the branches of the sample. The bits are set if a branch was
    selected (1), ended the episode (2), and solved the task (4)."""
    rows = []
    for number, node, role, index, sample in iterate_samples(tree):
        branches = [branch for branch in node.branches if branch.choice.get(role) == index]
        rewards = [alpha * branch.reward.team + branch.reward.local.get(role, 0.0) for branch in branches]
        bits = 1 * any(branch.selected for branch in branches)
        bits |= 2 * any(branch.over for branch in branches)
        bits |= 4 * any(branch.success for branch in branches)
        advantage = annotations.get((number, role, index), {}).get("credit", {}).get("advantage")
        rows.append([number, role, index, sample.text, sum(rewards) / max(1, len(rewards)), advantage, bits])
    return rows
