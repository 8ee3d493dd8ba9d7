"""Sounds for messages: `sound(source)` of a WAV file, of bytes or of an array, validated before it is decoded.

    Message("user", "How many beats?", sounds=(cadre.sound("beats.wav"),))

A path is the user's own: no text of a model should become one.
"""

from __future__ import annotations

import hashlib
import io
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadre.envs.images import MOST_BYTES, read_media
from cadre.envs.validation import described
from cadre.errors import DataError
from cadre.types import Sound

if TYPE_CHECKING:
    import numpy

RATES = range(1_000, 192_001)
ADVICE = "Save it as a WAV file of 16 bits, or make it shorter."


def sound(source: str | Path | bytes | Any, rate: int = 0) -> Sound:
    """Return the sound of a path, of a file's bytes, or of a numpy array float [samples] in [-1, 1] or int16.

    Files are WAV of 16 bits; the mean of several channels is taken. An array needs its `rate`, in samples a second. A
    model hears a sound only at its own rate, which is 16,000 for those of today. Raises DataError if there is no such
    sound or it is too large.
    """
    if isinstance(source, Sound):
        return source
    if isinstance(source, str | Path):
        label = f"sound {str(source)!r}"
        return _of_bytes(read_media(source, label, "a WAV file"), label)
    if isinstance(source, bytes):
        return _of_bytes(source, f"sound of {len(source):,} bytes")
    return _of_array(source, rate)


def samples(heard: Sound) -> numpy.ndarray:
    """Return the samples as a numpy array, float32 [length] in [-1, 1]."""
    import numpy

    return _decoded(heard.wav, f"sound {heard.digest}")[0].astype(numpy.float32) / 32768


def _of_bytes(data: bytes, label: str) -> Sound:
    if len(data) > MOST_BYTES:
        raise DataError(f"{label}: got more than {MOST_BYTES:,} bytes; expected at most so many. {ADVICE}")
    return _made(*_decoded(data, label), label)


def _decoded(data: bytes, label: str) -> tuple[numpy.ndarray, int]:
    """Return the samples, int16 [length], and their rate."""
    import numpy

    try:
        with wave.open(io.BytesIO(data)) as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            # The header may claim any length; no more is read than there is.
            raw = file.readframes(len(data))
    except (wave.Error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{label}: it cannot be read as a WAV file ({error}). {ADVICE}") from None
    if width != 2:
        raise DataError(f"{label}: got samples of {8 * width} bits; expected 16. {ADVICE}")
    length = len(raw) - len(raw) % (2 * channels)
    frames = numpy.frombuffer(raw[:length], "<i2").reshape(-1, channels)
    return frames.mean(axis=1).round().astype(numpy.int16) if channels > 1 else frames[:, 0], rate


def _of_array(source: Any, rate: int) -> Sound:
    import numpy

    fits = isinstance(source, numpy.ndarray) and source.ndim == 1 and source.dtype.kind in "fi"
    if not fits or (source.dtype.kind == "i" and source.dtype != numpy.int16):
        shape = getattr(source, "shape", None)
        got = described(source) if shape is None else f"an array of {getattr(source, 'dtype', '?')} {list(shape)}"
        raise DataError(
            f"sound: got {got}; expected a path, the bytes of a WAV file, or a numpy array [samples] of int16 or of "
            "floats from -1 to 1. Take one channel, and divide by the largest value."
        )
    if source.dtype.kind == "f":
        if not (numpy.isfinite(source).all() and (abs(source) <= 1.0).all()):
            raise DataError("sound: got an array with values outside of -1 to 1; expected none. Divide by the largest.")
        source = (source * 32767).round().astype(numpy.int16)
    return _made(source, rate, "sound of an array")


def _made(values: numpy.ndarray, rate: int, label: str) -> Sound:
    if isinstance(rate, bool) or rate not in RATES:
        raise DataError(
            f"{label}: got the rate {rate!r}; expected {RATES[0]:,} to {RATES[-1]:,} samples a second. Name it: "
            "sound(array, rate=16_000)."
        )
    if not 1 <= len(values) <= MOST_BYTES // 2:
        raise DataError(f"{label}: got {len(values):,} samples; expected 1 to {MOST_BYTES // 2:,}. {ADVICE}")
    raw = values.astype("<i2").tobytes()
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(rate)
        written.writeframes(raw)
    digest = hashlib.sha256(f"{rate}\n".encode() + raw).hexdigest()
    return Sound(digest, int(rate), len(values), file.getvalue())
