"""For programs that report rewards or have side effects: `import cadre_program`. All of it works outside training too.

cadre_program.reward(team=1.0, local={"planner": -0.1})     rewards the decisions since the last reward
booking = cadre_program.memo(book_flight, "SFO", day=3)     calls it once, however often the program is replayed
"""

import fcntl
import hashlib
import json
import os
import threading
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

_call_counts: dict[str, int] = {}
_lock = threading.Lock()


def reward(
    team: float = 0.0, local: Mapping[str, float] | None = None, parts: Mapping[str, float] | None = None
) -> None:
    """Reward the team, and roles by name; `parts` are logged and never trained on."""
    url = os.environ.get("OPENAI_BASE_URL")
    if "CADRE_FOLDER" not in os.environ or url is None:
        return
    numbers = {"team": team, "local": dict(local or {}), "parts": dict(parts or {})}
    body = json.dumps(numbers, default=lambda scalar: scalar.item()).encode()  # of numpy or torch
    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(urllib.request.Request(f"{url}/rewards", body, headers), timeout=60).read()


def memo(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the function's value, a JSON value, from an earlier run of the program where there is one. Values are kept
    for all instances of an episode, by function, arguments, and how often this call was made before."""
    folder = os.environ.get("CADRE_MEMO")
    if folder is None:
        return function(*args, **kwargs)
    if not folder:
        raise RuntimeError("cadre_program.memo keeps nothing in a container; call the function, or set isolation: fork")
    name = json.dumps([function.__module__, function.__qualname__, args, kwargs], sort_keys=True)
    with _lock:
        occurrence = _call_counts[name] = _call_counts.get(name, -1) + 1
    path = os.path.join(folder, hashlib.sha256(f"{occurrence} {name}".encode()).hexdigest())
    # Instances that run side by side wait for the first one's value.
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(path):
            with open(path) as file:
                return json.load(file)
        value = function(*args, **kwargs)
        with open(path + ".new", "w") as file:
            json.dump(value, file)
        os.replace(path + ".new", path)
        return value
