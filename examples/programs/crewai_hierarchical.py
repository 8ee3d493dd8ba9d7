"""A hierarchy of CrewAI: a manager delegates to scout and walker."""

from crewai import LLM, Agent, Crew, Process, Task
from walk import prompt, score, walked


def main(task):
    grid = task["grid"]
    agents = [
        Agent(
            role=role,
            goal="Reach G.",
            backstory="You walk through grids.",
            llm=LLM(model=role, provider="openai"),
            max_iter=3,
        )
        for role in ("scout", "walker")
    ]
    crew = Crew(
        agents=agents,
        tasks=[Task(description=prompt(grid), expected_output="the moves")],
        process=Process.hierarchical,
        manager_llm=LLM(model="manager", provider="openai"),
    )
    return score(grid, walked(grid, crew.kickoff().raw))
