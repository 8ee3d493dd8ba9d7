"""Google ADK: two researchers in parallel with a tool, a merger after them, and a coordinator that transfers."""

from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

MODEL = LiteLlm(model="openai/gpt-4o-mini")


def get_weather(city: str) -> dict:
    """Retrieves the current weather report for a specified city."""
    return {"status": "success", "report": f"It is sunny in {city}."}


def researcher(number: int) -> LlmAgent:
    return LlmAgent(
        name=f"Researcher_{number}",
        model=MODEL,
        instruction=f"You are research assistant {number}. Use the tool if you need the weather.",
        tools=[get_weather],
        output_key=f"result_{number}",
    )


def build() -> LlmAgent:
    parallel = ParallelAgent(name="ParallelResearch", sub_agents=[researcher(1), researcher(2)])
    merger = LlmAgent(
        name="SynthesisAgent",
        model=MODEL,
        instruction="You combine findings: {result_1?} and {result_2?}. Output one answer.",
    )
    pipeline = SequentialAgent(
        name="ResearchPipeline", description="Researches a question.", sub_agents=[parallel, merger]
    )
    greeter = LlmAgent(name="Greeter", model=MODEL, description="Greets the user.", instruction="You greet people.")
    return LlmAgent(
        name="Coordinator",
        model=LiteLlm(model="openai/gpt-4o"),
        instruction="You coordinate: transfer to the agent that fits.",
        sub_agents=[greeter, pipeline],
    )


async def main(task):
    runner = InMemoryRunner(agent=build(), app_name="research")
    session = await runner.session_service.create_session(app_name="research", user_id="user")
    content = types.Content(role="user", parts=[types.Part(text=task["question"])])
    final = ""
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=content):
        if event.is_final_response() and event.content and event.content.parts:
            final = event.content.parts[0].text or final
    return final
