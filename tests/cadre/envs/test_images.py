"""Pictures of files, bytes and arrays; and what is refused: the wrong kind, size, or no file at all."""

import io
import os
import re
import struct
import zlib

import numpy as np
import pytest
from PIL import Image as pillow

import cadre
from cadre.envs import images
from cadre.envs.images import pixels
from cadre.errors import DataError
from cadre_tasks.games.boards import BLUE, FREE, GREEN, WALL, board

ARRAY = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


def saved(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def test_a_path_bytes_and_an_array_of_equal_pixels_are_one_picture(tmp_path):
    data = saved(pillow.fromarray(ARRAY), "PNG")
    (tmp_path / "a.png").write_bytes(data)
    image = [cadre.image(source) for source in (ARRAY, data, tmp_path / "a.png", str(tmp_path / "a.png"))]
    assert len(set(image)) == 1
    assert (image[0].width, image[0].height) == (3, 2)
    assert (pixels(image[0]) == ARRAY).all()
    assert cadre.image(image[0]) is image[0]


def test_size_counts_beside_the_pixels():
    assert cadre.image(ARRAY.reshape(3, 2, 3)) != cadre.image(ARRAY)


def test_grey_and_transparent_pictures_become_rgb():
    assert (pixels(cadre.image(ARRAY[:, :, 0])) == ARRAY[:, :, :1]).all()
    clear = pillow.new("RGBA", (1, 1), (10, 20, 30, 0))
    assert (pixels(cadre.image(saved(clear, "PNG"))) == 255).all()


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_other_formats_are_read(kind):
    assert cadre.image(saved(pillow.fromarray(ARRAY), kind)).width == 3


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def bomb(width, height):
    """A PNG of a few bytes that claims to be as large as this."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def frames():
    several = [pillow.new("RGB", (2, 2), (shade, 0, 0)) for shade in (0, 200)]
    return saved(several[0], "WEBP", save_all=True, append_images=several[1:])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("nowhere.png", "image 'nowhere.png': it does not exist; expected a PNG, JPEG or WebP file"),
        ("/dev/zero", "image '/dev/zero': it is no plain file"),
        (b"no picture", "image of 10 bytes: it cannot be read as a picture"),
        (saved(pillow.fromarray(ARRAY), "GIF"), "it cannot be read as a picture"),
        (saved(pillow.fromarray(ARRAY), "PNG")[:45], "it cannot be read as a picture"),
        (bomb(4097, 4), "got 4,097 by 4 pixels; expected 1 to 4,096 a side"),
        (bomb(60_000, 60_000), "pixels|cannot be read"),
        (frames(), "got 2 frames; expected one picture"),
        (ARRAY.astype(float), "got an array of float64 [2, 3, 3]; expected a path, the bytes of a file, or a numpy"),
        (ARRAY[None], "got an array of uint8 [1, 2, 3, 3]"),
        (np.zeros((0, 4, 3), np.uint8), "got 4 by 0 pixels"),
        (7, "image: got an int 7; expected a path"),
        (None, "image: got None; expected a path"),
    ],
)
def test_what_is_no_picture_is_told(source, expected):
    with pytest.raises(DataError, match=expected if "|" in expected else re.escape(expected)):
        cadre.image(source)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is no plain file"):
        cadre.image(tmp_path / "pipe")


def test_a_large_file_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MOST_BYTES", 100)
    (tmp_path / "large.png").write_bytes(bytes(1000))
    with pytest.raises(DataError, match="got more than 100 bytes; expected at most so many"):
        cadre.image(tmp_path / "large.png")


def test_a_board_by_hand():
    """Three cells of four pixels: a wall fills its cell, a disc of 2.8 across has its middle, a goal its inner part."""
    samples = pixels(board(["#SG"], {"#": "wall", "S": "walker", "G": "goal"}, 4))
    assert samples.shape == (4, 12, 3)
    assert (samples[:, :4] == WALL).all()
    assert (samples[1, 5] == BLUE).all()
    assert (samples[0, 4] == FREE).all()
    assert (samples[1:3, 9:11] == GREEN).all()
    assert (samples[0, 8:] == FREE).all()
