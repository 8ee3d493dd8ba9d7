"""The parts of the tiny model that hears: sounds of training tasks, and answers of mixed quality."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from cadre import random_keys
from cadre.engines.media import AudioProcessor
from cadre.engines.text.template import Template
from cadre_tasks.models.make_audio import (
    KINDS,
    NOTES,
    PITCHES,
    example,
    make_model,
    make_tokenizer,
    mixed,
    save,
)
from cadre_tasks.models.make_vision import batches, tensors


def test_answers_are_whole_lack_their_last_key_or_are_random() -> None:
    generator, keys = random_keys.generator("mixed"), list("abcdeedcba")
    answers = [mixed(keys, generator).split() for _ in range(1000)]
    kinds = Counter("whole" if answer == keys else "part" if answer == keys[:-1] else "random" for answer in answers)
    for kind, share in KINDS.items():
        assert kinds[kind] / 1000 == pytest.approx(share / 100, abs=0.05)


def test_examples_are_of_both_roles_and_of_training_melodies() -> None:
    generator = random_keys.generator("example")
    examples = [example(generator) for _ in range(40)]
    listeners = [observation for observation, _ in examples if observation.role == "listener"]
    assert 10 < len(listeners) < 30
    for observation, answer in examples:
        (message,) = observation.messages
        assert 1 <= len(answer.split()) <= NOTES
        assert set(answer.split()) <= set("abcde"[:PITCHES])
        if observation.role == "listener":
            assert (message.content, len(message.sounds)) == ("notes", 1)
        else:
            order, *note = message.content.split()
            assert order in ("forward", "backward")
            assert 1 <= len(note) <= NOTES


def test_only_the_answer_is_learned_and_the_loss_reaches_the_ears(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    save(model, tokenizer, tmp_path)
    sounds = AudioProcessor(str(tmp_path), tokenizer, model.config)
    rows = next(batches(Template(tokenizer, images=sounds), tokenizer, 4, random_keys.generator("rows"), example))
    assert any(heard for _, _, heard in rows)
    batch = tensors(model, sounds, rows)
    for (ids, start, _), labels in zip(rows, batch["labels"], strict=True):
        assert labels[labels >= 0].tolist() == list(ids[start:])
        assert len(ids) - start <= NOTES + 1  # a key is a token
    model(**batch).loss.backward()
    gradients = [weight.grad for name, weight in model.named_parameters() if "audio_tower" in name]
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)
