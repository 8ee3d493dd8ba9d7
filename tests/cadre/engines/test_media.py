"""Tensors of pictures that are kept ready: made once each, the oldest given up where there is no room."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from cadre.engines import media
from tests.cadre.engines import tiny_vision


@pytest.fixture
def reading_and_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """A model's image reading, and the digests of the images that its processor received."""
    source = str(tiny_vision.build(tmp_path / "model", "smolvlm"))
    reading = media.load_processor(source, AutoTokenizer.from_pretrained(source))
    assert reading is not None
    requests: list[str] = []
    prepare = reading.prepare

    def counted(image: Any) -> Any:
        requests.append(image.digest)
        return prepare(image)

    monkeypatch.setattr(reading, "prepare", counted)
    return reading, requests


def test_a_picture_is_prepared_once(reading_and_requests: tuple[Any, list[str]]) -> None:
    reading, requests = reading_and_requests
    image = tiny_vision.noise(16, 16)
    assert reading.tensors(image) is reading.tensors(image)
    assert requests == [image.digest]


def test_the_oldest_go_where_there_is_no_room(
    reading_and_requests: tuple[Any, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, requests = reading_and_requests
    first, second, third = (tiny_vision.noise(16, 16, seed) for seed in range(3))
    size = media.count_bytes(reading.tensors(first))
    monkeypatch.setattr(media, "CACHE_BYTES", 2 * size)
    for image in (second, third, second, third, first):
        reading.tensors(image)
    assert requests == [first.digest, second.digest, third.digest, first.digest]
    assert reading._bytes == 2 * size == sum(map(media.count_bytes, reading._cache.values()))
