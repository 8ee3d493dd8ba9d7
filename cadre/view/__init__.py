"""The page that shows runs in a browser: what it is told, who is told it, and the page as one file."""

from pathlib import Path
from typing import Any

from cadre.files import to_json

# What the browser is given, as it is.
PAGE = Path(__file__).parent / "page"


def plain_json(value: Any) -> str:
    """JSON as a browser reads it: a number that is not finite, which Python would write as NaN, is null."""
    return to_json(value, separators=(",", ":"))
