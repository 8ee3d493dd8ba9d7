"""smolagents: a code agent that manages a tool-calling agent."""

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool


@tool
def visit_webpage(url: str) -> str:
    """Visits a webpage at the given URL and returns its content as a markdown string.

    Args:
        url: The URL of the webpage to visit.
    """
    return f"The page {url} is empty."


web_agent = ToolCallingAgent(
    tools=[visit_webpage],
    model=OpenAIServerModel(model_id="gpt-4o-mini"),
    max_steps=3,
    name="web_search_agent",
    description="Runs web searches for you.",
)
manager_agent = CodeAgent(tools=[], model=OpenAIServerModel(model_id="gpt-4o"), managed_agents=[web_agent], max_steps=3)


def main(task):
    return str(manager_agent.run(task["question"]))
