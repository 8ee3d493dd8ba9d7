"""Image inputs of vision-language models of two families: placeholders in the text, and tensors of pixels.

A template writes one marker per image; it is repeated for every token that the model makes of the image. The Qwen-VL
family makes one token of every few patches of an image of any size; Idefics 3 and SmolVLM cut it into square tiles with
a smaller copy of the whole beside them. Left out: positions and forwards (`torch/vision.py`), video.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoImageProcessor, PreTrainedConfig
from transformers.processing_utils import ProcessorMixin

from cadre.engines.model_folder import wrap_load_errors
from cadre.envs.images import pixels
from cadre.errors import EngineError, PromptError
from cadre.settings.models import VISION_MODELS
from cadre.types import Image, Message

# Bytes of prepared tensors that are kept.
CACHE_BYTES = 1 << 28
Tensors = dict[str, Any]


class VisionProcessor:
    """Prepares images for one model. Lives as long as the model; thread-safe.

    `marker` is what the chat template writes for an image, `token` the id of each of its `count(image)` placeholders.
    """

    def __init__(self, source: str, tokenizer: Any, config: Any, trust_remote_code: bool = False) -> None:
        self.token: int = config.image_token_id
        self.marker: str = tokenizer.convert_ids_to_tokens(self.token)
        with wrap_load_errors(source, "image processor"):
            # Pillow's arithmetic, whatever else is installed, so that equal images give equal tensors.
            self._processor = AutoImageProcessor.from_pretrained(
                source, backend="pil", trust_remote_code=trust_remote_code
            )
        self._config = config
        self._write, self._count = FAMILIES[config.model_type]
        self._cache: OrderedDict[str, Tensors] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def content_parts(self, message: Message) -> list[dict[str, str]]:
        """Return the content as templates take it: the images, then the text, whose markers are broken."""
        text = message.content.replace(self.marker, f"{self.marker[0]} {self.marker[1:]}")
        return [*({"type": "image"} for _ in message.images), {"type": "text", "text": text}]

    def expand_markers(self, text: str, images: Sequence[Image]) -> str:
        """Return the text with every marker expanded. Raises PromptError if there are not as many as images."""
        first, *rest = text.split(self.marker)
        if len(rest) != len(images):
            raise PromptError(
                f"The model's chat template wrote {len(rest)} markers for {len(images)} pictures; expected one each. "
                "Put pictures into messages of a role whose pictures it writes, such as user."
            )
        return first + "".join(
            self._write(self, self.tensors(image)) + following for image, following in zip(images, rest, strict=True)
        )

    def count(self, image: Image) -> int:
        """Return how many tokens the model makes of an image."""
        return self._count(self, self.tensors(image))

    def tensors(self, image: Image) -> Tensors:
        """Return what the image processor makes of one image. Raises PromptError if it rejects the image."""
        with self._lock:
            cached = self._cache.get(image.digest)
        if cached is not None:
            return cached
        prepared = self._prepare(image)
        with self._lock:
            # Another thread may have prepared the same image meanwhile.
            if image.digest not in self._cache:
                self._cache[image.digest] = prepared
                self._bytes += count_bytes(prepared)
            while self._bytes > CACHE_BYTES and len(self._cache) > 1:
                self._bytes -= count_bytes(self._cache.popitem(last=False)[1])
        return prepared

    def _prepare(self, image: Image) -> Tensors:
        # Rows and columns of tiles, from processors that cut images into tiles.
        options = {"return_row_col_info": True} if hasattr(self._processor, "do_image_splitting") else {}
        try:
            return dict(self._processor(images=[[pixels(image)]], return_tensors="pt", **options))
        except (ValueError, RuntimeError) as error:
            raise PromptError(
                f"The model cannot take a picture of {image.width} by {image.height} pixels: {error}. Expected one "
                "that its image processor accepts. Change its size or shape."
            ) from error

    def save(self, folder: Path) -> None:
        """Write what a folder of the model needs beside the tokenizer to read images."""
        self._processor.save_pretrained(folder)

    def tokens_per_tile(self, tiles: Any) -> int:
        """Return how many tokens are made of each of some tiles [..., height, width]."""
        patch, scale = self._config.vision_config.patch_size, self._config.scale_factor
        return int((tiles.shape[-2] // patch) * (tiles.shape[-1] // patch) // scale**2)

    @property
    def patches_per_token(self) -> int:
        """The number of patches that become one token."""
        return int(self._config.vision_config.spatial_merge_size**2)


def is_vision(source: str) -> bool:
    """Return True if the model of a folder or hub name reads images in a supported way."""
    return PreTrainedConfig.get_config_dict(source)[0].get("model_type") in VISION_MODELS


def load_processor(source: str, tokenizer: Any, trust_remote_code: bool = False) -> VisionProcessor | None:
    """Return the processor of the model of a folder or hub name; None for a model of text.

    A tokenizer without a chat template gets the processor's. Raises EngineError if there is none either.
    """
    if not is_vision(source):
        return None
    if tokenizer.chat_template is None:
        template = ProcessorMixin.get_processor_dict(source)[0].get("chat_template")
        if not isinstance(template, str | dict):
            raise EngineError(
                f"The model {source!r} has no chat template, which says where pictures stand; expected one beside its "
                "tokenizer or processor. Add chat_template.jinja."
            )
        tokenizer.chat_template = template
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    return VisionProcessor(source, tokenizer, config, trust_remote_code)


def count_bytes(tensors: Mapping[str, Any]) -> int:
    """Return the bytes of the tensors among the values."""
    return sum(value.nbytes for value in tensors.values() if hasattr(value, "nbytes"))


def _write_tiles(processor: VisionProcessor, tensors: Tensors) -> str:
    """Write a row of tiles a line, each named by row and column, then the whole; a single tile is the whole."""
    rows, columns = tensors["rows"][0][0], tensors["cols"][0][0]
    tokens = processor.marker * processor.tokens_per_tile(tensors["pixel_values"])
    fence = "<fake_token_around_image>"
    lines = (
        "".join(f"{fence}<row_{row}_col_{column}>{tokens}" for column in range(1, columns + 1)) + "\n"
        for row in range(1, rows + 1)
    )
    full_image = f"{fence}<global-img>{tokens}{fence}"
    return "".join(lines) + ("\n" if rows else "") + full_image


def _count_tiles(processor: VisionProcessor, tensors: Tensors) -> int:
    tiles = tensors["pixel_values"]
    return int(tiles.shape[1]) * processor.tokens_per_tile(tiles)


def _write_patches(processor: VisionProcessor, tensors: Tensors) -> str:
    return processor.marker * _count_patches(processor, tensors)


def _count_patches(processor: VisionProcessor, tensors: Tensors) -> int:
    return int(tensors["image_grid_thw"].prod()) // processor.patches_per_token


Family = tuple[Callable[[VisionProcessor, Tensors], str], Callable[[VisionProcessor, Tensors], int]]
TILES: Family = (_write_tiles, _count_tiles)
PATCHES: Family = (_write_patches, _count_patches)
FAMILIES: dict[str, Family] = {
    "idefics3": TILES,
    "smolvlm": TILES,
    "qwen2_vl": PATCHES,
    "qwen2_5_vl": PATCHES,
    "qwen3_vl": PATCHES,
}
