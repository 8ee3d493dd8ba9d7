"""Where the time of one training step goes: a sampling profile of all Python threads of this process, as text.

    python bench/stacks.py OUT [--recipe plan-path] [--every 0.002] [override ...]

One step warms up and the next is profiled. A thread beside the others looks at their stacks every few milliseconds;
moments in which all of them wait (for programs in the sandbox, say) are counted as waiting. The end of the file are
collapsed stacks, the input of flamegraph.pl and of speedscope.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import FrameType

from cadre import random_keys
from cadre.advantages.batch import build_batch
from cadre.config.engines import build_team
from cadre.config.experiment import Config, Experiment, load
from cadre.config.resolve import resolve
from cadre.rollout import episodes, grow
from cadre.team import Team
from cadre.training.loop import pick_tasks
from cadre_tasks import sandbox
from common import ROOT

# The innermost Python function of a thread that has nothing to do.
IDLE = {("selectors.py", "select"), ("threading.py", "wait"), ("thread.py", "_worker")}
SHOWN = 40

Stack = tuple[str, ...]  # outermost first


class Watch:
    """Seconds by stack from `with` to the end of it: `seen` of threads that ran, `whole` in all, `waiting` with none.

    A look counts for the time since the last one, as looks come less often while Python code holds the interpreter.
    `threads` are the identifiers of those that are looked at, or None for all.
    """

    def __init__(self, every: float, threads: set[int] | None = None) -> None:
        self.seen: Counter[Stack] = Counter()
        self.whole = self.waiting = 0.0
        self._every, self._threads, self._over = every, threads, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        own, last = threading.get_ident(), time.perf_counter()
        while not self._over.wait(self._every):
            frames = {thread: frame for thread, frame in sys._current_frames().items() if thread != own}
            looked_at = frames.keys() if self._threads is None else frames.keys() & self._threads
            busy = [frames[thread] for thread in looked_at if not idle(frames[thread])]
            now = time.perf_counter()
            passed, last = now - last, now
            self.whole += passed
            self.waiting += 0.0 if busy else passed
            for frame in busy:
                self.seen[stack(frame)] += passed


def idle(frame: FrameType) -> bool:
    return (Path(frame.f_code.co_filename).name, frame.f_code.co_name) in IDLE


def stack(frame: FrameType | None) -> Stack:
    """The functions of a stack as `package/file.py:name`, outermost first."""
    found = []
    while frame is not None:
        found.append(f"{short(frame.f_code.co_filename)}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    return tuple(reversed(found))


@cache
def short(path: str) -> str:
    """A file's path from its package on, so that no folder of this machine is in it."""
    parts = Path(path).parts
    roots = ("site-packages", f"python{sys.version_info.major}.{sys.version_info.minor}", ROOT.name)
    for root in roots:
        if root in parts:
            return "/".join(parts[len(parts) - parts[::-1].index(root) :])
    return parts[-1]


def report(watch: Watch, title: str) -> str:
    """The summary and the collapsed stacks, those in microseconds."""
    own, within = Counter[str](), Counter[str]()
    for frames, seconds in watch.seen.items():
        own[frames[-1]] += seconds
        for name in dict.fromkeys(frames):
            within[name] += seconds
    waiting = watch.waiting / watch.whole
    lines = [title, f"{watch.whole:.2f} s were looked at; every thread waited in {waiting:.1%} of them", ""]
    lines += ["time in the function itself (with what it calls in C)", *table(own, watch.whole), ""]
    lines += ["time in the function and all that it calls", *table(within, watch.whole), ""]
    stacks = (f"{';'.join(frames)} {seconds * 1e6:.0f}" for frames, seconds in watch.seen.most_common())
    return "\n".join([*lines, "collapsed stacks", *stacks, ""])


def table(seconds: Counter[str], whole: float) -> Iterable[str]:
    return (f"{spent / whole:7.1%}  {name}" for name, spent in seconds.most_common(SHOWN))


async def step(experiment: Experiment, team: Team, number: int) -> str:
    """One step of the loop of `cadre.training.loop` without its records; the seconds of its two halves."""
    chosen, game, plan = experiment.config, experiment.env_spec, experiment.plan
    began = time.perf_counter()
    tasks = pick_tasks(game.tasks("train"), chosen.train.tasks_per_step, number, chosen.train.seed)
    key = random_keys.key(chosen.train.seed, "train", number)
    trees, _ = await episodes.grow_many(tasks, grow.Rollout(game.make, team, plan.shape, plan.credit.alpha), key)
    sampled = time.perf_counter()
    await team.update(build_batch(trees, plan, team).sequences)
    return f"{sampled - began:.2f} s sampling, {time.perf_counter() - sampled:.2f} s learning"


async def profiled(chosen: Config, every: float, name: str) -> str:
    """The report on the second step of a recipe."""
    experiment = resolve(chosen)
    sandbox.configure(chosen.sandbox.level)
    team = build_team(experiment, train=True)
    await step(experiment, team, 0)
    with Watch(every) as watch:
        seconds = await step(experiment, team, 1)
    return report(watch, f"one step of {name}: {seconds}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipe", default="plan-path")
    parser.add_argument("--every", type=float, default=0.002, help="seconds between looks")
    parser.add_argument("overrides", nargs="*", help="changes to the recipe, such as train.tasks_per_step=4")
    options = parser.parse_args()
    chosen = load(options.recipe, options.overrides)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(asyncio.run(profiled(chosen, options.every, options.recipe)))


if __name__ == "__main__":
    main()
