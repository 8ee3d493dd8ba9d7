"""What of a run a page shows, each feature by what is visible. Works on any run that kept trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def at(page: Any, place: str, selector: str) -> None:
    page.evaluate("place => { location.hash = place }", place)
    page.wait_for_selector(selector)


def count(page: Any, selector: str) -> int:
    return int(page.locator(selector).count())


def text(page: Any, selector: str) -> str:
    return str(page.locator(selector).first.inner_text())


def curves(page: Any) -> bool:
    at(page, "#/curves", ".card canvas")
    legend = text(page, "[data-figure='ROLE/reward'] .legend")
    return "tool" in legend and "planner" in legend and count(page, ".card") >= 8


def tree(page: Any) -> bool:
    at(page, "#/trees", ".sibling.selected")
    first = text(page, ".sibling.selected")
    return count(page, ".column:first-child .sibling") >= 4 and all(
        word in first for word in ("reward", "adv", "selected")
    )


def answer(page: Any) -> bool:
    at(page, "#/trees?view=", ".facts")
    facts = text(page, ".facts")
    return "weight in the loss" in facts and "team" in facts and len(text(page, "#said")) > 0


def siblings(page: Any) -> bool:
    at(page, "#/trees?view=compare", ".beside article")
    return count(page, ".beside article") >= 4


def tokens(page: Any) -> bool:
    at(page, "#/trees?view=tokens", ".token")
    return count(page, ".token.plus, .token.minus") > 0 and len(text(page, "pre.prompt")) > 0


def conversation(page: Any) -> bool:
    at(page, "#/trees?view=talk", ".turn")
    return count(page, ".turn") >= 1


def state(page: Any) -> bool:
    at(page, "#/trees?view=state", ".frame *")
    before = text(page, ".sample [role=status]")
    page.keyboard.press(",")
    return text(page, ".sample [role=status]") != before and count(page, ".grid .cell") > 4


def left_out(page: Any) -> bool:
    at(page, "#/left", "#main .note")
    return count(page, ".left > li") > 0


def settings(page: Any) -> bool:
    at(page, "#/about", ".about")
    return "algorithm" in text(page, ".about")


def filters(page: Any) -> bool:
    at(page, "#/trees", ".sibling.selected")
    while "; read" in text(page, "#found"):
        page.wait_for_timeout(200)
    page.select_option("#filter-who", "planner")
    page.wait_for_selector(".sibling.hit")
    return "completion" in text(page, "#found")


def links(page: Any) -> bool:
    """The address leads a fresh page to the same answer."""
    at(page, "#/trees", ".sibling.selected")
    page.locator(".column:first-child li:nth-child(2) .sibling").click()
    page.wait_for_selector(".column:first-child li:nth-child(2) .sibling.selected")
    said = text(page, "#said")
    page.reload()
    page.wait_for_selector(".sibling.selected")
    return text(page, "#said") == said


def keys(page: Any) -> bool:
    page.locator(".mark").click()
    page.keyboard.press("?")
    shown = page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    return bool(shown)


FEATURES: dict[str, Callable[[Any], bool]] = {
    one.__name__: one
    for one in (
        curves,
        tree,
        answer,
        siblings,
        tokens,
        conversation,
        state,
        left_out,
        settings,
        filters,
        links,
        keys,
    )
}


def missing(page: Any) -> list[str]:
    """The features that are not seen."""
    page.set_default_timeout(90_000)
    return [name for name, seen in FEATURES.items() if not seen(page)]


def overflows(page: Any) -> bool:
    """Whether a page is wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))
