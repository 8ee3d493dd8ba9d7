"""Files and folders that appear whole or not at all: built beside their place, flushed, and only then given their name.

What is being built lies in the folder `.partial-NAME` beside it, on which its writer holds a lock. A killed writer
leaves that folder behind; the next one for the same name removes it. Nothing that exists is ever replaced.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cadre.errors import RunError, TakenError

# How libraries that are written in Rust report the system's errors, in exceptions of their own.
OF_SYSTEM = re.compile(r"\(os error (\d+)\)")


def refusal(error: Exception) -> str | None:
    """Return what the system said, in words, or None where the error is another's."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    told = OF_SYSTEM.search(str(error))
    return os.strerror(int(told.group(1))) if told else None


@contextmanager
def whole(*outs: Path) -> Iterator[list[Path]]:
    """Yield a path to build each of `outs` at, a file or a folder; when the block ends they appear under their names.

    All of them lie in one folder. One that is not built does not appear, and where the block fails none does. Raises
    RunError where one exists already, where another process builds the same, and where the system refuses to write.
    """
    first = outs[0]
    try:
        first.parent.mkdir(parents=True, exist_ok=True)
        with _claimed(partial_of(first)) as partial:
            _remove_unfinished(partial, outs)
            _clear(partial)
            built = [partial / out.name for out in outs]
            try:
                yield built
                _flush_tree(partial)
                _publish(built, outs)
                flush(first.parent)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except FileExistsError as error:
        raise TakenError(
            f"{error.filename}: it exists by now; expected a new path, as nothing is ever overwritten. Name another."
        ) from None
    except Exception as error:
        if (why := refusal(error)) is None:
            raise
        raise RunError(
            f"{first}: {why}; expected a disk that can be written to. Nothing of it was left behind: make room or name "
            "another path, and call it again."
        ) from error


def remove_unfinished(*outs: Path) -> None:
    """Remove what a killed writer of `outs` left behind: its folder, and those that it had published before the others.
    Where all of them are there they stay. Raises RunError where another process is writing them."""
    partial = partial_of(outs[0])
    if partial.is_dir() and not partial.is_symlink():
        with _claimed(partial) as claimed:
            _remove_unfinished(claimed, outs)
            shutil.rmtree(claimed)


def partial_of(out: Path) -> Path:
    """Return the folder in which `out` is built."""
    return out.with_name(f".partial-{out.name}")


def flush(path: Path) -> None:
    """Make the disk hold a file, or a folder's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _claimed(partial: Path) -> Iterator[Path]:
    """The folder to build in, for this process alone. The lock goes with the process, however it ends."""
    while True:
        partial.mkdir(exist_ok=True)
        descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TakenError(
                    f"{partial.with_name(partial.name.removeprefix('.partial-'))}: another process is writing it; "
                    "expected one at a time. Wait for it, or name another path."
                ) from None
            if _is_same(descriptor, partial):
                yield partial
                return
        finally:
            os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    """Whether the path still leads to the open folder: its writer may have removed it before the lock was free."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_unfinished(partial: Path, outs: Sequence[Path]) -> None:
    built = [out for out in outs if (partial / out.name).exists()]
    published = [out for out in built if _is_link_of(out, partial / out.name)]
    if len(published) < len(built):
        for out in published:
            out.unlink()


def _is_link_of(out: Path, built: Path) -> bool:
    return out.is_file() and built.is_file() and os.path.samestat(os.lstat(out), os.lstat(built))


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _flush_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink():
            flush(path)


def _publish(built: Sequence[Path], outs: Sequence[Path]) -> None:
    """Give what was built its names: all of them or, where one is taken, none."""
    done: list[Path] = []
    try:
        for source, out in zip(built, outs, strict=True):
            if source.exists():
                _give_name(source, out)
                done.append(out)
    except BaseException:
        for out in done:
            if out.is_file():
                out.unlink()
        raise


def _give_name(built: Path, out: Path) -> None:
    """A file is linked, which fails where the name is taken; a folder is renamed, which fails where anything lies in a
    folder of that name."""
    taken = FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(out))
    if built.is_dir():
        if os.path.lexists(out) and not (out.is_dir() and not out.is_symlink()):
            raise taken
        try:
            built.rename(out)
        except OSError as error:
            raise taken if error.errno == errno.ENOTEMPTY else error from None
        return
    try:
        os.link(built, out, follow_symlinks=False)
    except FileExistsError:
        raise taken from None
    except OSError:  # a file system without hard links
        if os.path.lexists(out):
            raise taken from None
        built.rename(out)
