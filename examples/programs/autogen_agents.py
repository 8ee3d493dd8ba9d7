"""The same two agents with AutoGen."""

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from walk import prompt, score, walked

INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family=ModelFamily.UNKNOWN, structured_output=True
)


async def main(task):
    grid = task["grid"]
    for role in ("scout", "walker"):
        agent = AssistantAgent(role, OpenAIChatCompletionClient(model=role, model_info=INFO), system_message=None)
        said = await agent.run(task=prompt(grid))
        grid = walked(grid, said.messages[-1].content)
    return score(task["grid"], grid)
