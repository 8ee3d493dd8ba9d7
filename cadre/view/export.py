"""A run as one HTML file that works from disk: the page, its modules in one script, and all values that it shows.

The content security policy in the file allows only the two scripts that are in it, named by their hashes, and no loads.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from cadre.files import publish_atomically
from cadre.view import PAGE, plain_json
from cadre.view.reading import RunReader

# In the order in which they need each other.
MODULES = (
    *("dom", "colours", "route", "texts", "store", "difference", "filter", "series", "plotfile", "about", "drawing"),
    *("sample", "tree", "trees", "curves", "left", "main"),
)
# Modules that other modules import as a namespace, and the names that they use of it: `about.show`.
NAMESPACES = {"about": "show", "curves": "show", "left": "show", "trees": "show turn"}
IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
PRELOAD = re.compile(r'<link rel="modulepreload" [^>]*>\n')
MEGABYTE = 1_000_000
NO_LIMIT = 1 << 62


def write_page(runs: Sequence[RunReader], out: Path, megabytes: float) -> int:
    """Write the page of these runs. Returns the number of trees in it: the newest that fit into `megabytes`."""
    values = [collect_values(run, megabytes / len(runs)) for run in runs]
    with publish_atomically(out) as (built,):
        built.write_text(make_html(values), encoding="utf-8")
    return sum(len(run["trees"]["rows"]) for run in values)


def collect_values(run: RunReader, megabytes: float) -> dict[str, Any]:
    """Return all values of a run that the page can ask for, with the newest trees that fit."""
    rows = run.entries(0)["rows"]
    trees: list[tuple[dict[str, Any], list[list[Any]], dict[str, Any]]] = []
    size, word_numbers, images = 0, dict[str, int](), dict[str, str]()
    for number in reversed(range(len(rows))):
        tree, (rows_of_tree,) = run.tree(number), run.table(number, 1)

        # Tokens are numbers of words, each of which is written once.
        tokens = {}
        for (node_number, role, index), values in run.tokens(number).items():
            for name in ("prompt", "tokens"):
                values[name] = [word_numbers.setdefault(word, len(word_numbers)) for word in values[name]]
            tokens[f"{node_number} {role} {index}"] = values

        new_images = {}
        for node in tree["nodes"]:
            messages = (message for shown in node["observations"].values() for message in shown["messages"])
            for digest in {image["digest"] for message in messages for image in message["images"]}:
                if digest not in images and digest not in new_images:
                    png = base64.b64encode(run.image(digest)).decode()
                    new_images[digest] = f"data:image/png;base64,{png}"

        size += len(json.dumps(tree)) + len(json.dumps(tokens)) + sum(map(len, new_images.values()))
        if size > megabytes * MEGABYTE:
            break
        images |= new_images
        trees.insert(0, (tree, rows_of_tree, tokens))
    first = len(rows) - len(trees)
    return {
        "about": run.about(),
        "metrics": run.metrics(0, NO_LIMIT),
        "evaluations": run.evaluations(),
        "left_out": run.left_out(0, NO_LIMIT),
        "trees": {"first": 0, "rows": rows[first:], "missing": first},
        "tree": [tree for tree, _, _ in trees],
        "table": [table for _, table, _ in trees],
        "tokens": [tokens for _, _, tokens in trees],
        "words": list(word_numbers),
        "pictures": images,
    }


def make_html(runs: Sequence[dict[str, Any]]) -> str:
    """Return the text of the file."""
    chart, page = (PAGE / "vendor" / "uPlot.iife.min.js").read_text(encoding="utf-8"), make_script()
    style = "\n".join((PAGE / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.min.css", "style.css"))
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'" for source in (chart, page)
    )
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:"
    # "</script>" would end the data, so they hold no "<".
    data = plain_json({"runs": runs}).replace("<", "\\u003c")
    text = PRELOAD.sub("", (PAGE / "index.html").read_text(encoding="utf-8"))
    meta = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
    replacements = {
        '<meta charset="utf-8">': f'<meta charset="utf-8">\n{meta}',
        '<link rel="stylesheet" href="vendor/uPlot.min.css">\n': "",
        '<link rel="stylesheet" href="style.css">': f"<style>{style}</style>",
        '<script src="vendor/uPlot.iife.min.js"></script>': f"<script>{chart}</script>",
        '<script type="module" src="main.js"></script>': (
            f'<script type="application/json" id="saved">{data}</script>\n<script type="module">{page}</script>'
        ),
    }
    for old, new in replacements.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def make_script(modules: Sequence[str] = MODULES) -> str:
    """Return modules as one script with one scope, so without their imports. The modules that are namespaces all have a
    `show`, so each becomes an object of its functions."""
    parts = []
    for name in modules:
        source = IMPORT.sub("", (PAGE / f"{name}.js").read_text(encoding="utf-8"))
        body = re.sub(r"^export ", "", source, flags=re.MULTILINE)
        if name in NAMESPACES:
            exports = re.findall(r"^export (?:async )?(?:function|const) (\w+)", source, flags=re.MULTILINE)
            unused = [export for export in exports if export not in NAMESPACES[name].split()]
            aliases = "".join(f"const {export} = {name}.{export};\n" for export in unused)
            body = f"const {name} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}})();\n{aliases}"
        parts.append(body)
    return "\n".join(parts)
