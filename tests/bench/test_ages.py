"""The age of a figure counts the commits that change code which it runs: no others, and none of these is missed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import ages
import common
import evidence
from ages import Measured


class Repository:
    """A small repository, each commit of which writes some files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet", "--initial-branch", "main")

    def git(self, *arguments: str) -> str:
        command = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True).stdout.strip()

    def write(self, **files: str) -> None:
        """Write Python files: `bench_a` is bench/a.py, and `pack_` the package itself."""
        for name, text in files.items():
            folder, _, module = name.rpartition("_")
            path = self.root / folder.replace("_", "/") / f"{module or '__init__'}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, **files: str) -> str:
        self.write(**files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "one")
        return self.git("rev-parse", "HEAD")

    def history(self) -> ages.History:
        ages.read_history.cache_clear()
        history = ages.read_history(self.root)
        assert history
        return history

    def age(self, *commits: str) -> int | None:
        """The age of a line that was measured at these commits."""
        return self.history().age({"name": "figure", "commit": ", ".join(commits)})

    def reached(self, *roots: str, unused: tuple[str, ...] = ()) -> set[str]:
        return set(ages.reached(self.history().sources, Measured(roots, unused)))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A script bench/run.py that imports pack.used, beside pack.other."""
    monkeypatch.setattr(ages, "MEASURED", {"figure": Measured(("bench/run.py",))})
    made = Repository(tmp_path)
    made.write(bench_run="from pack.used import one\n", pack_="", pack_used="one = 1\n", pack_other="two = 2\n")
    return made


def test_modules_are_reached_over_all_forms_of_imports(repository: Repository) -> None:
    repository.commit(
        bench_run="import helper\nfrom pack import deep, Late\n\ndef run():\n    import pack.used\n",
        bench_helper="import json",
        pack_="if TYPE_CHECKING:\n    from pack.late import Late\n    from pack.never import Never\n",
        pack_late="class Late: pass",
        pack_never="class Never: pass",
        pack_deep_="from .near import a\nfrom ..above import b\n",
        pack_deep_near="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.other import two\n",
        pack_above="",
    )
    names = "bench/run bench/helper pack/__init__ pack/used pack/late pack/deep/__init__ pack/deep/near pack/above"
    assert repository.reached("bench/run.py") == {f"{name}.py" for name in names.split()}


def test_unused_modules_and_what_they_alone_import_are_left_out(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit(pack_used="import pack.other\n")
    start = {"bench/run.py", "pack/__init__.py"}
    assert repository.reached("bench/run.py") == start | {"pack/used.py", "pack/other.py"}
    assert repository.reached("bench/run.py", unused=("pack/used",)) == start
    monkeypatch.setattr(ages, "LEAVES", ("pack/used.py",))
    assert repository.reached("bench/run.py") == start | {"pack/used.py"}


def test_a_root_is_a_pattern_that_fits_a_file(repository: Repository) -> None:
    repository.commit()
    assert repository.reached("pack/o*.py") == {"pack/other.py"}
    with pytest.raises(ValueError, match=r"bench/gone\.py is no file of this commit"):
        repository.reached("bench/gone.py")


def test_a_figure_without_an_entry_is_an_error() -> None:
    with pytest.raises(ValueError, match="no pattern for 'unheard'"):
        ages.measured("unheard")


@pytest.mark.parametrize(
    ("after", "path", "is_same"),
    [
        ('"""Other."""\ndef f(a):\n    """Other."""\n    # why\n    return (a + 1)\n', "a.py", True),
        ("def f(a):\n    return a + 1\n", "a.py", True),
        ('"""Doc."""\ndef f(a):\n    """Doc."""\n    return a + 2\n', "a.py", False),
        ('"""Doc."""\ndef f(a, b=0):\n    """Doc."""\n    return a + 1\n', "a.py", False),
        ('"""Doc."""\ndef f(a):\n    """Doc."""\n    "Doc."\n    return a + 1\n', "a.py", False),
        ('"""Doc."""\ndef f(a:\n', "a.py", False),
        ('"""Other."""\ndef f(a):\n    """Doc."""\n    return a + 1\n', "a.txt", False),
    ],
)
def test_comments_docstrings_and_layout_are_no_code(after: str, path: str, is_same: bool) -> None:
    before = '"""Doc."""\ndef f(a):\n    """Doc."""\n    return a + 1\n'
    assert (ages.code(before, path) == ages.code(after, path)) is is_same


def test_the_docstring_of_a_tool_is_in_its_prompt() -> None:
    tools = [f'@tool\ndef add(a: int):\n    """{words}"""\n    return a\n' for words in ("Add.", "Add one.")]
    assert ages.code(tools[0], "a.py") != ages.code(tools[1], "a.py")


def test_the_description_of_a_setting_is_no_code_and_that_of_a_tool_is() -> None:
    fields = [
        f"k: int = Field({default}, description='{words}')\n" for default, words in ((4, "a"), (4, "b"), (8, "a"))
    ]
    described, reworded, changed = (ages.code(field, "cadre/settings/a.py") for field in fields)
    assert described == reworded
    assert described != changed
    assert ages.code(fields[0], "cadre_tasks/a.py") != ages.code(fields[1], "cadre_tasks/a.py")


def test_comments_of_a_recipe_are_no_code() -> None:
    assert ages.code("# mine\nk: 8\n", "a.yaml") == ages.code("k:   8\n", "a.yaml")
    assert ages.code("k: 8\n", "a.yaml") != ages.code("k: 4\n", "a.yaml")


def test_age_counts_the_commits_that_change_code_which_runs(repository: Repository) -> None:
    first = repository.commit()
    assert repository.age(first) == 0
    repository.commit(pack_other="two = 3\n")
    repository.commit(pack_used='"""What it is."""\n\none = 1  # why\n')
    assert repository.age(first) == 0
    second = repository.commit(pack_used="one = 2\n")
    repository.commit(bench_run="from pack.used import one\nprint(one)\n")
    repository.commit(pack_used="one = 1\n")  # back again, but what was in between has not been measured
    assert repository.age(first) == 3
    assert repository.age(second[:7]) == 2
    assert repository.age(second, first) == 3  # of several commits the oldest
    assert repository.age(f"{second}+") == 2
    assert repository.age("0123456") is None
    assert repository.age(first, "0123456") is None


def test_a_module_that_ran_and_is_gone_ages_a_figure(repository: Repository) -> None:
    first = repository.commit()
    repository.commit(bench_run="from pack.other import two\n")
    (repository.root / "pack" / "used.py").unlink()
    repository.commit()
    assert repository.age(first) == 1


def test_commits_of_a_branch_that_is_merged_later_count(repository: Repository) -> None:
    start = repository.commit()
    repository.git("checkout", "--quiet", "-b", "side")
    repository.commit(pack_used="one = 2\n")  # older than the measured commit, which does not have it
    repository.git("checkout", "--quiet", "main")
    own = repository.commit(pack_other="two = 3\n")
    repository.git("merge", "--quiet", "--no-ff", "-m", "merge", "side")
    assert repository.age(own) == 1
    assert repository.age(start) == 1


def test_what_a_merge_itself_changes_counts(repository: Repository) -> None:
    repository.commit()
    repository.git("checkout", "--quiet", "-b", "side")
    side = repository.commit(pack_used="one = 2\n")
    repository.git("checkout", "--quiet", "main")
    repository.commit(pack_used="one = 3\n")
    with pytest.raises(subprocess.CalledProcessError):
        repository.git("merge", "--quiet", "side")
    repository.commit(pack_used="one = 5\n")
    assert repository.age(side) == 2  # the commit of main, and the merge, which is as neither of them


def test_a_history_ends_at_any_of_its_commits(repository: Repository) -> None:
    first = repository.commit()
    second = repository.commit(pack_used="one = 2\n")
    repository.commit(pack_used="one = 3\n")
    earlier = repository.history().at(second[:8])
    assert earlier.head == second
    assert earlier.age({"name": "figure", "commit": first}) == 1
    assert earlier.find(repository.git("rev-parse", "HEAD")) is None


def test_a_history_is_read_whole_or_not_at_all(repository: Repository) -> None:
    commits = [repository.commit(), repository.commit()]
    assert repository.history().reachable == set(commits)
    assert ages.read_history(repository.root / "pack") is None  # a folder within somebody's repository
    repository.git("clone", "--quiet", "--depth", "1", f"file://{repository.root}", "shallow")
    assert ages.read_history(repository.root / "shallow") is None


def claimed() -> list[str]:
    chapters: Any = evidence.chapters(common.latest())
    return sorted({name for chapter in chapters for claim in chapter.claims for name in claim.lines})


def test_what_each_claim_runs_is_known_and_there() -> None:
    ages.read_history.cache_clear()
    history = ages.read_history()
    figures = {ages.measured(name) for name in claimed()}
    if history:
        assert all(ages.reached(history.sources, figure) for figure in figures)


def test_what_was_found_out_is_kept_while_the_rules_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "build" / "ages.json"
    first = ages.Contents(tmp_path, file)
    assert first.once("length", "0" * 40, len) == 0
    first.save()
    second = ages.Contents(tmp_path, file)
    assert second.once("length", "0" * 40, lambda text: -1) == 0
    file.write_text(file.read_text().replace(second.version, "other"))
    assert ages.Contents(tmp_path, file).found == {}
    file.write_text("{")  # another process was writing it
    assert ages.Contents(tmp_path, file).found == {}
