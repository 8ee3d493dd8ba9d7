"""The embedded model is for its games in their compact wording; anything else is told of, once a start."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cadre.config import checks
from cadre.config.checks import _warn_learners, _warn_shared_tasks, find_training_warnings, find_warnings
from cadre.config.experiment import parse
from cadre.config.resolve import resolve, resolve_for_evaluation
from cadre.env import Env
from cadre.errors import ConfigError
from cadre.runs.folder import Run
from cadre.training.loop import run_training
from cadre.types import Task

COMPACT = {"prompts": "compact"}
ROLES = {"tool": "shared", "planner": "shared"}


@pytest.mark.parametrize(
    ("env", "settings", "model", "expected"),
    [
        ("plan-path", COMPACT, "seed", ""),
        ("sokoban-single-agent", COMPACT, "seed", ""),
        ("sudoku", COMPACT, "seed", ""),
        ("sudoku", {}, "seed", "sudoku without settings.prompts=compact"),
        ("plan-path", {"prompts": "full"}, "seed", "Set settings.prompts=compact"),
        ("tests.helpers.games:Digit", {}, "seed", "games.py:Digit its completions mean nothing"),
        ("tests.helpers.games:Digit", {}, "Qwen/Qwen3-1.7B", ""),
    ],
)
def test_who_is_told(env: str, settings: dict[str, Any], model: str, expected: str) -> None:
    raw = {"env": env, "settings": settings, "team": model, "algorithm": "at_grpo"}
    paragraphs = find_warnings(resolve_for_evaluation(parse(raw)))
    assert len(paragraphs) == bool(expected)
    assert expected in "".join(paragraphs)


def test_a_central_team_is_judged_by_what_it_plays() -> None:
    raw = {"env": "plan-path", "settings": COMPACT, "team": "seed", "algorithm": {"name": "magrpo_central", "k": 2}}
    assert find_warnings(resolve_for_evaluation(parse(raw))) == []


@pytest.mark.parametrize(("reference", "count"), [("base", 1), ("start", 0)])
def test_a_penalty_about_the_base_of_an_adapter_is_told_of(reference: str, count: int) -> None:
    raw = {
        "env": "plan-path",
        "settings": COMPACT,
        "team": {
            "policies": {"shared": {"model": "seed", "lora": {"rank": 2}}},
            "roles": dict.fromkeys(ROLES, "shared"),
        },
        "algorithm": {"name": "at_grpo", "k": 2},
        "loss": {"kl": 0.1},
        "kl": {"reference": reference},
    }
    experiment = resolve(parse(raw))
    shared = experiment.policies["shared"]
    assert shared.lora is not None
    begun = shared.model_copy(update={"lora": shared.lora.model_copy(update={"path": "adapter"})})
    message = find_training_warnings(replace(experiment, policies={"shared": begun}))
    assert [text.count("Set kl.reference=start") for text in message] == [1] * count


def test_a_training_prints_it_once(tmp_path: Path) -> None:
    console = Console(width=400, record=True, file=StringIO())
    chosen = parse(
        {
            "env": "tests.helpers.games:Digit",
            "team": "seed",
            "algorithm": {"name": "at_grpo", "k": 2},
            "sampling": {"max_tokens": 1},
            "train": {"steps": 2, "tasks_per_step": 1},
            "evaluate": {"tasks": 1},
        }
    )
    run_training(resolve(chosen), Run.create(tmp_path / "run", chosen), console)
    assert console.export_text().count("embedded model") == 1


def test_tasks_that_are_trained_on_and_held_out_are_told_of(tmp_path: Path) -> None:
    """Training goes on: a game of one task is a way to begin."""
    game = (
        "from cadre import Env, Message, Observation, Reward, Task\n"
        "class Same(Env):\n"
        "    roles = ('one',)\n"
        "    def __init__(self, task, shared=3): super().__init__(task)\n"
        "    @classmethod\n"
        "    def tasks(cls, split, shared=3):\n"
        "        return [Task(f'{split}-{n}', {'n': n if n < shared else f'{split} {n}'}) for n in range(5)]\n"
        "    def observe(self): return {'one': Observation('one', (Message('user', 'Say'),))}\n"
        "    async def step(self, actions): return Reward()\n"
        "    @property\n"
        "    def success(self): return True\n"
    )
    (tmp_path / "same.py").write_text(game)
    messages = {}
    for shared in (0, 3):
        raw = {"env": f"{tmp_path}/same.py:Same", "settings": {"shared": shared}, "team": "games", "algorithm": "grpo"}
        messages[shared] = find_training_warnings(resolve(parse(raw)))
    assert messages[0] == []
    assert "held-out task test-0 is also a training task, 3 of 5 are" in messages[3][0]


def test_every_task_of_a_list_is_compared() -> None:
    """Mistake: the 100 first tasks of both splits are looked at, and the held-out ones are trained on after these."""
    train = [Task(f"train-{number}", {"n": number, "m": 0}) for number in range(300)]
    held_out = [Task(f"test-{number}", {"m": 0, "n": 250 + number}) for number in range(50)]
    facts: Any = SimpleNamespace(
        config=SimpleNamespace(env="mine.py:Mine", evaluate=SimpleNamespace(tasks=200, first=0)),
        env_spec=SimpleNamespace(declared=Env),
        training_tasks=train,
        held_out_tasks=held_out,
    )
    (warn_shared_tasks,) = _warn_shared_tasks(facts)
    assert "50 of 50 are" in warn_shared_tasks


def test_the_reference_of_an_adapter_is_told_of_unless_it_is_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistake: a run that follows the advice of the warning gets the warning again."""
    monkeypatch.setattr(checks, "needs_reference", lambda loss: True)
    lora = SimpleNamespace(path="px")

    def told(reference: str) -> list[str]:
        algorithm, train = SimpleNamespace(k=2), SimpleNamespace(steps=1)
        config = SimpleNamespace(kl=SimpleNamespace(reference=reference), algorithm=algorithm, train=train)
        first = SimpleNamespace(group=SimpleNamespace(scope="task"))
        plan = SimpleNamespace(
            kl=0.0, loss=SimpleNamespace(kl_bound=None), teacher=None, credit=SimpleNamespace(first=first)
        )
        policies = {"x": SimpleNamespace(lora=lora)}
        learners = {"x": SimpleNamespace(warmup_steps=0)}
        facts: Any = SimpleNamespace(config=config, plan=plan, learners=learners, policies=policies)
        return list(_warn_learners(facts))

    assert "Set kl.reference=start" in told("base")[0]
    assert told("start") == []


