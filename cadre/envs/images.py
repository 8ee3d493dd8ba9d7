"""Images for messages: `image(source)` of a file, of bytes or of an array, validated before it is decoded.

    Message("user", "Where is the goal?", images=(cadre.image("map.png"),))

A path is the user's own: no text of a model should become one. Needs Pillow (the extra `vision`).
"""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path
from typing import Any

from cadre.envs.validation import described
from cadre.errors import DataError
from cadre.file_limits import open_untrusted
from cadre.plugins import package
from cadre.types import Image

FORMATS = ("PNG", "JPEG", "WEBP")
# Bytes of a file (of sound at 16,000 samples a second ten minutes), and pixels of a side: what the largest models of
# today read, with room.
MOST_BYTES, MOST_SIDE = 20_000_000, 4096
ADVICE = "Save it as one of these, or make it smaller."


def image(source: str | Path | bytes | Any) -> Image:
    """Return the image of a path, of a file's bytes, or of a numpy array uint8 [height, width, 3] or [height, width].

    Files are PNG, JPEG or WebP of one frame; transparent pixels are put on white. Raises DataError if there is no such
    image or it is too large, ConfigError if Pillow is not installed.
    """
    if isinstance(source, Image):
        return source
    if isinstance(source, str | Path | bytes):
        return _made(_decoded(*read_media(source, "image", "a PNG, JPEG or WebP file", ADVICE)))
    return _of_array(source)


def read_media(source: str | Path | bytes, kind: str, expected: str, advice: str) -> tuple[bytes, str]:
    """Return the bytes of a user's file, or those given, and what to call them. Raises DataError if there is no plain
    file, and for more than MOST_BYTES."""
    if isinstance(source, bytes):
        data, name = source, f"{kind} of {len(source):,} bytes"
    else:
        path, name = Path(source), f"{kind} {str(source)!r}"
        if not path.is_file():
            fault = "is no plain file" if path.exists() else "does not exist"
            raise DataError(f"{name}: it {fault}; expected {expected}. Check the path.")
        with open_untrusted(path) as file:
            data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise DataError(f"{name}: got more than {MOST_BYTES:,} bytes; expected at most so many. {advice}")
    return data, name


def describe_array(source: Any) -> str:
    """Return the kind and the shape of an array, or the type of anything else, for an error."""
    shape = getattr(source, "shape", None)
    return described(source) if shape is None else f"an array of {getattr(source, 'dtype', '?')} {list(shape)}"


def pixels(picture: Image) -> Any:
    """Return the pixels as a numpy array, uint8 [height, width, 3]."""
    import numpy

    return numpy.asarray(_decoded(picture.png, f"image {picture.digest}"))


def _decoded(data: bytes, name: str) -> Any:
    """Return Pillow's image, RGB. Its size is checked before it is decoded, against decompression bombs."""
    pillow = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            opened = pillow.open(io.BytesIO(data), formats=FORMATS)
            _check_size(opened.width, opened.height, name)
            if getattr(opened, "n_frames", 1) > 1:
                raise DataError(f"{name}: got {opened.n_frames} frames; expected one picture. Save one of them alone.")
            if not opened.has_transparency_data:
                return opened.convert("RGB")
            layer = opened.convert("RGBA")
            return pillow.alpha_composite(pillow.new("RGBA", layer.size, "white"), layer).convert("RGB")
    except (OSError, ValueError, SyntaxError, EOFError, pillow.DecompressionBombError, Warning) as error:
        expected = f"expected {', '.join(FORMATS)}. {ADVICE}"
        raise DataError(f"{name}: it cannot be read as a picture ({error}); {expected}") from None


def _of_array(source: Any) -> Image:
    import numpy

    fits = isinstance(source, numpy.ndarray) and (source.ndim == 2 or (source.ndim == 3 and source.shape[2] == 3))
    if not fits or source.dtype != numpy.uint8:
        expected = "expected a path, the bytes of a file, or a numpy array uint8 [height, width, 3] or [height, width]"
        raise DataError(f"image: got {describe_array(source)}; {expected}. Write array.astype(numpy.uint8).")
    _check_size(source.shape[1], source.shape[0], "image of an array")
    return _made(_pillow().fromarray(numpy.ascontiguousarray(source)).convert("RGB"))


def _check_size(width: int, height: int, name: str) -> None:
    if not (1 <= width <= MOST_SIDE and 1 <= height <= MOST_SIDE):
        got = f"got {width:,} by {height:,} pixels"
        raise DataError(f"{name}: {got}; expected 1 to {MOST_SIDE:,} a side. Make it smaller.")


def _made(picture: Any) -> Image:
    width, height = picture.size
    digest = hashlib.sha256(f"{width}x{height}\n".encode() + picture.tobytes()).hexdigest()
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=6)
    return Image(digest, width, height, file.getvalue())


def _pillow() -> Any:
    return package("PIL.Image", "vision", "image:")
