"""Runs a program over tasks, one JSON object a line of the input, as its author would: no Cadre, an address and a key.

`python -m lab.play_program FILE` prints what `main` returns, one JSON object a line. Standard library alone.
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


def play(main, task, loop):
    arguments = [task]
    if len(inspect.signature(main).parameters) > 1:
        import openai

        arguments.append(openai.OpenAI())
    value = main(*arguments)
    return loop.run(value) if inspect.iscoroutine(value) else value


if __name__ == "__main__":
    main = load(sys.argv[1])
    # One loop for all tasks, which the connections of a framework's client belong to.
    with asyncio.Runner() as loop:
        for line in sys.stdin:
            print(json.dumps(play(main, json.loads(line), loop)), flush=True)
