"""Shared parts of the worlds' tests: the lab's cases, a few tasks at a time."""

import asyncio
import random

from cadre.envs.check import ACTIONS, check_env
from cadre.envs.spec import EnvSpec
from lab.world_cases import WORLDS, play_out
from lab.worlds import attacked, episodes


def check_references(name: str, count: int = 8) -> None:
    """A reference answer solves its task and pays the most, in every form; one that is nearly right does neither."""
    world, draw = WORLDS[name], random.Random(0)
    for team in (True, False):
        for env, again in zip(episodes(world, count, team), episodes(world, count, team), strict=True):
            best = play_out(env, world.honest)
            assert env.success, env.task.id
            worse = play_out(again, lambda state: world.nearly(state, draw) or "")
            assert not again.success, again.task.id
            assert worse < best - 0.1


def check_exploits(name: str, count: int = 4) -> None:
    """No exploit solves a task or comes near what an honest policy earns."""
    world = WORLDS[name]
    honest = [play_out(env, world.honest) for env in episodes(world, count)]
    for exploit, policy in world.exploits.items():
        for env, best in zip(episodes(world, count), honest, strict=True):
            assert play_out(env, policy) < 0.6 * best, exploit
            assert not env.success, exploit


def check_hostile(name: str, count: int) -> None:
    """Hostile answers neither raise nor solve nor read; the bench plays ten thousand."""
    world, draw = WORLDS[name], random.Random(1)

    async def all_of_them() -> None:
        for env in episodes(world, count):
            kind = draw.choice([kind for kind in world.hostile if not kind.startswith("endless")])
            text = world.hostile[kind](draw)
            assert await attacked(env, world, text) == "", (kind, text[:200])

    asyncio.run(all_of_them())


def check_contract(names: list[str], actions: list[str], **settings: object) -> None:
    for name in names:
        checked = asyncio.run(check_env(EnvSpec(name, settings), 2, [*actions, *ACTIONS]))
        assert len(checked) == 6, name


def check_splits(name: str, keys: str, count: int = 60) -> None:
    """No task of one split is in the other, and a split is the same at each call."""
    for dials in WORLDS[name].dials[:2]:
        created = {split: WORLDS[name].team.tasks(split, **dials)[:count] for split in ("train", "test")}  # type: ignore[arg-type]
        message = {
            split: {repr([task.data[key] for key in keys.split()]) for task in tasks}
            for split, tasks in created.items()
        }
        assert not message["train"] & message["test"]
        again = WORLDS[name].team.tasks("test", **dials)[:count]
        assert [task.data for task in again] == [task.data for task in created["test"]]
