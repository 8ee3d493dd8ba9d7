"""Start a warm parent: import modules before its first fork, then serve requests."""

import importlib
import json
import os
import socket
import sys

from . import addresses, child, host, layers, parent, repeatable, wire

# Imported before the first fork, so that every child inherits them and no program waits for them.
COMMON_MODULES = (
    "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "hashlib",
    "heapq", "inspect", "io", "itertools", "json", "linecache", "math", "operator", "random", "re", "statistics",
    "string", "textwrap", "time", "traceback", "typing", "unittest",
)  # fmt: skip


def main() -> None:
    """Entry point of a warm parent; its second command line argument holds the settings as JSON."""
    # First of all: this may execute the interpreter anew, and everything before would be done twice.
    addresses.fix_layout()
    arguments = json.loads(sys.argv[2])
    control = socket.socket(fileno=arguments["channel"])
    profile = layers.Profile(
        arguments["level"],
        tuple(arguments["packages"]),
        executables=tuple(arguments["executables"]),
        landlock=arguments["landlock"],
    )
    warm = arguments["mode"] == "pool"
    sys.path[0:1] = []  # the folder of this package, which programs must not import from
    # Before any other import, so that no module keeps a reference to what is replaced here.
    host.prepare()
    repeatable.prepare()
    repeatable.seed(0)  # some modules draw random numbers as they are imported
    try:
        # Without leaving their folders on the path of programs.
        for folder in arguments["extra_packages"]:
            sys.path.append(os.path.dirname(folder))
            importlib.import_module(os.path.basename(folder))
            sys.path.pop()
        sys.path += profile.packages
        for name in (*(COMMON_MODULES if warm else ()), *arguments["preload"]):
            importlib.import_module(name)
        child.prepare()
        parent.serve(control, profile, arguments["group"], keep_spare=warm)
    except OSError as error:
        wire.send(control, {"layers": [], "error": str(error)})
