"""Reads data sets: from the hub where the user says so, otherwise from a local folder."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

from cadre.data import hub
from cadre.data.files import ENDINGS, rows_in
from cadre.data.jsonl import State, state_of
from cadre.data.parse import TooLongError
from cadre.data.records import Record, refuse_misfit, text_of
from cadre.data.specs import SPECS, Spec
from cadre.errors import ConfigError, DataError, nearest

HUB = "hub"
VARIABLE = "CADRE_DATA"
PART = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)(-[0-9a-f]+)?$")  # of a series, as the hub numbers them
NUMBERED = re.compile(rf"[-_]\d+$|{PART.pattern}")


class MissingFilesError(DataError):
    """A split of which there is no file at all."""


class NoSourceError(DataError):
    """A data set is named, and nobody has said where to read it from."""


def spec_of(name: str) -> Spec:
    """The spec of a data set, by name. Raises ConfigError for a name that is not known."""
    if name not in SPECS:
        raise ConfigError(
            f"data: got {name!r}; expected one of {', '.join(SPECS)}, or a file of your own that ends in .jsonl."
            f"{nearest(name, SPECS)}"
        )
    return SPECS[name]


def named_source(source: str = "") -> str:
    """The source that a user named, or else the environment's; empty where there is neither."""
    return source or os.environ.get(VARIABLE, "")


def chosen_source(source: str = "") -> str:
    """`named_source`, which must be there; "hub" is a source only when it is written out."""
    chosen = named_source(source)
    if not chosen:
        raise NoSourceError(
            f"data: got no source; expected a folder of data files, {HUB} to fetch from the Hugging Face hub, or a "
            "file of your own. Name it with --from on the command line, settings.source (your own file: settings.data) "
            f"in a recipe, or the variable {VARIABLE}."
        )
    return chosen


def load(name: str, split: str, source: str = "") -> tuple[Record, ...]:
    """The records of a split, in the order of the file. Rows that cannot be judged are left out.

    source   a folder, "hub", or "" for what $CADRE_DATA says
    Raises ConfigError for an unknown name or split, DataError for what is missing or has another shape.
    """
    spec = spec_of(name)
    if split not in spec.splits:
        raise ConfigError(
            f"data: {name} has no {split} split; expected one of {', '.join(spec.splits)}. Name another data set."
        )
    return _records(name, split, chosen_source(source), state(name, split, source))


def state(name: str, split: str, source: str = "") -> State:
    """Of the files that a split is read from; nothing of the hub's, and nothing where there are none."""
    chosen = named_source(source)
    if not chosen or is_hub(chosen) or split not in spec_of(name).splits:
        return ()
    try:
        return state_of(local_files(name, split, Path(chosen).expanduser()))
    except MissingFilesError:
        return ()


@lru_cache(maxsize=16)
def _records(name: str, split: str, source: str, _state: State) -> tuple[Record, ...]:
    records = tuple(record for _, record in parsed(name, split, source) if record is not None)
    if not records:
        raise DataError(
            f"data: {name} ({split}) from {source} holds no item that can be judged; expected some. Name another "
            "source or set."
        )
    return records


def parsed(name: str, split: str, source: str) -> list[tuple[Mapping[str, Any], Record | None]]:
    """Every row of a split and its record, None for the rows that cannot be judged."""
    spec = SPECS[name]
    rows = [(where, row) for where, row in raw(name, split, source) if _belongs(spec, row, split, where)]
    return [(row, _parse(spec, row, index, where)) for index, (where, row) in enumerate(rows)]


# What a parser raises on a row of another shape.
MISFITS = (KeyError, TypeError, ValueError, IndexError, SyntaxError, AttributeError)


def _belongs(spec: Spec, row: Mapping[str, Any], split: str, where: str) -> bool:
    try:
        return spec.belongs(row, split)
    except MISFITS as error:
        raise _misfit(spec, row, where, error) from None


def _parse(spec: Spec, row: Mapping[str, Any], index: int, where: str) -> Record | None:
    """The record of a row; None for one that cannot be judged, or that asks nothing."""
    try:
        record = spec.parse(row, index)
        if record is not None:
            refuse_misfit(record)
        return record if record is not None and text_of(record).strip() else None
    except TooLongError:
        return None
    except MISFITS as error:
        raise _misfit(spec, row, where, error) from None


