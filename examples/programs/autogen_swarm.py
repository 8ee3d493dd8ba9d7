"""A swarm of AutoGen: scout and walker hand over to each other until eight messages are said."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import Swarm
from autogen_agents import INFO
from autogen_ext.models.openai import OpenAIChatCompletionClient
from walk import prompt, score, walked

OTHER = {"scout": "walker", "walker": "scout"}


async def main(task):
    grid = task["grid"]
    agents = [
        AssistantAgent(
            role,
            OpenAIChatCompletionClient(model=role, model_info=INFO),
            handoffs=[other],
            system_message="Say the moves, or hand over.",
        )
        for role, other in OTHER.items()
    ]
    said = await Swarm(agents, termination_condition=MaxMessageTermination(8)).run(task=prompt(grid))
    for message in said.messages:
        if message.source in OTHER and isinstance(message.content, str):
            grid = walked(grid, message.content)
    return score(task["grid"], grid)
