"""Image and sound inputs of models: placeholders in the text, and tensors of pixels or of spectrograms.

A template writes one marker per image; it is repeated for every token that the model makes of the image. The Qwen-VL
family makes one token of every few patches of an image of any size; Idefics 3 and SmolVLM cut it into square tiles with
a smaller copy of the whole beside them. Qwen2-Audio and Voxtral cut a sound into windows of 30 seconds, of which the
former takes one. Left out: positions and forwards (`torch/vision.py`), video.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoConfig, AutoFeatureExtractor, AutoImageProcessor, PreTrainedConfig
from transformers.processing_utils import ProcessorMixin

from cadre.engines.model_folder import wrap_load_errors
from cadre.envs.images import pixels
from cadre.envs.sounds import samples
from cadre.errors import EngineError, PromptError
from cadre.settings.models import AUDIO_MODELS, MEDIA_MODELS
from cadre.types import Image, Media, Message, Sound, media_of

# Bytes of prepared tensors that are kept.
CACHE_BYTES = 1 << 28
# Of a shorter sound a model makes no two tokens, which Qwen2-Audio reads in a way of its own.
MIN_SOUND_S = 0.1
Tensors = dict[str, Any]


class MediaProcessor:
    """Prepares images or sounds for one model. Lives as long as the model; thread-safe. `kind` is what it takes,
    `marker` what the chat template writes for one, `token` the id of each of its `count(medium)` placeholders."""

    kind: ClassVar[type[Media]]
    part: ClassVar[str]  # the type of a part of the content, as templates know it
    title: ClassVar[str]

    def __init__(self, tokenizer: Any, config: Any, token: int, processor: Any) -> None:
        self.token = token
        self.marker: str = tokenizer.convert_ids_to_tokens(token)
        self._processor, self._config = processor, config
        self._cache: OrderedDict[str, Tensors] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def content_parts(self, message: Message) -> list[dict[str, str]]:
        """Return the content as templates take it: images or sounds, then the text, whose markers are broken."""
        text = message.content.replace(self.marker, f"{self.marker[0]} {self.marker[1:]}")
        return [*({"type": self.part} for _ in media_of([message])), {"type": "text", "text": text}]

    def expand_markers(self, text: str, images: Sequence[Media]) -> str:
        """Return the text with every marker expanded. Raises PromptError if there are not as many as images."""
        first, *rest = text.split(self.marker)
        if len(rest) != len(images):
            raise PromptError(
                f"The model's chat template wrote {len(rest)} markers for {len(images)} {self.title}; expected one "
                f"each. Put {self.title} into messages of a role whose {self.title} it writes, such as user."
            )
        return first + "".join(
            self.write(self.tensors(image)) + following for image, following in zip(images, rest, strict=True)
        )

    def write(self, tensors: Tensors) -> str:
        """Return the placeholders, with what the model expects around them."""
        return self.marker * self.count_tokens(tensors)

    def count_tokens(self, tensors: Tensors) -> int:
        """Return how many tokens the model makes of tensors."""
        raise NotImplementedError

    def prepare(self, medium: Any) -> Tensors:
        """Return what the model's processor makes of an image or a sound. Raises PromptError if it rejects it."""
        raise NotImplementedError

    def count(self, image: Media) -> int:
        """Return how many tokens the model makes of an image or a sound."""
        return self.count_tokens(self.tensors(image))

    def tensors(self, image: Media) -> Tensors:
        """Return `prepare(image)`, of which the last ones are kept."""
        with self._lock:
            if image.digest not in self._cache:
                self._cache[image.digest] = self.prepare(image)
                self._bytes += count_bytes(self._cache[image.digest])
            prepared = self._cache[image.digest]
            while self._bytes > CACHE_BYTES and len(self._cache) > 1:
                self._bytes -= count_bytes(self._cache.popitem(last=False)[1])
        return prepared

    def save(self, folder: Path) -> None:
        """Write what a folder of the model needs beside the tokenizer to read images or sounds."""
        self._processor.save_pretrained(folder)


