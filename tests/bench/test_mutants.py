"""The table of mutants fits the code, and a verdict is what the tests say."""

from pathlib import Path

import pytest

import mutants
from mutants import MUTANTS, ROOT, Mutant, check, judge, place_of


def test_every_line_to_change_is_in_the_package() -> None:
    """A mutant whose line has changed is no longer tried: name the line that does this now."""
    check(MUTANTS, ROOT)
    for mutant in MUTANTS:
        assert mutant.before != mutant.after
        source = (ROOT / mutant.file).read_text().splitlines()
        source[place_of(mutant, ROOT)] = source[place_of(mutant, ROOT)].replace(mutant.before, mutant.after)
        compile("\n".join(source), mutant.file, "exec")


def toy(folder: Path) -> Path:
    (folder / "cadre").mkdir()
    (folder / "cadre/__init__.py").write_text("")
    (folder / "cadre/sums.py").write_text("def total(a, b):\n    return a + b\n\n\ndef zero():\n    return 0\n")
    (folder / "test_sums.py").write_text(
        "from cadre.sums import total\n\n\ndef test_it():\n    assert total(2, 3) == 5\n"
    )
    return folder


def test_a_mutant_is_killed_by_a_test_that_fails_and_survives_otherwise(tmp_path: Path) -> None:
    folder = toy(tmp_path)
    initial_content = (folder / "cadre/sums.py").read_text()
    noticed = Mutant("sum", "cadre/sums.py", "return a + b", "return a - b", ("test_sums.py::test_it",))
    unnoticed = Mutant("zero", "cadre/sums.py", "return 0", "return 1", ("test_sums.py::test_it",))
    verdicts = [judge(item, folder) for item in (noticed, unnoticed)]
    assert [verdict.killed for verdict in verdicts] == [True, False]
    assert verdicts[0].by == "test_sums.py::test_it"
    assert (folder / "cadre/sums.py").read_text() == initial_content


def test_a_line_that_is_gone_is_refused(tmp_path: Path) -> None:
    folder = toy(tmp_path)
    missing = Mutant("gone", "cadre/sums.py", "return a * b", "return 0", ("test_sums.py::test_it",))
    with pytest.raises(SystemExit, match="has 0 lines `return a \\* b`; expected one"):
        check([missing], folder)
    for test in ("test_gone.py::test_it", "test_sums.py::test_gone"):
        untested = Mutant("untested", "cadre/sums.py", "return a + b", "return 0", (test,))
        with pytest.raises(SystemExit, match=f"no test {test}"):
            check([untested], folder)
    with pytest.raises(SystemExit, match="of one name: untested"):
        check([untested, untested], folder)


def test_a_test_that_is_not_in_its_file_is_no_verdict(tmp_path: Path) -> None:
    folder = toy(tmp_path)
    mutant = Mutant("sum", "cadre/sums.py", "return a + b", "return a - b", ("test_sums.py::test_it[1]",))
    with pytest.raises(SystemExit, match="Mutant 'sum': pytest ended with 4"):
        judge(mutant, folder)


@pytest.mark.slow
def test_verdicts_are_kept_until_the_changed_file_or_its_tests_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = toy(tmp_path)
    monkeypatch.setattr(mutants, "ROOT", folder)
    monkeypatch.setattr(mutants, "COPIED", ("cadre", "test_sums.py"))
    table = [Mutant("sum", "cadre/sums.py", "return a + b", "return a - b", ("test_sums.py::test_it",))]
    first = list(mutants.judged(table, tmp_path / "home", anew=False))
    assert [verdict.killed for verdict in first] == [True]
    monkeypatch.setattr(mutants, "judge", lambda *_: pytest.fail("judged again"))
    (folder / "cadre/others.py").write_text("")
    assert list(mutants.judged(table, tmp_path / "home", anew=False)) == first
    with pytest.raises(pytest.fail.Exception, match="judged again"):
        list(mutants.judged(table, tmp_path / "home", anew=True))
    for file in ("cadre/sums.py", "test_sums.py"):
        initial_content = (folder / file).read_text()
        (folder / file).write_text(f"# More\n{initial_content}")
        with pytest.raises(pytest.fail.Exception, match="judged again"):
            list(mutants.judged(table, tmp_path / "home", anew=False))
        (folder / file).write_text(initial_content)
        assert list(mutants.judged(table, tmp_path / "home", anew=False)) == first


def test_tests_that_fail_without_any_mutant_are_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = toy(tmp_path)
    (folder / "test_sums.py").write_text("def test_it():\n    assert False\n")
    monkeypatch.setattr(mutants, "ROOT", folder)
    monkeypatch.setattr(mutants, "COPIED", ("cadre", "test_sums.py"))
    mutant = Mutant("sum", "cadre/sums.py", "return a + b", "return a - b", ("test_sums.py::test_it",))
    with pytest.raises(SystemExit, match="The tests fail without any mutant"):
        list(mutants.judged([mutant], tmp_path / "home", anew=False))
    assert not (tmp_path / "home/verdicts.jsonl").exists()
