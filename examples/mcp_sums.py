"""Products, by a role that calls the published MCP server mcp-server-calculator.

The server has an environment of its own: `python -m venv DIR && DIR/bin/pip install mcp-server-calculator`, and DIR/bin
is on the PATH.
"""

import json
from collections.abc import Sequence
from typing import Any

from cadre import Env, McpServer, Message, Observation, Reward, Task, ToolCall

# Two exchanges as the prompt shows them, as small models seldom call a tool that they have only read of.
SHOWN = (("31 * 24", "744"), ("15 * 12", "180"))


class Sums(Env):
    roles = ("clerk",)
    tools = {"clerk": [McpServer(["mcp-server-calculator"], stateless=True)]}
    tool_turns = 2

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.answer: str | None = None

    def observe(self) -> dict[str, Observation]:
        if self.answer is not None:
            return {}
        messages = [Message("system", "Calculate, then answer with the number alone.")]
        for number, (product, value) in enumerate(SHOWN):
            call = ToolCall(f"shown_{number}", "calculate", json.dumps({"expression": product}))
            messages += [Message("user", f"What is {product}?"), Message("assistant", "", (call,))]
            messages += [Message("tool", value, tool_call_id=call.id), Message("assistant", value)]
        messages.append(Message("user", f"What is {self.task.data['product']}?"))
        return {"clerk": Observation("clerk", tuple(messages))}

    async def step(self, actions: dict[str, str]) -> Reward:
        self.answer = actions["clerk"].strip()
        return Reward(team=float(self.success))

    @property
    def success(self) -> bool:
        return self.answer == str(self.task.data["value"])

    @classmethod
    def tasks(cls, split: str, **settings: Any) -> Sequence[Task]:
        numbers = range(11, 60) if split == "train" else range(61, 90)
        return [Task(f"{split}-{a}", {"product": f"{a} * {a + 7}", "value": a * (a + 7)}) for a in numbers]
