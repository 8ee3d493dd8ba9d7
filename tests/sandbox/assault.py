"""Runs every attack at one level as the present user, and prints how each went as JSON: `python assault.py LEVEL`.

The tests start it as root and as an ordinary user. It needs nothing but the standard library.
"""

import asyncio
import dataclasses
import json
import os
import sys

from cadre.sandbox import Sandbox, attacks


async def everything(level: str) -> list[dict[str, object]]:
    with attacks.World() as world:
        async with Sandbox(level, workers=1) as sandbox:
            outcomes = await attacks.assault(sandbox, world, attacks.suited(sandbox))
    return [dataclasses.asdict(one) for one in outcomes]


if __name__ == "__main__":
    print(json.dumps({"uid": os.getuid(), "outcomes": asyncio.run(everything(sys.argv[1]))}))
