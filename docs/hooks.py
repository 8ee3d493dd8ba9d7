"""What the site takes from outside docs/, and formulas as MathML, which browsers show without a script."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
# Links that leave docs/, of which one step up is left out.
OUTSIDE = re.compile(r"\]\(\.\./((?:\.\./)*(?:examples|results)/|README\.md)")
# A formula as pymdownx.arithmatex writes it: \( \) within a line, \[ \] on lines of its own.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """README and CONTRIBUTING at the root of the site, and what stands beside docs/ where its links lead."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/algorithms)", "](algorithms/at_grpo.md)")
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name, text in (("index.md", readme), ("CONTRIBUTING.md", contributing)):
        files.append(File.generated(config, name, content=text.replace("](docs/", "](")))
    beside = [ROOT / name for name in ("CITATION.cff", "SECURITY.md", "LICENSE")]
    for path in [*beside, *ROOT.glob("examples/*.*"), *ROOT.glob("results/*.svg")]:
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_post_build(config: Any) -> None:
    """Write llms.txt, a list of the pages with their first sentence, for assistants that read the site."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}"]
    for section in config["nav"]:
        for title, entries in section.items():
            lines += ["", f"## {title}", ""]
            for entry in entries:
                page = entry if isinstance(entry, str) else next(iter(entry.values()))
                source = ROOT / ("README.md" if page == "index.md" else page if page.isupper() else f"docs/{page}")
                lines.append(describe_page(source if source.is_file() else ROOT / page, page))
    Path(config["site_dir"], "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def describe_page(source: Path, page: str) -> str:
    """Return a line of a page: its title as a link, and the first sentence of its text."""
    text = source.read_text(encoding="utf-8")
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    paragraph = re.search(
        r"^(?![#\[<|`!-])(\S.*?)(?:\n\n|\Z)", text[title.end() :] if title else text, re.MULTILINE | re.DOTALL
    )
    sentence = re.split(r"(?<=[.:])\s", " ".join(paragraph[1].split()))[0] if paragraph else ""
    return f"- [{title[1] if title else page}]({page.removesuffix('.md')}.html): {sentence}"


def on_page_markdown(markdown: str, **of_page: Any) -> str:
    return OUTSIDE.sub(r"](\1", markdown).replace("README.md)", "index.md)")


def on_page_content(content: str, **of_page: Any) -> str:
    return FORMULA.sub(as_mathml, content)


def as_mathml(formula: re.Match[str]) -> str:
    return convert(html.unescape(formula[2]), display="block" if formula[1] == "div" else "inline")
