"""Starts a warm parent: the modules that it imports before its first fork, and what it then serves."""

import importlib
import json
import os
import socket
import sys

from . import addresses, child, host, layers, parent, repeatable, wire

# Imported before the first fork, so that programs need not wait for them.
COMMON_MODULES = (
    "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "hashlib",
    "heapq", "inspect", "io", "itertools", "json", "linecache", "math", "operator", "random", "re", "statistics",
    "string", "textwrap", "time", "traceback", "typing", "unittest",
)  # fmt: skip


def main() -> None:
    """Entry: `inside.start.main()`, told what is asked as JSON in the second argument."""
    addresses.fix_layout()
    asked = json.loads(sys.argv[2])
    control = socket.socket(fileno=asked["channel"])
    profile = layers.Profile(
        asked["level"],
        tuple(asked["packages"]),
        executables=tuple(asked["executables"]),
        landlock=asked["landlock"],
    )
    warm = asked["mode"] == "pool"
    sys.path[0:1] = []
    host.prepare()
    repeatable.prepare()
    repeatable.seed(0)  # for what the modules draw that are imported now
    try:
        lend(asked["lent"])
        sys.path += profile.packages
        for name in (*(COMMON_MODULES if warm else ()), *asked["preload"]):
            importlib.import_module(name)
        child.prepare()
        parent.serve(control, profile, asked["group"], keep_spare=warm)
    except OSError as error:
        wire.send(control, {"layers": [], "error": str(error)})


def lend(folders: list[str]) -> None:
    """Import packages, by their folders, of which programs get the modules alone and not the place where they are."""
    for folder in folders:
        sys.path.append(os.path.dirname(folder))
        importlib.import_module(os.path.basename(folder))
        sys.path.pop()
