"""A run as one HTML file that works from disk: the page, its modules in one script, and all that it would ask for.

The policy in the file lets nothing run but the two scripts that stand in it, named by their hashes, and nothing load.
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
from cadre.view.reading import RunReader, table_of

# In the order in which they need each other.
MODULES = (
    *(
        "dom",
        "colours",
        "route",
        "texts",
        "store",
        "difference",
        "filter",
        "about",
        "drawing",
        "sample",
        "tree",
        "trees",
    ),
    *("curves", "left", "main"),
)
# Of a module only these are other modules' business under one name: `about.show` and its like.
SPACES = {"about": "show", "curves": "show", "left": "show", "trees": "show turn"}
IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
PRELOAD = re.compile(r'<link rel="modulepreload" [^>]*>\n')
MEGABYTE = 1_000_000
ALL = 1 << 62


def write(runs: Sequence[RunReader], out: Path, megabytes: float) -> int:
    """Write the page of these runs; how many of their kept trees it holds: as many as fit into so many megabytes, from
    the newest back."""
    told = [saved(run, megabytes / len(runs)) for run in runs]
    with publish_atomically(out) as (built,):
        built.write_text(html(told), encoding="utf-8")
    return sum(len(run["trees"]["rows"]) for run in told)


def saved(run: RunReader, megabytes: float) -> dict[str, Any]:
    """All that the page asks of a run, of the newest trees that fit."""
    rows = run.entries(0)["rows"]
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
    size, words, shown = 0, dict[str, int](), dict[str, str]()
    for at in reversed(range(len(rows))):
        tree = run.tree(at)
        tokens = {place: _numbered(told, words) for place, told in _tokens(run, at, tree)}
        fresh = {digest: _data_url(run.picture(digest)) for digest in _digests(tree) if digest not in shown}
        size += len(json.dumps(tree)) + len(json.dumps(tokens)) + sum(map(len, fresh.values()))
        if size > megabytes * MEGABYTE:
            break
        shown |= fresh
        kept.insert(0, (tree, tokens))
    first, about = len(rows) - len(kept), run.about()
    return {
        "about": about,
        "metrics": run.metrics(0, ALL),
        "evaluations": run.evaluations(),
        "left_out": run.left_out(0, ALL),
        "trees": {"first": 0, "rows": rows[first:], "missing": first},
        "tree": [tree for tree, _ in kept],
        "table": [table_of(tree, about["alpha"]) for tree, _ in kept],
        "tokens": [tokens for _, tokens in kept],
        "words": list(words),
        "pictures": shown,
    }


def _digests(tree: dict[str, Any]) -> set[str]:
    """Of the pictures that a tree shows."""
    seen = (one for node in tree["nodes"] for one in node["observations"].values())
    messages = (message for one in seen for message in one["messages"])
    return {image["digest"] for message in messages for image in message.get("images", ())}


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _tokens(run: RunReader, at: int, tree: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{node} {role} {index}", run.tokens(at, node, role, index))
        for node, told in enumerate(tree["nodes"])
        for role, siblings in told["samples"].items()
        for index in range(len(siblings))
    ]


def _numbered(told: dict[str, Any], words: dict[str, int]) -> dict[str, Any]:
    """The tokens as numbers of the words, each of which is written once."""
    spelt = {name: [words.setdefault(word, len(words)) for word in told[name]] for name in ("prompt", "tokens")}
    return told | spelt


def html(told: Sequence[dict[str, Any]]) -> str:
    """The whole file."""
    chart, page = (PAGE / "vendor" / "uPlot.iife.min.js").read_text(encoding="utf-8"), script()
    style = "\n".join((PAGE / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.min.css", "style.css"))
    policy = f"default-src 'none'; script-src {_hash(chart)} {_hash(page)}; style-src 'unsafe-inline'; img-src data:"
    # "</script>" cannot stand in the data: no "<" can.
    data = plain_json({"runs": told}).replace("<", "\\u003c")
    text = PRELOAD.sub("", (PAGE / "index.html").read_text(encoding="utf-8"))
    replaced = {
        '<meta charset="utf-8">': '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<link rel="stylesheet" href="vendor/uPlot.min.css">\n': "",
        '<link rel="stylesheet" href="style.css">': f"<style>{style}</style>",
        '<script src="vendor/uPlot.iife.min.js"></script>': f"<script>{chart}</script>",
        '<script type="module" src="main.js"></script>': (
            f'<script type="application/json" id="saved">{data}</script>\n<script type="module">{page}</script>'
        ),
    }
    for before, after in replaced.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


def script() -> str:
    """All modules as one: their imports left out, since they stand in one scope, and their pages under their names."""
    parts = [module(name, (PAGE / f"{name}.js").read_text(encoding="utf-8")) for name in MODULES]
    return "\n".join(parts)


def module(name: str, source: str) -> str:
    """One module for that scope. The pages, which all have a `show`, become functions of their own objects."""
    plain = IMPORT.sub("", source)
    if name not in SPACES:
        return re.sub(r"^export ", "", plain, flags=re.MULTILINE)
    names = re.findall(r"^export (?:async )?(?:function|const) (\w+)", plain, flags=re.MULTILINE)
    inner = re.sub(r"^export ", "", plain, flags=re.MULTILINE)
    outside = "".join(f"const {one} = {name}.{one};\n" for one in names if one not in SPACES[name].split())
    return f"const {name} = (() => {{\n{inner}\nreturn {{ {', '.join(names)} }};\n}})();\n{outside}"


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
