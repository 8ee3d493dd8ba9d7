"""Programs as their authors would write them: they know OpenAI's client, and nothing of Cadre."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import threading
import time


def run(task, client):
    """Run the function that the task names: programs of one fork server, as each server imports the client anew."""
    return globals()[task["program"]](task, client)


def ask(client, role, *messages, **more):
    answer = [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(messages)]
    return client.chat.completions.create(model=role, messages=answer, **more).choices[0].message.content


def relay(task, client):
    """A planner says something, a coder repeats it; twice. Half a point for each time that it does."""
    right, heard = 0.0, []
    for turn in range(2):
        note = ask(client, "planner", *heard, f"turn {turn} of {task['word']}")
        heard += [f"turn {turn} of {task['word']}", note]
        right += 0.5 * (ask(client, "coder", f"repeat {note}") == note)
    return right


def slow(task, client):
    """Four turns with a tool that takes its time before each."""
    for turn in range(4):
        time.sleep(0.3)
        ask(client, "planner", f"turn {turn}")
    return 1.0


def dialogue(task, client):
    """The same as `Dialogue` in test_program_parity.py."""
    import cadre_program

    heard = []
    for turn in range(task["turns"]):
        heard.append(f"{task['word']} {turn}")
        note = ask(client, "planner", *heard)
        heard.append(note)
        cadre_program.reward(local={"planner": len(set(note)) / 10})
        echo = ask(client, "coder", f"repeat {note}")
        cadre_program.reward(team=float(echo[:1] == note[:1]), local={"coder": len(set(echo) & set(note)) / 10})
    return None


def likeness(task, client):
    """A number that hangs on every letter that is said."""
    heard, reward = [], 0.0
    for turn in range(task["turns"]):
        heard.append(f"{task['word']} {turn}")
        heard.append(ask(client, "planner", *heard))
        echo = ask(client, "gpt", f"repeat {heard[-1]}")
        reward += sum(map(ord, heard[-1] + echo))
    return reward


def daemon(task, client):
    """Starts a process that is nobody's child any more, and asks; whether that process is there after the answer."""
    number = subprocess.check_output("sleep 60 >/dev/null 2>&1 & echo $!", shell=True, text=True).strip()
    ask(client, "planner", task["word"])
    return float(os.path.exists(f"/proc/{number}"))


def unaided(task):
    """Takes no client, and finds address and key in the environment."""
    import openai

    return relay(task, openai.OpenAI())


def pair(task, client):
    """Both are asked at once, from two threads."""
    texts = {}
    threads = [
        threading.Thread(target=lambda role=role: texts.update({role: ask(client, role, task["word"])}))
        for role in ("planner", "coder")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"team": float(texts["planner"] == texts["coder"]), "local": {"coder": len(texts["coder"]) / 10}}


async def swarm(task, client):
    """Four calls of one role at once, then one about them."""

    async def each(number):
        await asyncio.sleep(0.001 * (number % 2))
        created = await client.chat.completions.create(
            model="planner", messages=[{"role": "user", "content": f"{task['word']} {number}"}]
        )
        return created.choices[0].message.content

    text = await asyncio.gather(*(each(number) for number in range(4)))
    create = await client.chat.completions.create(model="coder", messages=[{"role": "user", "content": " ".join(text)}])
    return float(create.choices[0].message.content == "yes")


def several(task, client):
    """Two plans in one request, and one call about both; a request that is refused is made once more, shorter."""
    import openai

    messages = [{"role": "user", "content": task["word"]}]
    try:
        create = client.chat.completions.create(model="planner", messages=messages, n=2)
    except openai.BadRequestError:
        messages[0]["content"] = "short"
        create = client.chat.completions.create(model="planner", messages=messages, n=2)
    plans = [choice.message.content for choice in create.choices]
    return float(ask(client, "coder", " ".join(plans)) == plans[1])


def odd(task, client):
    """Asks for something else each time that it is started."""
    ask(client, "planner", task["word"])
    ask(client, "planner", f"{task['word']} {secrets.token_hex(8)}")
    return 1.0


def odd_first(task, client):
    ask(client, "planner", f"{task['word']} {secrets.token_hex(8)}")
    return float(ask(client, "planner", "again") == "yes")


def twice(task, client):
    """Two questions of the first role, so that a fork of the second has to be started anew."""
    first = ask(client, "planner", task["word"])
    return float(len(first) + len(ask(client, "planner", "second")))


