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

from cadre.envs.images import MOST_BYTES, describe_array, read_media
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
    if isinstance(source, str | Path | bytes):
        data, name = read_media(source, "sound", "a WAV file", ADVICE)
        return _made(*_decoded(data, name), name)
    return _of_array(source, rate)


def samples(heard: Sound) -> numpy.ndarray:
    """Return the samples as a numpy array, float32 [length] in [-1, 1]."""
    import numpy

    return _decoded(heard.wav, f"sound {heard.digest}")[0].astype(numpy.float32) / 32768


def _decoded(data: bytes, name: str) -> tuple[numpy.ndarray, int]:
    """Return the samples, int16 [length], and their rate."""
    import numpy

    try:
        with wave.open(io.BytesIO(data)) as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            # The header may claim any length; no more is read than there is.
            raw = file.readframes(len(data))
    except (wave.Error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: it cannot be read as a WAV file ({error}). {ADVICE}") from None
    if width != 2:
        raise DataError(f"{name}: got samples of {8 * width} bits; expected 16. {ADVICE}")
    size = len(raw) - len(raw) % (2 * channels)
    frames = numpy.frombuffer(raw[:size], "<i2").reshape(-1, channels)
    return frames.mean(axis=1).round().astype(numpy.int16) if channels > 1 else frames[:, 0], rate


def _of_array(source: Any, rate: int) -> Sound:
    import numpy

    fits = isinstance(source, numpy.ndarray) and source.ndim == 1 and source.dtype.kind in "fi"
    if not fits or (source.dtype.kind == "i" and source.dtype != numpy.int16):
        expected = "expected a path, the bytes of a WAV file, or a numpy array [samples] of int16 or of floats -1 to 1"
        raise DataError(f"sound: got {describe_array(source)}; {expected}. Take one channel, and scale it.")
    if source.dtype.kind == "f":
        if not (numpy.isfinite(source).all() and (abs(source) <= 1.0).all()):
            raise DataError("sound: got an array with values outside of -1 to 1; expected none. Divide by the largest.")
        source = (source * 32767).round().astype(numpy.int16)
    return _made(source, rate, "sound of an array")


def _made(values: numpy.ndarray, rate: int, name: str) -> Sound:
    if isinstance(rate, bool) or rate not in RATES:
        expected = f"expected {RATES[0]:,} to {RATES[-1]:,} samples a second"
        raise DataError(f"{name}: got the rate {rate!r}; {expected}. Name it: sound(array, rate=16_000).")
    if not 1 <= len(values) <= MOST_BYTES // 2:
        raise DataError(f"{name}: got {len(values):,} samples; expected 1 to {MOST_BYTES // 2:,}. {ADVICE}")
    raw = values.astype("<i2").tobytes()
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(rate)
        written.writeframes(raw)
    digest = hashlib.sha256(f"{rate}\n".encode() + raw).hexdigest()
    return Sound(digest, int(rate), len(values), file.getvalue())
