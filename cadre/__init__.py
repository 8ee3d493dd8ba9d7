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
    from cadre_tasks.judges import Judge, label_agreement

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Env",
    "GeneratedTasks",
    "Judge",
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
    "label_agreement",
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
    name: module
    for module, names in {
        "cadre.api": "Algorithm evaluate load train",
        "cadre.env": "Env GeneratedTasks",
        "cadre.envs.episode": "episode random",
        "cadre.envs.images": "image",
        "cadre.envs.mcp": "McpServer",
        "cadre.envs.sounds": "sound",
        "cadre.envs.tools": "tool",
        "cadre.types": "Message Observation Reward Task Tool ToolCall",
        "cadre_analysis.api": "compare optimise_prompts prove sweep",
        "cadre_analysis.exploit": "find_exploits",
        "cadre_analysis.plots": "plot",
        "cadre_tasks.judges": "Judge label_agreement",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'cadre' has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