class VisionProcessor(MediaProcessor):
    """Prepares images."""

    kind, part, title = Image, "image", "pictures"

    def __init__(self, source: str, tokenizer: Any, config: Any, trust_remote_code: bool = False) -> None:
        with wrap_load_errors(source, "image processor"):
            # Pillow's arithmetic, whatever else is installed, so that equal images give equal tensors.
            processor = AutoImageProcessor.from_pretrained(source, backend="pil", trust_remote_code=trust_remote_code)
        super().__init__(tokenizer, config, config.image_token_id, processor)
        self._cuts_tiles = config.model_type in ("idefics3", "smolvlm")

    def write(self, tensors: Tensors) -> str:
        """Return a row of tiles a line, each named by row and column, then the whole; a single tile is the whole."""
        if not self._cuts_tiles:
            return super().write(tensors)
        rows, columns = tensors["rows"][0][0], tensors["cols"][0][0]
        tokens, fence, text = self.marker * self._count_tile_tokens(tensors), "<fake_token_around_image>", ""
        for row in range(1, rows + 1):
            text += "".join(f"{fence}<row_{row}_col_{column}>{tokens}" for column in range(1, columns + 1)) + "\n"
        return text + ("\n" if rows else "") + f"{fence}<global-img>{tokens}{fence}"

    def count_tokens(self, tensors: Tensors) -> int:
        if self._cuts_tiles:
            return int(tensors["pixel_values"].shape[1]) * self._count_tile_tokens(tensors)
        # Of some neighbouring patches one token is made.
        return int(tensors["image_grid_thw"].prod()) // int(self._config.vision_config.spatial_merge_size**2)

    def _count_tile_tokens(self, tensors: Tensors) -> int:
        """Return how many tokens are made of each tile [..., height, width]."""
        height, width = tensors["pixel_values"].shape[-2:]
        patch, scale = self._config.vision_config.patch_size, self._config.scale_factor
        return int((height // patch) * (width // patch) // scale**2)

    def prepare(self, medium: Any) -> Tensors:
        image: Image = medium
        # Rows and columns of tiles, from processors that cut images into tiles.
        options = {"return_row_col_info": True} if self._cuts_tiles else {}
        try:
            return dict(self._processor(images=[[pixels(image)]], return_tensors="pt", **options))
        except (ValueError, RuntimeError) as error:
            raise PromptError(
                f"The model cannot take a picture of {image.width} by {image.height} pixels: {error}. Expected one "
                "that its image processor accepts. Change its size or shape."
            ) from error


class AudioProcessor(MediaProcessor):
    """Prepares sounds: log-mel spectrograms of windows, `input_features` float32 [windows, mels, frames].

    Qwen2-Audio takes one window, of which `feature_attention_mask` [1, frames] marks what is sound; Voxtral takes any
    number of whole ones.
    """

    kind, part, title = Sound, "audio", "sounds"

    def __init__(self, source: str, tokenizer: Any, config: Any, trust_remote_code: bool = False) -> None:
        with wrap_load_errors(source, "feature extractor"):
            extractor = AutoFeatureExtractor.from_pretrained(source, trust_remote_code=trust_remote_code)
        super().__init__(tokenizer, config, config.audio_token_id, extractor)
        self._has_windows = config.model_type == "voxtral"

    def count_tokens(self, tensors: Tensors) -> int:
        audio = self._config.audio_config
        if self._has_windows:
            # The states of a window are joined, as many as make the projector's input.
            states = len(tensors["input_features"]) * audio.max_source_positions
            return int(states * audio.d_model // audio.intermediate_size)
        # A convolution and a pooling halve the frames.
        frames = int(tensors["feature_attention_mask"].sum())
        return ((frames - 1) // 2 - 1) // 2 + 1

    def prepare(self, medium: Any) -> Tensors:
        heard: Sound = medium
        rate, window = self._processor.sampling_rate, self._processor.n_samples
        longest = math.inf if self._has_windows else window / rate
        if heard.rate != rate or not MIN_SOUND_S <= heard.length / rate <= longest:
            limit = "" if self._has_windows else f" and at most {longest:g}"
            raise PromptError(
                f"The model cannot take a sound of {heard.length / heard.rate:.2f} seconds at {heard.rate:,} samples a "
                f"second; expected {rate:,} a second, and at least {MIN_SOUND_S:g}{limit} seconds. "
                "Resample or cut it."
            )
        options = {"return_tensors": "pt", "sampling_rate": rate, "truncation": False}
        values = samples(heard)
        if self._has_windows:
            features = self._processor(values, padding=True, pad_to_multiple_of=window, **options)["input_features"]
            mels, frames = features.shape[1], self._processor.nb_max_frames
            return {"input_features": features.reshape(mels, -1, frames).transpose(0, 1).contiguous()}
        features = self._processor(values, padding="max_length", return_attention_mask=True, **options)
        return {"input_features": features["input_features"], "feature_attention_mask": features["attention_mask"]}


def load_processor(source: str, tokenizer: Any, trust_remote_code: bool = False) -> MediaProcessor | None:
    """Return the processor of the model of a folder or hub name; None for a model of text. A tokenizer without a chat
    template gets the processor's. Raises EngineError if there is none either."""
    model_type = PreTrainedConfig.get_config_dict(source)[0].get("model_type")
    if model_type not in MEDIA_MODELS:
        return None
    if tokenizer.chat_template is None:
        template = ProcessorMixin.get_processor_dict(source)[0].get("chat_template")
        if not isinstance(template, str | dict):
            raise EngineError(
                f"The model {source!r} has no chat template, which says where pictures or sounds stand; expected "
                "one beside its tokenizer or processor. Add chat_template.jinja."
            )
        tokenizer.chat_template = template
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    kind = AudioProcessor if model_type in AUDIO_MODELS else VisionProcessor
    return kind(source, tokenizer, config, trust_remote_code)


def count_bytes(tensors: Mapping[str, Any]) -> int:
    """Return the bytes of the tensors among the values."""
    return sum(value.nbytes for value in tensors.values() if hasattr(value, "nbytes"))