def _misfit(spec: Spec, row: Mapping[str, Any], where: str, error: Exception) -> DataError:
    return DataError(
        f"data: {where} has another shape than {spec.hub}: {type(error).__name__}: {error}; got the fields "
        f"{', '.join(row) or 'none'}. Fix the row, or take the file from the hub."
    )


def raw(name: str, split: str, source: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """(where, row) of every row as it is, of the hub or of a local file."""
    if is_hub(source):
        files = hub.files_of(SPECS[name], split, source.partition("@")[2])
    else:
        files = local_files(name, split, Path(source).expanduser())
    return (row for file in files for row in rows_in(file))


def is_hub(source: str) -> bool:
    """Whether a source is the hub, at the newest revision or at one that it names: `hub`, `hub@1f0e3c2`."""
    return source.partition("@")[0] == HUB


def local_files(name: str, split: str, folder: Path) -> list[Path]:
    """The files of a split, JSONL, JSON or Parquet: in FOLDER/NAME or in FOLDER.

    They match the set's own pattern, or are named by our split or, in a folder of the set's own, the hub's, or there
    is one only: `train_first5000.jsonl` is a file of `train`, and so is the series `train-00000-of-00003.parquet`,
    which has to be whole. Raises DataError that says where they were looked for, or which of several it could be.
    """
    spec = SPECS[name]
    home = home_of(name, folder) or folder
    files = sorted((path for path in home.glob("*") if path.suffix in ENDINGS), key=_preferred)
    if spec.files and (matching := [file for file in files if fnmatch(file.name, spec.files)]):
        return matching
    own = home != folder or folder.name in (name, *spec.folders)
    for wanted in (split, spec.splits[split][0]) if own else (split,):
        named = [file for file in files if file.stem.startswith((f"{wanted}_", f"{wanted}-"))]
        exact = [file for file in files if file.stem == wanted]
        if exact or named:
            return _of_split(exact, named)
    if len(files) == 1 and home != folder and (len(spec.splits) == 1 or name == files[0].stem):
        return files
    raise MissingFilesError(
        f"data: got no file of {name} ({split}) below {folder}; expected {folder / name / f'{split}.jsonl'}, one JSON "
        f"object a line in the shape of {spec.hub}. Put it there, or name {HUB} to fetch it."
    )


def home_of(name: str, folder: Path) -> Path | None:
    """The folder of a set's own below `folder`; None where it has none."""
    homes = (folder / part for part in (name, *SPECS[name].folders))
    return next((place for place in homes if place.is_dir()), None)


def _of_split(exact: Sequence[Path], named: Sequence[Path]) -> list[Path]:
    """The file that has the split's name, else the only file or series of those whose names begin with it; the same in
    another form counts once. Raises DataError where there are several, or a part of a series is missing."""
    found: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for file in (*exact, *(file for file in named if not exact or NUMBERED.search(file.stem))):
        part = PART.search(file.stem)
        alike = found[(file.stem[: part.start()], part["count"]) if part else (file.stem, "")]
        if not alike or alike[0].suffix == file.suffix:
            alike.append(file)
    (before, count), files = next(iter(found.items()))
    if len(found) > 1 or len({_number(file) for file in files}) < len(files):
        names = ", ".join(file.name for several in found.values() for file in several)
        raise DataError(
            f"data: {files[0].parent} has several files of one split: {names}; expected one, or a whole series such as "
            "train-00000-of-00002 and train-00001-of-00002. Keep one, or a whole series."
        )
    return _series(files, before, count) if count else files


def _series(files: Sequence[Path], before: str, count: str) -> list[Path]:
    """The files of a series in their order. Raises DataError where one is missing."""
    found = {_number(file): file for file in files}
    if missing := sorted(set(range(int(count))) - set(found)):
        raise DataError(
            f"data: {files[0].parent} has {int(count) - len(missing)} of {int(count)} files of {before}; expected all, "
            f"and {before}-{missing[0]:0{len(count)}}-of-{count}{files[0].suffix} is missing. Put it there."
        )
    return [found[number] for number in range(int(count))]


def _number(file: Path) -> int:
    """A file's place in its series, 0 where it is of none."""
    part = PART.search(file.stem)
    return int(part["number"]) if part else 0


def _preferred(path: Path) -> tuple[int, str]:
    return ENDINGS.index(path.suffix), path.name
