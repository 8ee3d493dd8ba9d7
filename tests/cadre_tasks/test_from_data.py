"""Environments over data: settings declared once, what works by default, your own files, and invented items."""

import json
from pathlib import Path
from typing import Any

import pytest

from cadre.envs.spec import EnvSpec, env_class
from cadre.errors import CadreError, ConfigError, DataError, NoSourceError
from cadre.plugins import environments
from cadre_tasks.from_data import FromData
from tests.helpers.playing import check, source
from tests.helpers.slow import few_of

OVER_DATA = [name for name in environments() if issubclass(env_class(name), FromData)]


@pytest.mark.parametrize("name", OVER_DATA)
def test_every_environment_works_by_default_given_its_data(name: str) -> None:
    held_out = {"held_out": 1} if name.startswith("pairs") else {}  # the invented set has two items, the public one 164
    spec = EnvSpec(name, {"source": source(), **held_out})
    for split in ("train", "test"):
        assert spec.make(spec.tasks(split)[0]).observe()  # type: ignore[arg-type]


def test_writers_have_a_set_of_their_own_by_default() -> None:
    sets = {name: env_class(name).sets for name in ("tldr", "arxiv", "story")}  # type: ignore[attr-defined]
    assert sets == {"tldr": ("scitldr",) * 2, "arxiv": ("arxiv",) * 2, "story": ("stories",) * 2}


# A single agent and others of the family play the same items.
@pytest.mark.parametrize("name", few_of(OVER_DATA, ["maths", "tldr"]))
def test_without_data_a_dry_run_has_invented_items(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CADRE_DATA", raising=False)
    with pytest.raises(NoSourceError) as missing:
        EnvSpec(name, {}).tasks("train")
    assert missing.value.example == {"source": "example"}
    assert len(check(name, ["\\boxed{42}"], episodes=1, **missing.value.example)) >= 6


def test_a_source_without_the_set_is_another_error() -> None:
    with pytest.raises(DataError, match="got no file of math500") as missing:
        EnvSpec("maths", {"source": "/no/such/folder"}).tasks("train")
    assert not isinstance(missing.value, NoSourceError)


def own(folder: Path, *rows: dict[str, Any]) -> str:
    file = folder / "my.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


OWN: dict[str, tuple[dict[str, str], list[dict[str, Any]]]] = {
    "maths": (
        {"question": "prompt", "answer": "gold"},
        [{"prompt": f"What is {n} + {n}?", "gold": 2 * n} for n in (1, 2)],
    ),
    "code": ({"statement": "task"}, [{"task": f"Print {n}.", "hidden": [["", f"{n}\n"]]} for n in (1, 2)]),
    "pairs": (
        {"statement": "task"},
        [{"task": f"Return {n}.", "entry": "f", "tests": f"assert f() == {n}"} for n in (1, 2)],
    ),
    "tldr": ({"text": "body"}, [{"body": f"The {n}th river flows to the sea."} for n in (1, 2)]),
}


@pytest.mark.parametrize("name", few_of(OWN, ["maths"]))
def test_a_file_of_your_own(name: str, tmp_path: Path) -> None:
    fields, rows = OWN[name]
    settings = {"data": own(tmp_path, *rows), "fields": fields, "held_out": 1}
    assert len(check(name, ["print(2)"], episodes=1, **settings)) >= 6
    spec = EnvSpec(name, settings)
    assert len(spec.tasks("train")) == len(spec.tasks("test")) == 1


def test_another_set_is_tested_beside_the_one_that_is_named_for_both() -> None:
    """All of it is tested, while training uses the first set, divided where it has no splits of its own."""
    both_sets = EnvSpec("pairs", {"data": "mbpp", "test": "humaneval", "source": source()})
    assert [task.data["entry"] for task in both_sets.tasks("test")] == ["twice", "last"]
    assert {task.id.split("-")[1] for task in both_sets.tasks("train")} == {"mbpp"}
    usual = EnvSpec("pairs", {"test": "mbpp", "held_out": 1, "source": source()})
    assert [task.data["entry"] for task in usual.tasks("train")] == ["last"]
    assert len(usual.tasks("test")) == 2


SETTINGS = {
    "a misspelt setting": ("maths", {"trian": "gsm8k"}, r"settings\.trian: unknown to Maths\. Did you mean train\?"),
    "one set and two": (
        "maths",
        {"data": "gsm8k", "train": "math-train"},
        r"settings\.data: got 'gsm8k' beside settings\.train",
    ),
    "a share of nothing": ("maths", {"held_out": 0}, r"settings\.held_out: got 0"),
    "more than all": ("maths", {"held_out": 1.5}, r"settings\.held_out: got 1\.5"),
    "an unknown leak rule": ("debate", {"leaks": "keep"}, r"settings\.leaks: got 'keep'"),
    "fields that are no names": ("maths", {"fields": ["question"]}, r"settings\.fields: got \['question'\]"),
    "no turn": ("code", {"turns": 0}, r"settings\.turns: got 0"),
    "a setting of another environment": ("story", {"reward": "faithful"}, r"settings\.reward: unknown to Story"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_are_refused(case: str) -> None:
    name, settings, message = SETTINGS[case]
    with pytest.raises(ConfigError, match=message) as caught:
        EnvSpec(name, {"source": source(), **settings}).tasks("train")
    assert "\n" not in str(caught.value)


# Below and above what an environment can be made with: refused before a task is made.
ABSURD = {
    "plan-path": [
        {"size": 0},
        {"size": 2},
        {"size": -5},
        {"size": 10**9},
        {"blocked": 1.0},
        {"turns": 0},
        {"turns": 10**9},
    ],
    "sokoban": [{"size": 0}, {"size": 10**6}, {"boxes": 0}, {"boxes": 99}, {"max_moves": 0}, {"size": 5, "boxes": 2}],
    "sudoku": [{"size": 0}, {"size": 16}, {"clues": 0}, {"clues": 16}, {"clues": 10**9}],
    "debate": [{"agents": 0}, {"agents": 10**6}, {"rounds": 0}],
    "lead": [{"workers": 0}, {"workers": 10**6}],
    "review": [{"agents": 1}],
    "gather": [{"answers": 0}],
    "refine": [{"rounds": 0}],
    "code": [{"cases": -1}, {"mutants": -1}],
    "story": [{"enough": 2.0}],
}


@pytest.mark.parametrize(("name", "settings"), [(name, item) for name, many in ABSURD.items() for item in many])
def test_absurd_settings_are_refused_at_once(name: str, settings: dict[str, Any]) -> None:
    (setting,) = list(settings)[-1:]
    data = {"source": source()} if name in OVER_DATA else {}
    with pytest.raises(CadreError, match=rf"settings\.{setting}: got") as caught:
        EnvSpec(name, {**data, **settings}).tasks("train")
    assert "\n" not in str(caught.value)
