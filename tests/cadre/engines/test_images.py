"""Tensors of pictures that are kept ready: made once each, the oldest given up where there is no room."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from cadre.engines import media
from tests.cadre.engines import tiny_vision


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """How a model reads pictures, and the digests of those that its processor was asked for."""
    source = str(tiny_vision.build(tmp_path / "model", "smolvlm"))
    reading = media.load_processor(source, AutoTokenizer.from_pretrained(source))
    assert reading is not None
    asked: list[str] = []
    prepare = reading.prepare

    def counted(image: Any) -> Any:
        asked.append(image.digest)
        return prepare(image)

    monkeypatch.setattr(reading, "prepare", counted)
    return reading, asked


def test_a_picture_is_prepared_once(made: tuple[Any, list[str]]) -> None:
    reading, asked = made
    image = tiny_vision.noise(16, 16)
    assert reading.tensors(image) is reading.tensors(image)
    assert asked == [image.digest]


def test_the_oldest_go_where_there_is_no_room(made: tuple[Any, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    reading, asked = made
    first, second, third = (tiny_vision.noise(16, 16, seed) for seed in range(3))
    size = media.count_bytes(reading.tensors(first))
    monkeypatch.setattr(media, "CACHE_BYTES", 2 * size)
    for image in (second, third, second, third, first):
        reading.tensors(image)
    assert asked == [first.digest, second.digest, third.digest, first.digest]
    assert reading._bytes == 2 * size == sum(map(media.count_bytes, reading._cache.values()))
