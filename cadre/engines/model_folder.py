"""Model folders and hub names: find a model, check and read its configuration, identify its weights.

A hub that does not answer would be asked again for most of a minute a file, even where the cache has every file of the
model, so it is tried once, for two seconds. Imports neither torch nor transformers. Left out: whether weights and
configuration fit each other, which shows when the model is loaded.
"""

from __future__ import annotations

import hashlib
import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from cadre.errors import CadreError, EngineError, first_line
from cadre.file_limits import MIB, parse_json, read_json
from cadre.settings.models import read_model_type

# A hundred times the largest models and more; layers are built one by one.
MAX_LAYERS, MAX_SIZE = 10_000, 10**8
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "depth")
REQUIRED = ("num_hidden_layers", "n_layer", "hidden_size", "n_embd", "vocab_size")

HUB_TIMEOUT_S = 1.5
# Of each tensor, for a fingerprint of all weights; and the longest header that the safetensors format allows.
SAMPLED_BYTES, MAX_HEADER = 1024, 100 * MIB


def fingerprint_weights(folder: Path) -> str:
    """Return the SHA-256 of the name, type, shape and first bytes of every tensor of a model's folder, however they are
    divided into files; "" if its files cannot be read. Two models of one shape, such as a base and its fine-tuned
    version, have different ones."""
    tensors: dict[str, list[Any]] = {}
    try:
        for path in _weight_files(folder):
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = parse_json(file.read(length)) if length <= MAX_HEADER else {}
                header.pop("__metadata__", None)
                for name, entry in header.items():
                    start, end = entry["data_offsets"]
                    if not 0 <= start <= end:
                        return ""
                    file.seek(8 + length + start)
                    first = file.read(min(end - start, SAMPLED_BYTES))
                    tensors[name] = [entry["dtype"], entry["shape"], hashlib.sha256(first).hexdigest()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # loading the model says what is wrong with it
        return ""
    return hashlib.sha256(json.dumps(sorted(tensors.items())).encode()).hexdigest() if tensors else ""


def _weight_files(folder: Path) -> list[Path]:
    """Return the files that a model's weights are loaded from; other conversions may lie beside them."""
    single_file, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single_file.is_file():
        return [single_file]
    if index.is_file():
        names = {Path(name).name for name in read_json(index)["weight_map"].values()}
        return [folder / name for name in sorted(names)]
    return sorted(folder.glob("*.safetensors"))


def find_hub_model(name: str) -> str:
    """Return the hub name, or the cached folder if the hub does not answer. Raises EngineError if the model is in
    neither, or the name is invalid."""
    # Imported here since a model in a folder, the common case of most commands, needs no hub.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    if not constants.HF_HUB_OFFLINE and is_reachable(constants.ENDPOINT):
        return name
    try:
        folder = snapshot_download(name, local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError):
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} does not answer"
        raise EngineError(
            f"The model {name!r} cannot be had: {offline}, and the cache of this machine does not hold it; expected "
            "'seed', a folder, or a hub name that can be reached. Download it first, or fix the name."
        ) from None
    check_folder(name, Path(folder))
    return folder


@lru_cache
def is_reachable(endpoint: str) -> bool:
    """Return True if the endpoint, or the proxy on the way there, accepts connections; tried once a process."""
    url = urlsplit(urllib.request.getproxies().get(urlsplit(endpoint).scheme, endpoint))
    address = (url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
    answers: list[bool] = []

    def connect() -> None:
        with suppress(OSError):
            socket.create_connection(address, HUB_TIMEOUT_S).close()
            answers.append(True)

    # In a thread, as looking up the name has no time limit of its own.
    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT_S)
    return bool(answers)


def configuration_file(source: str) -> Path:
    """Return the config.json of a model in a folder or on the hub. Raises EngineError if the model cannot be built."""
    from huggingface_hub import hf_hub_download

    if Path(source).is_dir():
        return Path(source) / "config.json"
    file = Path(hf_hub_download(source, "config.json"))
    check_folder(source, file.parent)
    return file


def model_type(source: str) -> str:
    """Return the type of a model in a folder or on the hub, such as `llama`."""
    return read_model_type(configuration_file(source).parent)


@contextmanager
def wrap_load_errors(source: str, part: str) -> Iterator[None]:
    """Turn any error that a library raises over a model's files into an EngineError."""
    try:
        yield
    except CadreError:
        raise
    except Exception as error:
        raise EngineError(
            f"The {part} of {source!r} cannot be loaded: {first_line(error)}. Expected 'seed', a Hugging Face folder "
            "with safetensors, or a hub name that this machine can reach. Check the name, download the model first, "
            "or, where it needs code of its own that you trust, set trust_remote_code."
        ) from error


def check_folder(name: str, folder: Path) -> None:
    """Raise EngineError for a config.json that is malformed or describes a model that no machine holds."""
    try:
        config = read_json(folder / "config.json")
        if not isinstance(config, dict):
            raise ValueError(f"it holds {type(config).__name__}")
        for part in (config, *(value for value in config.values() if isinstance(value, dict))):
            for key in REQUIRED:
                value = part.get(key, 1)
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise ValueError(f"{key} is {value!r}, no whole number from 1 on")
            for key in (*LAYERS, *REQUIRED):
                limit = MAX_LAYERS if key in LAYERS else MAX_SIZE
                if isinstance(part.get(key), int) and part[key] > limit:
                    raise ValueError(f"{key} is {part[key]:,}, more than {limit:,}")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise EngineError(
            f"The model {name!r} cannot be loaded: config.json: {why}; expected the files of a Hugging Face folder, as "
            "save_pretrained writes them. Fix the file, download the model again, or choose another."
        ) from None


def context_length(config: Any) -> int | None:
    """Return the most tokens of a sequence, prompt and completion, by a transformers configuration; None if unstated.
    It is at most the length up to which rotary angles stay as they are (`stable_rope_length`)."""
    text = config.get_text_config()
    limits = (getattr(text, "max_position_embeddings", None), stable_rope_length(config))
    # XLNet writes -1 for no limit.
    return min((limit for limit in limits if limit and limit > 0), default=None)


def stable_rope_length(config: Any) -> int | None:
    """Return the length of a batch's longest sequence up to which rotary angles stay as they are; None for any length.

    transformers chooses the angles of `longrope` (Phi-3, 3.5 and 4-mini) and `dynamic` scaling by that length, for all
    of the batch: beyond it a sequence's log-probabilities depend on what shares its batch, and on its own length.
    """
    text = config.get_text_config()
    longest: int | None = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    limits: list[int | None] = []
    # Some models have one set of parameters a kind of layer.
    for parameters in [value for value in rope.values() if isinstance(value, dict)] or [rope]:
        kind = str(parameters.get("rope_type"))
        if kind == "longrope":
            limits.append(parameters.get("original_max_position_embeddings") or longest)
        elif "dynamic" in kind:
            limits.append(longest)
    return min((limit for limit in limits if limit), default=None)
