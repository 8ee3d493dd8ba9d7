"""Files of data sets from the Hugging Face hub, where the user writes `hub` or `hub@REVISION`.

A set's JSONL, JSON or Parquet files are read as they are: no script of a repository is ever run. Where a repository has
nothing but a script, the hub's own conversion of it to Parquet is taken (the branch refs/convert/parquet). What is
fetched is told on stderr before it is, resumed where it was cut off, compared with the hub's checksums, and kept with
the commit that it is of; afterwards nobody is asked again. `$CADRE_CACHE` says where it is kept, ~/.cache/cadre unless
set.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cadre.data.specs import Spec
from cadre.errors import DataError, first_line
from cadre.file_limits import read_json

PATIENCE = 2.0  # seconds in which the hub has to answer at all
CONVERTED = "refs/convert/parquet"
ENDINGS = (".jsonl", ".json", ".parquet")
USUAL = "main"


@dataclass(frozen=True)
class HubFile:
    """A file of a repository: its path there, its bytes, and its checksum, "sha256:..." or git's own "blob:..."."""

    path: str
    size: int
    checksum: str


def files_of(spec: Spec, split: str, revision: str = "") -> list[Path]:
    """The files of a split, fetched where they are not kept yet.

    revision   a commit, tag or branch; "" for the main branch as it was when the first split of the set was fetched
    Raises DataError without the hub, the set or the split there, and where a file is not what the hub says it is.
    """
    home, note = _places(spec, split, revision)
    if (before := kept(spec, split, revision)) is not None:
        return before
    reach(spec)
    commit, files = _listed(spec, split, [*commits_of(home, note), revision or USUAL])
    where = home / commit
    size = sum(file.size for file in files) / 1e6
    sys.stderr.write(f"data: fetching {len(files)} files, {size:,.1f} MB, of {spec.hub} at {commit} into {where}\n")
    for file in files:
        _fetch(spec, commit, file, where)
    told = {"repository": spec.hub, "commit": commit, "files": [vars(file) for file in files]}
    partial = note.with_name(f".partial-{note.name}")
    partial.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    partial.rename(note)
    return [where / file.path for file in files]


def kept(spec: Spec, split: str, revision: str = "") -> list[Path] | None:
    """The files of a split that was fetched before and is there whole; nobody is asked."""
    return _kept(*_places(spec, split, revision))


def _places(spec: Spec, split: str, revision: str) -> tuple[Path, Path]:
    """The folder of a set, and the note of what of a split is there."""
    home = cache() / spec.hub.replace("/", "--")
    return home, home / f"{split}@{(revision or USUAL).replace('/', '--')}.json"


