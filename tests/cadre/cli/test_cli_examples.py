"""The examples of the README and of examples/ run unchanged: they pass the check and train two steps."""

import asyncio
import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from cadre.config.experiment import load
from cadre.rollout import walk
from cadre.runs.kept_trees import read_all_trees
from cadre.types import Reward, Task
from cadre_programs.program import Program
from cadre_programs.settings import InstanceLimits, make_launch
from tests.cadre.cli.calling import call

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()


def block(language: str, index: int = 0) -> str:
    """Return a block of this language in README."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)[index]


def trained(recipe: str, folder: Path) -> str:
    small = ["train.steps=2", "train.tasks_per_step=2", "evaluate.tasks=2"]
    result = call("train", recipe, *small, "--run", str(folder))
    assert result.code == 0, result.err
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    return result.out


def test_the_team_in_readme_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    team = block("python", 1)
    assert "steps=30" in team
    assert "tasks=30" in team
    small = team.replace("steps=30", "steps=1, evaluate={'tasks': 2}").replace("tasks=30", "tasks=2")
    Path("corridor.py").write_text(small.replace('"tasks_per_step": 8', '"tasks_per_step": 1'))
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"corridor": number}) for number in range(30)))
    done = call("check", "corridor.py:corridor", "tasks=rows.jsonl")
    assert (done.code, done.out.count("ok  corridor")) == (0, 6), done.err
    names = runpy.run_path("corridor.py", run_name="__main__")
    assert len(names["trained"].metrics()) == 1
    names["trained"].close()


def test_the_team_of_the_examples_is_that_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert re.search(
        r"step 2/2  reward anna [+-]\d.\d\d, ben [+-]\d.\d\d  best-of-\d+ ",
        trained("examples/corridor.yaml", tmp_path / "run"),
    )


def test_given_pairs_train_without_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert "200 held out" in trained("examples/preferences.yaml", tmp_path / "run")


def test_the_python_of_the_docs_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "corridor", raising=False)  # that of the examples
    (task, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), flags=re.S)
    Path("corridor.py").write_text(task)
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), flags=re.S)
    Path("script.py").write_text(script)
    names = runpy.run_path("script.py")
    assert len(names["trained"].metrics()) == 2
    assert names["again"].folder == names["trained"].folder


def test_a_planner_and_two_workers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = call("check", "examples/sum.py:Sum")
    assert (result.code, result.out.count("ok  Sum")) == (0, 6), result.err
    printed = trained("examples/sum.yaml", tmp_path / "run")
    assert re.search(r"reward planner [+-]\d.\d\d, left [+-]\d.\d\d, right [+-]\d.\d\d\s", printed)


def test_two_agents_that_know_nothing_of_cadre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    tasks = (ROOT / "examples" / "programs" / "tasks.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "tasks.jsonl").write_text("".join(tasks[:5]))
    settings = ["run=examples/programs/plain.py:main", "roles=[scout,walker]", f"tasks={tmp_path / 'tasks.jsonl'}"]
    result = call("check", "program", *settings)
    assert result.code == 0, result.err
    assert "4 of 4 tasks, played again with the same answers, asked for the same" in result.out
    small = ["train.steps=1", "train.tasks_per_step=1", "evaluate.tasks=1", "sampling.max_tokens=8"]
    result = call("train", "examples/programs/plain.yaml", *small, "--run", str(tmp_path / "run"))
    assert result.code == 0, result.err


def test_sub_agents_that_are_started_at_run_time_are_one_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lead acts first and alone; then up to three workers, as many as its answer leaves to do."""
    monkeypatch.chdir(ROOT)
    small = ["train.steps=1", "train.tasks_per_step=2", "evaluate.tasks=0", "sampling.max_tokens=8"]
    result = call("train", "examples/programs/spawning.yaml", *small, "--run", str(tmp_path / "run"))
    assert result.code == 0, result.err
    (metrics,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert metrics["lead/tokens"] > 0
    assert metrics["worker/tokens"] > 0
    trees = [kept.tree for kept in read_all_trees(tmp_path / "run")]
    workers = [sum("worker" in node.samples for node, _ in path) for tree in trees for path in walk.episodes(tree.root)]
    assert set(workers) <= {0, 1, 2, 3}
    assert max(workers) >= 1
    assert all(set(tree.root.samples) == {"lead"} for tree in trees)


PROGRAMS = ROOT / "examples" / "programs"


@pytest.mark.parametrize("recipe", sorted(path.name for path in PROGRAMS.glob("*.yaml")))
def test_every_program_has_a_recipe_that_reads_its_file(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    message = load(f"examples/programs/{recipe}")
    run = message.settings["run"]
    file = run[-1] if isinstance(run, list) else run.removesuffix(":main")
    assert Path(file).with_suffix(".yaml").name == recipe
    assert make_launch(run, "fork", InstanceLimits(), "", {}).is_function == file.endswith(".py")
    assert message.algorithm.name == ("hierarchical_grpo" if recipe == "spawning.yaml" else "at_grpo")
    assert {policy.lora is not None for policy in message.team.policies.values()} == {True}


def test_every_two_agents_have_a_recipe() -> None:
    created = {path.stem for path in PROGRAMS.glob("*agents.*") if path.suffix in (".py", ".sh")}
    assert created == {path.stem for path in PROGRAMS.glob("*agents.yaml")}


@pytest.mark.skipif(not (shutil.which("jq") and shutil.which("curl")), reason="needs jq and curl")
def test_two_agents_in_a_shell() -> None:
    folder = ROOT / "examples" / "programs"
    task = Task("t", json.loads((folder / "tasks.jsonl").read_text().splitlines()[2]))
    env = Program(task, ["bash", str(folder / "agents.sh")], ["scout", "walker"])
    assert env.observe()["scout"].messages[0].content.endswith("tool short 1D 2D 3D 4D 5D 6D 7R 8R")
    asyncio.run(env.step({"scout": "DDDDDDR"}))
    assert env.observe()["walker"].messages[0].content.endswith("tool goal 1R 2R 3R 4R 5R")
    assert asyncio.run(env.step({"walker": "1R 2R 3R 4R 5R"})) == Reward(team=1.0)
    assert env.success


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize(
    "page", ["README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
)
def test_files_that_are_named_are_there(page: str) -> None:
    """But in the log, which says what was tried when."""
    named = re.findall(r"`([\w./-]+/[\w./-]*\.(?:py|md|yaml|json|jsonl|svg))`", (ROOT / page).read_text())
    homes = (ROOT, ROOT / "cadre", ROOT / "docs", ROOT / "cadre" / "engines")
    assert (
        page.endswith("LOG.md") or [name for name in named if not any((home / name).exists() for home in homes)] == []
    )


@pytest.mark.parametrize("name", re.findall(r"cadre (?:train|eval) ([a-z0-9][a-z0-9.-]+)[ \n`]", README))
def test_recipes_that_readme_names_are_there(name: str) -> None:
    """A file, or a name that puts a task, a model and a level together."""
    assert name.endswith(".yaml") or call("list", name).code == 0
