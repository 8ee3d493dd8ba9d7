"""Haystack: a pipeline in which an agent with tools, one of which is another agent, is followed by a generator."""

from typing import Annotated

from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import ComponentTool, tool


@tool
def calculator(a: Annotated[int, "the first number"], b: Annotated[int, "the second number"]) -> int:
    """Add two numbers."""
    return a + b


researcher = Agent(
    chat_generator=OpenAIChatGenerator(model="gpt-4o-mini"),
    tools=[calculator],
    system_prompt="You are a researcher.",
    max_agent_steps=3,
)
research_tool = ComponentTool(
    component=researcher,
    name="research",
    description="Ask the researcher.",
    parameters={
        "type": "object",
        "properties": {
            "messages": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"role": {"enum": ["user"]}, "content": {"type": "string"}},
                    "required": ["role", "content"],
                },
            }
        },
        "required": ["messages"],
    },
    outputs_to_string={"source": "last_message"},
)
coordinator = Agent(
    chat_generator=OpenAIChatGenerator(model="gpt-4o"),
    tools=[research_tool],
    system_prompt="You are the coordinator.",
    max_agent_steps=3,
)
pipeline = Pipeline()
pipeline.add_component("coordinator", coordinator)
template = [ChatMessage.from_user("Say in one sentence: {{ messages[-1].text }}")]
pipeline.add_component("prompt", ChatPromptBuilder(template=template, required_variables=["messages"]))
pipeline.add_component("writer", OpenAIChatGenerator(model="gpt-4o-mini"))
pipeline.connect("coordinator.messages", "prompt.messages")
pipeline.connect("prompt.prompt", "writer.messages")


def main(task):
    result = pipeline.run({"coordinator": {"messages": [ChatMessage.from_user(task["question"])]}})
    return result["writer"]["replies"][0].text
