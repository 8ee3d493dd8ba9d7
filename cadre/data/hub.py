"""Data sets from the Hugging Face hub, where the user writes `hub`."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

from cadre.data.specs import Spec
from cadre.errors import DataError

PATIENCE = 2.0  # seconds in which the hub has to answer at all


def from_hub(spec: Spec, split: str) -> Iterable[Mapping[str, Any]]:
    """The rows of a split. Raises DataError without the package `datasets`, the hub, or the set there."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"data: fetching {spec.hub} needs the package datasets; got none. pip install 'cadre-rl[data]', or name a "
            "local folder instead of hub."
        ) from None
    _reach()
    configuration = [spec.config] if spec.config else []
    try:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(spec.hub, *configuration, split=spec.splits[split][0])
    except (OSError, ValueError, RuntimeError) as error:
        first = str(error).strip().split("\n")[0][:300]
        raise DataError(
            f"data: {spec.hub} could not be fetched: {type(error).__name__}: {first}; expected the split "
            f"{spec.splits[split][0]}. Try again, or name a local folder instead of hub."
        ) from None
    return rows


def _reach() -> None:
    """Ask the hub for anything, once and briefly: its own client tries for a minute. HF_HUB_OFFLINE=1 skips it."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return  # it answered
    except OSError as error:
        raise DataError(
            f"data: {address} does not answer within {PATIENCE:g} s ({error}); expected the Hugging Face hub. Name a "
            "local folder with settings.source, or set HF_HUB_OFFLINE=1 to use what was fetched before."
        ) from None
