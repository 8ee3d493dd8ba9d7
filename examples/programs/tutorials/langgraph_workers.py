"""LangGraph: an orchestrator plans sections in a structured output, workers write them in parallel (`Send`)."""

import operator
from typing import Annotated, TypedDict

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from pydantic import BaseModel, Field

llm = ChatOpenAI(model="gpt-4o-mini")


class Sections(BaseModel):
    sections: list[str] = Field(description="Names of the sections.")


planner = llm.with_structured_output(Sections)


class State(TypedDict):
    topic: str
    sections: list[str]
    completed: Annotated[list[str], operator.add]
    report: str


class WorkerState(TypedDict):
    section: str
    completed: Annotated[list[str], operator.add]


def orchestrate(state: State):
    plan = planner.invoke([SystemMessage("You plan the report."), HumanMessage(f"Here is the topic: {state['topic']}")])
    return {"sections": plan.sections}


def work(state: WorkerState):
    reply = llm.invoke([SystemMessage("You write one section."), HumanMessage(f"Section: {state['section']}")])
    return {"completed": [reply.content]}


def synthesize(state: State):
    return {"report": "\n\n---\n\n".join(state["completed"])}


def assign(state: State):
    return [Send("work", {"section": section}) for section in state["sections"]] or "synthesize"


builder = StateGraph(State)
builder.add_node("orchestrate", orchestrate)
builder.add_node("work", work)
builder.add_node("synthesize", synthesize)
builder.add_edge(START, "orchestrate")
builder.add_conditional_edges("orchestrate", assign, ["work", "synthesize"])
builder.add_edge("work", "synthesize")
builder.add_edge("synthesize", END)
graph = builder.compile(checkpointer=InMemorySaver())


def main(task):
    config = {"configurable": {"thread_id": "1"}}
    for _ in graph.stream({"topic": task["question"]}, config, stream_mode="updates"):
        pass
    return graph.get_state(config).values["report"]
