"""`cadre list`: short, grouped, and complete."""

import re

from cadre.config.recipes import read_recipe, recipes, task_groups
from cadre.plugins import environments
from tests.cadre.cli.calling import call


def test_everything_bundled_is_in_a_group() -> None:
    tasks = [task for groups in task_groups().values() for group in groups.values() for task in group]
    for name in environments():
        assert sum(name == task or name.startswith(f"{task}-") for task in tasks) == 1, name
    for name in recipes():
        env = read_recipe(name)["env"]
        envs = [entry["name"] for entry in env] if isinstance(env, list) else [env]
        assert any(name == task or name.startswith(f"{task}-") for task in tasks), name
        for env in envs:
            assert any(env == task or env.startswith(f"{task}-") for task in tasks), name


def names_in(lines: list[str]) -> set[str]:
    """The names that the lines stand for, `-no-tool` behind plan-path being plan-path-no-tool."""
    names, task, groups = set(), "", {group for groups in task_groups().values() for group in groups}
    for word in re.split(r"\s+", " ".join(lines)):
        if word.startswith("-"):
            names.add(task + word)
        elif word not in groups or word in environments():
            task = word
            names.add(word)
    return names


def test_the_list_is_short_and_names_everything_once() -> None:
    result = call("list")
    lines = result.out.splitlines()
    assert result.code == 0
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 80
    middle = lines.index("")
    assert set(environments()) <= names_in(lines[1:middle])
    assert set(recipes()) <= names_in(lines[middle + 2 :])


def test_a_tasks_recipes_are_told_in_words() -> None:
    lines = call("list", "sokoban").out.splitlines()
    *names, published, real = [line for line in lines if not line.startswith(" ")]
    assert names == [name for name in recipes() if "sokoban" in name]
    assert published.startswith("sokoban-as-published-MODEL for sokoban-as-published, ")
    assert real == "sokoban-MODEL for sokoban, sokoban-no-tool, sokoban-single-agent, sokoban-tool"
    assert "    Sokoban by a single planner without a tool, AT-GRPO: the baseline of one" in lines
    assert "debate has no recipe" in call("list", "debate").out


def test_a_recipes_first_sentence_is_whole() -> None:
    """It goes on in the second line of the file."""
    assert call("list", "almanac").out.splitlines()[:3] == [
        "almanac-smollm2",
        "    The almanac with tools: a researcher who searches, an accountant who",
        "    calculates; two adapters on one SmolLM2-135M-Instruct, whose chat template",
    ]


def test_an_unknown_task_is_refused_with_the_nearest() -> None:
    result = call("list", "sokobn")
    assert result.code == 2
    assert "Did you mean sokoban?" in result.err
