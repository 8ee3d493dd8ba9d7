"""Scout and walker of Microsoft's Agent Framework at once, by its concurrent orchestration."""

from agent_framework.openai import OpenAIChatClient
from agent_framework.orchestrations import ConcurrentBuilder
from walk import prompt, score, walked


async def main(task):
    grid = task["grid"]
    agents = [OpenAIChatClient(model=role).as_agent(name=role) for role in ("scout", "walker")]
    run = await ConcurrentBuilder(participants=agents).build().run(prompt(grid))
    said = {message.author_name: message.text for output in run.get_outputs() for message in messages_of(output)}
    for role in ("scout", "walker"):
        grid = walked(grid, said.get(role, ""))
    return score(task["grid"], grid)


def messages_of(output):
    return output if isinstance(output, list) else getattr(output, "messages", [])