def test_an_end_by_evaluations_that_are_not_made_is_told_of() -> None:
    """Mistake: a recipe says `patience: 3` and trains to its last step without a word."""
    raw = {"env": "sudoku", "settings": COMPACT, "team": "seed", "algorithm": "at_grpo", "train": {"patience": 3}}
    message = find_training_warnings(resolve(parse({**raw, "evaluate": {"tasks": 2}})))
    assert any(text.startswith("warning: train.patience has no effect here") for text in message)
    assert find_training_warnings(resolve(parse({**raw, "evaluate": {"tasks": 2, "every": 1}}))) == []


@pytest.mark.parametrize(("steps", "count"), [(20, 1), (50, 0)])
def test_a_rate_that_never_reaches_its_peak_is_told_of(steps: int, count: int) -> None:
    raw = {"env": "plan-path", "settings": COMPACT, "team": "seed", "algorithm": "at_grpo"}
    raw |= {"train": {"steps": steps}, "learner": {"warmup_steps": 50}}
    result = [text for text in find_training_warnings(resolve(parse(raw))) if "warmup_steps" in text]
    assert len(result) == count
    assert all("rises for 50 steps" in text and "of 20 (train.steps)" in text for text in result)


def test_settings_that_leave_a_split_no_task_are_refused_before_a_model_loads(tmp_path: Path) -> None:
    """There are two melodies of one note and two pitches, none of which falls into the test split."""
    chosen = parse(
        {
            "env": "melody",
            "settings": {"notes": 1, "pitches": 2},
            "team": "seed",
            "algorithm": {"name": "at_grpo", "k": 2},
            "train": {"steps": 1, "tasks_per_step": 1},
            "evaluate": {"tasks": 1},
        }
    )
    experiment = replace(resolve(chosen), models={"shared": "/nonexistent"})
    with pytest.raises(ConfigError, match=r"notes 1, pitches 2, with which none .* of the split 'test'"):
        run_training(experiment, Run.create(tmp_path / "run", chosen), Console(file=StringIO()))
