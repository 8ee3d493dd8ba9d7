"""Values as JSON that every reader takes: RFC 8259 has no NaN and no Infinity, which Python would write."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(value: Any, **options: Any) -> str:
    """Return the value as JSON. A number that is not finite, which Python would write as NaN or Infinity and no other
    reader takes, is null."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(finite(value), **options)


def finite(value: Any) -> Any:
    """Return the value with None for every number in it that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value
