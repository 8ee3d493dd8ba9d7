"""DPBench, a published benchmark of dining philosophers on LangGraph, as it is on PyPI: its graph asks, we answer."""

from dpbench import Benchmark
from openai import OpenAI

SYSTEM = "You are {philosopher_name}, one of {num_philosophers} at a round table. You eat once you hold both forks."
DECISION = (
    "You hold {holding_status}. Left fork: {left_fork_status}. Right fork: {right_fork_status}.\n"
    "End with ACTION: and GRAB_LEFT, GRAB_RIGHT, RELEASE or WAIT."
)


def main(task):
    client = OpenAI()

    def model(system, user):
        asked = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return client.chat.completions.create(model="philosopher", messages=asked).choices[0].message.content

    result = Benchmark.run(
        model, SYSTEM, DECISION, philosophers=task["philosophers"], episodes=1, max_timesteps=task["steps"], seed=0
    )
    return {"team": result["avg_throughput"], "success": result["deadlock_rate"] == 0}
