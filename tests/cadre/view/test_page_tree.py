"""The page shows every view of every completion of a tree, as the reader of a run hands it over: in node, without a
browser, with as much of a document as the page's modules use here."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from cadre.runs.kept_trees import KeptTree
from cadre.types import Branch, BranchFailure, Message, Node, Observation, Reward, Sample, Task, ToolCall, Tree
from cadre.view import PAGE, plain_json
from cadre.view.reading import open_runs
from tests.cadre.view.runs import GRID, begin, step_of

DOCUMENT = """
class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], dataset: {}, style: { setProperty() {} }, clientWidth: 1 });
  }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute(name, value) { this[name] = value; }
  getBoundingClientRect() { return { left: 0, right: 0 }; }
  querySelector() { return null; }
  querySelectorAll() { return []; }
  addEventListener() {}
  closest() { return this; }
  get text() { return this.children.map((child) => child.text ?? String(child)).join(" "); }
}
globalThis.document = { createElement: (tag) => new Element(tag), getElementById: () => null };
globalThis.location = { hash: "", href: "" };
globalThis.requestAnimationFrame = () => {};
const { showTree } = await import(process.argv[2]);
let input = "";
for await (const chunk of process.stdin) input += chunk;
const { run, tree } = JSON.parse(input);
const shown = [];
tree.nodes.forEach((node, number) => {
  for (const [role, siblings] of Object.entries(node.samples)) siblings.forEach((_, index) => {
    for (const view of ["answer", "compare", "talk", "state"]) {
      location.hash = `#/trees?${new URLSearchParams({ node: number, role, index, view })}`;
      const section = new Element("section");
      showTree(section, run, 0, tree, []);
      shown.push(section.text);
    }
  });
});
console.log(JSON.stringify(shown));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_every_view_of_every_completion_is_shown(tmp_path: Path) -> None:
    calls = Message("assistant", "so", (ToolCall("c", "look", '{"at": 3}'),), thinking="a thought")
    answer = Sample("tool", "shared", "I look.", (1, 2), (3,), (-0.5,), "stop", 0, calls)
    end = Branch({"planner": 0}, Reward(1.0, {"planner": 0.25}, {"goal": 1.0}), over=True, success=True, drawing=GRID)
    plan = Sample("planner", "shared", "Up.", (1,), (4,), (-0.5,), "length", 0)
    recorded = Observation("planner", (Message("user", "Plan."), Message("tool", "a wall", tool_call_id="c")))
    last = Node(1, {"planner": recorded}, {"planner": (plan,)}, (end,), "for the critic", 0.5)
    failed = Branch({"tool": 1}, Reward(), True, False, False, failure=BranchFailure("raised", "ValueError: no"))
    branches = (Branch({"tool": 0}, Reward(), False, False, child=last), failed)
    recorded = Observation("tool", (Message("user", "Look."),))
    first = Node(0, {"tool": recorded}, {"tool": (answer, plan)}, branches, drawing=GRID)
    run = begin(tmp_path / "run", 1)
    step_of(run, 0, Tree(Task("t", {}), first))
    (reader,) = open_runs([run])
    assert reader.kept_tree(0)[0] == KeptTree(0, 0, Tree(Task("t", {}), first))

    page = shutil.copytree(PAGE, tmp_path / "page")
    (page / "package.json").write_text('{"type": "module"}')
    (page / "test.js").write_text(DOCUMENT)
    arguments = plain_json({"run": reader.about(), "tree": reader.tree(0)})
    command = ["node", str(page / "test.js"), (page / "tree.js").as_uri()]
    result = subprocess.run(command, input=arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    assert len(shown) == 3 * 4
    look, second, plan_of = shown[0], shown[4], shown[8]
    assert '"arguments": "{\\"at\\": 3}"' in look
    assert "selected: highest reward" in look or "drawn from 2" in look
    assert "failed: raised" in second
    assert "weight 0.5" in plan_of
    assert "Privileged text for critics for the critic" in plan_of
    assert "goal 1" in plan_of
    assert not any("undefined" in text or "NaN" in text for text in shown)
