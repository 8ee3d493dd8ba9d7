"""Tiny random audio-language models of every supported kind, saved as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    VoxtralConfig,
    VoxtralForConditionalGeneration,
    WhisperFeatureExtractor,
)

from cadre import sound
from cadre.envs.sounds import samples
from cadre.types import Message, Request, Sample, Sampling, Sound
from tests.cadre.engines import tiny

RATE = 16_000
TOKENS = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}{% if part.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# A window of a second, 100 frames of 8 mels.
AUDIO = {"num_mel_bins": 8, "max_source_positions": 50}
TEXT = {"vocab_size": 280, **tiny.SHAPE}
QWEN = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
VOXTRAL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
KINDS = {
    "qwen2_audio": lambda: Qwen2AudioForConditionalGeneration(
        Qwen2AudioConfig(
            audio_config={**AUDIO, **QWEN}, text_config={"model_type": "qwen2", **TEXT}, audio_token_id=260
        )
    ),
    "voxtral": lambda: VoxtralForConditionalGeneration(
        VoxtralConfig(
            audio_config={**AUDIO, **VOXTRAL}, text_config={"model_type": "llama", **TEXT}, audio_token_id=260
        )
    ),
}


def build(folder: Path, kind: str) -> Path:
    """A model of this kind whose logits are far from uniform, with its tokenizer and feature extractor."""
    tiny.save(KINDS[kind], folder)
    tokenizer = tiny.byte_tokenizer(TEMPLATE)
    tokenizer.add_special_tokens({"additional_special_tokens": TOKENS}, False)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)
    return folder


def noise(seconds: float, seed: int = 0) -> Sound:
    """A sound of random samples."""
    generator = np.random.default_rng(seed)
    return sound(generator.uniform(-1, 1, int(seconds * RATE)) * generator.uniform(0.1, 1), rate=RATE)


def request(text: str, *sounds: Sound, count: int = 1, policy: str = "p", **sampling: object) -> Request:
    """A request of role `r` with one user message that holds these sounds."""
    requests = (Message("user", text, sounds=sounds),)
    return Request("r", policy, requests, count, Sampling(**{"max_tokens": 12, **sampling}), key=1)  # type: ignore[arg-type]


def own(model: Any, extractor: Any, sample: Sample) -> torch.Tensor:
    """Log-probabilities of a completion by the model's own forward on what its own feature extractor makes."""
    ids = torch.tensor([sample.prompt_ids + sample.token_ids])
    heard = [samples(it) for it in sample.images if isinstance(it, Sound)]
    inputs: dict[str, torch.Tensor] = {}
    if heard and model.config.model_type == "voxtral":
        # As `VoxtralProcessor` makes them: padded to whole windows, which are stacked.
        padded = [np.pad(values, (0, -len(values) % RATE)) for values in heard]
        created = [extractor(values, sampling_rate=RATE, return_tensors="pt", truncation=False) for values in padded]
        cut = [item["input_features"].reshape(8, -1, 100).transpose(0, 1) for item in created]
        inputs = {"input_features": torch.cat(cut)}
    elif heard:
        created = extractor(
            heard, sampling_rate=RATE, padding="max_length", return_attention_mask=True, return_tensors="pt"
        )
        inputs = {"input_features": created["input_features"], "feature_attention_mask": created["attention_mask"]}
    with torch.no_grad():
        logprobs = model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).logits[0].log_softmax(-1)
    initial = len(sample.prompt_ids)
    return logprobs[initial - 1 : -1].gather(1, ids[0, initial:, None]).squeeze(1)
