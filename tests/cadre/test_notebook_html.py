"""What cells of a notebook show: short, escaped, and one display."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from cadre.errors import ConfigError, ContractError
from cadre.evaluation.evaluate import Report
from cadre.notebook_html import MAX_REPR, table_html, tree_html
from cadre.plugins import package
from cadre.runs import kept_trees
from cadre.runs.kept_trees import KeptTree, KeptTrees
from cadre.runs.notebook import LINES, NotebookConsole
from cadre.runs.progress import Progress
from cadre.types import Branch, Message, Node, Observation, Reward, Sample, Task, Tree

HOSTILE = "<script>alert(1)</script>"


def make_tree(text: str = HOSTILE, depth: int = 1) -> Tree:
    sample = Sample("anna", "one", text, (), (7, 8), (0.0, 0.0), "stop", 0)
    node = None
    for _ in range(depth):
        branch = Branch({"anna": 0}, Reward(1.0), over=node is None, success=node is None, child=node)
        node = Node(0, {"anna": Observation("anna", (Message("user", text),))}, {"anna": (sample,)}, (branch,))
    assert node is not None
    return Tree(Task(text, {}), node)


def test_what_a_model_wrote_is_escaped():
    for html in (make_tree()._repr_html_(), KeptTree(0, 0, make_tree())._repr_html_(), table_html([["a"], [HOSTILE]])):
        assert HOSTILE not in html
        assert "&lt;script&gt;" in html


def test_tokens_are_coloured_by_advantage():
    html = tree_html(make_tree("x"), "t", {(0, "anna", 0): (["a", "<b"], [2.0, -1.0])})
    assert '<span style="background: rgba(0, 150, 0, 0.50)">a</span>' in html
    assert '<span style="background: rgba(200, 0, 0, 0.25)">&lt;b</span>' in html
    assert "advantage +0.50" in html


def test_a_deep_tree_closes_what_it_opens():
    html = make_tree("x", depth=2000)._repr_html_()
    assert html.count("<details") == html.count("</details>")
    assert "The first 200 decisions" in html


def test_a_kept_tree_is_coloured_by_what_its_run_noted(monkeypatch, tmp_path):
    monkeypatch.setattr(kept_trees, "read_vocabulary", lambda folder: {"one": {"7": "Left"}})
    monkeypatch.setattr(kept_trees, "read_annotations", lambda *_: {(0, "anna", 0): {"credit": {"advantage": -1.0}}})
    html = KeptTree(0, 0, make_tree("x"), tmp_path)._repr_html_()
    assert '0.50)">Left</span>' in html
    assert ">[8]</span>" in html


def test_representations_are_short():
    outcomes = {f"task-{n}": (1.0, 1.0) for n in range(1000)}
    report = Report(1000, 0, 1.0, 4.0, {}, outcomes, "0" * 64, 1.0, 0.99, 1.0, 3.0)
    tree = make_tree("x" * 1000)
    kept = [KeptTree(step, 0, tree) for step in range(50)]
    for shown in (report, tree, kept[0], KeptTrees(kept), KeptTrees()):
        assert len(repr(shown)) <= MAX_REPR
    assert "success 100.0% [99.0%, 100.0%]" in repr(report)
    assert "steps 1 to 50" in repr(KeptTrees(kept))
    assert kept[0] == KeptTree(0, 0, tree)


def test_a_training_has_one_display(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(("update", data)))
    module = ModuleType("IPython.display")
    module.display = lambda data, **options: shown.append(("display", data)) or handle
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    console = NotebookConsole()
    console.print("before", markup=False)
    with Progress(console, 40) as progress:
        before = len(shown)
        for step in range(40):
            metrics = {"rollout/tokens": 1.0, "time/wait_s": 1.0, "time/learn_s": 1.0, "rollout/success": 0.5}
            progress.step(step, metrics | {"anna/reward": 0.25})
        assert len(shown) - before <= 1
    assert [kind for kind, _ in shown].count("display") == 1
    last = shown[-1][1]
    assert "step 40/40" in last["text/html"]
    assert last["text/html"].count("reward anna") == LINES
    assert "40/40" in last["text/html"].splitlines()[-1]  # the bar
    assert len(last["text/plain"]) <= MAX_REPR


def test_a_missing_package_is_one_paragraph():
    with pytest.raises(ConfigError, match=r"frame: needs the package no_such_package.*pip install no_such_package"):
        package("no_such_package", where="frame:")


def test_an_error_in_a_cell_shows_the_cell_and_the_paragraph():
    with pytest.raises(ContractError) as caught:
        raise ContractError("What is wrong.")
    lines = caught.value._render_traceback_()
    assert lines[-1] == "ContractError: What is wrong."
    assert 'raise ContractError("What is wrong.")' in lines[-2]
