"""Tiny random vision-language models of every supported kind, saved as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from cadre import image
from cadre.envs.images import pixels
from cadre.types import Image, Message, Request, Sample, Sampling
from tests.cadre.engines import tiny

TILE_TOKENS = ["<image>", "<fake_token_around_image>", "<global-img>"]
TILE_TOKENS += [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
PATCH_TOKENS = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}{% if part.type == 'image' %}MARKER{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = {"vocab_size": 280, **tiny.SHAPE}
# Tiles of 32 by 32 pixels, each of which becomes 4 tokens; patches of 4 by 4, of which 4 become a token.
TILES = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
OF_TILES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
OF_TILES |= {"image_size": 32, "patch_size": 8}
OF_PATCHES = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}}


def _tiled(config: Any) -> Any:
    text = {"model_type": "llama", **TEXT}
    return config(text_config=text, vision_config=OF_TILES, scale_factor=2, image_token_id=260, pad_token_id=256)


def _patched(config: Any, vision: dict[str, Any], text: dict[str, Any]) -> Any:
    ids = {"image_token_id": 260, "video_token_id": 261, "vision_start_token_id": 262, "vision_end_token_id": 263}
    return config(text_config={**TEXT, **ROPE, **text}, vision_config={**OF_PATCHES, **vision}, **ids)


QWEN2 = {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}
QWEN2_5 = {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32, "window_size": 16}
QWEN3 = {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32, "num_position_embeddings": 64}
KINDS = {
    "idefics3": lambda: Idefics3ForConditionalGeneration(_tiled(Idefics3Config)),
    "smolvlm": lambda: SmolVLMForConditionalGeneration(_tiled(SmolVLMConfig)),
    "qwen2_vl": lambda: Qwen2VLForConditionalGeneration(_patched(Qwen2VLConfig, QWEN2, {})),
    "qwen2_5_vl": lambda: Qwen2_5_VLForConditionalGeneration(
        _patched(Qwen2_5_VLConfig, {**QWEN2_5, "fullatt_block_indexes": [1]}, {})
    ),
    "qwen3_vl": lambda: Qwen3VLForConditionalGeneration(
        _patched(Qwen3VLConfig, {**QWEN3, "deepstack_visual_indexes": [0]}, {"head_dim": 8})
    ),
}


def build(folder: Path, kind: str) -> Path:
    """A model of this kind whose logits are far from uniform, with its tokenizer and image processor."""
    tiny.save(KINDS[kind], folder)
    tiled = not kind.startswith("qwen")
    marker = "<image>" if tiled else "<|vision_start|><|image_pad|><|vision_end|>"
    tokenizer = tiny.byte_tokenizer(TEMPLATE.replace("MARKER", marker))
    tokenizer.add_special_tokens({"additional_special_tokens": TILE_TOKENS if tiled else PATCH_TOKENS}, False)
    tokenizer.save_pretrained(folder)
    _processor(kind).save_pretrained(folder)
    return folder


def _processor(kind: str) -> Any:
    if kind == "idefics3":
        return Idefics3ImageProcessorPil(**TILES)
    if kind == "smolvlm":
        return SmolVLMImageProcessorPil(**TILES)
    return Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 256, "longest_edge": 4096}
    )


def noise(width: int, height: int, seed: int = 0) -> Image:
    """A picture of random pixels."""
    return image(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def request(text: str, *images: Image, count: int = 1, policy: str = "p", **sampling: object) -> Request:
    """A request of role `r` with one user message that holds these pictures."""
    requests = (Message("user", text, images=images),)
    return Request("r", policy, requests, count, Sampling(**{"max_tokens": 12, **sampling}), key=1)


def own(model: Any, processor: Any, sample: Sample) -> torch.Tensor:
    """Log-probabilities of a completion by the model's own forward on what its own processor makes of the pictures."""
    ids = torch.tensor([sample.prompt_ids + sample.token_ids])
    inputs = {}
    if sample.images:
        created = processor(images=[[pixels(image) for image in sample.images]], return_tensors="pt")
        inputs = {name: value for name, value in created.items() if isinstance(value, torch.Tensor)}
    if "image_grid_thw" in inputs:
        inputs["mm_token_type_ids"] = (ids == model.config.image_token_id).int()
    with torch.no_grad():
        logprobs = model(input_ids=ids, **inputs).logits[0].log_softmax(-1)
    initial = len(sample.prompt_ids)
    return logprobs[initial - 1 : -1].gather(1, ids[0, initial:, None]).squeeze(1)
