"""A headless Chromium for the tests of the page, where there is one."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the test is skipped with the reason where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (make test-view)")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def served(*folders: Path, token: str = "secret") -> Iterator[str]:
    """The address of a page of these runs, while it is served."""
    import uvicorn

    from cadre.view.reading import open_runs
    from cadre.view.server import make_application
    from cadre_programs.server import HOST, listen

    listening = listen(0)
    host = f"{HOST}:{listening.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(make_application(open_runs(folders), token, [host]), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://{host}/{token}/"
    server.should_exit = True
    thread.join()
    listening.close()


@contextmanager
def opened(browser: Any, address: str, width: int = 1400, theme: str = "light") -> Iterator[Any]:
    """A page at an address; its errors and what it asks of other places are in `page.errors`."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.errors = []
    page.on(
        "console", lambda text: page.errors.append(f"{text.text} {text.location}") if text.type == "error" else None
    )
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto(address)
    yield page
    context.close()
