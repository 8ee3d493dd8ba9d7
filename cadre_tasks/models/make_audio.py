"""Makes a tiny model that hears: `python -m cadre_tasks.models.make_audio OUT`.

A Qwen2-Audio of half a million parameters, whose window is a second, pre-trained on the prompts of both roles of
`env: melody` with answers of mixed quality: some are right, most lack their last key, some have keys at random. No
reinforcement learning goes into it. Its melodies are of the training split. Equal seeds give equal weights on one
machine.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    WhisperFeatureExtractor,
)

from cadre import random_keys
from cadre.engines.media import AudioProcessor
from cadre.engines.text.template import Template
from cadre.types import Observation
from cadre_tasks.games.melody import NAMES, Melody
from cadre_tasks.models.make_seed import SPECIAL, byte_level, make_parser, pretrain
from cadre_tasks.models.make_vision import batches, tensors

NOTES, PITCHES, SOUNDS = 4, 5, 2000
MELS, FRAMES = 40, 100  # of a window of a second
VOCABULARY = 400
HEARD = ["<sound>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'audio' %}<sound>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# How often an answer is right, lacks its last key, or is keys at random.
KINDS = {"whole": 20, "part": 55, "random": 25}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return byte-level BPE in which a key is one token."""
    generator = random_keys.generator("audio tokenizer")
    keys = (" ".join(generator.choices(NAMES[:PITCHES], k=NOTES)) for _ in range(2000))
    texts = [*keys, *(["notes", "forward", "backward"] * 200)]
    return byte_level(r" ?\w+|[^\w]+", texts, VOCABULARY, SPECIAL + HEARD, TEMPLATE)


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2AudioForConditionalGeneration:
    """Return a new model that makes 25 tokens of a second."""
    text = {
        "model_type": "qwen2",
        "vocab_size": len(tokenizer),
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    audio = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 128}
    audio |= {"num_mel_bins": MELS, "max_source_positions": FRAMES // 2}
    token = tokenizer.convert_tokens_to_ids(HEARD[0])
    return Qwen2AudioForConditionalGeneration(
        Qwen2AudioConfig(audio_config=audio, text_config=text, audio_token_id=token)
    )


def save(model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a Hugging Face folder, with the feature extractor."""
    for part in (model, tokenizer, WhisperFeatureExtractor(feature_size=MELS, chunk_length=1)):
        part.save_pretrained(folder)


def example(generator: random.Random) -> tuple[Observation, str]:
    """Return an observation of a role in a training task and an answer of mixed quality. The player reads notes of
    mixed quality too, which its keys follow."""
    # So few sounds that their spectrograms are computed once; the model has less room than they have samples.
    env = Melody(Melody.tasks("train", notes=NOTES, pitches=PITCHES)[generator.randrange(SOUNDS)], "compact")
    if generator.random() < 0.5:
        return env.observe()["listener"], mixed(env.melody, generator)
    note = mixed(env.melody, generator).split()
    env.written = (" ".join(note),)
    return env.observe()["player"], mixed(note if env.task.data["order"] == "forward" else note[::-1], generator)


def mixed(keys: list[str], generator: random.Random) -> str:
    """Return keys of mixed quality."""
    (kind,) = generator.choices(list(KINDS), list(KINDS.values()))
    if kind == "random":
        return " ".join(generator.choices(NAMES[:PITCHES], k=generator.randint(1, NOTES)))
    return " ".join(keys if kind == "whole" or len(keys) < 2 else keys[:-1])


def main() -> None:
    options = make_parser("Make a tiny model that hears melodies.", 1500, 32, 2e-3).parse_args()
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    save(model, tokenizer, options.out)
    sounds = AudioProcessor(str(options.out), tokenizer, model.config)
    Console().print(f"{model.num_parameters() / 1e6:.2f} million parameters, {len(tokenizer)} tokens")
    template = Template(tokenizer, images=sounds)
    rows = batches(template, tokenizer, options.batch, random_keys.generator("audio pretrain"), example)
    pretrain(model, (tensors(model, sounds, batch) for batch in rows), options.steps, options.rate)
    save(model, tokenizer, options.out)


if __name__ == "__main__":
    main()
