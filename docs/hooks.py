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


def on_page_markdown(markdown: str, **of_page: Any) -> str:
    return OUTSIDE.sub(r"](\1", markdown).replace("README.md)", "index.md)")


def on_page_content(content: str, **of_page: Any) -> str:
    return FORMULA.sub(as_mathml, content)


def as_mathml(formula: re.Match[str]) -> str:
    return convert(html.unescape(formula[2]), display="block" if formula[1] == "div" else "inline")
