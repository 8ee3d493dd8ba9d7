"""A scout of OpenAI's Agents SDK that looks around by a tool, and walks or hands over to the walker."""

from agents import Agent, Runner, function_tool
from walk import find, prompt, score, walked


async def main(task):
    grid = task["grid"]

    @function_tool
    def distance(row: int, column: int) -> int:
        """How far a cell is from the goal."""
        goal = find(grid, "G")
        return abs(row - goal[0]) + abs(column - goal[1])

    walker = Agent(name="walker", model="walker", instructions="Say the moves.")
    scout = Agent(
        name="scout",
        model="scout",
        instructions="Say the moves, or hand over.",
        tools=[distance],
        handoffs=[walker],
    )
    run = await Runner.run(scout, prompt(grid), max_turns=8)
    return score(grid, walked(grid, run.final_output))
