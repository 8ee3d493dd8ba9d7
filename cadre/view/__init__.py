"""The page that shows runs in a browser: a run as JSON values (reading), a server, and one HTML file (export)."""

from pathlib import Path
from typing import Any

from cadre.files import to_json

# The browser gets these files as they are.
PAGE = Path(__file__).parent / "page"


def plain_json(value: Any) -> str:
    """Return JSON as a browser reads it: a number that is not finite, which Python would write as NaN, is null."""
    return to_json(value, separators=(",", ":"))
