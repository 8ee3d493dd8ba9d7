"""A kept tree as JSON. docs/trees.md describes the format; VERSION changes with every change of meaning.

Its decisions stand in one flat list, parents first, and a branch names its child by number: a tree of any depth is
written and read without recursion, and annotations name a decision by its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from cadre import types
from cadre.errors import RunError
from cadre.experiment.trees import pictures
from cadre.rollout import walk
from cadre.types import Branch, Image, Message, Node, Observation, Sample, Tree

VERSION = 2

# {"version": 2, "step": 3, "tree": 0, "task": {...}, "nodes": [{...}, ...]}; steps and trees count from 0.
KeptTree = Mapping[str, Any]
Json = dict[str, Any]


def as_record(step: int, number: int, tree: Tree) -> Json:
    """The tree `number` of a step, as it is written."""
    nodes = list(walk.nodes(tree.root))
    numbers = {id(node): place for place, node in enumerate(nodes)}
    task = {"id": tree.task.id, "data": dict(tree.task.data)}
    written = [_node(node, numbers) for node in nodes]
    return {"version": VERSION, "step": step, "tree": number, "task": task, "nodes": written}


def _node(node: Node, numbers: Mapping[int, int]) -> Json:
    written: Json = {
        "turn": node.turn,
        "share": node.weight,
        "observations": {role: _observation(seen) for role, seen in node.observations.items()},
        "prompts": {role: list(siblings[0].prompt_ids) for role, siblings in node.samples.items() if siblings},
        "samples": {
            role: [_sample(sample, siblings[0]) for sample in siblings] for role, siblings in node.samples.items()
        },
        "branches": [_branch(branch, numbers) for branch in node.branches],
    }
    optional = {"privileged": node.privileged, "drawing": node.drawing}
    return written | {name: value for name, value in optional.items() if value}


def _observation(seen: Observation) -> Json:
    offered = {"tools": [asdict(tool) for tool in seen.tools]} if seen.tools else {}
    return {"role": seen.role, "messages": [_message(message) for message in seen.messages]} | offered


def _message(message: Message) -> Json:
    calls = {"tool_calls": [asdict(call) for call in message.tool_calls]} if message.tool_calls else {}
    answers = {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
    seen = {"images": [pictures.described(image) for image in message.images]} if message.images else {}
    return {"role": message.role, "content": message.content, **calls, **answers, **seen}


def images_of(tree: Tree) -> set[Image]:
    """Every picture that a tree shows."""
    seen = (one for node in walk.nodes(tree.root) for one in node.observations.values())
    return {image for one in seen for image in types.images_of(one.messages)}


def _sample(sample: Sample, first: Sample) -> Json:
    """The ids of the prompt stand at the decision, once for all siblings; with a sample only where its own differ."""
    written = {
        "policy": sample.policy,
        "text": sample.text,
        "token_ids": list(sample.token_ids),
        "logprobs": list(sample.logprobs),
        "finish": sample.finish,
        "version": sample.version,
        "history": sample.history,
    }
    if sample.message is not None:
        written["message"] = _message(sample.message)
    return written if sample.prompt_ids == first.prompt_ids else written | {"prompt_ids": list(sample.prompt_ids)}


def _branch(branch: Branch, numbers: Mapping[int, int]) -> Json:
    reward = branch.reward
    written: Json = {
        "choice": dict(branch.choice),
        "reward": {"team": reward.team, "local": dict(reward.local), "parts": dict(reward.parts)},
        "over": branch.over,
        "success": branch.success,
        "carried": branch.selected,
        "child": None if branch.child is None else numbers[id(branch.child)],
    }
    failure = branch.failure
    if failure is not None:
        written["failure"] = {"reason": failure.reason, "error": failure.error}
    return written | ({"drawing": branch.drawing} if branch.drawing else {})


def upgraded(line: Json, number: int) -> KeptTree:
    """A line of any version as one of this version; `number` is its place in its step. Raises RunError for one of a
    later version."""
    version = line.get("version", 1)
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"version: got {version!r}, expected a number")
    if version > VERSION:
        raise RunError(
            f"trees.jsonl: got format {version}; expected {VERSION} or an older one. The run was made by a later "
            "Cadre: read it with that."
        )
    return line if version == VERSION else _from_nested(line, number)


def _from_nested(line: Json, number: int) -> KeptTree:
    """Version 1 had decisions within branches, and the prompt's ids with every sample."""
    nodes: list[Json] = []
    waiting: list[tuple[Json, Json | None]] = [(line["root"], None)]
    while waiting:
        node, above = waiting.pop()
        if above is not None:
            above["child"] = len(nodes)
        flat = {**node, "branches": [dict(branch) for branch in node["branches"]]}
        flat["prompts"] = {role: siblings[0]["prompt_ids"] for role, siblings in node["samples"].items()}
        nodes.append(flat)
        children = [(branch["child"], branch) for branch in flat["branches"] if branch["child"] is not None]
        waiting += reversed(children)
    return {"version": VERSION, "step": line["step"], "tree": number, "task": line["task"], "nodes": nodes}


def samples(tree: KeptTree) -> Iterator[tuple[int, str, int, Json]]:
    """(number of the decision, role, number of the sibling, sample) of every sample."""
    for number, node in enumerate(tree["nodes"]):
        for role, siblings in node["samples"].items():
            for index, sample in enumerate(siblings):
                yield number, role, index, sample
