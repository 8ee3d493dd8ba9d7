"""The notebooks of examples/notebooks run, and what a user sees in their cells is short."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.slow import few_of

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel of the interpreter that runs the tests."""
    for name in ("nbclient", "nbformat", "ipykernel", "matplotlib", "pandas"):
        pytest.importorskip(name)
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


@pytest.mark.parametrize("path", few_of(NOTEBOOKS, NOTEBOOKS[2:]), ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_little(path: Path, kernel: str, tmp_path: Path) -> None:
    """And so do, in its kernel, two cells more of which the last fails."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    assert any(cell.cell_type == "markdown" for cell in notebook.cells)
    notebook.cells += [nbformat.v4.new_code_cell(text) for text in (REWARD, TRAIN)]
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=240, kernel_name=kernel, resources=resources, allow_errors=True).execute()
    *cells, failed = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    shown = [output.data for outputs in cells for output in outputs if "data" in output]
    assert any("image/png" in data or "data:image/png" in data.get("text/html", "") for data in shown), "the plot"
    for outputs in cells:
        assert [output for output in outputs if output.output_type == "error"] == []
        assert len(outputs) <= 10
        texts = [output.data.get("text/plain", "") for output in outputs if "data" in output]
        assert max(map(len, texts), default=0) <= 400
    check_error(failed)


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


def check_error(shown: list[Any]) -> None:
    """An error in an episode is one paragraph and the line of the cell."""
    (error,) = [output for output in shown if output.output_type == "error"]
    traceback = "\n".join(error.traceback)
    assert traceback.count("File ") == 1
    assert 'cadre.train(model="games"' in traceback
    assert 'return float(part[99] == "Left")' in traceback.splitlines()[-1]
    assert len(shown) <= 10
