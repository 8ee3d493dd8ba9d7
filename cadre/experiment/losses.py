"""What a run has lost when it is gone on with: lines that are damaged, and steps that its logs no longer have.

A power cut, a full disk or a hand may have taken lines that the checkpoint relies on. They are not made again, so the
run says which they are before it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from pathlib import Path

from pydantic import BaseModel

from cadre.errors import RunError
from cadre.experiment import jsonl
from cadre.experiment.checkpoint import State
from cadre.experiment.records import (
    Annotation,
    Evaluation,
    IndexLine,
    LeftOut,
    OfStep,
    StepMetrics,
    TreeHead,
    Words,
    exists,
    refuse_link,
)
from cadre.experiment.run_directory import EVALUATIONS, METRICS, Run
from cadre.experiment.trees import annotate, left_out, stream, vocabulary

SHOWN = 3  # damaged lines of a file that are told of one by one
LOGS: dict[str, type[BaseModel]] = {
    METRICS: StepMetrics,
    EVALUATIONS: Evaluation,
    stream.TREES: TreeHead,
    left_out.FILE: LeftOut,
    vocabulary.FILE: Words,
    "resumed.jsonl": OfStep,
    "failures.jsonl": OfStep,
}


def mend(run: Run) -> Iterator[str]:
    """Leave out damaged lines of every log of a run; a paragraph for each file that had some, or that was made anew.

    For who holds the run's lock. Raises RunError where a log or a folder of logs is a link.
    """
    folder = run.folder
    for name in (annotate.FOLDER, "pictures", "checkpoints", "tensorboard"):
        refuse_link(folder / name)
    files = {folder / name: model for name, model in LOGS.items()}
    files |= dict.fromkeys(annotate.producers(folder), Annotation)
    for path, model in files.items():
        if wrong := jsonl.mend(path, model):
            more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
            yield (
                f"{path} was damaged: {'; '.join(wrong[:SHOWN])}{more}. These lines are left out; the file as it was "
                f"is kept beside it as {path.name}.damaged."
            )
    yield from _mended_index(folder)


def _mended_index(folder: Path) -> Iterator[str]:
    """The index of the kept trees, made anew where it does not fit them."""
    if not exists(folder / stream.TREES):
        return
    whole = jsonl.whole_length(folder / stream.TREES)
    try:
        known = list(jsonl.records(folder / stream.INDEX, IndexLine))
        fits = bool(known) and known[-1]["offset"] + known[-1]["length"] == whole
        fits = fits and all(line["offset"] == before["offset"] + before["length"] for before, line in pairwise(known))
    except RunError:
        fits = False
    if not fits and whole:
        (folder / stream.INDEX).unlink(missing_ok=True)
        stream.index_anew(folder)
        yield f"{folder / stream.INDEX} was missing or damaged; it is made anew from the trees."


def missing(run: Run, state: State) -> Iterator[str]:
    """A paragraph for each log that lacks what was made before the checkpoint that the run goes on from."""
    before = range(state.step)
    logged = set(run.steps_logged())
    if lost := [step for step in before if step not in logged]:
        budget = " What they took of train.max_tokens is not counted." if run.config.train.max_tokens else ""
        yield _lost(run.folder / METRICS, "the lines", lost, state) + budget
    if run.config.train.trees_kept:
        told = {line["step"] for line in jsonl.records(run.folder / left_out.FILE, LeftOut) if _says_why(line["kind"])}
        kept = {entry.step for entry in stream.entries(run.folder)}
        if lost := [step for step in before if step not in kept | told]:
            yield _lost(run.folder / stream.TREES, "the trees", lost, state)
        credit = run.folder / annotate.FOLDER / "credit.jsonl"
        said = {line["step"] for line in jsonl.records(credit, Annotation)}
        if said and (lost := [step for step in sorted(kept) if step not in said and step in before]):
            yield _lost(credit, "what is said of the trees", lost, state)
    reports = {report["step"] for report in run.evaluations()}
    if state.best_step is not None and state.best_step not in reports:
        yield (
            f"{run.folder / EVALUATIONS} lacks the report after {state.best_step} steps, of which the checkpoint of "
            f"step {state.step} says that it was the best so far ({state.best:.1%}); it is lost, and the run goes on."
        )


def _says_why(kind: str) -> bool:
    """Whether a line of what was left out says why a step may have no tree."""
    return kind in ("not kept", "failed")


def _lost(path: Path, what: str, steps: list[int], state: State) -> str:
    return (
        f"{path} lacks {what} of step {_spans(steps)}, which come before the checkpoint of step {state.step}; they are "
        "lost, and the run goes on without them."
    )


def _spans(steps: Iterable[int]) -> str:
    """`0 to 2, 5` of the steps 0, 1, 2 and 5."""
    runs = [[step for _, step in group] for _, group in groupby(enumerate(steps), lambda pair: pair[1] - pair[0])]
    spans = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(spans[:10]) + (f" and {len(spans) - 10} spans more" if len(spans) > 10 else "")
