"""A hub that answers, one that does not, and a cache that has what is asked for."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from cadre.engines import model_folder
from cadre.errors import EngineError


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    model_folder.is_reachable.cache_clear()


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"http://127.0.0.1:{port}"


def test_a_hub_that_answers_is_asked_for_the_name(listening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", listening)
    assert model_folder.find_hub_model("some/model") == "some/model"


def test_a_proxy_is_asked_in_place_of_the_hub(listening: str, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"http": listening})
    assert model_folder.is_reachable(silent)


@pytest.mark.parametrize("name", ["some/model", "nowhere", "a b"])
def test_what_cannot_be_had_is_one_paragraph(name: str, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", silent)
    with pytest.raises(EngineError, match="does not answer, and the cache of this machine does not hold it") as raised:
        model_folder.find_hub_model(name)
    assert "\n" not in str(raised.value)


def test_a_name_that_is_never_looked_up_is_waited_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "HUB_TIMEOUT_S", 0.05)
    monkeypatch.setattr(model_folder.socket, "create_connection", lambda *_: time.sleep(30))
    assert not model_folder.is_reachable("https://nowhere.example")


def test_what_is_in_the_cache_is_taken_from_there(silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", silent)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    stored = tmp_path / "models--some--model"
    (stored / "snapshots" / "abc").mkdir(parents=True)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("abc")
    (stored / "snapshots" / "abc" / "config.json").write_text("{}")
    assert model_folder.find_hub_model("some/model") == str(stored / "snapshots" / "abc")


def test_offline_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EngineError, match="HF_HUB_OFFLINE is set"):
        model_folder.find_hub_model("some/model")
