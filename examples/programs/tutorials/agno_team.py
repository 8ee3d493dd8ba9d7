"""Agno: a team whose leader delegates to two members with tools."""

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from agno.team import Team


def get_stock_price(symbol: str) -> str:
    """Get the price of a stock."""
    return f"{symbol} is at 10."


web_agent = Agent(
    name="Web Agent",
    role="Search the web for information",
    model=OpenAIChat(id="gpt-4o-mini"),
    instructions="Always include sources",
)
finance_agent = Agent(
    name="Finance Agent",
    role="Get financial data",
    model=OpenAIChat(id="gpt-4o-mini"),
    tools=[get_stock_price],
    instructions="Use tables to display data",
)
team = Team(
    name="Reasoning Team",
    model=OpenAIChat(id="gpt-4o"),
    members=[web_agent, finance_agent],
    instructions="Delegate, then answer.",
    add_datetime_to_context=True,
    markdown=True,
)


def main(task):
    return team.run(task["question"]).content
