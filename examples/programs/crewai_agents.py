"""The same two agents with CrewAI."""

from crewai import LLM, Agent
from walk import prompt, score, walked


def main(task):
    grid = task["grid"]
    for role in ("scout", "walker"):
        agent = Agent(
            role=role, goal="Reach G.", backstory="You walk through grids.", llm=LLM(model=role, provider="openai")
        )
        said = agent.kickoff(prompt(grid))
        grid = walked(grid, said.raw)
    return score(task["grid"], grid)
