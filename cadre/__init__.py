"""Cadre trains teams of LLM agents with reinforcement learning.

    from cadre import Env, GeneratedTasks, Message, Observation, Reward, Task    what a task of your own is written with
    cadre.train(f, ...), cadre.episode(f), cadre.random()                        a team as a function
    from cadre import image, sound                                               and pictures and sounds in its messages
    from cadre import McpServer, Tool, ToolCall, tool                            and tools that its roles call
    cadre.train(...), cadre.evaluate(...), cadre.load(...)                       what the commands of those names do
    cadre.compare([...]), cadre.plot([...]), cadre.sweep(..., over={...})        several runs
    cadre.prove(...), cadre.optimise_prompts(...)                                is a team worth its tokens? its prompts

Nothing is imported before it is used, and torch only where a model is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cadre.api import Algorithm, evaluate, load, train
    from cadre.env import Env, GeneratedTasks
    from cadre.envs.episode import episode, random
    from cadre.envs.images import image
    from cadre.envs.mcp import McpServer
    from cadre.envs.sounds import sound
    from cadre.envs.tools import tool
    from cadre.types import Message, Observation, Reward, Task, Tool, ToolCall
    from cadre_analysis.api import compare, optimise_prompts, prove, sweep
    from cadre_analysis.exploit import find_exploits
    from cadre_analysis.plots import plot

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Env",
    "GeneratedTasks",
    "McpServer",
    "Message",
    "Observation",
    "Reward",
    "Task",
    "Tool",
    "ToolCall",
    "compare",
    "episode",
    "evaluate",
    "find_exploits",
    "image",
    "load",
    "optimise_prompts",
    "plot",
    "prove",
    "random",
    "sound",
    "sweep",
    "tool",
    "train",
]

HOMES = {
    "Algorithm": "cadre.api",
    "Env": "cadre.env",
    "GeneratedTasks": "cadre.env",
    "McpServer": "cadre.envs.mcp",
    "Message": "cadre.types",
    "Observation": "cadre.types",
    "Reward": "cadre.types",
    "Task": "cadre.types",
    "Tool": "cadre.types",
    "ToolCall": "cadre.types",
    "compare": "cadre_analysis.api",
    "episode": "cadre.envs.episode",
    "evaluate": "cadre.api",
    "find_exploits": "cadre_analysis.exploit",
    "image": "cadre.envs.images",
    "load": "cadre.api",
    "optimise_prompts": "cadre_analysis.api",
    "plot": "cadre_analysis.plots",
    "prove": "cadre_analysis.api",
    "random": "cadre.envs.episode",
    "sound": "cadre.envs.sounds",
    "sweep": "cadre_analysis.api",
    "tool": "cadre.envs.tools",
    "train": "cadre.api",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'cadre' has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
