"""Folders of models, which may hold anything: what is refused before a library reads them.

Imports neither torch nor transformers. What this leaves out: whether weights and configuration fit each other, which
shows when the model is loaded.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cadre.engines import host_memory
from cadre.errors import CadreError, EngineError, first_line
from cadre.file_limits import MIB, read_json, size_of

# Bytes of a file by the end of its name, the first that fits: no model that is known comes near. Weights have no limit.
MOST_BYTES = {
    "tokenizer.json": 512 * MIB,
    "vocab.json": 512 * MIB,
    ".index.json": 256 * MIB,
    ".json": 16 * MIB,
    ".jinja": MIB,
    ".model": 512 * MIB,
    ".txt": 512 * MIB,
}
# A hundred times the largest models, and layers that are built one by one. Experts may be rows of one tensor: Doge has
# 16,384, and some have a million (arXiv 2407.04153).
MOST_PARAMETERS = 10**14
MOST_LAYERS, MOST_EXPERTS = 10_000, 10_000_000
# The names that configurations of transformers give to what decides about a model's size.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "depth")
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "embed_dim")
INNER = ("moe_intermediate_size", "intermediate_size", "n_inner", "d_ff", "ffn_dim")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ROWS = ("vocab_size", "n_positions", "num_embeddings", "vocab_size_per_layer_input")
# Numbers whose names begin and go on so, or are these, say how often something is built.
COUNTS, COUNTED = ("num_", "n_"), ("layers", "experts", "blocks", "stages", "modules")
NEEDED = ("num_hidden_layers", "n_layer", "hidden_size", "n_embd", "vocab_size")
REPEATED = (*LAYERS, *EXPERTS, "depths")


@contextmanager
def reading(source: str, what: str) -> Iterator[None]:
    """Whatever a library raises over what it finds in a model's folder becomes an EngineError."""
    try:
        yield
    except CadreError:
        raise
    except Exception as error:
        raise EngineError(
            f"The {what} of {source!r} cannot be loaded: {first_line(error)}. Expected 'seed', a Hugging Face folder "
            "with safetensors, or a hub name that this machine can reach. Check the name, download the model first, "
            "or, where it needs code of its own that you trust, set trust_remote_code."
        ) from error


def check_folder(name: str, folder: Path) -> None:
    """Raise EngineError where a library could read or build without end: pipes and devices, descriptions of gigabytes,
    and a configuration of more parameters than any machine holds."""
    for path in sorted([*folder.iterdir(), *folder.glob("additional_chat_templates/*")]):
        ending = next((ending for ending in (*MOST_BYTES, ".safetensors") if path.name.endswith(ending)), None)
        if ending is None or not path.exists() or path.is_dir():
            continue
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise _refused(name, path, "it is no regular file", "Download the model again")
        most = MOST_BYTES.get(ending)
        if most is not None and about.st_size > most:
            got = f"it holds {size_of(about.st_size)}, more than the {size_of(most)} that are read"
            raise _refused(name, path, got, "Download the model again")
    if (folder / "config.json").is_file():
        check_configuration(name, folder / "config.json")


def check_configuration(name: str, path: Path) -> None:
    """Raise EngineError where a config.json is none, or describes a model that no machine holds."""
    try:
        config = read_json(path)
    except OSError as error:
        raise _refused(name, path, str(error.strerror), "Fix its permissions") from None
    except ValueError as error:
        raise _refused(name, path, f"it is not JSON ({error})", "Download the model again") from None
    if not isinstance(config, dict):
        raise _refused(name, path, f"it holds {type(config).__name__}", "Download the model again")
    check_parameters(name, estimate_parameters(config), config)
    for part in (part for part in (config, config.get("text_config")) if isinstance(part, dict)):
        for key in NEEDED:
            value = part.get(key, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _refused(name, path, f"{key} is {value!r}, no whole number from 1 on", "Fix the number")


def check_parameters(name: str, parameters: int, config: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Raise EngineError where a model has more parameters, or its configuration more layers, than any machine holds."""
    beyond = [
        (name, number)
        for name, number in _repeated(config)
        if number > (MOST_EXPERTS if name.endswith("experts") else MOST_LAYERS)
    ]
    if parameters > MOST_PARAMETERS or beyond:
        why = f" and {beyond[0][0]} of {beyond[0][1]:,}" if beyond else ""
        raise EngineError(
            f"The model {name!r} is not built: its config.json describes about {parameters:,} parameters{why}, which "
            f"take {size_of(4 * parameters)} in float32; this machine has {size_of(host_memory.total())} of memory. "
            f"Expected at most {MOST_PARAMETERS:,} parameters, {MOST_LAYERS:,} layers and "
            f"{MOST_EXPERTS:,} experts. Fix config.json, or choose another model."
        )


def estimate_parameters(config: Mapping[str, Any]) -> int:
    """The parameters that a configuration describes, those of its parts included: attention and MLPs of every layer,
    and embeddings. About right for decoders, and low for the rest."""
    width = _largest(config, WIDTHS)
    layer = 4 * width * width + 3 * width * (_largest(config, INNER) or 4 * width) * max(1, _largest(config, EXPERTS))
    heads = 2 * width * _largest(config, ("num_attention_heads",)) * _largest(config, ("head_dim",))
    own = width * sum(_largest(config, (name,)) for name in ROWS) + _largest(config, LAYERS) * (layer + heads)
    return own + sum(estimate_parameters(part) for part in config.values() if isinstance(part, dict))


def has_large_numbers(config: Mapping[str, Any], beyond: int = 10_000_000) -> bool:
    """Whether a whole number of a configuration is so large that the estimate may say little."""
    numbers = (value for value in config.values() if isinstance(value, int))
    parts = (part for part in config.values() if isinstance(part, dict))
    return any(abs(number) > beyond for number in numbers) or any(has_large_numbers(part, beyond) for part in parts)


def _largest(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The largest whole number under one of these names; 0 where there is none."""
    numbers = (config.get(name) for name in names)
    whole = (int(n) for n in numbers if isinstance(n, int | float) and 0 < n < float("inf"))
    return max(whole, default=0)


def _repeated(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """(name, number) of what is made so often, in the parts of a configuration too."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _repeated(value)
        elif name in REPEATED or (str(name).startswith(COUNTS) and str(name).endswith(COUNTED)):
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int | float) and 0 < number < float("inf"):
                    yield name, int(number)


def _refused(name: str, path: Path, got: str, advice: str) -> EngineError:
    return EngineError(
        f"The model {name!r} cannot be loaded: {path.name}: {got}; expected the files of a Hugging Face folder, as "
        f"save_pretrained writes them. {advice}, or choose another one."
    )
