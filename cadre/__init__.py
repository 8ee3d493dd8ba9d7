"""Cadre trains teams of LLM agents with reinforcement learning.

    from cadre import Env, GeneratedTasks, Message, Observation, Reward, Task    what a task of your own is written with
    from cadre import image, sound                                               and pictures and sounds in its messages
    from cadre import Tool, ToolCall, tool                                       and tools that its roles call
    cadre.train(...), cadre.evaluate(...), cadre.load(...)                       what the commands of those names do

Nothing is imported before it is used, and torch only where a model is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cadre.api import evaluate, load, train
    from cadre.env import Env, GeneratedTasks
    from cadre.envs.images import image
    from cadre.envs.sounds import sound
    from cadre.envs.tools import tool
    from cadre.types import Message, Observation, Reward, Task, Tool, ToolCall

__version__ = "0.1.0"

__all__ = [
    "Env",
    "GeneratedTasks",
    "Message",
    "Observation",
    "Reward",
    "Task",
    "Tool",
    "ToolCall",
    "evaluate",
    "image",
    "load",
    "sound",
    "tool",
    "train",
]

HOMES = {
    "Env": "cadre.env",
    "GeneratedTasks": "cadre.env",
    "Message": "cadre.types",
    "Observation": "cadre.types",
    "Reward": "cadre.types",
    "Task": "cadre.types",
    "Tool": "cadre.types",
    "ToolCall": "cadre.types",
    "evaluate": "cadre.api",
    "image": "cadre.envs.images",
    "load": "cadre.api",
    "sound": "cadre.envs.sounds",
    "tool": "cadre.envs.tools",
    "train": "cadre.api",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'cadre' has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
