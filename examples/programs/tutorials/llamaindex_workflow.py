"""LlamaIndex: an agent workflow in which a researcher, a writer and a reviewer hand over and share state."""

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.workflow import Context
from llama_index.llms.openai import OpenAI

llm = OpenAI(model="gpt-4o")


async def search_web(query: str) -> str:
    """Useful for using the web to answer questions."""
    return f"Nothing about {query}."


async def record_notes(ctx: Context, notes: str, notes_title: str) -> str:
    """Useful for recording notes on a given topic."""
    state = await ctx.store.get("state")
    state["notes"][notes_title] = notes
    await ctx.store.set("state", state)
    return "Notes recorded."


async def review_report(ctx: Context, review: str) -> str:
    """Useful for reviewing a report and providing feedback."""
    state = await ctx.store.get("state")
    state["review"] = review
    await ctx.store.set("state", state)
    return "Report reviewed."


research_agent = FunctionAgent(
    name="ResearchAgent",
    description="Useful for searching the web and recording notes.",
    system_prompt="You are the ResearchAgent that can search the web and record notes.",
    llm=llm,
    tools=[search_web, record_notes],
    can_handoff_to=["WriteAgent"],
)
write_agent = FunctionAgent(
    name="WriteAgent",
    description="Useful for writing a report.",
    system_prompt="You are the WriteAgent that can write a report.",
    llm=llm,
    can_handoff_to=["ReviewAgent", "ResearchAgent"],
)
review_agent = FunctionAgent(
    name="ReviewAgent",
    description="Useful for reviewing a report.",
    system_prompt="You are the ReviewAgent that can review a report.",
    llm=llm,
    tools=[review_report],
    can_handoff_to=["WriteAgent"],
)


async def main(task):
    workflow = AgentWorkflow(
        agents=[research_agent, write_agent, review_agent],
        root_agent=research_agent.name,
        initial_state={"notes": {}, "report": "Not written yet.", "review": "Review required."},
    )
    return str(await workflow.run(user_msg=task["question"], max_iterations=8))
