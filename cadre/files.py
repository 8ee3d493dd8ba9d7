"""Read and write files so that a crash, a full disk or a stranger's folder does no harm.

Files and folders appear whole or not at all: they are built beside their path, flushed, and only then renamed. Records
are read from regular files alone, never through a link, up to a size, and are validated with pydantic.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from cadre.errors import RunError, TakenError, one_line
from cadre.file_limits import DESCRIPTION, open_untrusted, parse_json, size_of

# Libraries written in Rust report the system's errors in exceptions of their own, with this text.
RUST_OS_ERROR = re.compile(r"\(os error (\d+)\)")
MANIFEST = "manifest.json"

# ---- New files and folders: `publish_atomically`
#
# What is being built lies in the folder `.partial-NAME` beside it, which its writer holds a lock on. A killed writer
# leaves that folder behind, and the next writer of the same name removes it. Nothing that exists is ever replaced.


@contextmanager
def publish_atomically(*outs: Path) -> Iterator[list[Path]]:
    """Yield a path to build each of `outs` at, a file or a folder; when the block ends they appear under their names.

    All of them lie in one folder. One that is not built does not appear, and where the block fails none does. Raises
    RunError where one exists already, where another process builds the same, and where the system refuses to write.
    """
    first = outs[0]
    try:
        first.parent.mkdir(parents=True, exist_ok=True)
        with _lock_partial(first.with_name(f".partial-{first.name}")) as partial:
            for path in partial.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            built = [partial / out.name for out in outs]
            try:
                yield built
                # The content has to be on the disk before its name is, or a power cut leaves an empty file.
                for path in (*partial.rglob("*"), partial):
                    if not path.is_symlink():
                        sync_to_disk(path)
                _publish(built, outs)
                sync_to_disk(first.parent)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except FileExistsError as error:
        advice = "Nothing is ever overwritten: name another."
        raise TakenError(f"{error.filename}: it exists by now; expected a new path. {advice}") from None
    except Exception as error:
        if (reason := describe_os_error(error)) is None:
            raise
        advice = "Nothing of it was left behind: make room or name another path, and call it again."
        raise RunError(f"{first}: {reason}; expected a disk that can be written to. {advice}") from error


@contextmanager
def _lock_partial(partial: Path) -> Iterator[Path]:
    """Yield the folder to build in, for this process alone. The lock goes with the process, however it ends."""
    partial.mkdir(exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            out = partial.with_name(partial.name.removeprefix(".partial-"))
            advice = "Wait for it, or name another path."
            raise TakenError(f"{out}: another process is writing it; expected one at a time. {advice}") from None
        yield partial
    finally:
        os.close(descriptor)


def _publish(built: Sequence[Path], outs: Sequence[Path]) -> None:
    """Give all that was built its names or, if one is taken, none of them."""
    published: list[Path] = []
    try:
        for source, out in zip(built, outs, strict=True):
            if source.exists():
                _give_name(source, out)
                published.append(out)
    except BaseException:
        for out in published:
            if out.is_file():
                out.unlink()
        raise


def _give_name(built: Path, out: Path) -> None:
    """Link a file, which fails if the name is taken; rename a folder, which fails if a folder of that name has
    files."""
    name_taken = FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(out))
    if built.is_dir():
        if os.path.lexists(out) and not (out.is_dir() and not out.is_symlink()):
            raise name_taken
        try:
            built.rename(out)
        except OSError as error:
            raise name_taken if error.errno == errno.ENOTEMPTY else error from None
        return
    try:
        os.link(built, out, follow_symlinks=False)
    except FileExistsError:
        raise name_taken from None
    except OSError:  # a file system without hard links
        if os.path.lexists(out):
            raise name_taken from None
        built.rename(out)


# ---- Files of a run: errors of the disk, and replacing one file


@contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Wrap code that writes `path`. Raises RunError, which names the path and how to go on, for an error of the
    system."""
    try:
        yield
    except Exception as error:
        if (reason := describe_os_error(error)) is None:
            raise
        advice = "What was written before is whole: make room, or mend the disk, and go on with --resume."
        raise RunError(f"{path}: {reason}; expected a disk that can be written to. {advice}") from error


def describe_os_error(error: Exception) -> str | None:
    """Return the message of a system error in words, or None for an error of another kind."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    match = RUST_OS_ERROR.search(str(error))
    return os.strerror(int(match.group(1))) if match else None


def write_text_atomically(path: Path, text: str) -> None:
    """Replace a file's text: all of it, or nothing. Raises RunError if the system refuses."""
    fresh = path.with_name(f"{path.name}.new")
    with explain_disk_errors(path):
        fresh.unlink(missing_ok=True)  # it may be a link to elsewhere
        with fresh.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)


