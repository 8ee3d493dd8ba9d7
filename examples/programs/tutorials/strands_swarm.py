"""Strands: a swarm of a researcher and a coder that hand over, then an agent with an agent as a tool."""

from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.multiagent import Swarm


def model(name):
    return OpenAIModel(model_id=name, client_args={"max_retries": 0})


@tool
def letter_counter(word: str, letter: str) -> int:
    """Count occurrences of a letter in a word."""
    return word.lower().count(letter.lower())


@tool
def summarize(text: str) -> str:
    """Summarize a text."""
    summarizer = Agent(model=model("gpt-4o-mini"), system_prompt="You are a summarizer.", callback_handler=None)
    return str(summarizer(text))


async def main(task):
    researcher = Agent(name="researcher", model=model("gpt-4o"), system_prompt="You research.", callback_handler=None)
    coder = Agent(
        name="coder",
        model=model("gpt-4o"),
        system_prompt="You write code.",
        tools=[letter_counter],
        callback_handler=None,
    )
    swarm = Swarm([researcher, coder], max_handoffs=3, max_iterations=4)
    result = await swarm.invoke_async(task["question"])
    said = " ".join(str(node.result) for node in result.results.values())
    lead = Agent(
        model=model("gpt-4o-mini"), system_prompt="You are the lead.", tools=[summarize], callback_handler=None
    )
    return str(await lead.invoke_async(f"{task['question']} {said}"))
