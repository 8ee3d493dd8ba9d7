"""A manager of smolagents that has a scout and a walker as tools."""

from smolagents import OpenAIModel, ToolCallingAgent
from walk import prompt, score, walked


def main(task):
    grid = task["grid"]
    managed = [
        ToolCallingAgent(
            tools=[],
            model=OpenAIModel(model_id=role),
            name=role,
            description=f"A {role} through grids.",
            max_steps=2,
            verbosity_level=0,
        )
        for role in ("scout", "walker")
    ]
    manager = ToolCallingAgent(
        tools=[], model=OpenAIModel(model_id="manager"), managed_agents=managed, max_steps=3, verbosity_level=0
    )
    return score(grid, walked(grid, str(manager.run(prompt(grid)))))
