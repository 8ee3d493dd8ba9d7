"""Training data of the tiny vision model: images of training tasks, and answers of mixed quality."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from cadre import random_keys
from cadre.engines.media import VisionProcessor
from cadre.engines.text.template import Template
from cadre_tasks.models.make_vision import (
    CELL,
    KINDS,
    SIZE,
    batches,
    example,
    make_model,
    make_tokenizer,
    mixed,
    save,
    tensors,
)


def test_answers_are_the_whole_way_its_beginning_or_moves_at_random() -> None:
    generator, way = random_keys.generator("mixed"), "RRDDRRDDRR"
    text = [mixed(way, generator) for _ in range(1000)]
    kinds = Counter("whole" if moves == way else "part" if way.startswith(moves) else "random" for moves in text)
    for kind, share in KINDS.items():
        assert kinds[kind] / 1000 == pytest.approx(share / 100, abs=0.05)


def test_a_patch_is_a_cell_of_the_board_that_is_asked_about() -> None:
    recorded, answer = example(random_keys.generator("example"))
    (message,) = recorded.messages
    (image,) = message.images
    assert (image.width, image.height) == (SIZE * CELL, SIZE * CELL)
    assert message.content == "moves"
    assert answer.startswith("1")


def test_only_the_answer_is_learned_and_the_loss_reaches_the_eyes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    save(model, tokenizer, tmp_path)
    pictures = VisionProcessor(str(tmp_path), tokenizer, model.config)
    rows = next(batches(Template(tokenizer, images=pictures), tokenizer, 3, random_keys.generator("rows")))
    batch = tensors(model, pictures, rows)
    for (ids, start, _), labels in zip(rows, batch["labels"], strict=True):
        assert labels[labels >= 0].tolist() == list(ids[start:])
        assert ids[-1] == tokenizer.eos_token_id
    model(**batch).loss.backward()
    seeing = [weight.grad for name, weight in model.named_parameters() if "vision_model" in name]
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in seeing)
