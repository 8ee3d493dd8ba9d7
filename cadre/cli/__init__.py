"""The command line: parses, calls, prints."""

from cadre.cli.app import main

__all__ = ["main"]
