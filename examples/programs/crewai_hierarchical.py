"""A hierarchy of CrewAI: a manager delegates to scout and walker."""

from crewai import LLM, Agent, Crew, Process, Task
from walk import prompt, score, walked


def agent(role, **options):
    llm = LLM(model=role, provider="openai")
    return Agent(role=role, goal="Reach G.", backstory="You walk through grids.", llm=llm, max_iter=3, **options)


def main(task):
    grid = task["grid"]
    crew = Crew(
        agents=[agent("scout"), agent("walker")],
        tasks=[Task(description=prompt(grid), expected_output="the moves")],
        process=Process.hierarchical,
        manager_agent=agent("manager", allow_delegation=True),
    )
    return score(grid, walked(grid, crew.kickoff().raw))
