"""AG2: an agent with a tool that asks another agent."""

from ag2 import Agent
from ag2.config import OpenAIConfig

expert = Agent("expert", prompt="You are an expert.", config=OpenAIConfig(model="gpt-4o-mini"))


async def ask_expert(question: str) -> str:
    """Ask the expert."""
    reply = await expert.ask(question)
    return reply.body or ""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


lead = Agent("lead", prompt="You lead.", config=OpenAIConfig(model="gpt-4o"), tools=[ask_expert, add])


async def main(task):
    reply = await lead.ask(task["question"])
    return reply.body
