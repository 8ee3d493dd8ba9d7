"""Semantic Kernel: a triage agent with a hand-off to an agent with a plugin, and two agents that are asked at once."""

from semantic_kernel.agents import ChatCompletionAgent, ConcurrentOrchestration, SequentialOrchestration
from semantic_kernel.agents.runtime import InProcessRuntime
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function


class OrderPlugin:
    @kernel_function(description="Count the items of an order.")
    def count_items(self, order: str) -> str:
        return str(len(order.split(",")))


def agent(name, instructions, plugins=()):
    service = OpenAIChatCompletion(ai_model_id="gpt-4o-mini")
    return ChatCompletionAgent(name=name, instructions=instructions, service=service, plugins=list(plugins))


async def main(task):
    runtime = InProcessRuntime()
    runtime.start()
    experts = ConcurrentOrchestration(
        members=[
            agent("PhysicsExpert", "You are an expert in physics."),
            agent("OrderExpert", "You are an expert in orders.", [OrderPlugin()]),
        ]
    )
    said = await (await experts.invoke(task=task["question"], runtime=runtime)).get(timeout=600)
    pipeline = SequentialOrchestration(
        members=[agent("Analyst", "You are an analyst."), agent("Editor", "You are an editor.")]
    )
    text = "\n".join(sorted(f"{message.name}: {message.content}" for message in said))
    result = await (await pipeline.invoke(task=text, runtime=runtime)).get(timeout=600)
    await runtime.stop_when_idle()
    return str(result)
