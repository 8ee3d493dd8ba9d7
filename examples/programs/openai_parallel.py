"""Four scouts of OpenAI's Agents SDK at once, whose proposals a walker reads."""

import asyncio

from agents import Agent, Runner
from walk import prompt, score, walked


async def main(task):
    grid = task["grid"]
    scouts = [Agent(name=f"scout {number}", model="scout", instructions=f"Way {number}.") for number in range(4)]
    proposed = await asyncio.gather(*(Runner.run(scout, prompt(grid)) for scout in scouts))
    ways = "\n".join(run.final_output for run in proposed)
    run = await Runner.run(Agent(name="walker", model="walker"), f"{prompt(grid)}\n{ways}")
    return score(grid, walked(grid, run.final_output))
