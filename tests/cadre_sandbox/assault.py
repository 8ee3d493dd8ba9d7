"""Runs attacks at one level as the present user, and prints how each went as JSON: `python assault.py LEVEL ABI EACH
KINDS`.

ABI is the newest version of Landlock's interface to use, 99 for the kernel's own; EACH is how many attacks of a kind
are tried, 0 for all of them; KINDS are the kinds of attacks, all where none are named. The tests start it as root and
as an ordinary user. It needs nothing but the standard library.
"""

import asyncio
import dataclasses
import json
import os
import sys

from cadre_sandbox import Sandbox, probes
from tests.cadre_sandbox import attacks


async def everything(level: str, abi: int, count: int, kinds: list[str]) -> list[dict[str, object]]:
    with probes.World() as world:
        async with Sandbox(level, workers=1) as sandbox:
            sandbox.setup = dataclasses.replace(sandbox.setup, landlock=abi)
            suited = [first for first in attacks.suited(sandbox) if not kinds or first.kind in kinds]
            names: dict[str, list[str]] = {}
            for item in suited:
                names.setdefault(item.kind, []).append(item.name)
            chosen = [first for first in suited if not count or first.name in names[first.kind][:count]]
            outcomes = await probes.assault(sandbox, world, chosen)
    return [dataclasses.asdict(outcome) for outcome in outcomes]


if __name__ == "__main__":
    outcomes = asyncio.run(everything(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
    print(json.dumps({"uid": os.getuid(), "outcomes": outcomes}))
