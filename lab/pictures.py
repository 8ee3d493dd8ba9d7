"""Write the screenshots of docs/view.md: the page of a run in headless Chromium, in light and in dark colours.

    python -m lab.pictures RUN [--step 4] [--out docs/pictures]

RUN is a finished training of Plan-Path with its kept trees, as `cadre train plan-path` writes it. Needs what
`make test-view` installs, and Pillow.
"""

from __future__ import annotations

import argparse
import io
import json
from itertools import product
from pathlib import Path
from typing import Any

from PIL import Image

from bench.common import ROOT
from tests.cadre.view.browser import chromium, opened, served

# Each picture: what it shows, as the address within the page, and the element that has to be there first.
PICTURES = {
    "trees": ("#/trees?step={step}&tree={tree}", ".sibling.selected"),
    "tokens": ("#/trees?step={step}&tree={tree}&view=tokens", ".token"),
    "curves": ("#/curves", ".card canvas"),
    "state": ("#/trees?step={step}&tree={tree}&view=state", ".frame *"),
}
COLOURS = 256  # enough for all, and a picture stays below 100 kB


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
    with chromium() as browser, served(options.run) as address:
        for (name, (place, selector)), theme in product(PICTURES.items(), ("light", "dark")):
            with opened(browser, address, theme=theme) as page:
                picture = shoot(page, f"{address}{place.format(step=options.step, tree=tree)}", selector)
            file = options.out / f"{name}-{theme}.png"
            picture.save(file, optimize=True)
            print(f"{file.name}: {file.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
