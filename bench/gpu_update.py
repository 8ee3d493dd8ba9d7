"""What an update does beside its kernels: counters around each, and a profile of one; for bench/gpu.py.

    python bench/gpu_update.py FILE NUMBER train RECIPE ... --run RUN

is `cadre train RECIPE ... --run RUN` in this process with the counters of each update as a line of FILE. The update
NUMBER, counted from 0, is profiled in place of that: its kernels are listed in FILE.txt.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

T = TypeVar("T")
ROWS = 60


def count(work: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """Do the work, and return its result and what it took:

    seconds           of the clock
    processor_s       of all threads of the process, of which `system_s` in the system
    garbage_s         in Python's garbage collector
    gpu_allocations   calls of cudaMalloc, which the cache of torch should spare; `retries` emptied the cache before
    host_allocations  calls of cudaHostAlloc, for copies to the GPU
    switches          involuntary switches of its threads from the processor
    compilations      graphs that torch compiled: none is due after the first updates
    clock_mhz         of the GPU, right after it; 0 where it is not known
    """
    collected: list[float] = []

    def watch(phase: str, info: dict[str, Any]) -> None:
        now = time.perf_counter()
        collected.append(-now if phase == "start" else now)

    before = _read()
    gc.callbacks.append(watch)
    began = time.perf_counter()
    try:
        result = work()
    finally:
        gc.callbacks.remove(watch)
    seconds = time.perf_counter() - began
    spent = {name: value - before[name] for name, value in _read().items()}
    return result, {"seconds": seconds, "garbage_s": sum(collected), "clock_mhz": _clock(), **spent}


def _read() -> dict[str, float]:
    usage, cuda = resource.getrusage(resource.RUSAGE_SELF), torch.cuda.is_available()
    device = torch.cuda.memory_stats() if cuda else {}
    host = torch.cuda.host_memory_stats() if cuda and hasattr(torch.cuda, "host_memory_stats") else {}
    return {
        "processor_s": usage.ru_utime + usage.ru_stime,
        "system_s": usage.ru_stime,
        "gpu_allocations": device.get("num_device_alloc", 0),
        "retries": device.get("num_alloc_retries", 0),
        "host_allocations": host.get("num_host_alloc", 0),
        "switches": usage.ru_nivcsw,
        "compilations": torch._dynamo.utils.counters["stats"]["unique_graphs"],
    }


def _clock() -> float:
    try:
        return float(torch.cuda.clock_rate()) if torch.cuda.is_available() else 0.0
    except (ImportError, RuntimeError):  # it takes NVIDIA's management library
        return 0.0


@dataclass(frozen=True)
class Profile:
    """The seconds of all kernels and their number, and a table of the longest and of calls of the driver."""

    kernel_s: float
    kernels: int
    table: str


def profiled(work: Callable[[], T]) -> tuple[T, Profile]:
    """Do the work under torch's profiler; without a GPU the table has operations on the CPU."""
    on_gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        result = work()
    kernels: list[tuple[float, int, str]] = []
    calls: list[tuple[float, int, str]] = []
    for event in profiler.key_averages():
        if event.device_type == DeviceType.CPU:
            calls.append((event.self_cpu_time_total / 1e3, event.count, event.key))
        else:
            kernels.append((event.self_device_time_total / 1e3, event.count, event.key))
    lines = ["Milliseconds, calls, kernel.", *_rows(kernels, ROWS)]
    lines += ["", "Milliseconds, calls, call of the driver.", *_rows(calls, ROWS // 3)]
    total, number = sum(each[0] for each in kernels) / 1e3, sum(each[1] for each in kernels)
    head = f"{number} kernels of {total:.3f} s"
    return result, Profile(total, number, "\n".join([head, "", *lines, ""]))


def _rows(entries: list[tuple[float, int, str]], most: int) -> list[str]:
    return [
        f"{each:12.1f} ms  x{number:<6} {name[:120]}" for each, number, name in sorted(entries, reverse=True)[:most]
    ]


def main() -> None:
    from cadre.cli import main as cadre
    from cadre.engines.torch.trainer import Trainer

    file, number = Path(sys.argv[1]), int(sys.argv[2])
    update, done = Trainer.update, 0

    def watched(trainer: Trainer, sequences: Any) -> Any:
        nonlocal done
        done += 1
        if done - 1 == number:
            result, found = profiled(lambda: update(trainer, sequences))
            file.with_suffix(".txt").write_text(found.table)
            line: dict[str, float] = {"kernel_s": found.kernel_s, "kernels": found.kernels}
        else:
            result, counters = count(lambda: update(trainer, sequences))
            line = counters | {"microbatch_tokens": trainer._runner.tokens}
        with file.open("a") as out:
            out.write(json.dumps(line) + "\n")
        return result

    Trainer.update = watched  # type: ignore[method-assign, assignment]
    sys.argv = ["cadre", *sys.argv[3:]]
    cadre()


if __name__ == "__main__":
    main()
