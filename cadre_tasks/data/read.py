"""Read data sets, from the hub if the user says so, otherwise from a local folder."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

from cadre.errors import ConfigError, DataError, NoSourceError, nearest, reject_name
from cadre.rows import ENDINGS, FileState, file_state, read_rows
from cadre_tasks.data import hub
from cadre_tasks.data.public_sets import SPECS, DatasetSpec, TooLongError
from cadre_tasks.data.records import EXAMPLE, Record, check_fields, prompt_text

HUB = "hub"
VARIABLE = "CADRE_DATA"
PART = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)(-[0-9a-f]+)?$")  # of a series, as the hub numbers them
NUMBERED = re.compile(rf"[-_]\d+$|{PART.pattern}")
# The errors of a parser on a row of another shape.
SHAPE_ERRORS = (KeyError, TypeError, ValueError, IndexError, SyntaxError, AttributeError)


class MissingFilesError(DataError):
    """A split without any file."""


def find_spec(name: str) -> DatasetSpec:
    """Return the spec of a data set. Raises ConfigError for an unknown name."""
    if name not in SPECS:
        expected = f"expected one of {', '.join(SPECS)}, or a file of your own that ends in .jsonl."
        raise ConfigError(reject_name(f"data: got {name!r}", expected, nearest(name, SPECS)))
    return SPECS[name]


def configured_source(source: str = "") -> str:
    """Return the source that the user named, else that of $CADRE_DATA; "" if there is neither."""
    return source or os.environ.get(VARIABLE, "")


def required_source(source: str = "") -> str:
    """Return `configured_source`. Raises NoSourceError if there is none: the hub is never a default."""
    configured = configured_source(source)
    if not configured:
        raise NoSourceError(
            f"data: got no source; expected a folder of data files, {HUB} to fetch from the Hugging Face hub, or a "
            "file of your own. Name it with --from on the command line, settings.source (your own file: settings.data) "
            f"in a recipe, or the variable {VARIABLE}.",
            {"source": EXAMPLE},
        )
    return configured


def is_hub(source: str) -> bool:
    """Return True for the hub, at its newest revision (`hub`) or at a named one (`hub@1f0e3c2`)."""
    return source.partition("@")[0] == HUB


def load(name: str, split: str, source: str = "") -> tuple[Record, ...]:
    """Return the records of a split, in the order of the file, without rows that cannot be judged.

    source   a folder, "hub", or "" for that of $CADRE_DATA
    Raises ConfigError for an unknown name or split, DataError for what is missing or has another shape.
    """
    spec = find_spec(name)
    if split not in spec.splits:
        raise ConfigError(
            f"data: {name} has no {split} split; expected one of {', '.join(spec.splits)}. Name another data set."
        )
    return _load(name, split, required_source(source), split_state(name, split, source))


def split_state(name: str, split: str, source: str = "") -> FileState:
    """Return the state of the local files of a split; empty for the hub, whose files do not change."""
    configured = configured_source(source)
    if not configured or is_hub(configured) or split not in find_spec(name).splits:
        return ()
    try:
        return file_state(find_files(name, split, Path(configured).expanduser()))
    except MissingFilesError:
        return ()


@lru_cache(maxsize=16)
def _load(name: str, split: str, source: str, _state: FileState) -> tuple[Record, ...]:
    records = tuple(record for _, record in parse_rows(name, split, source) if record is not None)
    if not records:
        raise DataError(
            f"data: {name} ({split}) from {source} holds no item that can be judged. Name another source or set."
        )
    return records


def parse_rows(name: str, split: str, source: str) -> list[tuple[Mapping[str, Any], Record | None]]:
    """Return every row of a split with its record, None for rows that cannot be judged."""
    spec = SPECS[name]
    if is_hub(source):
        files = hub.fetch_split(spec, split, source.partition("@")[2])
    else:
        files = find_files(name, split, Path(source).expanduser())
    pairs: list[tuple[Mapping[str, Any], Record | None]] = []
    for where, row in (row for file in files for row in read_rows(file)):
        try:
            if not spec.belongs(row, split):
                continue
            record = spec.parse(row, len(pairs))
            if record is not None:
                check_fields(record)
                if not prompt_text(record).strip():
                    record = None
        except TooLongError:
            record = None
        except SHAPE_ERRORS as error:
            raise DataError(
                f"data: {where} has another shape than {spec.hub}: {type(error).__name__}: {error}; got the fields "
                f"{', '.join(row) or 'none'}. Fix the row, or take the file from the hub."
            ) from None
        pairs.append((row, record))
    return pairs


# Local files


def find_files(name: str, split: str, folder: Path) -> list[Path]:
    """Return the files of a split, JSONL, JSON or Parquet: in FOLDER/NAME or in FOLDER.

    They match the set's own pattern; or they have the name of our split or, in a folder of the set's own, of the hub's;
    or there is only one. `train_first5000.jsonl` is a file of `train`, and so is the series
    `train-00000-of-00003.parquet`, which has to be complete. Raises DataError if there is no file, or several fit.
    """
    spec = SPECS[name]
    home = find_home(name, folder) or folder
    files = [path for path in home.glob("*") if path.suffix in ENDINGS]
    files.sort(key=lambda path: (ENDINGS.index(path.suffix), path.name))
    if spec.files and (matching := [file for file in files if fnmatch(file.name, spec.files)]):
        return matching
    is_own_folder = home != folder or folder.name in (name, *spec.folders)
    for split_name in (split, spec.splits[split][0]) if is_own_folder else (split,):
        exact = [file for file in files if file.stem == split_name]
        prefixed = [file for file in files if file.stem.startswith((f"{split_name}_", f"{split_name}-"))]
        if exact or prefixed:
            return _select_files(exact, prefixed)
    if len(files) == 1 and home != folder and (len(spec.splits) == 1 or name == files[0].stem):
        return files
    raise MissingFilesError(
        f"data: got no file of {name} ({split}) below {folder}; expected {folder / name / f'{split}.jsonl'}, one JSON "
        f"object a line in the shape of {spec.hub}. Put it there, or name {HUB} to fetch it."
    )


def find_home(name: str, folder: Path) -> Path | None:
    """Return the set's own folder below `folder`, None if there is none."""
    homes = (folder / part for part in (name, *SPECS[name].folders))
    return next((home for home in homes if home.is_dir()), None)


