"""Anthropic's client: a researcher that calls a tool in a loop, and a writer whose answer is streamed."""

import anthropic

client = anthropic.Anthropic()
TOOLS = [
    {
        "name": "add",
        "description": "Adds two whole numbers.",
        "input_schema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    }
]


def main(task):
    messages = [{"role": "user", "content": task["question"]}]
    for _ in range(4):
        reply = client.messages.create(
            model="claude-sonnet-4-5",
            max_tokens=1024,
            system="You are a researcher. Use the tool to calculate.",
            tools=TOOLS,
            messages=messages,
        )
        messages.append({"role": "assistant", "content": reply.content})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            break
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": str(call.input["a"] + call.input["b"])}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})
    notes = " ".join(block.text for block in reply.content if block.type == "text")
    with client.messages.stream(
        model="claude-haiku-4-5",
        max_tokens=1024,
        system="You are a writer. Answer in one sentence.",
        messages=[{"role": "user", "content": f"{task['question']}\nNotes: {notes}"}],
    ) as stream:
        return "".join(stream.text_stream)
