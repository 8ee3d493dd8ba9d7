"""What the page is told of one run, read from its folder while it may still be written.

Everything here is plain JSON values. Trees leave out the ids of tokens, which are asked for a sample at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from cadre.algorithms import plan_of
from cadre.config.experiment import dump
from cadre.errors import ConfigError, RunError
from cadre.files import Record, open_plain, path_exists, replace_non_finite, require_valid
from cadre.runs import jsonl
from cadre.runs.annotations import LEFT_OUT, annotation_files
from cadre.runs.folder import Run
from cadre.runs.kept_trees import (
    KeptTree,
    TreeEntry,
    iterate_samples,
    read_entries,
    read_image,
    read_tree,
    read_vocabulary,
)
from cadre.runs.records import AnnotationLine, LeftOutLine, StepLine, StepMetrics
from cadre.settings.trust import only_reading
from cadre.view.lines import AnnotationIndex

Json = dict[str, Any]
# Bytes of a file that are read for one request; the page asks for more until it has all.
AT_ONCE = 16 << 20
# What of a sample is told with its tree; its tokens are not.
TOLD = ("policy", "text", "finish", "version", "history", "message")


class RunReader:
    """Reads one run; lives as long as it is shown. Raises RunError where the folder is no run."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._run = Run.open(folder)
        self._said: dict[str, AnnotationIndex] = {}

    def about(self) -> Json:
        """What does not change while the run goes on, but for `generation`, which counts how often it was resumed."""
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
            "command": {"recipe": recipe, "overrides": overrides},
            "environment": self._run.environment(),
            "generation": self.generation(),
            **self._plan,
        }

    @cached_property
    def _plan(self) -> Json:
        """What says why a branch went on; no shape where a file of code would have to say it."""
        algorithm = self._run.config.algorithm
        try:
            with only_reading():
                plan = plan_of(algorithm)
        except ConfigError:
            return {"shape": "", "alpha": algorithm.model_dump().get("alpha", 1.0)}
        return {"shape": plan.shape.name, "alpha": plan.credit.alpha}

    def generation(self) -> int:
        return sum(1 for _ in jsonl.records(self.folder / "resumed.jsonl", StepLine))

    def metrics(self, offset: int, most: int = AT_ONCE) -> Json:
        """The steps from byte `offset` of the file on, `most` bytes or so, by column, and the byte to ask from next."""
        lines, end = self._since("metrics.jsonl", offset, most, StepMetrics)
        names = sorted({name for line in lines for name in line} - {"step"})
        columns = {name: [replace_non_finite(line.get(name)) for line in lines] for name in names}
        return {"offset": end, "generation": self.generation(), "steps": [x["step"] for x in lines], "columns": columns}

    def evaluations(self) -> list[Json]:
        return self._run.evaluations()

    def left_out(self, offset: int, most: int = AT_ONCE) -> Json:
        """What was left out, from byte `offset` of the file on, `most` bytes or so."""
        lines, end = self._since(LEFT_OUT, offset, most, LeftOutLine)
        return {"offset": end, "lines": lines}

    def entries(self, first: int) -> Json:
        """The kept trees from number `first` on, in short."""
        rows = [
            [x.step, x.tree, x.task, x.decisions, x.samples, x.episodes, x.wins, x.reward, list(x.roles)]
            for x in self._entries()[first:]
        ]
        return {"first": first, "generation": self.generation(), "rows": rows}

    def table(self, first: int, count: int) -> list[list[list[Any]]]:
        """For each of `count` trees from number `first` on its samples, a row each, for filters."""
        alpha = self._plan["alpha"]
        return [table_of(self._told(entry), alpha) for entry in self._entries()[first : first + count]]

    def tree(self, number: int) -> Json:
        """A kept tree with all that is said of its samples but of single tokens."""
        return self._told(self._entry(number))

    def tokens(self, number: int, node: int, role: str, index: int) -> Json:
        """The tokens of one sample, prompt and completion, as they are spelt, with what is known of each."""
        entry = self._entry(number)
        tree = read_tree(self.folder, entry)
        sample = tree["nodes"][node]["samples"][role][index]
        prompt = sample.get("prompt_ids") or tree["nodes"][node]["prompts"][role]
        said = self._annotations(entry).get((node, role, index), {})
        return {
            "prompt": self._spelt(sample["policy"], prompt),
            "tokens": self._spelt(sample["policy"], sample["token_ids"]),
            "logprobs": sample["logprobs"],
            "learner": said.get("tokens", {}).get("logprobs"),
            "entropy": said.get("tokens", {}).get("entropy"),
            "advantages": said.get("credit", {}).get("advantages"),
        }

    def picture(self, digest: str) -> bytes:
        """The PNG file of a picture that a tree shows."""
        return read_image(self.folder, digest)

    def _told(self, entry: TreeEntry) -> Json:
        tree, said = read_tree(self.folder, entry), self._annotations(entry)
        return {**tree, "nodes": [_node(node, number, said) for number, node in enumerate(tree["nodes"])]}

    def _entries(self) -> list[TreeEntry]:
        return read_entries(self.folder)

    def _entry(self, number: int) -> TreeEntry:
        entries = self._entries()
        if not 0 <= number < len(entries):
            raise RunError(f"tree: got {number}; expected 0 to {len(entries) - 1} of {self.name}. Load the page again.")
        return entries[number]

    def _annotations(self, entry: TreeEntry) -> Mapping[tuple[int, str, int], Json]:
        """By place in the tree: what each producer says of the sample."""
        said: dict[tuple[int, str, int], Json] = {}
        for path in annotation_files(self.folder):
            index = self._said.setdefault(path.stem, AnnotationIndex(path))
            for line in index.of(entry.step, entry.tree):
                require_valid(line, AnnotationLine, path)
                for fields in line["samples"]:
                    place = (fields["node"], fields["role"], fields["index"])
                    said.setdefault(place, {})[path.stem] = fields
        return said

    def _spelt(self, policy: str, ids: Sequence[int]) -> list[str]:
        words = read_vocabulary(self.folder).get(policy, {})
        return [words.get(str(token), f"[{token}]") for token in ids]

    def _since(self, name: str, offset: int, most: int, model: type[Record]) -> tuple[list[Json], int]:
        """The whole lines of a file from a byte on, where one begins, until they are `most` bytes; from its start where
        it was cut meanwhile."""
        path = self.folder / name
        if not path_exists(path):
            return [], 0
        start = offset if _begins_line(path, offset) else 0
        if most > jsonl.MAX_BYTES:
            jsonl.check_size(path)
        lines, end = [], start
        for after, line in jsonl.records_with_offsets(path, start, model):
            lines.append(line)
            end = after
            if end - start >= most:
                break
        return lines, end


