"""Microsoft Agent Framework: a writer and a reviewer in a sequential workflow, then a group chat by rounds."""

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from agent_framework.orchestrations import GroupChatBuilder, SequentialBuilder


def word_count(text: str) -> int:
    """Counts the words of a text."""
    return len(text.split())


def chosen(state):
    return ["Critic", "Optimist"][state.current_round % 2]


async def main(task):
    client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    writer = Agent(client, instructions="You are a writer. Write one line.", name="Writer", tools=[word_count])
    reviewer = Agent(OpenAIChatClient(model="gpt-4o"), instructions="You are a reviewer. Improve it.", name="Reviewer")
    workflow = SequentialBuilder(participants=[writer, reviewer]).build()
    text = str((await workflow.run(task["question"])).get_outputs()[-1])
    critic = Agent(client, instructions="You are the critic.", name="Critic")
    optimist = Agent(client, instructions="You are the optimist.", name="Optimist")
    chat = GroupChatBuilder(participants=[critic, optimist], selection_func=chosen, max_rounds=2).build()
    async for _ in chat.run(f"{task['question']} {text}", stream=True):
        pass
    return text
