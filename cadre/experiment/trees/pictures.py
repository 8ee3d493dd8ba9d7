"""Pictures beside JSON lines that name them: `pictures/DIGEST.png`, each once, however often it was shown.

Where a record of pictures becomes JSON it says `{"digest": ..., "width": ..., "height": ...}`. Files are named by what
is in them, so none is ever written anew, and one that nothing names any more does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from cadre.data.atomic import flush
from cadre.errors import RunError
from cadre.experiment.records import exists, open_plain
from cadre.experiment.to_disk import writing
from cadre.types import Image

FOLDER = "pictures"
PNG = b"\x89PNG\r\n\x1a\n"
DIGEST = re.compile(r"[0-9a-f]{64}")


def described(image: Image) -> dict[str, Any]:
    """What JSON says of a picture."""
    return {"digest": image.digest, "width": image.width, "height": image.height}


def save(folder: Path, images: Iterable[Image]) -> None:
    """Write the pictures that are not there yet, each whole or not at all. Raises RunError where the disk refuses."""
    for image in images:
        path = folder / FOLDER / f"{image.digest}.png"
        if not path.exists():
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_name(f".partial-{path.name}")
                partial.unlink(missing_ok=True)  # it may be a link to elsewhere
                partial.write_bytes(image.png)
                flush(partial)
                partial.rename(path)


def read(folder: Path, digest: str) -> bytes:
    """The file of a picture. Raises RunError where there is none of that name."""
    path = folder / FOLDER / f"{digest}.png"
    if not DIGEST.fullmatch(digest) or not exists(path):
        raise RunError(
            f"pictures: {folder} holds none that is called {digest[:80]!r}; expected the digest of one that its trees "
            "show. Restore the folder pictures from a copy."
        )
    with open_plain(path, folder) as file:
        png = file.read()
    if not png.startswith(PNG):
        raise RunError(f"pictures: {path} is no PNG file; expected one. Restore it from a copy.")
    return png


class Kept:
    """The pictures of a folder and how much they take. Owned by the one who writes there, for as long as it does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, images: Collection[Image]) -> None:
        """Write those that are not there yet. Raises RunError where the disk refuses."""
        size, new = self.size_with(images), {image.digest for image in images}
        save(self.folder, images)
        self._size = size
        self._digests.update(new)

    def size_with(self, images: Collection[Image]) -> int:
        """Bytes of all of them, were these among them."""
        new = {image.digest: len(image.png) for image in images if image.digest not in self._digests}
        return self._size + sum(new.values())

    @cached_property
    def _digests(self) -> set[str]:
        return {path.stem for path in self._files()}

    @cached_property
    def _size(self) -> int:
        return sum(path.stat().st_size for path in self._files())

    def _files(self) -> Iterator[Path]:
        return (self.folder / FOLDER).glob("*.png")


def filled(value: Any, folder: Path) -> Any:
    """JSON values with the bytes of every picture put in, as `Image` has them."""
    if isinstance(value, list):
        return [filled(inner, folder) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"digest", "width", "height"}:
        return {**value, "png": read(folder, value["digest"])}
    return {key: filled(inner, folder) for key, inner in value.items()}
