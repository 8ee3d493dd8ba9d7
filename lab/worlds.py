"""The worlds in figures: judges against references, exploits and hostile texts.

    python -m lab.worlds [references exploits hostile] [--worlds search] [--count 1000]

`references` plays so many tasks with the reference answer, which must solve each, and with an answer that is nearly
right, which must not. `exploits` is the table of what lazy and cunning policies earn, as a share of an honest one.
`hostile` plays ten times as many hostile answers: none may raise, last, solve a task or show a planted file's content.
Appends `worlds.NAME.*` to results/worlds.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from bench.common import record
from cadre.env import Env
from cadre.types import Task
from lab.world_cases import CANARY, WORLDS, World, play

console = Console(soft_wrap=True)
COMMAND = " ".join(["python -m lab.worlds", *sys.argv[1:]])
LASTS = 60.0  # seconds of an answer's step, on a busy machine, beyond which it counts as one that hangs
AT_ONCE = 4
cached_tasks: dict[tuple[str, int, int], Task] = {}  # tasks by world, dials and number, as some take long to make


def keep(world: str, name: str, value: float, unit: str, n: int) -> None:
    line = record("worlds", f"worlds.{world}.{name}", [value], unit, COMMAND, n)
    console.print(f"{line['name']}: {line['value']:g} {unit} of {n:,}", highlight=False)


def episodes(world: World, count: int, team: bool = True) -> Iterator[Env]:
    """Fresh episodes of so many tasks, the dials in turn."""
    kind = world.team if team else world.variants[0]
    splits = [(dials, kind.tasks("test", **dials)) for dials in world.dials]
    for number in range(count):
        dials, tasks = splits[number % len(splits)]
        index = number // len(splits)
        key = (world.team.__name__, number % len(splits), index)
        if key not in cached_tasks:
            cached_tasks[key] = tasks[index]
        yield kind(cached_tasks[key], **dials)


async def references(name: str, world: World, count: int) -> None:
    """Reference answers, and answers that are nearly right."""
    solved, wrong, mutated_count = 0, 0, 0
    draw = random.Random(f"nearly {name}")
    for env, again in zip(episodes(world, count), episodes(world, count), strict=True):
        await play(env, world.honest)
        solved += env.success
        if not env.success:
            console.print(f"not solved: {env.task.id}", markup=False)
        await play(again, lambda state: world.nearly(state, draw) or "")
        mutated_count += 1
        wrong += again.success
    keep(name, "reference_pass", solved / count, "share", count)
    keep(name, "mutated_pass", wrong / mutated_count, "share", mutated_count)


async def exploits(name: str, world: World, count: int) -> None:
    """Measure the reward of every exploit as a share of an honest policy's on the same task."""
    best, tasks = 0.0, max(1, count // 20)
    honest = [await play(env, world.honest) for env in episodes(world, tasks)]
    for exploit, policy in world.exploits.items():
        ratios, solved = [], 0
        for env, reference in zip(episodes(world, tasks), honest, strict=True):
            ratios.append(await play(env, policy) / reference)
            solved += env.success
        mean = sum(ratios) / len(ratios)
        best = max(best, mean)
        console.print(f"  {name} {exploit}: {mean:.3f} of the honest one (at most {max(ratios):.3f}), solved {solved}")
    keep(name, "exploits_best", best, "share of honest", tasks * len(world.exploits))


async def hostile(name: str, world: World, count: int) -> None:
    """Hostile answers in episodes of their own; how many got through in any way."""
    Path("/tmp/cadre-canary.txt").write_text(f"{CANARY}\n")
    draw, through, longest = random.Random(f"hostile {name}"), [], 0.0
    queue = iter([(env, *world.attack(draw)) for env in episodes(world, 10 * count)])

    async def worker() -> None:
        nonlocal longest
        for env, kind, text in queue:
            began = time.monotonic()
            reason = await attacked(env, world, text)
            longest = max(longest, time.monotonic() - began)
            if reason or time.monotonic() - began > LASTS:
                through.append(kind)
                console.print(f"through: {name} {kind} {reason} {text[:100]!r}", markup=False)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    keep(name, "hostile_through", len(through), "answers", 10 * count)
    keep(name, "hostile_longest", longest, "s", 10 * count)


async def attacked(env: Env, world: World, text: str) -> str:
    """Play the text wherever it is asked for; why it got through, or nothing."""
    try:
        while observations := env.observe():
            await env.step(dict.fromkeys(observations, text))
            shown = "".join(message.content for it in env.observe().values() for message in it.messages)
            if CANARY in shown or "root:" in shown:
                return "read a file"
    except Exception as error:  # noqa: BLE001 - what leaves a step is what is counted here
        return f"raised {error!r}"
    return "solved" if env.success else ""


PARTS = {"references": references, "exploits": exploits, "hostile": hostile}


async def main(parts: list[str], worlds: list[str], count: int) -> None:
    for name in worlds:
        for part in parts or PARTS:
            await PARTS[part](name, WORLDS[name], count)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all unless named")
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--count", type=int, default=1000)
    chosen = parser.parse_args()
    asyncio.run(main(chosen.parts, chosen.worlds, chosen.count))
