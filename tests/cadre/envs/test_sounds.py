"""Sounds of files, bytes and arrays: equal samples make equal sounds, and what is no sound is an error."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadre import Message, sound
from cadre.envs.sounds import samples
from cadre.errors import DataError
from cadre.runs.tree_format import SOUNDS, read_medium, save_media

TONE = np.sin(np.arange(1600) / 5).astype(np.float32)


def wav(values: np.ndarray, channels: int = 1, width: int = 2, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(channels)
        written.setsampwidth(width)
        written.setframerate(rate)
        written.writeframes(values.tobytes())
    return file.getvalue()


def test_files_bytes_and_arrays_make_equal_sounds(tmp_path: Path) -> None:
    created = sound(TONE, rate=16_000)
    assert (created.rate, created.length) == (16_000, 1600)
    assert np.abs(samples(created) - TONE).max() < 1e-4
    (tmp_path / "tone.wav").write_bytes(created.wav)
    full = (TONE * 32767).round().astype(np.int16)
    stereo = wav(np.stack([full, full], axis=1), channels=2)
    equal = [sound(tmp_path / "tone.wav"), sound(created.wav), sound(full, rate=16_000), sound(stereo), sound(created)]
    assert all(item == created for item in equal)
    assert sound(TONE, rate=8_000) != created
    assert "digest" in repr(Message("user", "Hi", sounds=(created,)))
    assert "sounds" not in repr(Message("user", "Hi"))


@pytest.mark.parametrize(
    ("source", "rate", "words"),
    [
        ("/nowhere.wav", 0, "does not exist"),
        ("/", 0, "is no plain file"),
        (b"", 0, "cannot be read as a WAV file"),
        (b"RIFF\xff\xff\xff\xffWAVEfmt ", 0, "cannot be read as a WAV file"),
        (b"RIFF" + b"\0" * 40, 0, "cannot be read as a WAV file"),
        (wav(TONE.astype(np.float32), width=4), 0, "samples of 32 bits; expected 16"),
        (wav(np.zeros(0, np.int16)), 0, "got 0 samples"),
        (wav(np.zeros(8, np.int16), rate=1), 0, "got the rate 1"),
        (b"\0" * 20_000_001, 0, "more than 20,000,000 bytes"),
        (TONE, 0, "got the rate 0"),
        (TONE, True, "got the rate True"),
        (TONE * 2, 16_000, "outside of -1 to 1"),
        (TONE * np.nan, 16_000, "outside of -1 to 1"),
        (np.zeros((3, 3)), 16_000, r"an array of float64 \[3, 3\]"),
        (np.zeros(3, np.int64), 16_000, r"an array of int64 \[3\]"),
        (None, 16_000, "expected a path"),
    ],
)
def test_what_is_no_sound_is_an_error(source: Any, rate: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        sound(source, rate)


def test_a_header_that_claims_more_than_there_is_reads_what_there_is() -> None:
    cut = bytearray(sound(TONE, rate=16_000).wav[:100])
    assert sound(bytes(cut)).length == 28
    cut[22:24] = b"\xff\xff"  # 65,535 channels
    with pytest.raises(DataError):
        sound(bytes(cut))


def test_a_run_keeps_each_sound_once_and_reads_it_again(tmp_path: Path) -> None:
    created = sound(TONE, rate=16_000)
    save_media(tmp_path, [created, created])
    assert [path.name for path in (tmp_path / SOUNDS).iterdir()] == [f"{created.digest}.wav"]
    assert read_medium(tmp_path, created.digest, SOUNDS) == created.wav
