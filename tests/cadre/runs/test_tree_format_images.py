"""Pictures beside what names them: in kept trees, in steps in flight, in forks; each file once, none in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cadre import image
from cadre.errors import RunError
from cadre.rollout.episodes import SampledTrees
from cadre.runs.tree_format import IMAGES, MediaStore, encode, iterate_media, read_medium, save_media
from cadre.training.asynchronous import SAMPLED_STEPS, SampledStep, read_sampled_steps, write_sampled_steps
from cadre.types import Branch, Image, Message, Node, Observation, Reward, Sample, Task, Tree


def shade(value: int) -> Image:
    return image(np.full((2, 3, 3), value, np.uint8))


def tree_of(*images: Image) -> Tree:
    recorded = Observation("p", (Message("user", "What is it?", images=images),))
    sample = Sample("p", "m", "grey", (1, 9, 9), (2,), (-0.5,), "stop", 0, images=images)
    branch = Branch({"p": 0}, Reward(1.0), over=True, success=True)
    return Tree(Task("t", {}), Node(0, {"p": recorded}, {"p": (sample,)}, (branch,)))


def test_a_tree_names_its_pictures_by_digest() -> None:
    item = tree_of(shade(1), shade(2))
    record = json.loads(json.dumps(encode(item)))
    (message,) = record["nodes"][0]["observations"]["p"]["messages"]
    assert message["images"] == [{"digest": shade(v).digest, "width": 3, "height": 2} for v in (1, 2)]
    assert set(iterate_media(item)) == {shade(1), shade(2)}


def test_each_is_written_once_and_read_by_its_digest(tmp_path: Path) -> None:
    save_media(tmp_path, [shade(1), shade(2), shade(1)])
    initial = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "pictures").iterdir()}
    save_media(tmp_path, [shade(1)])
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "pictures").iterdir()} == initial
    assert sorted(initial) == sorted(f"{shade(v).digest}.png" for v in (1, 2))
    assert read_medium(tmp_path, shade(2).digest) == shade(2).png


def test_what_they_take_is_known_with_those_that_come(tmp_path: Path) -> None:
    save_media(tmp_path, [shade(1)])
    first, second, third = (len(shade(value).png) for value in (1, 2, 3))
    stored = MediaStore(tmp_path)
    assert stored.size_with([shade(1), shade(2)]) == first + second
    stored.save([shade(1), shade(3)])
    assert stored.size_with([shade(2)]) == first + second + third
    assert stored.size_with([]) == MediaStore(tmp_path).size_with([]) == first + third


@pytest.mark.parametrize("digest", ["../../etc/passwd", "0" * 64, "", "A" * 64])
def test_another_name_is_refused(tmp_path: Path, digest: str) -> None:
    (tmp_path / "pictures").mkdir()
    with pytest.raises(RunError, match="holds none that is called"):
        read_medium(tmp_path, digest)


def test_steps_in_flight_come_back_with_their_pictures(tmp_path: Path) -> None:
    step = SampledStep(3, SampledTrees([tree_of(shade(1)), tree_of(shade(1), shade(2))], []), 1.5)
    write_sampled_steps(tmp_path, [step])
    (again,) = read_sampled_steps(tmp_path)
    assert again == step
    sample = again.sampled.trees[0].root.samples["p"][0]
    assert sample.images[0].png == shade(1).png
    assert "png" not in (tmp_path / SAMPLED_STEPS).read_text()
    assert len(list((tmp_path / "pictures").iterdir())) == 2


@pytest.mark.parametrize("kind", ["file", "folder", "no picture"])
def test_a_link_in_place_of_a_picture_is_not_followed(kind: str, tmp_path: Path) -> None:
    """Mistake: the page serves whatever file of its reader's a stranger's run folder points to."""
    digest, outside, run = "a" * 64, tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    (outside / f"{digest}.png").write_bytes(b"\x89PNG\r\n\x1a\n secret")
    run.mkdir()
    if kind == "folder":
        (run / IMAGES).symlink_to(outside)
    else:
        (run / IMAGES).mkdir()
        path = run / IMAGES / f"{digest}.png"
        path.write_bytes(b"secret") if kind == "no picture" else path.symlink_to(outside / f"{digest}.png")
    with pytest.raises(RunError, match="is no PNG file" if kind == "no picture" else "is a link"):
        read_medium(run, digest)
