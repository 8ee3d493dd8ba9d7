"""Pictures as vision-language models of two families read them: placeholders in the text, and tensors of pixels.

A template writes one marker a picture; it is written out as many times as the model makes tokens of the picture. The
Qwen-VL family makes one token of every few patches of a picture of any size; Idefics 3 and SmolVLM cut it into square
tiles with a smaller whole beside them. What this leaves out: positions and forwards (`torch/vision.py`), video.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoImageProcessor, PreTrainedConfig
from transformers.processing_utils import ProcessorMixin

from cadre.engines.model_folder import reading
from cadre.envs.images import pixels
from cadre.errors import EngineError, PromptError
from cadre.settings.vision import VISION_MODELS
from cadre.types import Image, Message

# Bytes of tensors of pictures that are kept ready.
KEPT = 1 << 28
Tensors = dict[str, Any]


class Pictures:
    """How one model reads pictures. Lives as long as the model; several threads may ask it.

    `marker` is what the chat template writes for a picture, `token` the id that stands for every token of one, which
    are `count(image)`.
    """

    def __init__(self, source: str, tokenizer: Any, config: Any, trusted: bool = False) -> None:
        self.token: int = config.image_token_id
        self.marker: str = tokenizer.convert_ids_to_tokens(self.token)
        self._processor = _processor(source, trusted)
        self._config = config
        self._write, self._count = FAMILIES[config.model_type]
        self._ready: OrderedDict[str, Tensors] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def in_parts(self, message: Message) -> list[dict[str, str]]:
        """What templates take as content: the pictures, then the text, in which nothing else counts as a marker."""
        text = message.content.replace(self.marker, f"{self.marker[0]} {self.marker[1:]}")
        return [*({"type": "image"} for _ in message.images), {"type": "text", "text": text}]

    def expanded(self, text: str, images: Sequence[Image]) -> str:
        """The text with every marker written out. Raises PromptError where there are not as many as pictures."""
        before, *after = text.split(self.marker)
        if len(after) != len(images):
            raise PromptError(
                f"The model's chat template wrote {len(after)} markers for {len(images)} pictures; expected one each. "
                "Put pictures into messages of a role whose pictures it writes, such as user."
            )
        pieces = (self._write(self, self.tensors(image)) + rest for image, rest in zip(images, after, strict=True))
        return before + "".join(pieces)

    def count(self, image: Image) -> int:
        """How many tokens the model makes of a picture."""
        return self._count(self, self.tensors(image))

    def tensors(self, image: Image) -> Tensors:
        """What the image processor makes of a picture alone. Raises PromptError where it refuses it."""
        with self._lock:
            ready = self._ready.get(image.digest)
        return self._kept(image.digest, self._prepared(image)) if ready is None else ready

    def _kept(self, digest: str, tensors: Tensors) -> Tensors:
        """The tensors, kept ready in the place of the oldest ones where there is no room."""
        with self._lock:
            if digest not in self._ready:
                self._ready[digest] = tensors
                self._bytes += _bytes(tensors)
            while self._bytes > KEPT and len(self._ready) > 1:
                self._bytes -= _bytes(self._ready.popitem(last=False)[1])
        return tensors

    def save(self, folder: Path) -> None:
        """Write what a folder of the model needs beside the tokenizer to read pictures."""
        self._processor.save_pretrained(folder)

    def tokens_of(self, tiles: Any) -> int:
        """How many tokens are made of each of some tiles [..., height, width]."""
        patch, scale = self._config.vision_config.patch_size, self._config.scale_factor
        return int((tiles.shape[-2] // patch) * (tiles.shape[-1] // patch) // scale**2)

    @property
    def merged(self) -> int:
        """Patches that become one token."""
        return int(self._config.vision_config.spatial_merge_size**2)

    def _prepared(self, image: Image) -> Tensors:
        try:
            return dict(self._processor(images=[[pixels(image)]], return_tensors="pt", **_asked(self._processor)))
        except (ValueError, RuntimeError) as error:
            raise PromptError(
                f"The model cannot take a picture of {image.width} by {image.height} pixels: {error}. Expected one "
                "that its image processor accepts. Change its size or shape."
            ) from error


def is_vision(source: str) -> bool:
    """Whether the model of a folder or hub name reads pictures in a way that is known here."""
    return PreTrainedConfig.get_config_dict(source)[0].get("model_type") in VISION_MODELS


def of_model(source: str, tokenizer: Any, trust_remote_code: bool = False) -> Pictures | None:
    """How the model of a folder or hub name reads pictures; None for one that does not. A tokenizer without a chat
    template gets the processor's. Raises EngineError where something is missing."""
    if not is_vision(source):
        return None
    if tokenizer.chat_template is None:
        tokenizer.chat_template = _chat_template(source)
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    return Pictures(source, tokenizer, config, trust_remote_code)


def _chat_template(source: str) -> str | dict[str, str]:
    written = ProcessorMixin.get_processor_dict(source)[0].get("chat_template")
    if not isinstance(written, str | dict):
        raise EngineError(
            f"The model {source!r} has no chat template, which says where pictures stand; expected one beside its "
            "tokenizer or processor. Add chat_template.jinja."
        )
    return written


def _processor(source: str, trusted: bool) -> Any:
    with reading(source, "image processor"):
        # Always the same arithmetic, whatever else is installed.
        return AutoImageProcessor.from_pretrained(source, backend="pil", trust_remote_code=trusted)


def _asked(processor: Any) -> dict[str, bool]:
    """Rows and columns of tiles, where pictures are cut into tiles."""
    return {"return_row_col_info": True} if hasattr(processor, "do_image_splitting") else {}


def _bytes(tensors: Mapping[str, Any]) -> int:
    return sum(value.nbytes for value in tensors.values() if hasattr(value, "nbytes"))


def _write_tiles(pictures: Pictures, tensors: Tensors) -> str:
    """A row of tiles a line, each named by row and column, then the whole; the whole alone where there is one tile."""
    rows, columns = tensors["rows"][0][0], tensors["cols"][0][0]
    tokens, fence = pictures.marker * pictures.tokens_of(tensors["pixel_values"]), "<fake_token_around_image>"
    lines = (
        "".join(f"{fence}<row_{row}_col_{column}>{tokens}" for column in range(1, columns + 1)) + "\n"
        for row in range(1, rows + 1)
    )
    whole = f"{fence}<global-img>{tokens}{fence}"
    return "".join(lines) + ("\n" if rows else "") + whole


def _count_tiles(pictures: Pictures, tensors: Tensors) -> int:
    tiles = tensors["pixel_values"]
    return int(tiles.shape[1]) * pictures.tokens_of(tiles)


def _write_patches(pictures: Pictures, tensors: Tensors) -> str:
    return pictures.marker * _count_patches(pictures, tensors)


def _count_patches(pictures: Pictures, tensors: Tensors) -> int:
    return int(tensors["image_grid_thw"].prod()) // pictures.merged


Family = tuple[Callable[[Pictures, Tensors], str], Callable[[Pictures, Tensors], int]]
TILES: Family = (_write_tiles, _count_tiles)
PATCHES: Family = (_write_patches, _count_patches)
FAMILIES: dict[str, Family] = {
    "idefics3": TILES,
    "smolvlm": TILES,
    "qwen2_vl": PATCHES,
    "qwen2_5_vl": PATCHES,
    "qwen3_vl": PATCHES,
}
