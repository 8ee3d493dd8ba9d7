"""The documentation site: navigation, links and their anchors, pictures; the site itself where mkdocs is installed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.docs.blocks import FENCED, PAGES, ROOT

DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def navigated(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry if isinstance(entry, list) else entry.values()
    return [page for part in parts for page in navigated(part)]


def test_every_page_is_in_the_navigation_or_left_out_of_it_by_name() -> None:
    """Both lists name each page once, with README, CONTRIBUTING and SECURITY, which the site takes from the root."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    left_out = [line.removeprefix("/") for line in site["not_in_nav"].split()]
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    pages |= {"index.md", "CONTRIBUTING.md", "SECURITY.md"}
    assert sorted(navigated(site["nav"]) + left_out) == sorted(pages)


def anchors(page: Path) -> set[str]:
    """The names of its headings, as GitHub and mkdocs make them of words without signs."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head.lower())).strip("-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_are_there(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for link in (*LINK.findall(text), *re.findall(r'\bsrc(?:set)?="([^"]+)"', text)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("picture", sorted((DOCS / "pictures").glob("*.svg")), ids=lambda path: path.name)
def test_drawings_have_a_title_and_run_nothing(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert all(not element.tag.endswith("script") for element in root.iter())


def test_the_errors_that_people_meet_name_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    content = (DOCS / "faults.md").read_text()
    assert [extra for extra in extras if extra != "dev" and f"`{extra}`" not in content] == []


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    if any(find_spec(package) is None for package in ("mkdocs", "material", "latex2mathml")):
        pytest.skip("mkdocs-material and latex2mathml, of the extra docs, are not installed (make docs)")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "site" / "tutorial.html").is_file()
