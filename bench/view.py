"""The page in headless Chromium: of a large run, of one that trains meanwhile, and of hostile texts, which run nothing.

    python bench/view.py [--write] [--axe axe.min.js] [--steps 2000] [--decisions 10]

`--axe` is the file of axe-core (npm pack axe-core), whose serious findings are counted. Wants what `make test-view`
installs. What the machine was busy with beside this is printed as its load.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from cadre.view import export
from cadre.view.reading import open_runs
from common import ROOT, record
from tests.cadre.view.browser import chromium, opened, served
from tests.cadre.view.runs import hostile, synthetic
from view_features import FEATURES, missing, overflows

PLACES = ("#/curves", "#/trees", "#/trees?view=tokens", "#/trees?view=compare", "#/left", "#/about")
THEMES = ("light", "dark")
UNITS = {"ms": "ms", "mb": "MB"}


def until(page: Any, holds: str) -> None:
    while not page.evaluate(holds):
        page.wait_for_timeout(20)


def first_paint(browser: Any, address: str) -> float:
    """Milliseconds to the first contentful paint with a curve on the page, the best of three loads."""
    times = []
    for _ in range(3):
        with opened(browser, address) as page:
            page.wait_for_selector(".card canvas")
            times.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            shown = page.evaluate("performance.getEntriesByName('cadre-shown')[0].startTime")
            print(f"first paint {times[-1]:.0f} ms, curves {shown:.0f} ms")
    return min(times)


def filtering(page: Any, address: str, decisions: int) -> tuple[float, float, float]:
    """Milliseconds from a typed word to the list that it leaves, at the most, by the clock and on the processor;
    and the megabytes of its process."""
    page.goto(f"{address}#/trees")
    until(page, "document.querySelector('#found')?.textContent.includes('decisions')")
    until(page, "!document.querySelector('#found').textContent.includes('read')")
    assert f"{decisions:,} decisions" in page.inner_text("#found")
    script = """word => { const box = document.querySelector('#filter'); const began = performance.now();
        box.value = word; box.dispatchEvent(new Event('input', {bubbles: true}));
        document.querySelector('#found').getBoundingClientRect(); return performance.now() - began; }"""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    times, worked = [], []
    for word in ("go on", "u12", "zzz", "moves l", ""):
        before = busy(session)
        times.append(page.evaluate(script, word))
        worked.append((busy(session) - before) * 1000)
    print("filter", [round(one, 1) for one in times], "on the processor", [round(one, 1) for one in worked])
    return max(times), max(worked), renderer()


def busy(session: Any) -> float:
    """Seconds that the page's thread was on the processor with scripts, styles and layout."""
    told = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return float(told["ScriptDuration"] + told["RecalcStyleDuration"] + told["LayoutDuration"])


def renderer() -> float:
    """Megabytes of the largest process that draws a page, its share of what several use included."""
    started = psutil.Process().children(recursive=True)
    return max(one.memory_full_info().pss for one in started if "--type=renderer" in one.cmdline()) / 1e6


def live(browser: Any, folder: Path) -> tuple[int, list[str]]:
    """The features that are missing on the page of a team of adapters that trains meanwhile, and the page's errors."""
    command = [sys.executable, "-m", "cadre", "train", "plan-path-lora", "train.steps=4", "evaluate.tasks=0"]
    training = subprocess.Popen([*command, "--run", str(folder)], cwd=ROOT, stdout=subprocess.DEVNULL)
    while not (folder / "trees.index.jsonl").is_file():
        time.sleep(0.5)
    with served(folder) as address, opened(browser, f"{address}#/trees") as page:
        page.set_default_timeout(60_000)
        until(page, "document.querySelector('#found')?.textContent.includes('tree')")
        before = page.inner_text("#found")
        until(page, f"document.querySelector('#found').textContent !== {before!r}")
        print(f"live: {before} became {page.inner_text('#found')}")
        training.wait()
        until(page, "document.querySelector('#found').textContent.startsWith('16 trees')")
        absent = missing(page)
        with opened(browser, address, width=400) as narrow:
            absent += ["narrow"] if overflows(narrow) else []
            return len(absent), [*absent, *page.errors, *narrow.errors]


def serious(browser: Any, address: str, axe: str) -> int:
    """Serious and critical findings of axe-core on every page, light and dark."""
    found = 0
    for theme in THEMES:
        with opened(browser, address, theme=theme) as page:
            for place in PLACES:
                page.evaluate("place => { location.hash = place }", place)
                page.wait_for_timeout(1_200)
                page.evaluate(axe)
                told = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
                for one in told["violations"]:
                    if one["impact"] in ("serious", "critical"):
                        found += 1
                        print(theme, place, one["id"], one["nodes"][0]["html"][:160])
    return found


def scripts_run(browser: Any, folder: Path) -> int:
    """Of two pages with hostile texts, the server's and a saved one, those on which a script of theirs ran."""
    run = hostile(folder)
    export.write_page(open_runs([run]), folder / "page.html", 100.0)
    with served(run) as address:
        return sum(harmed(browser, place) for place in (address, (folder / "page.html").as_uri()))


def harmed(browser: Any, address: str) -> bool:
    with opened(browser, address) as page:
        for index in range(7):
            for view in ("answer", "compare", "tokens", "talk", "state"):
                place = f"#/trees?step=1&node=0&role=tool&index={index}&view={view}"
                page.evaluate("place => { location.hash = place }", place)
                page.wait_for_timeout(300)
        return bool(page.evaluate("window.harmed !== undefined"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="append to results/view.jsonl")
    parser.add_argument("--axe", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--decisions", type=int, default=10)
    asked = parser.parse_args()
    nodes = asked.steps * asked.decisions
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        began = time.monotonic()
        run = synthetic(Path(scratch) / "run", asked.steps, asked.decisions)
        print(f"a run of {nodes:,} decisions, made in {time.monotonic() - began:.0f} s")
        with served(run) as address:
            paint = first_paint(browser, address)
            with opened(browser, address) as page:
                slowest, worked, megabytes = filtering(page, address, nodes)
                print(page.errors)
                errors = len(page.errors)
            findings = serious(browser, address, asked.axe.read_text()) if asked.axe else None
            with opened(browser, address) as page:
                absent = missing(page)
                print("missing on the large run", absent, page.errors)
                errors += len(page.errors)
        ran = scripts_run(browser, Path(scratch) / "hostile")
        missed, told = live(browser, Path(scratch) / "live")
        print("missing on the live run, and errors", told)
    figures = {
        "view.nodes": nodes,
        "view.first_paint_ms": round(paint),
        "view.filter_ms": round(slowest, 1),
        "view.filter_processor_ms": round(worked, 1),
        "view.memory_mb": round(megabytes, 1),
        "view.console_errors": errors + len(told) - missed,
        "view.features": len(FEATURES) + 1 - missed,
        "view.features_missing": missed + len(absent),
        "view.scripts_run": ran,
        **({} if findings is None else {"view.axe_serious": findings}),
    }
    print(figures, f"load {os.getloadavg()}")
    if asked.write:
        for name, value in figures.items():
            unit = UNITS.get(name.rpartition("_")[2], "count")
            record("view", name, [value], unit, "python bench/view.py --write --axe axe.min.js", 1)


if __name__ == "__main__":
    main()
