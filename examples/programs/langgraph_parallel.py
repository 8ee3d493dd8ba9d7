"""Scout and walker propose ways at once, in two branches of a LangGraph; a judge says which is taken."""

import operator
from typing import Annotated, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from walk import prompt, score, walked


class State(TypedDict):
    grid: list[str]
    proposed: Annotated[list[tuple[str, str]], operator.add]


def agent(role):
    def act(state: State) -> dict:
        answer = ChatOpenAI(model=role).invoke([("user", prompt(state["grid"]))])
        return {"proposed": [(role, answer.content)]}

    return act


def judge(state: State) -> dict:
    shown = "\n".join(f"{role}: {moves}" for role, moves in sorted(state["proposed"]))
    answer = ChatOpenAI(model="judge").invoke([("user", f"{prompt(state['grid'])}\n{shown}\nWhich is better?")])
    chosen = "walker" if "walker" in answer.content else "scout"
    return {"grid": walked(state["grid"], dict(state["proposed"])[chosen])}


graph = StateGraph(State)
for role in ("scout", "walker"):
    graph.add_node(role, agent(role))
    graph.add_edge(START, role)
graph.add_node("judge", judge)
graph.add_edge(["scout", "walker"], "judge")
graph.add_edge("judge", END)
team = graph.compile()


def main(task):
    return score(task["grid"], team.invoke({"grid": task["grid"], "proposed": []})["grid"])
