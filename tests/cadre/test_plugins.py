"""A package of somebody else's brings environments, recipes and models by entry points alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from cadre import plugins
from cadre.envs.spec import EnvSpec, env_class, name_of
from cadre.errors import ConfigError
from tests.cadre.cli.calling import call

TASK = """
from cadre import Env, Message, Observation, Reward, Task

class Coin(Env):
    roles = ("player",)
    over = False

    @classmethod
    def tasks(cls, split):
        return [Task(f"{split}-{index}", {}) for index in range(4)]

    def observe(self):
        return {} if self.over else {"player": Observation("player", (Message("user", "Heads or tails?"),))}

    async def step(self, actions):
        self.over = True
        return Reward(team=float("heads" in actions["player"]))

    @property
    def success(self):
        return self.over
"""
POINTS = """
[cadre.environments]
coin = their_tasks.coin:Coin
{more}
[cadre.recipes]
their_tasks = their_tasks.recipes
"""
CACHED = (
    plugins.environments,
    plugins.distributions,
    plugins.recipe_folders,
    plugins.embedded_models,
    plugins.trained_on,
)


def install(folder: Path, name: str = "their-tasks", more: str = "") -> None:
    """Lay out what pip would have installed."""
    package = folder / "their_tasks"
    (package / "recipes").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "coin.py").write_text(TASK)
    (package / "recipes" / "coin.yaml").write_text("# A coin.\nbase: plan-path-no-tool\nenv: coin\n")
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS.format(more=more))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "their_tasks"]:
        monkeypatch.delitem(sys.modules, name)  # of a former test's folder
    for function in CACHED:
        function.cache_clear()
    yield tmp_path
    for function in CACHED:
        function.cache_clear()


def test_an_environment_is_found_by_name(site: Path) -> None:
    install(site)
    assert env_class("coin").__name__ == "Coin"
    assert name_of(env_class("coin")) == "coin"
    assert [task.id for task in EnvSpec("coin", {}).tasks("test")] == [f"test-{index}" for index in range(4)]


def test_the_list_says_which_package_brings_it(site: Path) -> None:
    install(site)
    assert "their-tasks: coin" in [line.strip() for line in call("list").out.splitlines()]


def test_a_package_can_declare_groups_for_the_list(site: Path) -> None:
    install(site)
    assert [line.strip() for line in call("list").out.splitlines()].count("their-tasks: coin") == 2
    (site / "their_tasks" / "recipes" / "groups.yml").write_text("luck: [coin]\n")
    lines = [line.split() for line in call("list").out.splitlines()]
    assert lines.count(["luck", "coin"]) == 2
    assert lines[lines.index(["luck", "coin"]) - 1] == ["their-tasks:"]
    assert call("list", "coin").out.splitlines() == ["coin", "    A coin."]


def test_a_model_can_declare_what_it_was_trained_on(site: Path) -> None:
    install(site, more="[cadre.models]\nflipper = their_tasks.flipper\n")
    folder = site / "their_tasks" / "flipper"
    folder.mkdir()
    assert plugins.trained_on("flipper") is None
    plugins.trained_on.cache_clear()
    (folder / "trained_on.json").write_text('{"environments": ["coin"], "settings": {"sides": 2}}')
    assert plugins.trained_on("flipper") == {"environments": ["coin"], "settings": {"sides": 2}}
    assert plugins.trained_on("games") is None


def test_a_name_that_continues_a_bundled_one_is_listed_under_its_own_package(site: Path) -> None:
    install(site, more="sokoban-coin = their_tasks.coin:Coin")
    assert "their-tasks: coin sokoban-coin" in [line.strip() for line in call("list").out.splitlines()]


def test_its_recipes_are_found_by_name(site: Path) -> None:
    from cadre.config.recipes import read_recipe

    install(site)
    assert read_recipe("coin")["env"] == "coin"
    assert read_recipe("coin")["train"]["steps"] == 60


def test_two_packages_with_one_name_are_refused(site: Path) -> None:
    install(site)
    install(site, name="others", more="sokoban = their_tasks.coin:Coin")
    with pytest.raises(ConfigError, match=r"'sokoban' in cadre\.environments: got .* from two installed packages"):
        plugins.environments()


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        ("", "'cadre-rl[data,view]'"),
        ('{"url": "file:///a%20b/c", "dir_info": {"editable": true}}', "-e '/a b/c[data,view]'"),
        ('{"url": "file:///d/cadre.whl", "archive_info": {}}', "'cadre-rl[data,view] @ file:///d/cadre.whl'"),
        ('{"url": "https://x/y.git", "vcs_info": {"vcs": "git"}}', "'cadre-rl[data,view] @ git+https://x/y.git'"),
    ],
)
def test_extras_are_added_to_what_is_installed(monkeypatch, origin, requirement):
    monkeypatch.setattr(plugins, "distribution", lambda name: SimpleNamespace(read_text=lambda file: origin or None))
    monkeypatch.setattr("sys.executable", "/env/bin/python")
    assert plugins.install_command("data", "view") == f"/env/bin/python -m pip install {requirement}"


def test_a_component_that_no_package_has_is_an_error() -> None:
    assert callable(plugins.component("tinker"))
    with pytest.raises(ConfigError, match="absent: no installed package has it"):
        plugins.component("absent")