def cache() -> Path:
    """Where what was fetched is kept."""
    return Path(os.environ.get("CADRE_CACHE", "~/.cache/cadre")).expanduser() / "data"


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def _kept(home: Path, note: Path) -> list[Path] | None:
    """The files that a note names, where all are there with their bytes; their checksums were compared before."""
    if not note.is_file():
        return None
    try:
        told = read_json(note)
        paths = [(home / told["commit"] / file["path"], file["size"]) for file in told["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # cut off or not ours: the set is asked for again, and what is there need not be fetched
    whole = all(path.is_file() and path.stat().st_size == size for path, size in paths)
    return [path for path, _ in paths] if whole else None


def reach(spec: Spec) -> None:
    """Ask the hub for anything, once and briefly: its own client tries for a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise DataError(f"data: {spec.hub} was not fetched before, and HF_HUB_OFFLINE is set. {by_hand(spec)}")
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint(), method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return  # it answered
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DataError(
            f"data: {endpoint()} does not answer within {PATIENCE:g} s ({error}); expected the Hugging Face hub. "
            f"{by_hand(spec)}"
        ) from None


def by_hand(spec: Spec) -> str:
    """What to do where there is no hub."""
    return (
        f"On a machine that reaches it, take the files of {spec.hub} from https://huggingface.co/datasets/{spec.hub} "
        f"(or its branch {CONVERTED}), put them below DIR as {' and '.join(f'{split}.jsonl' for split in spec.splits)} "
        "(.json or .parquet will do) in a folder named after the set, and name DIR in place of hub."
    )


def commits_of(home: Path, note: Path) -> list[str]:
    """The commits that other splits of the same revision were fetched at, so that all of a set are of one."""
    others = (other for other in home.glob(f"*@{note.name.partition('@')[2]}") if other != note)
    return [path[0].relative_to(home).parts[0] for other in others if (path := _kept(home, other))]


def _listed(spec: Spec, split: str, revisions: Sequence[str]) -> tuple[str, list[HubFile]]:
    """(commit, files) of a split: of the first revision that has some, the last of which is the one that was asked for,
    or of the hub's own conversion where none has."""
    for branch in (*revisions, *([CONVERTED] if revisions[-1] == USUAL else [])):
        info = _asked(spec, branch)
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
        if names := chosen_files(list(siblings), spec, split):
            return str(info.sha), [_file(siblings[name]) for name in names]
    raise DataError(
        f"data: {spec.hub} has no JSONL, JSON or Parquet file of its split {spec.splits[split][0]} at {revisions[-1]}; "
        f"expected some. {by_hand(spec)}"
    )


def _asked(spec: Spec, revision: str) -> Any:
    """What the hub says of a repository's files."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return HfApi(endpoint=endpoint()).dataset_info(spec.hub, revision=revision, files_metadata=True)
    except _failures(HfHubHTTPError) as error:
        raise _failed(spec, error) from None


def chosen_files(names: Sequence[str], spec: Spec, split: str) -> list[str]:
    """The files of a split among the paths of a repository, in order.

    Those that the spec's pattern matches; else data files below the spec's configuration (`default` where it is not
    named, as in the hub's own conversion) that name the split as a word of their path, or all of these where none names
    any split and the set has one split only.
    """
    ours, data = spec.splits[split][0], sorted(name for name in names if name.endswith(ENDINGS))
    if spec.files:
        return [name for name in data if fnmatch(name, spec.files)]
    homes = [[name for name in data if home in name.split("/")] for home in (spec.config, "default") if spec.config]
    below = next(filter(None, homes), []) if spec.config else data
    named = [name for name in below if ours in re.split(r"[/\-_.]", name)]
    return named or (below if len(spec.splits) == 1 and len(below) == 1 else [])


def _file(sibling: Any) -> HubFile:
    checksum = f"sha256:{sibling.lfs.sha256}" if sibling.lfs else f"blob:{sibling.blob_id}"
    return HubFile(sibling.rfilename, sibling.size, checksum)


def _fetch(spec: Spec, commit: str, file: HubFile, where: Path) -> None:
    """Bring a file, from where it was cut off, and compare it with its checksum; one that differs is removed."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        hf_hub_download(spec.hub, file.path, repo_type="dataset", revision=commit, local_dir=where, endpoint=endpoint())
    except _failures(HfHubHTTPError) as error:
        raise _failed(spec, error) from None
    got = checksum(where / file.path, file.checksum.partition(":")[0])
    if got != file.checksum:
        (where / file.path).unlink()
        raise DataError(
            f"data: {file.path} of {spec.hub} came with {got}; expected {file.checksum}. It was removed; try again."
        )


def checksum(path: Path, kind: str) -> str:
    """ "sha256:..." of a file's bytes, or "blob:...", git's SHA-1 of them behind their number."""
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return f"{kind}:{digest.hexdigest()}"


def _failures(error: type[Exception]) -> tuple[type[Exception], ...]:
    """What fetching raises: the hub's own error, and those of the library below it, which releases have changed."""
    below = tuple(kind for kind in error.__bases__ if issubclass(kind, Exception))
    return (*below, OSError, ValueError, RuntimeError)


def _failed(spec: Spec, error: Exception) -> DataError:
    return DataError(
        f"data: {spec.hub} could not be fetched: {type(error).__name__}: {first_line(error)}. What came so far "
        f"is kept; try again. {by_hand(spec)}"
    )