def _select_files(exact: Sequence[Path], prefixed: Sequence[Path]) -> list[Path]:
    """Return the file with the name of the split, else the only file or complete series whose names begin with it.

    The same file in several formats counts once. Raises DataError if several files fit, or a part of a series is
    missing.
    """
    # A numbered file beside one of the exact name is another version or a part of it, so it is not left out in silence.
    candidates = (*exact, *(file for file in prefixed if not exact or NUMBERED.search(file.stem)))
    series: dict[tuple[str, str], list[Path]] = defaultdict(list)  # by (name, number of parts)
    for file in candidates:
        part = PART.search(file.stem)
        same_series = series[(file.stem[: part.start()], part["count"]) if part else (file.stem, "")]
        if not same_series or same_series[0].suffix == file.suffix:
            same_series.append(file)
    (prefix, count), files = next(iter(series.items()))
    by_number = {int(part["number"]) if (part := PART.search(file.stem)) else 0: file for file in files}
    if len(series) > 1 or len(by_number) < len(files):
        names = ", ".join(file.name for parts in series.values() for file in parts)
        raise DataError(
            f"data: {files[0].parent} has several files of one split: {names}; expected one, or a whole series. "
            "Keep one, or a whole series."
        )
    if not count:
        return files
    if missing := sorted(set(range(int(count))) - set(by_number)):
        raise DataError(
            f"data: {files[0].parent} has {int(count) - len(missing)} of {int(count)} files of {prefix}; expected all, "
            f"and {prefix}-{missing[0]:0{len(count)}}-of-{count}{files[0].suffix} is missing. Put it there."
        )
    return [by_number[number] for number in range(int(count))]
