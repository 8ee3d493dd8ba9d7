"""The forward's inputs for sequences with images or sounds: their tensors, and rotary positions in three directions.

Only the placeholders of a prompt's own images and sounds stand for these. A model may sample a placeholder token too;
with nothing behind it, it is replaced by another token, in sampling and in learning alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cadre.engines.media import MediaProcessor
from cadre.types import Media


@dataclass(frozen=True)
class VisionInputs:
    """Keywords of a forward by name, and `shifts` int64 [B]: the position after each sequence less its length."""

    tensors: dict[str, Tensor]
    shifts: Tensor


def make_inputs(
    model: Any, pictures: MediaProcessor, rows: Sequence[tuple[Sequence[int], Sequence[Media]]]
) -> VisionInputs:
    """Return the inputs of B sequences (token ids and images each), padded on the right to T.

    They are `input_ids` [B, T], the tensors of all images one after another, and `position_ids` [3, B, T] if the model
    counts positions along time, height and width.
    """
    ids = pad_sequence([torch.tensor(ids) for ids, _ in rows], batch_first=True).to(model.device)
    lengths = torch.tensor([len(ids) for ids, _ in rows], device=model.device)

    # The first placeholders of a sequence, as many as its images have, stand for images, bool [B, T].
    counts = torch.tensor([sum(map(pictures.count, images)) for _, images in rows], device=model.device)
    placeholders = ids == pictures.token
    is_image = placeholders & (placeholders.cumsum(dim=1) <= counts.unsqueeze(1))

    # Patches, grids or windows are joined in the first dimension, tiles in the second.
    parts = [pictures.tensors(image) for _, images in rows for image in images]
    names = [name for name in parts[0] if isinstance(parts[0][name], Tensor)] if parts else []
    dim = int(bool(parts) and "rows" in parts[0])
    tensors = {name: torch.cat([part[name] for part in parts], dim=dim).to(model.device) for name in names}
    if "input_features" in tensors:
        tensors["input_features"] = tensors["input_features"].to(model.dtype)
    tensors["input_ids"] = torch.where(is_image, ids, replace_placeholders(ids, pictures))

    grid = tensors.get("image_grid_thw")
    if grid is None:
        return VisionInputs(tensors, torch.zeros_like(lengths))
    positions, shifts = model.base_model.get_rope_index(
        tensors["input_ids"],
        mm_token_type_ids=is_image.int(),
        image_grid_thw=grid,
        attention_mask=(torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)).int(),
    )
    return VisionInputs({**tensors, "position_ids": positions}, shifts.squeeze(1))


def replace_placeholders(token_ids: Tensor, pictures: MediaProcessor) -> Tensor:
    """Return the token ids with another token in place of placeholders that stand for no image."""
    return token_ids.masked_fill(token_ids == pictures.token, 0 if pictures.token else 1)
