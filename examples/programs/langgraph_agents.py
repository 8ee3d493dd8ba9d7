"""The same two agents as a graph of LangGraph."""

from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from walk import prompt, score, walked


class State(TypedDict):
    grid: list[str]


def agent(role):
    def act(state: State) -> State:
        answer = ChatOpenAI(model=role).invoke([("user", prompt(state["grid"]))])
        return {"grid": walked(state["grid"], answer.content)}

    return act


graph = StateGraph(State)
graph.add_node("scout", agent("scout"))
graph.add_node("walker", agent("walker"))
graph.add_edge(START, "scout")
graph.add_edge("scout", "walker")
graph.add_edge("walker", END)
team = graph.compile()


def main(task):
    return score(task["grid"], team.invoke({"grid": task["grid"]})["grid"])
