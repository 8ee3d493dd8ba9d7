"""Folders of models, which may hold anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cadre.errors import CadreError, EngineError, first_line


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
