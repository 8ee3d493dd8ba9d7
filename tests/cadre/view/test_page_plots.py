"""The plots of the page: axes, colours, intervals, differing settings, and their files, in a JavaScript engine."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cadre.view import export
from cadre.view.reading import open_runs
from tests.cadre.view.runs import HOSTILE, begin

NODE = shutil.which("node")
SVG = "{http://www.w3.org/2000/svg}"
RUN = """(name, index, settings = {}) => ({
  name, index, settings, config: `train:\\n  seed: ${index}\\n`, xs: [1, 2, 3],
  assignment: { tool: "shared", planner: "shared" },
  columns: { "rollout/tokens": [100, 200, 300], "time/wait_s": [60, 60, 60], "time/learn_s": [30, 30, 30],
             "tool/reward": [1, 2, 3], "planner/reward": [0.5, null, 1.5], "time/a": [1, 1, 1], "time/b": [1, 1, 1] },
  evaluations: [{ step: 0, success: 0.1, low: 0.05, high: 0.2 }, { step: 3, success: 0.9, low: 0.8, high: 0.95 }],
})"""


# Answers each line, an expression as a JSON string, with its value as JSON.
LOOP = """
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  let value;
  try { value = { value: eval(JSON.parse(line)) }; } catch (error) { value = { error: String(error.stack) }; }
  process.stdout.write(`${JSON.stringify(value)}\\n`);
});
"""


@cache
def start_engine() -> subprocess.Popen[str]:
    """Return one JavaScript engine for all tests, which has read the page's modules."""
    assert NODE is not None
    script = export.make_script(("dom", "colours", "series", "plotfile"))
    source = f"{script}\nconst makeRun = {RUN};\n{LOOP}"
    return subprocess.Popen([NODE, "-e", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def evaluate(expression: str) -> Any:
    """Return the value of an expression over the page's modules."""
    if NODE is None:
        pytest.skip("no node on this machine (apt-get install nodejs)")
    engine = start_engine()
    assert engine.stdin is not None
    assert engine.stdout is not None
    print(json.dumps(expression), file=engine.stdin, flush=True)
    output = json.loads(engine.stdout.readline())
    assert "error" not in output, output
    return output["value"]


def test_ticks_are_round_and_whole_where_the_values_are() -> None:
    ranges = "[[0, 1], [0, 3, 6, true], [0, 30, 8, true], [3, 3, 5, true], [-0.02, 0.9, 5]]"
    message = evaluate(f"{ranges}.map((range) => ticks(...range))")
    assert message[0] == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert message[1] == [0, 1, 2, 3]
    assert message[2] == [0, 5, 10, 15, 20, 25, 30]
    assert message[3] == [3, 4]
    assert message[4] == [-0.2, 0, 0.2, 0.4, 0.6, 0.8, 1]
    assert evaluate("[isWhole([{ ys: [1, null, 3] }]), isWhole([{ ys: [1, 2.5] }])]") == [True, False]


def test_x_is_steps_tokens_or_time_and_step_0_is_at_0() -> None:
    message = evaluate(
        """["step", "tokens", "time", "constructor"].map((name) => {
          const run = makeRun("a", 0);
          const axis = axisOf([run], name);
          const xs = (pattern) => linesOf([run], pattern, { axis })[0].xs;
          return [axis.label, xs("evaluate/success"), xs("ROLE/reward")];
        })"""
    )
    assert message[0] == ["training step", [0, 3], [1, 2, 3]]
    assert message[1] == ["sampled tokens in training", [0, 600], [100, 300, 600]]
    assert message[2] == ["training time (min)", [0, 4.5], [1.5, 3, 4.5]]
    assert message[3] == message[0]


def test_a_run_without_the_metric_of_the_axis_has_no_line() -> None:
    run = 'Object.assign(makeRun("a", 0), { columns: { "tool/reward": [1, 2, 3] } })'
    assert evaluate(f'linesOf([{run}], "ROLE/reward", {{ axis: axisOf([{run}], "tokens") }})') == []


def test_evaluations_have_their_intervals_and_are_not_smoothed() -> None:
    (line,) = evaluate('linesOf([makeRun("a", 0)], "evaluate/success", { axis: axisOf([], "step"), smooth: 0.9 })')
    assert (line["ys"], line["low"], line["high"], line["bars"]) == ([0.1, 0.9], [0.05, 0.8], [0.2, 0.95], True)


def test_runs_have_colours_and_roles_have_dashes() -> None:
    def looks(runs: str) -> list[tuple[str, int, int]]:
        lines = evaluate(f'linesOf([{runs}], "ROLE/reward", {{ axis: axisOf([], "step") }})')
        return [(line["label"], line["hue"], line["dash"]) for line in lines]

    single = looks('makeRun("a", 0)')
    assert [label for label, _, _ in single] == ["tool", "planner"]
    assert single[0][1] != single[1][1]
    assert {dash for _, _, dash in single} == {0}
    # The colour is that of the run also while other runs are hidden.
    (a_tool, a_planner, b_tool, b_planner) = looks('makeRun("a", 1), makeRun("b", 2)')
    assert a_tool[0] == "a tool"
    assert a_tool[1] == a_planner[1] != b_tool[1] == b_planner[1]
    assert a_tool[2] == b_tool[2] != a_planner[2] == b_planner[2]
    assert len(set(evaluate("Array.from({ length: 24 }, (_, index) => hue(index))"))) == 24


def test_of_one_run_names_beyond_the_colours_have_another_dash() -> None:
    columns = json.dumps({f"parts/{name}": [1, 2, 3] for name in "abcdefghij"})
    run = f'Object.assign(makeRun("a", 0), {{ columns: {columns} }})'
    lines = evaluate(f'linesOf([{run}], "parts/*", {{ axis: axisOf([], "step") }})')
    assert [line["dash"] for line in lines] == [0] * 8 + [1] * 2
    assert len({(line["hue"], line["dash"]) for line in lines}) == 10


def test_more_names_than_dashes_become_plots_of_their_own() -> None:
    columns = json.dumps({f"time/{name}": [1, 2, 3] for name in "abcde"})
    runs = ", ".join(f'Object.assign(makeRun("{name}", 0), {{ columns: {columns} }})' for name in "rs")
    lines = f'linesOf([{runs}], "time/*", {{ axis: axisOf([], "step") }})'
    message = evaluate(
        f"splitLines({lines}).map(([name, lines]) => [name, lines.length, lines.map((line) => line.dash)])"
    )
    assert message == [[name, 2, [0, 0]] for name in "abcde"]
    assert evaluate('splitLines(linesOf([makeRun("a", 0)], "time/*", { axis: axisOf([], "step") })).length') == 1


def test_a_star_stands_for_what_is_between() -> None:
    columns = json.dumps(
        {f"gpu/{name}": [1, 2, 3] for name in ("sampling_peak_gb", "learning_peak_gb", "busy_fraction")}
    )
    run = f'{{ ...makeRun("a", 0), columns: {columns} }}'
    assert evaluate(f'seriesOf({run}, "gpu/*_peak_gb").map((one) => one.name)') == ["learning", "sampling"]


def test_seeds_become_a_mean_with_a_range() -> None:
    columns = (
        '"tool/reward": [3, 4, 5], "rollout/tokens": [300, 0, 0], "time/wait_s": [1, 1, 1], "time/learn_s": [0, 0, 0]'
    )
    runs = f'[makeRun("a", 0), Object.assign(makeRun("b", 1), {{ columns: {{ {columns} }} }})]'

    def lines(axis: str) -> Any:
        options = f'{{ axis: axisOf(runs, "{axis}"), bands: true }}'
        return evaluate(f'((runs) => linesOf(runs, "ROLE/reward", {options}))({runs})')

    tool = lines("step")[0]
    assert (tool["label"], tool["ys"]) == ("tool (mean and range of 2 seeds)", [2, 3, 4])
    assert (tool["low"], tool["high"]) == ([1, 2, 3], [3, 4, 5])
    assert lines("tokens")[0]["xs"] == [200, 300, 450]


def test_settings_that_differ() -> None:
    settings = ({"algorithm.k": "8", "env": "x"}, {"algorithm.k": "4", "env": "x", "extra": "1"})
    runs = ", ".join(f'makeRun("a", {index}, {json.dumps(setting)})' for index, setting in enumerate(settings))
    assert evaluate(f"differingSettings([{runs}])") == [["algorithm.k", "8", "4"], ["extra", "not set", "1"]]


def figure(runs: str, pattern: str = "ROLE/reward", smooth: float = 0.0) -> str:
    lines = f'linesOf([{runs}], "{pattern}", {{ axis: axisOf([], "step"), smooth: {smooth} }})'
    return f'{{ title: "Reward", unit: "reward", axis: axisOf([], "step"), lines: {lines} }}'


def test_the_csv_file_has_every_point() -> None:
    text = evaluate(f"csvOf({figure('makeRun(`a`, 0)')})")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == ["run", "series", "step", "value", "low", "high"]
    assert [(row["series"], row["step"], row["value"]) for row in rows] == [
        *[("tool", "1", "1"), ("tool", "2", "2"), ("tool", "3", "3")],
        *[("planner", "1", "0.5"), ("planner", "2", ""), ("planner", "3", "1.5")],
    ]
    rows = list(csv.DictReader(io.StringIO(evaluate(f"csvOf({figure('makeRun(`a`, 0)', smooth=0.5)})"))))
    assert [(row["value"], row["smoothed"]) for row in rows[:3]] == [("1", "1"), ("2", "1.5"), ("3", "2.25")]
    (_, row) = csv.DictReader(io.StringIO(evaluate(f"csvOf({figure('makeRun(`a`, 0)', 'evaluate/success')})")))
    assert (row["step"], row["value"], row["low"], row["high"]) == ("3", "0.9", "0.8", "0.95")


def test_the_svg_file_has_axes_labels_lines_and_intervals() -> None:
    root = ElementTree.fromstring(evaluate(f"svgOf({figure('makeRun(`a`, 0)', 'evaluate/success')})"))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"Reward", "reward", "training step", "held-out", "0", "1", "2", "3"} <= set(texts)
    assert len([path for path in root.iter(f"{SVG}path") if "h6" in path.get("d", "")]) == 2
    assert len(list(root.iter(f"{SVG}circle"))) == 2
    assert all(re.fullmatch("#[0-9a-f]{6}", circle.get("fill", "")) for circle in root.iter(f"{SVG}circle"))


def test_intervals_of_several_runs_stand_beside_each_other_in_the_svg_file() -> None:
    svg = evaluate(f"svgOf({figure('makeRun(`a`, 0), makeRun(`b`, 1)', 'evaluate/success')})")
    assert [float(x) for x in re.findall(r'd="M(\S+) [\d.]+V[\d.]+M', svg)] == [60, 620, 64, 624]


def test_names_of_a_hostile_run_are_text_in_svg_and_no_formula_in_csv() -> None:
    names = [*HOSTILE[:6], '"quoted", name', "=HYPERLINK(1)", "@sum", "\ufffe \x00", "a]]>&amp;"]
    runs = ", ".join(f"makeRun({json.dumps(name)}, {index})" for index, name in enumerate(names))
    svg, text = evaluate(f"[svgOf({figure(runs)}), csvOf({figure(runs)})]")
    root = ElementTree.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "rect", "path", "text"}
    assert not any(name.startswith("on") or "href" in name for element in root.iter() for name in element.attrib)
    texts = "".join(element.text or "" for element in root.iter(f"{SVG}text"))
    assert "<script>window.harmed = 1</script>" in texts
    assert "U+202E" in texts
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert {row["run"] for row in rows} >= {'"quoted", name', "'=HYPERLINK(1)", "'@sum"}
    assert not any(value.startswith(("=", "+", "@")) for row in rows for value in row.values())


def test_about_names_the_settings_and_the_success_of_the_selected_path(tmp_path: Path) -> None:
    (reader,) = open_runs([begin(tmp_path / "run", 1)])
    about = reader.about()
    assert about["settings"]["algorithm.k"] == "4"
    assert about["settings"]["algorithm.name"] == '"at_grpo"'
    assert about["success"] == "best-of-4"
