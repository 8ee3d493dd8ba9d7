"""OpenAI's client: three drafts at once, one of them streamed; an editor chooses in a structured answer."""

import asyncio

from openai import AsyncOpenAI
from pydantic import BaseModel

client = AsyncOpenAI()


class Choice(BaseModel):
    number: int
    reason: str


async def draft(question, number):
    messages = [
        {"role": "system", "content": "You draft a short answer."},
        {"role": "user", "content": f"{question} Draft {number}."},
    ]
    if number:
        reply = await client.chat.completions.create(model="gpt-4o-mini", messages=messages)
        return reply.choices[0].message.content
    text = ""
    stream = await client.chat.completions.create(model="gpt-4o-mini", messages=messages, stream=True)
    async for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    return text


async def main(task):
    drafts = await asyncio.gather(*(draft(task["question"], number) for number in range(3)))
    shown = "\n".join(f"{number}: {text}" for number, text in enumerate(drafts))
    reply = await client.chat.completions.parse(
        model="gpt-4o",
        messages=[
            {"role": "system", "content": "You are the editor. Choose the best draft."},
            {"role": "user", "content": f"{task['question']}\n{shown}"},
        ],
        response_format=Choice,
    )
    return drafts[reply.choices[0].message.parsed.number % len(drafts)]
