"""Any file of tasks is read or refused in one paragraph that names the line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadre.envs.spec import EnvSpec
from cadre_tasks.data.records import Kind
from cadre_tasks.data.user_file import load_user_file
from tests.cadre_tasks.data.invented import folder
from tests.fuzz.hostile_values import VALUES, broken, mutated, refused_well

ROWS: dict[Kind, list[dict[str, Any]]] = {
    "problem": [{"question": "2 + 2?", "answer": "4", "tolerance": 0.1}, {"question": "3?", "answer": 3}],
    "program": [
        {
            "statement": "Add.",
            "entry": "add",
            "tests": "def check(f):\n    assert f(1, 2) == 3",
            "public": [[[1, 2], 3]],
        },
        {"statement": "Say.", "hidden": [["1", "1"]], "names": ["say"], "reference": "print(input())"},
    ],
    "article": [{"title": "Rivers", "text": "Sand is held back.", "references": ["Dams hold sand."]}],
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks")


def written(file: Path, content: bytes) -> str:
    """A file of its own each time, as files that were read are kept."""
    path = file / f"{len(list(file.iterdir()))}.jsonl"
    path.write_bytes(content)
    return str(path)


@given(data=st.data(), kind=st.sampled_from(sorted(ROWS)))
def test_any_rows(data: st.DataObject, kind: Kind, file: Path) -> None:
    rows = data.draw(mutated(ROWS[kind]))
    path = written(file, "\n".join(map(json.dumps, rows)).encode())
    assert refused_well(lambda: load_user_file(path, kind, {}))


@given(data=st.data(), kind=st.sampled_from(sorted(ROWS)))
def test_any_bytes(data: st.DataObject, kind: Kind, file: Path) -> None:
    full = "\n".join(map(json.dumps, ROWS[kind])).encode()
    path = written(file, data.draw(broken(full)))
    assert refused_well(lambda: load_user_file(path, kind, {}))


@given(fields=st.dictionaries(st.sampled_from(["question", "answer", "x", ""]), st.text(max_size=8), max_size=3))
def test_any_names_of_fields(fields: dict[str, str], file: Path) -> None:
    path = written(file, "\n".join(map(json.dumps, ROWS["problem"])).encode())
    assert refused_well(lambda: load_user_file(path, "problem", fields))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(folder(tmp_path_factory.mktemp("sets")))


@given(data=st.data(), env=st.sampled_from(["maths", "code", "pairs", "tldr", "story"]))
def test_any_settings_of_data(data: st.DataObject, env: str, sets: Path) -> None:
    """Tasks are asked for by whatever settings somebody writes."""
    names = st.sampled_from(["data", "source", "leaks", "held_out", "fields", "turns", "reward", "x"])
    settings = {"source": str(sets), **data.draw(st.dictionaries(names, VALUES, max_size=3))}
    assert refused_well(lambda: EnvSpec(env, settings).tasks("train"))
