"""Programs that would ask for something else when they are started again, but for what Cadre does about it."""

import asyncio
import datetime
import os
import pathlib
import random
import secrets
import select
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime as when
from uuid import uuid4

import openai

# As nearly every public example has them: made when the module is imported.
CLIENT, ASYNC_CLIENT = openai.OpenAI(), openai.AsyncOpenAI()
RUN_ID = uuid4().hex
CACHE = pathlib.Path(os.environ["DSPY_CACHEDIR"])
CACHE.mkdir(parents=True, exist_ok=True)


def ask(role, text, client=CLIENT):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=role, messages=messages).choices[0].message.content or ""


async def ask_async(role, text):
    messages = [{"role": "user", "content": text}]
    return (await ASYNC_CLIENT.chat.completions.create(model=role, messages=messages)).choices[0].message.content


def run(task):
    """Run the function that the task names: programs of one fork server, as each server imports the client anew."""
    return globals()[task["program"]](task)


def dated(task):
    begun = time.perf_counter()
    samples = f"{uuid.uuid4()} {uuid4()} {uuid.uuid1()} {random.random()} {random.Random().random()} {RUN_ID}"
    first = ask("planner", f"{when.now()} {when.now(datetime.UTC)} {datetime.date.today()} {time.time()} {samples}")
    ask("coder", f"{first} {time.perf_counter() - begun} {time.strftime('%c')} {time.ctime()}")
    return 1.0


def child(task):
    """A process of its own draws and reads the time too."""
    ask("planner", task["word"])
    code = "import uuid, time, random; print(uuid.uuid4(), time.time(), random.random())"
    ask("coder", subprocess.check_output([sys.executable, "-c", code], text=True))
    return 1.0


def foldered(task):
    ask("planner", f"You work in {os.getcwd()}.")
    ask("coder", f"{tempfile.mkdtemp()} {os.getcwd()}/notes.txt")
    return 1.0


def numbered(task):
    """A tool that prints its process id."""
    ask("planner", task["word"])
    ask("coder", subprocess.check_output(["sh", "-c", "printf 'pid %s\\nreal 0.%ss' $$ $$"], text=True))
    return 1.0


def animated(task):
    def animate():
        while True:
            sum(range(20_000))
            select.select([], [], [], 0.01)

    threading.Thread(target=animate, daemon=True).start()
    return numbered(task)


def handed_over(task):
    """Ids of tool calls that the program draws, as hand-offs of supervisors have them; results in another order."""
    first = ask("planner", task["word"])
    names = [secrets.token_hex(4) for _ in range(3)]
    calls = [{"id": name, "type": "function", "function": {"name": "go", "arguments": "{}"}} for name in names]
    messages = [{"role": "user", "content": task["word"]}, {"role": "assistant", "content": first, "tool_calls": calls}]
    messages += [{"role": "tool", "tool_call_id": name, "content": "done"} for name in reversed(names)]
    CLIENT.chat.completions.create(model="coder", messages=messages)
    return 1.0


def responded(task):
    first = CLIENT.responses.create(model="planner", input=task["word"]).output_text
    name = secrets.token_hex(4)
    items = [{"role": "user", "content": first}]
    items += [{"type": "function_call", "call_id": name, "name": "go", "arguments": "{}"}]
    items += [{"type": "function_call_output", "call_id": name, "output": "done"}]
    CLIENT.responses.create(model="coder", input=items)
    return 1.0


async def voted(task):
    """Four equal calls at once, one about all of them, and one about both."""
    votes = await asyncio.gather(*(ask_async("planner", task["word"]) for _ in range(4)))
    verdict = await ask_async("coder", "|".join(votes))
    await ask_async("planner", f"{verdict}: {', '.join(votes)}")
    return 1.0


def looked_up(number):
    """A tool whose work takes its time, never the same, and which draws."""
    select.select([], [], [], random.SystemRandom().uniform(0, 0.05))
    time.sleep(random.uniform(0, 0.05))
    select.select([], [], [], random.SystemRandom().uniform(0, 0.05))
    return f"{number} {uuid4().hex} {when.now()}"


def drawn_in_threads(task):
    """Tools at once in threads of a pool, and in threads of their own."""
    ask("planner", task["word"])
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(looked_up, range(4)))
    threads = [threading.Thread(target=lambda number=number: results.append(looked_up(number))) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ask("coder", f"{sorted(results)} {when.now()}")
    return 1.0


async def drawn_in_tasks(task):
    """Tools at once in tasks that run a command."""

    async def tool(number):
        process = await asyncio.create_subprocess_exec("true")
        await process.wait()
        return f"{number} {uuid4().hex} {await asyncio.to_thread(looked_up, number)}"

    await ask_async("planner", task["word"])
    results = await asyncio.gather(*(tool(number) for number in range(4)))
    await ask_async("coder", f"{results} {when.now()}")
    return 1.0


def first_come(task):
    """The order of the answers is that in which they come, over threads, some calls equal."""
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ask, "planner", f"{task['word']} {number % 3}") for number in range(4)]
        ask("coder", "|".join(future.result() for future in as_completed(futures)))
    return 1.0


async def staggered(task):
    """Two agents at once, one of which has a tool that takes its time, never the same."""

    async def agent(role, seconds):
        answer = await ask_async(role, task["word"])
        await asyncio.sleep(seconds)
        return await ask_async(role, f"ok. {answer}")

    text = await asyncio.gather(agent("planner", random.SystemRandom().uniform(0.05, 0.5)), agent("coder", 0))
    await ask_async("coder", " | ".join(text))
    return 1.0


def polling(task):
    """Waits until the clock says so."""
    until = time.time() + 0.3
    while time.time() < until:
        time.sleep(0.05)
    ask("planner", task["word"])
    event, until = threading.Event(), when.now() + datetime.timedelta(seconds=0.2)
    while when.now() < until:
        event.wait(0.05)
    ask("coder", task["word"])
    return 1.0


def cached(task):
    """Asks for nothing that is in its cache, whose folder it chose when it was imported."""
    database = sqlite3.connect(CACHE / "answers.db")
    database.execute("create table if not exists answers (question text, answer text)")
    for role in ("planner", "coder"):
        row = database.execute("select answer from answers where question = ?", (role,)).fetchone()
        if row is None:
            database.execute("insert into answers values (?, ?)", (role, ask(role, role)))
            database.commit()
    return 1.0


def drawn_by_the_system(task):
    ask("planner", secrets.token_hex(8))
    ask("coder", str(os.urandom(8)))
    return 1.0
