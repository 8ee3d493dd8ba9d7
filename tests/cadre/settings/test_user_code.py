"""Functions that a setting names: of a table, or of a file of the user's."""

import inspect
import os
from pathlib import Path

import pytest

from cadre.errors import ConfigError, ContractError
from cadre.settings.user_code import load_function

TABLE = {"mean": sum, "median": len}


def test_a_name_of_the_table_and_one_of_a_file(tmp_path: Path) -> None:
    assert load_function("loss.aggregate", "mean", TABLE) is sum
    path = tmp_path / "mine.py"
    path.write_text("def twice(number):\n    return 2 * number\n")
    assert load_function("loss.aggregate", f"{path}:twice", TABLE)(4) == 8


def test_parameters_that_a_call_does_not_fit_are_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def one(step):\n    return step\n\n\ndef deep(step, names):\n    return one()\n")
    with pytest.raises(ContractError, match=r"raised TypeError: one\(\) takes 1 positional argument but 2"):
        load_function("train.schedule", f"{tmp_path}/mine.py:one", {})(0, ("a", "b"))
    with pytest.raises(ContractError, match=r"raised TypeError: .* at line 6 of mine\.py, in deep"):
        load_function("train.schedule", f"{tmp_path}/mine.py:deep", {})(0, ("a", "b"))


def test_a_file_is_run_once_unless_it_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "counted.py"
    path.write_text(
        "from pathlib import Path\n\nPath(__file__).with_suffix('.runs').open('a').write('x')\n\ndef f():\n    pass\n"
    )
    first, again = (load_function("algorithm.scale", f"{path}:f", TABLE) for _ in range(2))
    assert first is again
    assert path.with_suffix(".runs").read_text() == "x"
    path.write_text("def f():\n    return 2\n")
    os.utime(path, ns=(0, 1))
    assert load_function("algorithm.scale", f"{path}:f", TABLE)() == 2


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("maen", ["got 'maen'", "mean, median", "file.py:function", "Did you mean mean?"]),
        ("none.py:f", ["there is no file none.py"]),
        ("mine.py:twise", ["has no 'twise'", "Did you mean twice?"]),
        ("mine.py:later", ["is an async function", "Write def in place of async def"]),
        ("mine.py:several", ["is an async function"]),
        ("broken.py:f", ["failed to load at line 3", "NameError"]),
        ("unclosed.py:f", ["failed to load at line 1", "SyntaxError"]),
    ],
)
def test_what_is_not_there_is_one_paragraph(
    reference: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "def twice(number):\n    return 2 * number\n"
        "async def later(number):\n    return number\n"
        "async def several(number):\n    yield number\n"
    )
    (tmp_path / "broken.py").write_text("x = 1\n\ny = undefined\n")
    (tmp_path / "unclosed.py").write_text("x = (\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_function("loss.aggregate", reference, TABLE)
    assert str(caught.value).startswith("loss.aggregate: ")
    for part in expected:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_setting_that_is_awaited_takes_an_async_function(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("async def judge(task):\n    return 1.0\n")
    assert inspect.iscoroutinefunction(load_function("settings.reward", f"{tmp_path}/mine.py:judge", {}))
