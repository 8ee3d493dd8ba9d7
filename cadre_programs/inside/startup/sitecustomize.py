"""Python runs this in every process of a command, as its folder is in PYTHONPATH: it makes the process steady.

Then it runs the `sitecustomize` that it hides, if there is one.
"""

import importlib
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
try:
    sys.path.append(os.path.dirname(_here))
    try:
        _steady = importlib.import_module("cadre_steady")
    finally:
        sys.path.remove(os.path.dirname(_here))
    _steady.make_steady_by_variables()
except Exception as _error:  # noqa: BLE001 - no program fails to start for this
    sys.stderr.write(f"The clock of this process is not steady: {type(_error).__name__}: {_error}\n")

_rest = [path for path in sys.path if os.path.abspath(path or ".") != _here]
_hidden = sys.modules.pop("sitecustomize", None)
sys.path[:], _path = _rest, sys.path[:]
try:
    importlib.import_module("sitecustomize")
except ImportError:
    if _hidden is not None:
        sys.modules["sitecustomize"] = _hidden
finally:
    sys.path[:] = _path
