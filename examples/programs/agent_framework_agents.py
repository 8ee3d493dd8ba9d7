"""The same two agents with Microsoft's Agent Framework."""

from agent_framework.openai import OpenAIChatClient
from walk import prompt, score, walked


async def main(task):
    grid = task["grid"]
    for role in ("scout", "walker"):
        agent = OpenAIChatClient(model=role).as_agent(name=role)
        said = await agent.run(prompt(grid))
        grid = walked(grid, said.text)
    return score(task["grid"], grid)
