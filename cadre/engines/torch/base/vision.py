"""What a vision-language model's forward takes for sequences with pictures: pixels, and positions in three directions.

Only the placeholders of a prompt's own pictures stand for pictures. A model may say such a token too; it is then read
as another one, in sampling and in learning alike, as there is no picture behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cadre.engines.pictures import Pictures
from cadre.types import Image

Row = tuple[Sequence[int], Sequence[Image]]


@dataclass(frozen=True)
class VisionInputs:
    """Keywords of a forward by name, and `shifts` int64 [B]: how far the position behind each sequence is from its
    length."""

    tensors: dict[str, Tensor]
    shifts: Tensor


def inputs(model: Any, pictures: Pictures, rows: Sequence[Row]) -> VisionInputs:
    """Of B sequences, padded on the right to T: `input_ids` [B, T], all their pictures' tensors one after another, and
    where the model has several positions a token `position_ids` [3, B, T]."""
    ids = pad_sequence([torch.tensor(ids) for ids, _ in rows], batch_first=True).to(model.device)
    images = [image for _, seen in rows for image in seen]
    counts = torch.tensor([sum(map(pictures.count, seen)) for _, seen in rows], device=model.device)
    shown = _shown(ids, pictures.token, counts)
    tensors = {name: value.to(model.device) for name, value in _pixels(pictures, images).items()}
    tensors["input_ids"] = torch.where(shown, ids, said(ids, pictures))
    lengths = torch.tensor([len(ids) for ids, _ in rows], device=model.device)
    return _placed(model, tensors, shown, lengths)


def said(token: Tensor, pictures: Pictures) -> Tensor:
    """Tokens as the model reads them where no picture stands behind them."""
    return token.masked_fill(token == pictures.token, 0 if pictures.token else 1)


def _shown(ids: Tensor, token: int, counts: Tensor) -> Tensor:
    """Which tokens stand for pictures, bool [B, T]: the first `counts` int64 [B] placeholders of each sequence."""
    placeholders = ids == token
    return placeholders & (placeholders.cumsum(dim=1) <= counts.unsqueeze(1))


def _pixels(pictures: Pictures, images: Sequence[Image]) -> dict[str, Tensor]:
    """The tensors of all pictures together: patches or grids in one dimension, tiles in the second."""
    parts = [pictures.tensors(image) for image in images]
    names = [name for name in parts[0] if isinstance(parts[0][name], Tensor)] if parts else []
    tiled = bool(parts) and "rows" in parts[0]
    return {name: torch.cat([part[name] for part in parts], dim=int(tiled)) for name in names}


def _placed(model: Any, tensors: dict[str, Tensor], shown: Tensor, lengths: Tensor) -> VisionInputs:
    """With positions where the model counts them along time, height and width, and pictures are there to be placed."""
    grid = tensors.get("image_grid_thw")
    if grid is None:
        return VisionInputs(tensors, torch.zeros_like(lengths))
    ids = tensors["input_ids"]
    positions, shifts = model.base_model.get_rope_index(
        ids,
        mm_token_type_ids=shown.int(),
        image_grid_thw=grid,
        attention_mask=(torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)).int(),
    )
    return VisionInputs({**tensors, "position_ids": positions}, shifts.squeeze(1))
