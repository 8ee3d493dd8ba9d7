"""The public data sets, where they are at hand: in $CADRE_DATA, or in shared/data beside the project's folder."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("CADRE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a data set's file. Skips the test, saying so, where the file is not there."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"the data set {name} is not in {FOLDER}; set CADRE_DATA")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
