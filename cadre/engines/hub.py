"""Whether a model of the hub can be had, found out within two seconds and before anything heavy is imported.

A hub that does not answer would otherwise be asked again and again, for most of a minute a file, even where every file
of the model is in the cache.
"""

from __future__ import annotations

import socket
import urllib.request
from functools import lru_cache
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from cadre.engines.model_folder import check_configuration, check_folder
from cadre.errors import EngineError
from cadre.settings import vision

PATIENCE_S = 1.5


def available(name: str) -> str:
    """The hub name, or the folder in the cache that holds the model where the hub does not answer. Raises EngineError
    where it is in neither, or is no name."""
    if not constants.HF_HUB_OFFLINE and reachable(constants.ENDPOINT):
        return name
    try:
        folder = snapshot_download(name, local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError):
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} does not answer"
        raise EngineError(
            f"The model {name!r} cannot be had: {offline}, and the cache of this machine does not hold it; expected "
            "'seed', a folder, or a hub name that can be reached. Download it first, or fix the name."
        ) from None
    check_folder(name, Path(folder))
    return folder


def configuration_file(source: str) -> Path:
    """The config.json of a model in a folder, or of one of the hub that can be had. Raises EngineError where it
    describes what cannot be built."""
    if Path(source).is_dir():
        return Path(source) / "config.json"
    file = Path(hf_hub_download(source, "config.json"))
    check_configuration(source, file)
    return file


def model_type(source: str) -> str:
    """The type of a model in a folder, or of one of the hub that can be had."""
    return vision.model_type(configuration_file(source).parent)


@lru_cache
def reachable(endpoint: str) -> bool:
    """Whether something answers at the endpoint, or at the proxy on the way there; looked up once a process."""
    url = urlsplit(urllib.request.getproxies().get(urlsplit(endpoint).scheme, endpoint))
    address = (url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
    answers: list[bool] = []
    # Looking up the name has no time limit of its own.
    asking = Thread(target=lambda: answers.append(_connects(address)), daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return any(answers)


def _connects(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, PATIENCE_S).close()
    except OSError:
        return False
    return True
