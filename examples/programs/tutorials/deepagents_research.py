"""deepagents: a deep agent with a list of to-dos, a file system, and a sub-agent for critique."""

from deepagents import create_deep_agent
from langchain_openai import ChatOpenAI


def search(query: str) -> str:
    """Search the notes."""
    return f"The notes say nothing about {query}."


critic = {
    "name": "critic",
    "description": "Checks an answer.",
    "system_prompt": "You are a critic. Say what is wrong with the answer.",
}
agent = create_deep_agent(
    model=ChatOpenAI(model="gpt-4o"),
    tools=[search],
    system_prompt="You are an expert researcher.",
    subagents=[critic],
)


async def main(task):
    result = await agent.ainvoke({"messages": [{"role": "user", "content": task["question"]}]})
    return result["messages"][-1].content
