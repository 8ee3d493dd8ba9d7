"""A taskset whose reward ends no call: it blocks, loops, exits or interrupts, by the argument `mode`."""

import sys
import time

import verifiers.v1 as vf


class Config(vf.TaskConfig):
    mode: str = ""


class Hostile(vf.Task[vf.TaskData, vf.State, Config]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        match self.config.mode:
            case "block":
                time.sleep(5)
            case "loop":
                while True:
                    pass
            case "exit":
                sys.exit(0)
            case "interrupt":
                raise KeyboardInterrupt
        return 1.0


class TasksetConfig(vf.TasksetConfig):
    mode: str = ""


class HostileTaskset(vf.Taskset[Hostile, TasksetConfig]):
    def load(self):
        for number in range(4):
            yield Hostile(vf.TaskData(prompt=f"Say {number}."), Config(mode=self.config.mode))


__all__ = ["HostileTaskset"]