def _begins_line(path: Path, offset: int) -> bool:
    """Whether a line begins at a byte of a file, or would; not so where it was cut off and written on since."""
    if not 0 < offset <= path.stat().st_size:
        return False
    with open_plain(path) as file:
        file.seek(offset - 1)
        return file.read(1) == b"\n"


def _node(node: Json, number: int, said: Mapping[tuple[int, str, int], Json]) -> Json:
    told = {name: value for name, value in node.items() if name not in ("samples", "prompts")}
    siblings = {
        role: [_sample(sample, said.get((number, role, index), {})) for index, sample in enumerate(drawn)]
        for role, drawn in node["samples"].items()
    }
    return told | {"samples": siblings}


def _sample(sample: Json, said: Json) -> Json:
    told = {name: sample[name] for name in TOLD if name in sample}
    others = {name: {k: v for k, v in fields.items() if k not in PLACE} for name, fields in said.items()}
    return told | {"tokens": len(sample["token_ids"]), "said": {k: v for k, v in others.items() if k != "tokens"}}


PLACE = ("node", "role", "index")


def table_of(tree: KeptTree, alpha: float) -> list[list[Any]]:
    """A row a sample: decision, role, sibling, text, pay, advantage, and whether it went on, ended or solved.

    Pay is `alpha` times the team's reward, and the role's own.
    """
    rows = []
    for number, role, index, sample in iterate_samples(tree):
        branches = [x for x in tree["nodes"][number]["branches"] if x["choice"].get(role) == index]
        paid = [alpha * x["reward"]["team"] + x["reward"]["local"].get(role, 0.0) for x in branches]
        flags = [any(x[name] for x in branches) for name in ("carried", "over", "success")]
        advantage = sample["said"].get("credit", {}).get("advantage")
        bits = sum(flag << place for place, flag in enumerate(flags))
        rows.append([number, role, index, sample["text"], sum(paid) / max(1, len(paid)), advantage, bits])
    return rows
