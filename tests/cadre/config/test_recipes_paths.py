"""Relative paths: those of a YAML file are meant from its folder, those of the command line from the current one."""

from pathlib import Path

import pytest

from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.errors import ConfigError

TOY = """from cadre import Env, Message, Observation, Reward, Task
class Toy(Env):
    roles = ("a",)
    def __init__(self, task, notes: str = ""):
        super().__init__(task)
    @classmethod
    def tasks(cls, split): return [Task(f"{split}-{i}", {"n": i, "split": split}) for i in range(6)]
    def observe(self): return {"a": Observation("a", (Message("user", "Go"),))}
    async def step(self, actions): return Reward()
    @property
    def success(self): return True
"""
RECIPE = """env: {env}
team: {{policies: {{x: {{model: seed}}}}, roles: {{a: x}}}}
algorithm: {{name: custom, shape: independent, returns: step, group: node, baseline: mean, scale: 'own.py:scale'}}
settings: {{notes: {notes}}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe and all that it names; the current folder is another."""
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    for file in ("toy.py", "pkg/envs.py"):
        (folder / file).write_text(TOY)
    (folder / "own.py").write_text("def scale(group): return 1.0\n")
    (folder / "notes.csv").write_text("a,b\n")
    (folder / "toy.yaml").write_text(RECIPE.format(env="toy.py:Toy", notes="notes.csv"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return folder


@pytest.mark.parametrize(("env", "file"), [("toy.py:Toy", "toy.py"), ("pkg.envs:Toy", "pkg/envs.py")])
def test_a_recipe_names_files_from_its_own_folder(env: str, file: str, project: Path) -> None:
    (project / "toy.yaml").write_text(RECIPE.format(env=env, notes="notes.csv"))
    chosen = resolve(load("../project/toy.yaml")).config
    assert chosen.env == f"{project}/{file}:Toy"
    assert chosen.settings == {"notes": f"{project}/notes.csv"}
    assert chosen.algorithm.scale == f"{project}/own.py:scale"


def test_levels_of_a_curriculum_name_files_from_the_recipes_folder(project: Path) -> None:
    recipe = (project / "toy.yaml").read_text() + "curriculum: {levels: [{notes: notes.csv}, {}], window: 4}\n"
    (project / "toy.yaml").write_text(recipe)
    curriculum = load("../project/toy.yaml").curriculum
    assert curriculum is not None
    assert curriculum.levels == [{"notes": f"{project}/notes.csv"}, {}]


def test_the_command_line_names_files_from_the_current_folder(project: Path) -> None:
    Path("mine.csv").write_text("a\n")
    chosen = load("../project/toy.yaml", ["settings.notes=mine.csv", "env=../project/pkg/envs.py:Toy"])
    assert chosen.settings == {"notes": str(Path("mine.csv").absolute())}
    assert chosen.env == f"{Path.cwd()}/../project/pkg/envs.py:Toy"


def test_what_is_in_both_folders_is_that_of_the_recipe(project: Path) -> None:
    Path("notes.csv").write_text("other\n")
    assert load("../project/toy.yaml").settings == {"notes": f"{project}/notes.csv"}


def test_what_is_nowhere_is_said_with_the_folder(project: Path) -> None:
    (project / "toy.py").unlink()
    with pytest.raises(ConfigError, match=f"there is no file {project}/toy.py"):
        resolve(load("../project/toy.yaml"))


@pytest.mark.parametrize("text", ["compact", "a plan. Then more", "1.5", "notes", "e.g. this"])
def test_texts_that_are_no_paths_stay(text: str, project: Path) -> None:
    (project / "notes").mkdir()
    (project / "compact").write_text("")
    (project / "toy.yaml").write_text(RECIPE.format(env="toy.py:Toy", notes=f"'{text}'"))
    assert load("../project/toy.yaml").settings == {"notes": text}