def tools(task, client):
    """Uses a tool whose effect is seen outside."""
    import cadre_program

    ask(client, "planner", task["word"])
    number = cadre_program.memo(effect, task["log"])
    with open("note.txt", "a") as file:
        file.write("x")
    with open("note.txt") as file:
        ask(client, "planner", f"{number} {file.read()}")
    cadre_program.reward(team=0.25, local={"planner": 0.5})
    ask(client, "planner", "last")
    return {"team": 1.0, "success": False}


def effect(log):
    with open(log, "a") as file:
        file.write("x")
    return os.stat(log).st_size


def calls(task, client):
    """An agent with tools, as the client has them."""
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    messages = [{"role": "user", "content": task["word"]}]
    create = client.chat.completions.create(model="planner", messages=messages, tools=[tool]).choices[0].message
    while create.tool_calls:
        messages.append(create)
        for call in create.tool_calls:
            value = sum(json.loads(call.function.arguments).values())
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(value)})
        create = client.chat.completions.create(model="planner", messages=messages, tools=[tool]).choices[0].message
    return float(create.content == "3")


def several_calls(task, client):
    """An agent whose tools leave marks that differ each time, but only where it makes several calls at once."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    messages = [{"role": "user", "content": task["word"]}]
    create = client.chat.completions.create(model="planner", messages=messages, tools=[tool]).choices[0].message
    if create.tool_calls:
        messages.append(create)
        for call in create.tool_calls:
            mark = secrets.token_hex(8) if len(create.tool_calls) > 1 else "seen"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": mark})
        client.chat.completions.create(model="planner", messages=messages, tools=[tool])
    return 1.0


def measured(task, client):
    """Reads what answers of a model have beside their text."""
    messages = [{"role": "user", "content": task["word"]}]
    create = client.chat.completions.create(model="planner", messages=messages, logprobs=True, max_tokens=3)
    tokens = create.choices[0].logprobs.content
    assert len(tokens) == create.usage.completion_tokens in (1, 2, 3)
    assert create.usage.prompt_tokens > 0
    assert max(token.logprob for token in tokens) <= 0.0
    create = client.chat.completions.create(model="coder", messages=messages, response_format={"type": "json_object"})
    assert json.loads(create.choices[0].message.content)
    return 1.0


def unmapped(task, client):
    ask(client, "planner", task["word"])
    try:
        ask(client, "gpt-judge", task["word"])
    except Exception as error:
        error.add_note(f"During task {task['word']} with id {secrets.token_hex(4)}")
        raise


def warmed(task, client):
    """Return whether the types of answers were built before this program was started."""
    from openai.types.chat import ChatCompletion

    return float(ChatCompletion.__pydantic_complete__)


def raises(task, client):
    ask(client, "planner", task["word"])
    raise KeyError("mistake")


def hangs(task, client):
    ask(client, "planner", task["word"])
    time.sleep(1000)


def exits(task, client):
    ask(client, "planner", task["word"])
    os._exit(3)


def forks(task, client):
    ask(client, "planner", task["word"])
    for _ in range(30):
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    time.sleep(1000)


def eats(task, client):
    ask(client, "planner", task["word"])
    return len(bytearray(3 << 30))


def swallows(task, client):
    """Goes on whatever happens."""
    for _ in range(10_000):
        try:
            ask(client, "planner", task["word"])
        except Exception:  # noqa: BLE001
            time.sleep(0.001)
    return 1.0


def unpaid(task, client):
    return "well done" if ask(client, "planner", task["word"]) else ""


def score(task, transcript, result):
    """A reward function of the user's: how often the answers say the word."""
    right = sum(exchange["answer"]["content"] == task["word"] for exchange in transcript)
    return {"team": right / len(transcript), "success": right == len(transcript)}


async def score_later(task, transcript, result):
    await asyncio.sleep(0)
    return score(task, transcript, result)["team"] if transcript else 0.25


def score_as_scalar(task, transcript, result):
    import numpy

    return numpy.float32(score(task, transcript, result)["team"] if transcript else 0.25)


def score_in_words(task, transcript, result):
    return "good"


async def score_turn_later(task, exchange):
    return score_turn(task, exchange)


def scalars(task, client):
    """A program whose reward has numbers of numpy."""
    import numpy

    return {"team": numpy.float32(0.5), "local": {"planner": numpy.int64(2)}, "success": numpy.bool_(True)}


def score_turn(task, exchange):
    return len(exchange["answer"]["content"])


if __name__ == "__main__":
    import openai

    task = json.load(sys.stdin)
    print("Some words first.")
    print(json.dumps({"team": relay(task, openai.OpenAI()), "parts": {"told": 1.0}}))
