"""The page that shows runs in a browser: what it is told, who is told it, and the page as one file."""

from pathlib import Path

# What the browser is given, as it is.
PAGE = Path(__file__).parent / "page"
