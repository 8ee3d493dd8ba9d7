"""Runs a program over tasks, one JSON object a line of the input, as its author would: no Cadre, an address and a key.

`python bench/play_program.py FILE` prints what `main` returns, one JSON object a line. Standard library alone.
"""

import asyncio
import importlib.util
import inspect
import json
import os
import sys


def load(path):
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("played", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


async def play(main, task):
    arguments = [task]
    if len(inspect.signature(main).parameters) > 1:
        import openai

        arguments.append(openai.OpenAI())
    value = main(*arguments)
    return await value if inspect.iscoroutine(value) else value


async def play_all(main):
    """One after the other, in one event loop, which the connections of a framework's client belong to."""
    for line in sys.stdin:
        print(json.dumps(await play(main, json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(play_all(load(sys.argv[1])))
