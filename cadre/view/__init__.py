"""The page that shows runs in a browser: what it is told, who is told it, and the page as one file."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What the browser is given, as it is.
PAGE = Path(__file__).parent / "page"


def plain_json(value: Any) -> str:
    """JSON as a browser reads it: a number that is not finite, which Python would write as NaN, is null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
