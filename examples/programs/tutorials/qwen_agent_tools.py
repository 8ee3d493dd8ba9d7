"""Qwen-Agent: an assistant with a tool of its own, and a second one that sums up."""

import json

from qwen_agent.agents import Assistant
from qwen_agent.tools.base import BaseTool, register_tool

LLM = {"model": "gpt-4o-mini", "model_type": "oai", "generate_cfg": {"use_raw_api": True}}


@register_tool("add_numbers")
class AddNumbers(BaseTool):
    description = "Add two whole numbers."
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }

    def call(self, params: str, **kwargs) -> str:
        numbers = json.loads(params)
        return str(numbers["a"] + numbers["b"])


def answer(bot, text):
    *_, replies = bot.run(messages=[{"role": "user", "content": text}])
    return replies[-1]["content"]


def main(task):
    solver = Assistant(llm=LLM, system_message="You are a solver.", function_list=["add_numbers"])
    writer = Assistant(llm=LLM, system_message="You are a writer.")
    return answer(writer, f"Sum up: {answer(solver, task['question'])}")
