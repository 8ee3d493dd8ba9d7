"""Functions that draw in threads, tasks and pools after real waits of random length: `drawing.py NAME ...` runs each
several times from the same seed and prints, as JSON by name, how many different results there were and the last one.
"""

import asyncio
import contextvars
import datetime
import json
import multiprocessing.pool
import random
import select
import sys
import threading
import time
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed

import anyio
import anyio.to_thread
import cadre_steady
import numpy

SYSTEM = random.SystemRandom()
FORKING = multiprocessing.get_context("fork")


def draw(number):
    select.select([], [], [], SYSTEM.uniform(0, 0.005))
    time.sleep(random.uniform(0, 0.002))
    select.select([], [], [], SYSTEM.uniform(0, 0.005))
    samples = [random.random(), random.gauss(0, 1), random.Random().random()]
    samples += [numpy.random.rand(), numpy.random.default_rng().random()]
    return [number, uuid.uuid4().hex, str(datetime.datetime.now()), *samples]


async def draw_later(number):
    await asyncio.to_thread(select.select, [], [], [], SYSTEM.uniform(0, 0.005))
    return draw(number)


def threads():
    samples = {}
    running = [threading.Thread(target=lambda n=n: samples.update({n: draw(n)})) for n in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return [samples[n] for n in range(4)]


def subclassed():
    class Tool(threading.Thread):
        def run(self):
            self.drawn = draw(0)

    tools = [Tool() for _ in range(4)]
    for tool in tools:
        tool.start()
    for tool in tools:
        tool.join()
    return [tool.drawn for tool in tools]


def pool():
    with ThreadPoolExecutor(2) as few, ThreadPoolExecutor(4) as many:
        futures = [few.submit(contextvars.copy_context().run, draw, n) for n in range(5)]
        by_number = {future.result()[0]: future.result() for future in as_completed(futures)}
        return [sorted(by_number.items()), list(many.map(draw, range(4))), threads()]


def nested_pools():
    def tool(number):
        with ThreadPoolExecutor(2) as inner:
            return [*inner.map(draw, range(3)), draw(number)]

    with ThreadPoolExecutor(3) as outer:
        return list(outer.map(tool, range(3)))


def thread_pool_of_multiprocessing():
    with multiprocessing.pool.ThreadPool(3) as workers:
        single = [workers.apply_async(draw, (n,)) for n in range(4)]
        return [
            workers.map(draw, range(5)),
            workers.starmap(draw, [(n,) for n in range(5)]),
            list(workers.imap(draw, range(5))),
            sorted(workers.imap_unordered(draw, range(5))),
            [result.get() for result in single],
        ]


def processes():
    with ProcessPoolExecutor(2, mp_context=FORKING) as executor, FORKING.Pool(2) as workers:
        return [list(executor.map(draw, range(4))), workers.map(draw, range(4))]


async def gathered():
    return await asyncio.gather(*(draw_later(n) for n in range(4)))


async def to_thread():
    return await asyncio.gather(*(asyncio.to_thread(draw, n) for n in range(5)))


async def executor():
    loop = asyncio.get_running_loop()
    return await asyncio.gather(*(loop.run_in_executor(None, draw, n) for n in range(5)))


async def anyio_threads():
    samples = {}

    async def tool(number):
        samples[number] = [await anyio.to_thread.run_sync(draw, n) for n in range(2)]

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(tool, number)
    return sorted(samples.items())


def loop_of_a_thread():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(number):
        select.select([], [], [], SYSTEM.uniform(0, 0.005))
        return asyncio.run_coroutine_threadsafe(draw_later(number), loop).result()

    with ThreadPoolExecutor(4) as callers:
        samples = list(callers.map(call, range(4)))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    return samples


def loops_in_threads():
    with ThreadPoolExecutor(2) as workers:
        return list(workers.map(lambda n: asyncio.run(gathered()), range(3)))


# Clocks


def slept():
    return round(time.perf_counter(), 6)


def clock_of_threads():
    """Read the clock in two threads that sleep, before one is waited for, and after that."""
    read = {}

    def tool(seconds):
        time.sleep(seconds)
        read[seconds] = slept()

    running = [threading.Thread(target=tool, args=(seconds,)) for seconds in (0.01, 0.03)]
    time.sleep(0.002)
    for thread in running:
        thread.start()
    while len(read) < 2:
        select.select([], [], [], 0.001)
    initial_slept = slept()
    for thread in running:
        thread.join()
    return [read[0.01], read[0.03], initial_slept, slept()]


def clock_of_a_pool():
    with ThreadPoolExecutor(2) as workers:
        futures = [workers.submit(time.sleep, seconds) for seconds in (0.01, 0.03)]
        futures[0].result()
        first = slept()
        futures[1].result()
    return [first, slept()]


async def clock_of_tasks():
    task = asyncio.create_task(asyncio.sleep(0.01))
    await asyncio.gather(asyncio.sleep(0.03), asyncio.sleep(0.02))
    gathered_at = slept()
    await task
    await asyncio.to_thread(time.sleep, 0.01)
    in_a_thread = slept()
    await asyncio.sleep(0.002)
    return [gathered_at, in_a_thread, slept()]


def seeded():
    """Return draws of the program's own seed, beside a thread that draws."""
    random.seed(7)
    numpy.random.seed(7)
    first = random.random()
    threads()
    return [first, random.random(), numpy.random.rand()]


def main():
    results = {}
    for name in sys.argv[1:]:
        function, matches = globals()[name], set()
        for _ in range(4):
            cadre_steady.make_steady("seed", "2026-01-01T12:00:00")
            result = asyncio.run(function()) if asyncio.iscoroutinefunction(function) else function()
            matches.add(json.dumps(result))
        results[name] = [len(matches), json.loads(matches.pop())]
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
