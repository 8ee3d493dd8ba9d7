"""The page in a browser: every feature by what is visible, hostile texts as texts, from a server and from disk."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadre.view import export
from cadre.view.reading import open_runs
from tests.cadre.view.browser import chromium, opened, served
from tests.cadre.view.runs import hostile, step_of, synthetic, tree

pytest.importorskip("starlette", reason="starlette, of the extra view, is not installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic(tmp_path_factory.mktemp("view") / "run", 12, 4)


@pytest.fixture
def page(browser: Any, run: Path) -> Iterator[Any]:
    with served(run) as address, opened(browser, address) as shown:
        yield shown
        assert shown.errors == []


def at(page: Any, folder: str) -> None:
    page.evaluate("place => { location.hash = place }", folder)


def text(page: Any, selector: str) -> str:
    return page.locator(selector).first.inner_text()


def until(page: Any, holds: str) -> None:
    """Wait until an expression holds; Playwright's own way evaluates a string, which the page's policy forbids."""
    deadline = time.monotonic() + 20
    while not page.evaluate(holds):
        assert time.monotonic() < deadline, holds
        page.wait_for_timeout(50)


def test_curves_by_role_and_a_step_that_opens_its_trees(page: Any) -> None:
    page.wait_for_selector("[data-figure='ROLE/reward'] canvas")
    legend = text(page, "[data-figure='ROLE/reward'] .legend")
    assert "tool 0.71" in legend
    assert "planner 0.71" in legend
    for figure in ("ROLE/zero_variance_groups", "ROLE/gradient_fraction", "POLICY/entropy", "parts/*", "time/*"):
        assert page.locator(f"[data-figure='{figure}']").count() == 1
    over = page.locator("[data-figure='rollout/success'] .u-over")
    box = over.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 40)
    page.wait_for_selector(".sibling")
    assert re.search(r"Step [5678], task", text(page, ".open h2"))


def test_a_tree_shows_siblings_with_pay_credit_and_why_one_went_on(page: Any) -> None:
    at(page, "#/trees?step=4&tree=0&node=0&role=tool&index=3")
    page.wait_for_selector(".sibling.selected")
    assert page.locator(".column").count() == 4
    assert page.locator(".column").first.locator(".sibling").count() == 4
    chosen = text(page, ".sibling.selected")
    assert "reward +0.7" in chosen
    assert "adv +1.5" in chosen
    assert "selected: highest reward" in chosen
    facts = text(page, ".facts")
    for message in ("weight in the loss", "critic value", "goal 1", "team +1"):
        assert message in facts
    assert "moves" in text(page, "#said")


def test_views_of_an_answer(page: Any) -> None:
    at(page, "#/trees?step=4&node=1&role=planner&index=1&view=compare")
    page.wait_for_selector(".beside mark")
    assert page.locator(".beside article").count() == 4
    at(page, "#/trees?step=4&node=1&role=planner&index=1&view=tokens&shade=logprob_diff")
    page.wait_for_selector(".token.minus, .token.plus")
    assert page.locator(".token").count() == 12
    assert "learner − sampler" in page.locator(".token").first.get_attribute("title")
    assert text(page, "pre.prompt") == "abc"
    at(page, "#/trees?step=4&node=1&role=planner&index=1&view=talk")
    page.wait_for_selector(".turn")
    assert page.locator(".turn").count() == 2
    at(page, "#/trees?step=4&node=1&role=planner&index=3&view=state")
    page.wait_for_selector(".grid .walker")
    first = text(page, ".sample [role=status]")
    page.keyboard.press(".")
    assert text(page, ".sample [role=status]") != first


def test_filters_links_and_keys(page: Any) -> None:
    at(page, "#/trees")
    page.wait_for_selector(".sibling")
    assert "12 trees, 48 decisions" in text(page, "#found")
    page.select_option("#filter-solved", "yes")
    assert "6 trees of 12" in text(page, "#found")
    until(page, "!document.querySelector('#found').textContent.includes('loaded')")
    word = page.evaluate("document.querySelector('.sibling .preview').textContent.split(' ')[1]")
    page.fill("#filter", word)
    until(page, "document.querySelector('#found').textContent.includes('1 completion')")
    link = page.url
    page.fill("#filter", "")
    page.locator(".mark").click()
    page.keyboard.press("]")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".column:nth-child(2) .sibling.selected")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector(".column:nth-child(2) li:nth-child(3) .sibling.selected")
    page.goto(link)
    until(page, "document.querySelector('#found')?.textContent.includes('1 completion')")
    page.keyboard.press("3")
    page.wait_for_selector(".left .kind-failed")
    assert "no goal" in text(page, ".left .kind-failed")
    assert page.locator(".left .kind-no-spread").count() > 0
    page.keyboard.press("4")
    page.wait_for_selector(".about")
    assert "algorithm" in text(page, ".about")


# Texts and words of few letters, drawn by a rule, found by the index and one by one.
PARITY = """async () => {
  const { noRows, addRows, rowsWith } = await import(new URL("texts.js", location.href).href);
  let drawn = 7;
  const draw = (most) => { drawn = (drawn * 48271) % 2147483647; return drawn % most; };
  const text = (most) => Array.from({ length: draw(most) }, () => "abAÉ\\n"[draw(5)]).join("");
  const rows = noRows();
  const texts = [];
  for (let part = 0; part < 5; part += 1) {
    const tree = () => Array.from({ length: draw(6) }, (_, index) => [0, "tool", index, text(12), 0, 0, 0]);
    const trees = Array.from({ length: 4 }, tree);
    addRows(rows, part * 4, trees);
    texts.push(...trees.flat().map((row) => row[3].toLowerCase()));
  }
  const differing = [];
  for (let trial = 0; trial < 300; trial += 1) {
    const word = (text(3) + "abé\\n"[draw(4)]).toLowerCase();
    const plain = texts.flatMap((one, row) => (one.includes(word) ? [row] : []));
    if (plain.join() !== rowsWith(rows, word).join()) differing.push([word, plain, rowsWith(rows, word)]);
  }
  return { texts: texts.length, differing };
}"""


def test_the_index_of_texts_agrees_with_a_plain_search(page: Any) -> None:
    evaluate = page.evaluate(PARITY)
    assert evaluate["texts"] > 20
    assert evaluate["differing"] == []


def test_the_page_grows_while_a_run_writes(browser: Any, tmp_path: Path) -> None:
    run = synthetic(tmp_path / "run", 2, 2)
    with served(run) as address, opened(browser, f"{address}#/trees") as page:
        page.wait_for_selector(".sibling")
        assert "2 trees" in text(page, "#found")
        step_of(run, 2, tree(2, 2, 4, random.Random(1)))
        until(page, "document.querySelector('#found').textContent.includes('3 trees')")
        assert page.errors == []


def test_runs_lie_over_each_other_and_seeds_are_bands(browser: Any, tmp_path: Path) -> None:
    runs = [synthetic(tmp_path / f"seed-{seed}", 5, 2, seed=seed) for seed in (0, 1)]
    with served(*runs) as address, opened(browser, address) as page:
        page.wait_for_selector("[data-figure='rollout/success'] canvas")
        assert page.locator("[data-figure='rollout/success'] .legend li").count() == 2
        at(page, "#/curves?seeds=bands")
        page.wait_for_selector("text=(mean and range of 2 seeds)")
        assert page.locator("[data-figure='rollout/success'] .legend li").count() == 1


def test_what_success_in_training_means_is_at_each_line_where_runs_differ_in_it(browser: Any, tmp_path: Path) -> None:
    runs = [synthetic(tmp_path / name, 3, 2) for name in ("four", "eight")]
    config = runs[1] / "config.yaml"
    config.write_text(config.read_text().replace("k: 4", "k: 8"))
    figure = "[data-figure='rollout/success']"
    with served(*runs) as address, opened(browser, address) as page:
        page.wait_for_selector(f"{figure} canvas")
        assert text(page, f"{figure} h3") == "Success in training"
        legend = text(page, f"{figure} .legend")
        assert "four, best-of-4 " in legend
        assert "eight, best-of-8 " in legend
    with served(runs[0]) as address, opened(browser, address) as page:
        page.wait_for_selector(f"{figure} canvas")
        assert text(page, f"{figure} h3") == "Success in training, best-of-4"


@pytest.mark.parametrize("saved", [False, True])
def test_a_plot_is_saved_as_png_svg_and_csv(browser: Any, run: Path, tmp_path: Path, saved: bool) -> None:
    export.write_page(open_runs([run]), tmp_path / "page.html", 100.0)
    with (
        served(run) as address,
        opened(browser, (tmp_path / "page.html").as_uri() if saved else address) as page,
    ):
        for kind, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg "), ("CSV", b"run,series,step,value")):
            with page.expect_download() as download:
                page.locator("[data-figure='ROLE/reward'] .save button", has_text=kind).click()
            assert download.value.suggested_filename == f"reward-by-role.{kind.lower()}"
            assert Path(download.value.path()).read_bytes().startswith(start)
        assert page.errors == []


def test_the_x_axis_is_chosen_and_differing_settings_are_listed(browser: Any, tmp_path: Path) -> None:
    runs = [synthetic(tmp_path / f"seed-{seed}", 5, 2, seed=seed) for seed in (0, 1)]
    with served(*runs) as address, opened(browser, address) as page:
        page.select_option("[aria-label='x axis']", "tokens")
        until(page, "location.hash.includes('x=tokens')")
        page.wait_for_selector("[data-figure='rollout/success'] canvas")
        page.locator(".differences summary").click()
        assert "train.seed" in text(page, ".differences table")
        page.select_option("[aria-label='x axis']", "time")
        page.wait_for_selector("text=of seed-0, seed-1")
        assert page.errors == []


@pytest.mark.parametrize("width", [1400, 1000, 600])
def test_trees_fit_the_width_and_long_ones_scroll_in_their_box(browser: Any, tmp_path: Path, width: int) -> None:
    runs = [synthetic(tmp_path / "short", 1, 3), synthetic(tmp_path / "long", 1, 30)]
    with served(*runs) as address, opened(browser, address, width) as page:
        box = "document.querySelector('.columns')"
        for name in ("short", "long"):
            at(page, f"#/trees?run={name}")
            page.wait_for_selector(f"[data-run='{name}'] .sibling.selected")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            if width > 600:
                assert (page.evaluate(f"{box}.scrollWidth > {box}.clientWidth")) == (name == "long")
        assert page.errors == []


@pytest.mark.parametrize("saved", [False, True])
def test_hostile_texts_are_shown_as_texts(browser: Any, tmp_path: Path, saved: bool) -> None:
    run = hostile(tmp_path / "run")
    if saved:
        export.write_page(open_runs([run]), tmp_path / "page.html", 100.0)
    with served(run) as address:
        folder = (tmp_path / "page.html").as_uri() if saved else address
        with opened(browser, folder) as page:
            for view in ("answer", "compare", "tokens", "talk", "state"):
                for index in range(7):
                    at(page, f"#/trees?step=1&tree=0&node=0&role=tool&index={index}&view={view}")
                    page.wait_for_selector(f".sibling.selected[data-place='0 tool {index}']")
            at(page, "#/trees?step=1&tree=0&node=0&role=tool&index=0")
            until(page, "document.querySelector('#said')?.innerText.startsWith('<script>')")
            assert "<script>" in text(page, ".open h2")
            at(page, "#/trees?step=1&tree=0&node=0&role=tool&index=4")
            page.wait_for_selector("#said .control")
            assert "U+202E" in text(page, "#said")
            at(page, "#/trees?step=1&tree=0&node=0&role=tool&index=6")
            page.wait_for_selector("text=Show the other 950,000 characters")
            assert page.evaluate("window.harmed") is None
            assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
            assert page.errors == []


def test_a_saved_page_works_from_disk_without_a_network(browser: Any, run: Path, tmp_path: Path) -> None:
    assert export.write_page(open_runs([run]), tmp_path / "page.html", 100.0) == 12
    requests: list[str] = []
    with opened(browser, (tmp_path / "page.html").as_uri()) as page:
        page.on("request", lambda request: requests.append(request.url))
        page.wait_for_selector("[data-figure='ROLE/reward'] canvas")
        at(page, "#/trees?step=2&node=0&role=tool&index=1&view=tokens")
        page.wait_for_selector(".token")
        assert "saved page" in text(page, "#live")
        assert page.errors == []
    assert requests == []


def test_an_export_leaves_out_the_oldest_trees_that_do_not_fit(run: Path, tmp_path: Path) -> None:
    stored = export.write_page(open_runs([run]), tmp_path / "page.html", 0.05)
    assert 0 < stored < 12


def test_every_module_is_asked_for_at_once() -> None:
    """And none is forgotten in a saved page."""
    page = (export.PAGE / "index.html").read_text()
    present = {path.stem for path in export.PAGE.glob("*.js")}
    assert set(re.findall(r'modulepreload" href="(\w+)\.js"', page)) == present - {"main"}
    assert set(export.MODULES) == present


def test_modules_name_no_thing_twice() -> None:
    """They stand in one scope in a saved page."""
    names = re.findall(r"^(?:async )?(?:function|const|let) (\w+)", export.make_script(), flags=re.MULTILINE)
    inner = re.findall(
        r"^const \w+ = \(\(\) => \{\n.*?^\}\)\(\);$", export.make_script(), flags=re.MULTILINE | re.DOTALL
    )
    wrapped = [
        name for part in inner for name in re.findall(r"^(?:async )?(?:function|const|let) (\w+)", part, re.M)[1:]
    ]
    for name in wrapped:
        names.remove(name)
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
