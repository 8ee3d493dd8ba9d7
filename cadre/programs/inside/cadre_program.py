"""For programs that want to know that they are trained: `import cadre_program`. Each works, too, where they are not.

cadre_program.reward(team=1.0, local={"planner": -0.1})     pays for the decisions since the last reward
booked = cadre_program.memo(book_flight, "SFO", day=3)      calls it once, however often the program is replayed
"""

import contextlib
import fcntl
import hashlib
import json
import os
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_counted: dict[str, int] = {}
_lock = threading.Lock()


def reward(
    team: float = 0.0, local: Mapping[str, float] | None = None, parts: Mapping[str, float] | None = None
) -> None:
    """Pay the team, and roles by name; `parts` are logged and never trained on."""
    url = os.environ.get("OPENAI_BASE_URL")
    if "CADRE_FOLDER" not in os.environ or url is None:
        return
    body = json.dumps({"team": team, "local": dict(local or {}), "parts": dict(parts or {})}).encode()
    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(urllib.request.Request(f"{url}/rewards", body, headers), timeout=60).read()


def memo(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the function returns, a JSON value. A program that is started again with the answers that it had is given
    the value that it had; so is a sibling that makes the same call the same number of times."""
    folder = os.environ.get("CADRE_MEMO")
    if folder is None:
        return function(*args, **kwargs)
    name = json.dumps([function.__module__, function.__qualname__, args, kwargs], sort_keys=True)
    with _lock:
        place = _counted[name] = _counted.get(name, -1) + 1
    path = os.path.join(folder, hashlib.sha256(f"{place} {name}".encode()).hexdigest())
    with _locked(path):
        if os.path.exists(path):
            with open(path) as file:
                return json.load(file)
        value = function(*args, **kwargs)
        with open(path + ".new", "w") as file:
            json.dump(value, file)
        os.replace(path + ".new", path)
        return value


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    with open(path + ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
