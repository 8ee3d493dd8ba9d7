"""langgraph-supervisor: a supervisor hands over to a math expert and a research expert, each with a tool."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph_supervisor import create_supervisor

model = ChatOpenAI(model="gpt-4o")


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


def web_search(query: str) -> str:
    """Search the web for information."""
    return f"Nothing new about {query}."


math_agent = create_agent(
    model=model, tools=[add], name="math_expert", system_prompt="You are a math expert. Use one tool at a time."
)
research_agent = create_agent(
    model=model, tools=[web_search], name="research_expert", system_prompt="You are a researcher with web search."
)
workflow = create_supervisor(
    [research_agent, math_agent],
    model=model,
    prompt="You are a team supervisor managing a research expert and a math expert.",
)
app = workflow.compile()


def main(task):
    result = app.invoke({"messages": [{"role": "user", "content": task["question"]}]})
    return result["messages"][-1].content
