"""What one step leaves for people to look at: its kept trees, what is said of them, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cadre.advantages.batch import TrainingBatch
from cadre.experiment import jsonl
from cadre.experiment.records import LeftOut, copy_plain, refuse_link
from cadre.experiment.trees import annotate, left_out, pictures, stream, vocabulary
from cadre.experiment.trees.format import as_record, images_of
from cadre.experiment.trees.vocabulary import Vocabulary
from cadre.learn.token_notes import TokenNote
from cadre.rollout.dynamic_sampling import Sampled
from cadre.settings import CreditConfig, TrainConfig
from cadre.types import Tree

# Megabytes that the first steps may fill, whatever part of the budget is due by then.
AT_ONCE = 16.0
COPIED = (stream.TREES, stream.INDEX, left_out.FILE, vocabulary.FILE)


@dataclass(frozen=True)
class StepRecord:
    """All that a step sampled and made of it, before it is known what of it is kept."""

    sampled: Sampled
    batch: TrainingBatch
    notes: Sequence[TokenNote] = ()


@dataclass(frozen=True)
class Keeping:
    """Writes what the settings keep of each step into the `folder` of a run, its pictures into `shown`, and how tokens
    are spelt into `words`."""

    folder: Path
    goal: TrainConfig
    chosen: CreditConfig
    words: Vocabulary
    shown: pictures.Kept

    def keep(self, step: int, record: StepRecord) -> None:
        """Write the kept trees of a step, what is said of their samples, and what was left out."""
        trees, batch = record.sampled.trees, record.batch
        kept = self._trees(step, trees)
        annotate.write(self.folder, step, annotate.annotated(trees[:kept], batch, record.notes, self.chosen))
        missing = left_out.not_kept(len(trees), kept, self.goal.trees_kept)
        for line in (*left_out.lines(record.sampled, batch, self.chosen), *missing):
            jsonl.append(self.folder / left_out.FILE, {"step": step, **line})

    def _trees(self, step: int, trees: Sequence[Tree]) -> int:
        """Write as many trees of a step as are to be kept; how many."""
        due = self.due(step)
        for number, tree in enumerate(trees[: self.goal.trees_kept]):
            written, images = as_record(step, number, tree), images_of(tree)
            if not stream.fits(self.folder, written, due, self.shown.size_with(images)):
                return number
            self.words.learn(self.folder, written)
            self.shown.save(images)
            stream.append(self.folder, written)
        return min(len(trees), self.goal.trees_kept)

    def due(self, step: int) -> float:
        """Megabytes that trees may fill by the end of a step: the budget is spread over the steps, but for AT_ONCE, so
        that a long run is seen to its end. Equal runs keep equal trees."""
        budget = self.goal.trees_megabytes
        return min(budget, max(AT_ONCE, budget * (step + 1) / self.goal.steps))


def forget(folder: Path, step: int) -> None:
    """Forget what was written of `step` and of later ones; what the words of a model are stays true."""
    stream.cut(folder, step)
    annotate.cut(folder, step)
    jsonl.cut(folder / left_out.FILE, lambda line: line["step"] >= step, LeftOut)


def copy(folder: Path, into: Path, step: int) -> None:
    """Copy what was kept of the steps before `step` from one run to another, as the first wrote it."""
    refuse_link(folder / pictures.FOLDER)
    streams = [*folder.glob("*.jsonl"), *annotate.producers(folder)]
    for path in streams:
        if path.name in COPIED or path.parent.name == annotate.FOLDER:
            there = into / path.relative_to(folder)
            there.parent.mkdir(exist_ok=True)
            copy_plain(path, there)
    for path in (folder / pictures.FOLDER).glob("*.png"):
        (into / pictures.FOLDER).mkdir(exist_ok=True)
        copy_plain(path, into / pictures.FOLDER / path.name)
    forget(into, step)
