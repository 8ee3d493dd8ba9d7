"""Pydantic AI: an agent that delegates to another by a tool, typed outputs with a validator, and a streamed answer."""

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext


class Answer(BaseModel):
    value: int
    explanation: str


help_desk = Agent(
    "openai-chat:gpt-4o",
    deps_type=dict,
    output_type=Answer,
    instructions="You are the head of a help desk. Ask the expert, then answer.",
    retries=2,
)
expert = Agent("openai-chat:gpt-4o-mini", output_type=list[str], system_prompt="You are the expert. List facts.")
writer = Agent("openai-responses:gpt-4o-mini", instructions="You are a writer. Say it in one sentence.")


@help_desk.tool
async def ask_expert(ctx: RunContext[dict], topic: str) -> list[str]:
    """Ask the expert for facts."""
    result = await expert.run(f"Facts about {topic} for: {ctx.deps['question']}", usage=ctx.usage)
    return result.output


@help_desk.output_validator
def check(ctx: RunContext[dict], answer: Answer) -> Answer:
    if answer.value < 0:
        raise ModelRetry("The value must not be negative.")
    return answer


async def main(task):
    result = await help_desk.run(task["question"], deps=task)
    async with writer.run_stream(f"{result.output.value}: {result.output.explanation}") as stream:
        return await stream.get_output()
