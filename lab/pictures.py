"""Write the screenshots of docs/view.md: the page of a run in headless Chromium, in light and in dark colours.

    python -m lab.pictures RUN [--step 4] [--out docs/pictures]

RUN is a finished training of Plan-Path with its kept trees, as `cadre train plan-path` writes it. Needs what
`make test-view` installs, and Pillow.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from bench.common import ROOT

# Each picture: what it shows, as the address within the page, and the element that has to be there first.
PICTURES = {
    "trees": ("#/trees?step={step}&tree={tree}", ".sibling.selected"),
    "tokens": ("#/trees?step={step}&tree={tree}&view=tokens", ".token"),
    "curves": ("#/curves", ".card canvas"),
    "state": ("#/trees?step={step}&tree={tree}&view=state", ".frame *"),
}
COLOURS = 256  # enough for all, and a picture stays below 100 kB


@contextmanager
def served(run: Path) -> Iterator[str]:
    """Serve the page of a run, and yield its address."""
    import uvicorn

    from cadre.view.reading import open_runs
    from cadre.view.server import make_application
    from cadre_programs.server import HOST, listen

    listening = listen(0)
    host = f"{HOST}:{listening.getsockname()[1]}"
    application = make_application(open_runs([run]), "token", [host])
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://{host}/token/"
    server.should_exit = True
    thread.join()
    listening.close()


def shoot(page: Any, address: str, selector: str) -> Image.Image:
    """Return what the page shows at an address once an element is there."""
    page.goto(address)
    page.wait_for_selector(selector)
    page.wait_for_timeout(500)  # plots are drawn when they come into sight
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--step", type=int, default=4, help="whose first kept tree is shown")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    options = parser.parse_args()
    lines = map(json.loads, (options.run / "trees.index.jsonl").read_text().splitlines())
    tree = next((line["tree"] for line in lines if line["step"] == options.step - 1), None)
    if tree is None:
        raise SystemExit(f"{options.run} kept no tree of step {options.step}. Name another --step.")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver, served(options.run) as address:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for (name, (path, selector)), theme in product(PICTURES.items(), ("light", "dark")):
            page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme=theme)
            picture = shoot(page, f"{address}{path.format(step=options.step, tree=tree)}", selector)
            page.close()
            file = options.out / f"{name}-{theme}.png"
            picture.save(file, optimize=True)
            print(f"{file.name}: {file.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
