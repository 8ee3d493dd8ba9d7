"""What the site takes from outside docs/: README as its first page, and the files that pages link to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
# Links that leave docs/, of which one step up is left out.
OUTSIDE = re.compile(r"\]\(\.\./((?:\.\./)*(?:examples|results)/|README\.md)")


def on_files(files: Files, config: Any) -> Files:
    """README at the root of the site, and what stands beside docs/ where its links lead."""
    readme = re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text(encoding="utf-8"))
    readme = readme.replace("](algorithms)", "](algorithms/at_grpo.md)")
    files.append(File.generated(config, "index.md", content=readme))
    for path in [*ROOT.glob("examples/*.*"), *ROOT.glob("results/*.svg")]:
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **of_page: Any) -> str:
    return OUTSIDE.sub(r"](\1", markdown).replace("README.md)", "index.md)")
