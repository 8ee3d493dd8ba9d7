"""Fresh tasks in place of those that teach nothing: which ones, how many, and that a resumed run picks the same."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rich.console import Console

from bench.parity.trees import credit_of
from cadre.advantages.batch import Plan, is_useful
from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.rollout import episodes, shapes
from cadre.rollout.episodes import Replacements, replacement_tasks
from cadre.rollout.grow import Rollout
from cadre.settings import CreditConfig
from cadre.team import Team
from cadre.types import Request, Reward, Task
from tests.helpers.environments import game_of
from tests.helpers.games import Digit, scripted_team
from tests.helpers.training import configured, play, weights

TASKS = list(Digit.tasks("train"))  # eight tasks, of the digits 0 1 2 3 0 1 2 3
PLAN = Plan(shapes.greedy(2), credit_of("step", "node", "mean", "std"), selection=CreditConfig(without_std="drop"))


class Shared:
    """Stands for the engine that trains the policy `shared`."""

    policies = ("shared",)


def only_ones_differ(request: Request, index: int) -> str:
    """Siblings are all wrong but on the digit 1, where the second one is right."""
    return "1" if index else "0" if request.messages[0].content != "0" else "9"


def sampled(
    tasks: Sequence[Task],
    rounds: int,
    env: type[Env] = Digit,
    answer: Callable[[Request, int], str] = only_ones_differ,
    changes: Callable[[Team], Team] = lambda team: replace(team, learners=[Shared()]),  # type: ignore[list-item]
) -> episodes.SampledTrees:
    game: EnvSpec = game_of(env)
    team, _ = scripted_team(env, answer)
    playing = changes(team)
    replacements = Replacements(replacement_tasks(TASKS, tasks, step=3, seed=0), rounds, is_useful(PLAN, playing))
    rollout = Rollout(game.make, playing, PLAN.shape, PLAN.credit.alpha)
    return asyncio.run(episodes.sample_step(tasks, replacements, rollout, 7, lambda count: lambda: None))


def names(tasks: Sequence[Task]) -> list[str]:
    return [task.id for task in tasks]


def test_spare_tasks_depend_on_the_step_alone_and_are_not_the_steps_own() -> None:
    step_tasks = TASKS[2:5]
    first, again = (list(replacement_tasks(TASKS, step_tasks, 3, 0)) for _ in range(2))
    assert first == again
    assert sorted(names([*first, *step_tasks])) == sorted(names(TASKS))
    assert first != list(replacement_tasks(TASKS, step_tasks, 4, 0))
    assert first != list(replacement_tasks(TASKS, step_tasks, 3, 1))
    # What the step's own tasks are changes which spare ones are left out, never their order.
    everyone = list(replacement_tasks(TASKS, [], 3, 0))
    assert first == [task for task in everyone if task not in step_tasks]


def test_as_many_are_sampled_as_are_missing_until_enough_teach() -> None:
    step_tasks = [TASKS[0], TASKS[1]]  # the digits 0 and 1: one of them teaches
    spare = list(replacement_tasks(TASKS, step_tasks, 3, 0))
    until = next(index for index, task in enumerate(spare) if task.data["digit"] == 1) + 1
    got = sampled(step_tasks, rounds=8)
    assert got.replaced == until
    assert names([tree.task for tree in got.trees]) == names([*step_tasks, *spare[:until]])
    assert [tree.task.data["digit"] for tree in got.trees].count(1) == 2


def test_rounds_bound_it_and_two_missing_are_sampled_together() -> None:
    step_tasks = [TASKS[0], TASKS[2]]
    spare = replacement_tasks(TASKS, step_tasks, 3, 0)
    first = list(islice(spare, 2))
    right = sum(task.data["digit"] == 1 for task in first)
    got = sampled(step_tasks, rounds=1)
    assert names([tree.task for tree in got.trees]) == names([*step_tasks, *first])
    assert got.replaced == 2
    assert sampled(step_tasks, rounds=2).replaced == 4 - right
    assert sampled(step_tasks, rounds=0).replaced == 0


def test_it_ends_where_no_task_is_left() -> None:
    got = sampled(TASKS[:4], rounds=50)
    assert got.replaced == 4
    assert sorted(names([tree.task for tree in got.trees])) == sorted(names(TASKS))


def test_nothing_is_refilled_where_all_teach() -> None:
    assert sampled([TASKS[1], TASKS[5]], rounds=3).replaced == 0


def test_what_a_frozen_policy_says_teaches_nothing() -> None:
    assert sampled([TASKS[1]], rounds=1, changes=lambda team: team).replaced == 1


def test_a_spare_task_that_fails_is_counted_and_stops_nothing() -> None:
    step_tasks = [TASKS[0]]
    broken = next(replacement_tasks(TASKS, step_tasks, 3, 0)).id

    class FragileTask(Digit):
        async def step(self, actions: dict[str, str]) -> Reward:
            if self.task.id == broken:
                raise ValueError("broken")
            return await super().step(actions)

    got = sampled(step_tasks, rounds=1, env=FragileTask)
    assert [failure.task.id for failure in got.failures] == [broken]
    assert got.replaced == 1


def test_a_resumed_run_refills_with_the_same_tasks(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    sections = {"credit": {"without_std": "drop", "truncated": "mask"}, "algorithm": {"name": "at_grpo", "k": 4}}
    full, half = (
        configured(speaker, train={"steps": steps, "tasks_per_step": 2, "replacements": 2, "trees_kept": 6}, **sections)
        for steps in (4, 2)
    )
    play(full, tmp_path / "whole", quiet)
    play(half, tmp_path / "half", quiet)
    play(full, tmp_path / "half", quiet, resume=True)
    assert weights(tmp_path / "half", "shared") == weights(tmp_path / "whole", "shared")
    trees, again = ((tmp_path / name / "trees.jsonl").read_text() for name in ("whole", "half"))
    assert trees == again
    figures = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["rollout/replaced"] for line in figures) > 0
    assert sum(line["rollout/dropped"] for line in figures) > 0


def test_every_task_of_a_step_has_noise_of_its_own_replacements_too() -> None:
    """Mistake: positions that begin anew with every round, so that equal prompts get equal answers."""
    team, sampler = scripted_team(Digit, only_ones_differ)
    replacements = Replacements(replacement_tasks(TASKS, TASKS[:2], step=3, seed=0), 4, lambda tree: False)
    rollout = Rollout(Digit, team, PLAN.shape, PLAN.credit.alpha)
    samples = asyncio.run(episodes.sample_step(TASKS[:2], replacements, rollout, 7, lambda count: lambda: None))
    assert samples.replaced == 6
    assert len({request.key for request in sampler.requests}) == 8
