"""AutoGen: a selector chooses who speaks next, a planner, a searcher and an analyst with tools."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import SelectorGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient


def search_web_tool(query: str) -> str:
    """Search the web."""
    return f"Found nothing about {query}."


def percentage_change_tool(start: float, end: float) -> float:
    """The change in percent."""
    return ((end - start) / start) * 100 if start else 0.0


async def main(task):
    model_client = OpenAIChatCompletionClient(model="gpt-4o")
    planner = AssistantAgent(
        "PlanningAgent",
        description="An agent for planning tasks, this agent should be the first to engage when given a new task.",
        model_client=model_client,
        system_message="You are a planning agent. After all tasks are complete, end with TERMINATE.",
    )
    searcher = AssistantAgent(
        "WebSearchAgent",
        description="An agent for searching information on the web.",
        tools=[search_web_tool],
        model_client=model_client,
        system_message="You are a web search agent. You make only one search call at a time.",
    )
    analyst = AssistantAgent(
        "DataAnalystAgent",
        description="An agent for performing calculations.",
        tools=[percentage_change_tool],
        model_client=model_client,
        system_message="You are a data analyst. Use the tools you have been provided.",
        reflect_on_tool_use=True,
    )
    team = SelectorGroupChat(
        [planner, searcher, analyst],
        model_client=OpenAIChatCompletionClient(model="gpt-4o-mini"),
        termination_condition=TextMentionTermination("TERMINATE") | MaxMessageTermination(8),
        allow_repeated_speaker=True,
    )
    result = await team.run(task=task["question"])
    return result.messages[-1].to_text()
