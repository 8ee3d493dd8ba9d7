"""OpenAI's Agents SDK: a guardrail, a triage agent that hands over, and an agent that is used as a tool."""

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    Runner,
    function_tool,
)
from pydantic import BaseModel


class Homework(BaseModel):
    is_homework: bool
    reasoning: str


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


guardrail_agent = Agent(
    name="Guardrail check", instructions="Check if the user is asking about homework.", output_type=Homework
)
translator = Agent(name="Translator", instructions="You translate into plain words.")
math_tutor = Agent(
    name="Math Tutor",
    handoff_description="Specialist agent for math questions",
    instructions="You help with math problems. Explain your reasoning at each step.",
    tools=[multiply, translator.as_tool("translate", "Say it in plain words.")],
)
history_tutor = Agent(
    name="History Tutor",
    handoff_description="Specialist agent for historical questions",
    instructions="You assist with historical queries.",
)


async def check_homework(ctx, agent, input_data):
    result = await Runner.run(guardrail_agent, input_data, context=ctx.context)
    checked = result.final_output_as(Homework)
    return GuardrailFunctionOutput(output_info=checked, tripwire_triggered=not checked.is_homework)


triage = Agent(
    name="Triage Agent",
    instructions="You determine which agent to use based on the user's homework question.",
    handoffs=[history_tutor, math_tutor],
    input_guardrails=[InputGuardrail(guardrail_function=check_homework)],
)


async def main(task):
    try:
        result = Runner.run_streamed(triage, task["question"])
        async for _ in result.stream_events():
            pass
    except InputGuardrailTripwireTriggered:
        return "This is no homework."
    return result.final_output