def sync_to_disk(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(value: Any, **options: Any) -> str:
    """Return the value as JSON of RFC 8259. A number that is not finite, which Python would write as NaN or Infinity
    and other readers refuse, is null."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(replace_non_finite(value), **options)


def replace_non_finite(value: Any) -> Any:
    """Return the value with None for every number in it that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: replace_non_finite(inner) for name, inner in value.items()}
    return [replace_non_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


# ---- Reading records: regular files alone, never through a link, up to a size

Count = Annotated[int, Field(strict=True, ge=0, le=1 << 62)]
Text = Annotated[str, Field(strict=True)]
Record = TypeVar("Record")


class OpenRecord(BaseModel):
    """A record that may have more fields than this version of Cadre knows."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


def open_plain(path: Path, root: Path | None = None, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a file of a run folder. `root` is that folder; by default the file's own folder.

    Raises RunError if it, or a folder on the way from `root` to it, is a link, and if it is no regular file: what a
    link leads to was not written by the run. Raises FileNotFoundError if there is none.
    """
    names = path.relative_to(root).parts if root is not None else ()
    for depth in range(1, len(names)):
        require_no_link(Path(root or "", *names[:depth]))
    try:
        return open_untrusted(path, flags, follow_links=False)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link_error(path) from None
        if error.errno == errno.EINVAL:
            raise damaged_file_error(path, str(error.strerror)) from None
        raise


def require_no_link(path: Path) -> None:
    """Raise RunError if a file or folder of a run folder is a link."""
    if path.is_symlink():
        raise _link_error(path)


def _link_error(path: Path) -> RunError:
    got = "is a link, and links in a run folder are not followed, as they may lead anywhere"
    return RunError(f"{path}: {got}; expected what the run wrote itself. Put a copy in its place.")


def copy_plain(path: Path, into: Path) -> None:
    """Copy a file of a run folder. Raises RunError for a link."""
    with open_plain(path) as file, into.open("xb") as copy:
        shutil.copyfileobj(file, copy)


def path_exists(path: Path) -> bool:
    """Return True if anything of that name exists, a broken link too."""
    return os.path.lexists(path)


def read_text(path: Path, root: Path | None = None) -> str:
    """Return the text of a file of a run folder. Raises RunError if it cannot be read as text."""
    try:
        with open_plain(path, root) as file:
            content = file.read(DESCRIPTION + 1)
        if len(content) > DESCRIPTION:
            raise damaged_file_error(path, f"it holds more than {size_of(DESCRIPTION)}")
        return content.decode()
    except UnicodeDecodeError as error:
        raise damaged_file_error(path, f"not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); expected what a run writes. Restore it.") from None


def read_record(path: Path, model: type[Record], root: Path | None = None) -> Record:
    """Return the JSON object in a file. Raises RunError that says what is wrong with it."""
    text = read_text(path, root)
    try:
        return validate_record(parse_json(text), model)
    except ValueError as error:
        raise damaged_file_error(path, str(error)) from None


def validate_record(value: Any, model: type[Record]) -> Record:
    """Return a JSON value as a record, a pydantic model or a dataclass. Raises ValueError whose message is one line."""
    if not isinstance(value, Mapping):
        raise ValueError(f"got {type(value).__name__}, expected an object")
    try:
        record: Record = type_adapter(model).validate_python(value)  # type: ignore[arg-type]  # mypy 11469
        return record
    except ValidationError as error:
        raise ValueError(validation_message(error)) from None


@cache
def type_adapter(model: type) -> TypeAdapter[Any]:
    """Return what validates values of a type."""
    return TypeAdapter(model)


def validation_message(error: ValidationError) -> str:
    """Return what is wrong first with a value, where, and the value, on one line."""
    first = error.errors(include_url=False)[0]
    where = one_line(".".join(map(str, first["loc"])))
    got = "" if first["type"] == "missing" else f", got {repr(first['input'])[:60]}"
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}{got}"


def damaged_file_error(path: Path, why: str) -> RunError:
    """Return the error for a file that does not hold what a run writes."""
    advice = "Restore it from a copy, or remove it where the run can do without."
    return RunError(f"{path}: is damaged ({why}); expected what a run writes. {advice}")


# ---- Folders with a manifest: `manifest.json` has the size and SHA-256 of every other file


class ManifestEntry(OpenRecord):
    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(OpenRecord):
    """`manifest.json` of a folder that was written by `write_with_manifest`."""

    files: dict[str, ManifestEntry]


def write_with_manifest(final: Path, fill: Callable[[Path], None]) -> Path:
    """Let `fill` write a folder, add a manifest, and let it appear as `final`, whole or not at all. Raises RunError if
    the disk refuses."""
    with publish_atomically(final) as (built,), explain_disk_errors(final):
        built.mkdir()
        fill(built)
        files = sorted(path for path in built.rglob("*") if path.is_file())
        entries = {
            str(path.relative_to(built)): {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in files
        }
        (built / MANIFEST).write_text(json.dumps({"files": entries}, indent=1) + "\n")
    return final


def find_damage(folder: Path) -> str | None:
    """Return what is wrong with a folder that has a manifest, in words, or None if every file is as it was written."""
    if not folder.is_dir() or folder.is_symlink():
        return "it is a link" if folder.is_symlink() else "it is no folder"
    try:
        expected = read_record(folder / MANIFEST, Manifest).files
    except RunError:
        return f"{MANIFEST} is missing or broken"
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    for name, path in paths.items():
        if path.is_symlink():
            return f"{name} is a link, which is not followed"
        if path.is_file() and name != MANIFEST and name not in expected and not path.name.startswith("."):
            return f"{name} is not among what was written"
    for name, entry in expected.items():
        if name not in paths or not paths[name].is_file():
            return f"{name} is missing"
        size = paths[name].stat().st_size
        if size != entry.bytes:
            return f"{name} has {size:,} bytes in place of {entry.bytes:,}"
        if _sha256(paths[name]) != entry.sha256:
            return f"{name} is not what was written (its checksum differs)"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
