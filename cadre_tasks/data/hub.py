"""Files of data sets from the Hugging Face hub, used only where the user writes `hub` or `hub@REVISION`.

JSONL, JSON and Parquet files of a repository are read as they are; no script of a repository is ever run. For a
repository that has only a script, the hub's own conversion to Parquet is taken (the branch refs/convert/parquet).
Downloads are announced on stderr, resumed where they broke off, and kept with their commit; after that the hub is not
asked again. They are kept in `$CADRE_CACHE`, ~/.cache/cadre by default.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from cadre.errors import DataError, first_line
from cadre.file_limits import read_json
from cadre.files import write_text_atomically
from cadre_tasks.data.public_sets import DatasetSpec

TIMEOUT_S = 10.0  # for the first answer of the hub
CONVERTED = "refs/convert/parquet"
ENDINGS = (".jsonl", ".json", ".parquet")
MAIN = "main"


def fetch_split(spec: DatasetSpec, split: str, revision: str = "") -> list[Path]:
    """Return the files of a split; download those that are not in the cache.

    revision   a commit, tag or branch; "" for the main branch as it was when the first split of the set was fetched
    Raises DataError if the hub, the set or the split cannot be found.
    """
    home, manifest = _cache_paths(spec, split, revision)
    if (cached := _read_manifest(home, manifest)) is not None:
        return cached
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise DataError(f"data: {spec.hub} was not fetched before, and HF_HUB_OFFLINE is set. {manual_download(spec)}")
    # All splits of a revision are from one commit: that of those in the cache.
    others = (path for path in home.glob(f"*@{manifest.name.partition('@')[2]}") if path != manifest)
    commits = [cached[0].relative_to(home).parts[0] for path in others if (cached := _read_manifest(home, path))]
    commit, files = _find_files(spec, split, [*commits, revision or MAIN])
    folder = home / commit
    size = sum(files.values()) / 1e6
    sys.stderr.write(f"data: fetching {len(files)} files, {size:,.1f} MB, of {spec.hub} at {commit} into {folder}\n")
    with _told_as_data_error(spec):
        from huggingface_hub import hf_hub_download

        for path in files:
            hf_hub_download(spec.hub, path, repo_type="dataset", revision=commit, local_dir=folder, endpoint=endpoint())
    content = {"repository": spec.hub, "commit": commit, "files": files}
    write_text_atomically(manifest, json.dumps(content, indent=1) + "\n")
    return [folder / path for path in files]


# The cache


def cached_files(spec: DatasetSpec, split: str, revision: str = "") -> list[Path] | None:
    """Return the files of a split if all of them are in the cache, else None. Asks nobody."""
    return _read_manifest(*_cache_paths(spec, split, revision))


def _cache_paths(spec: DatasetSpec, split: str, revision: str) -> tuple[Path, Path]:
    """Return the folder of a set, and the manifest of a split in it."""
    folder = Path(os.environ.get("CADRE_CACHE", "~/.cache/cadre")).expanduser() / "data"
    home = folder / spec.hub.replace("/", "--")
    return home, home / f"{split}@{(revision or MAIN).replace('/', '--')}.json"


def _read_manifest(home: Path, manifest: Path) -> list[Path] | None:
    """Return the files of a manifest if all are there with their sizes."""
    if not manifest.is_file():
        return None
    try:
        content = read_json(manifest)
        sizes = {home / content["commit"] / path: size for path, size in content["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # a broken manifest is written again, and files that are there are not downloaded again
    is_complete = all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())
    return list(sizes) if is_complete else None


# The hub


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def manual_download(spec: DatasetSpec) -> str:
    """Return instructions for a machine without the hub."""
    return (
        f"On a machine that reaches it, take the files of {spec.hub} from https://huggingface.co/datasets/{spec.hub} "
        f"(or its branch {CONVERTED}), put them below DIR as {' and '.join(f'{split}.jsonl' for split in spec.splits)} "
        "(.json or .parquet will do) in a folder named after the set, and name DIR in place of hub."
    )


def _find_files(spec: DatasetSpec, split: str, revisions: Sequence[str]) -> tuple[str, dict[str, int]]:
    """Return (commit, bytes by file) of a split, at the first of the revisions that has files of it. The last revision
    is the one that the user named. For the main branch the hub's conversion is tried after it."""
    from huggingface_hub import HfApi

    for branch in (*revisions, *([CONVERTED] if revisions[-1] == MAIN else [])):
        with _told_as_data_error(spec):
            api = HfApi(endpoint=endpoint())
            info = api.dataset_info(spec.hub, revision=branch, files_metadata=True, timeout=TIMEOUT_S)
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
        if names := select_files(list(siblings), spec, split):
            return str(info.sha), {name: siblings[name].size for name in names}
    raise DataError(
        f"data: {spec.hub} has no JSONL, JSON or Parquet file of its split {spec.splits[split][0]} at {revisions[-1]}; "
        f"expected some. {manual_download(spec)}"
    )


def select_files(names: Sequence[str], spec: DatasetSpec, split: str) -> list[str]:
    """Return the files of a split among the paths of a repository, in order.

    Those that match the spec's pattern; else data files below the spec's configuration (below `default` if there is
    none of that name, as in the hub's own conversion) that have the split as a word of their path. A set with one split
    may have one file of any name.
    """
    hub_split, data_files = spec.splits[split][0], sorted(name for name in names if name.endswith(ENDINGS))
    if spec.files:
        return [name for name in data_files if fnmatch(name, spec.files)]
    if spec.config:
        folders = [[name for name in data_files if home in name.split("/")] for home in (spec.config, "default")]
        data_files = next(filter(None, folders), [])
    of_split = [name for name in data_files if hub_split in re.split(r"[/\-_.]", name)]
    return of_split or (data_files if len(spec.splits) == 1 and len(data_files) == 1 else [])


@contextmanager
def _told_as_data_error(spec: DatasetSpec) -> Iterator[None]:
    """Raise DataError for the hub's own errors, and those of the HTTP library below it, which has changed."""
    from huggingface_hub.errors import HfHubHTTPError

    bases = tuple(kind for kind in HfHubHTTPError.__bases__ if issubclass(kind, Exception))
    try:
        yield
    except (*bases, OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"data: {spec.hub} could not be fetched: {type(error).__name__}: {first_line(error)}. What came so far "
            f"is kept; try again. {manual_download(spec)}"
        ) from None
