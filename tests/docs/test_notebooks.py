"""The notebooks of examples/notebooks run, and what a user sees in their cells is short."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.slow import few_of

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
for name in ("ipykernel", "matplotlib", "pandas"):
    pytest.importorskip(name)

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel of the interpreter that runs the tests."""
    folder = tmp_path / "jupyter" / "kernels" / "tested"
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "tested", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # An editable install of another checkout must not be found first.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return "tested"


def run(notebook: Any, kernel: str, folder: Path, allow_errors: bool = False) -> list[list[Any]]:
    """Return the outputs of each code cell."""
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(
        notebook, timeout=240, kernel_name=kernel, resources=resources, allow_errors=allow_errors
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", few_of(NOTEBOOKS, NOTEBOOKS[2:]), ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_little(path: Path, kernel: str, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    assert any(cell.cell_type == "markdown" for cell in notebook.cells)
    cells = run(notebook, kernel, tmp_path)
    shown = [output.data for outputs in cells for output in outputs if "data" in output]
    assert any("image/png" in data or "data:image/png" in data.get("text/html", "") for data in shown), "the plot"
    for outputs in cells:
        assert [output for output in outputs if output.output_type == "error"] == []
        assert len(outputs) <= 10
        texts = [output.data.get("text/plain", "") for output in outputs if "data" in output]
        assert max(map(len, texts), default=0) <= 400


REWARD = """
def right(completion):
    part = completion.split()
    return float(part[99] == "Left")
"""
TRAIN = """
import cadre
rows = [{"prompt": f"ship {n}\\nlight Red\\nmoves: Left Right"} for n in range(20)]
cadre.train(model="games", tasks=rows, reward=right, k=2, steps=1)
"""


def test_an_error_in_an_episode_is_one_paragraph_and_the_cell(kernel: str, tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in (REWARD, TRAIN)]
    *_, shown = run(nbformat.v4.new_notebook(cells=cells), kernel, tmp_path, allow_errors=True)
    (error,) = [output for output in shown if output.output_type == "error"]
    traceback = "\n".join(error.traceback)
    assert traceback.count("File ") == 1
    assert 'cadre.train(model="games"' in traceback
    assert 'return float(part[99] == "Left")' in traceback.splitlines()[-1]
    assert len(shown) <= 10
