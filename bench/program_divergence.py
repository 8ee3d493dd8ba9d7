"""Programs that ask in parallel, hand over, swarm and delegate: `python bench/program_divergence.py [--write]`.

AT-GRPO's trees (K = 4) over eight tasks each, with answers drawn by what is asked: a text, or a call of a tool that is
offered, with arguments of the right kind. Counted are trees that diverged, after a second try, and those that failed
otherwise. Each framework has a virtual environment in --venvs, as in `programs.py`; those that are not there are named
and left out.

With --train the tutorials are trained instead, for two steps by `cadre train`, with a tiny model whose tokens are whole
answers (AT-GRPO, K = 3, two tasks a step): `programs.unmodified` is the share of them that do. What is complete in
--work is not trained again. Some need tiktoken's files, which they download, or find in $TIKTOKEN_CACHE_DIR.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cadre import random_keys
from cadre.engines.scripted import ScriptedSampler
from cadre.rollout import shapes, walk
from cadre.rollout.episodes import Failure, grow_many
from cadre.rollout.grow import Rollout
from cadre.team import Team
from cadre.types import Message, Request, Sample, Sampling, Task, Tool, ToolCall, Tree
from cadre_programs.examples import make_example
from cadre_programs.program import Program
from cadre_programs.settings import InstanceLimits
from common import ROOT, record
from programs import EXAMPLES, NO_CERTIFICATES
from programs import tasks as grids
from trainings import Run, commits

TASKS = 8
TUTORIALS = EXAMPLES / "tutorials"
# Some take half a minute to their first call on a busy machine.
LIMITS = {"seconds": 300.0}
# Of the answers where tools are offered.
CALLS = 0.75
ENDINGS = (" scout", " walker", " ACTION: GRAB_LEFT", "")
TEXTS = ("12", "I would say 77.", "There are 59 apples. TERMINATE", "Ask somebody else.")
# Words after which `cadre_programs` puts the schema of an answer into the prompt.
SCHEMA = "It must match this JSON schema: "


@dataclass(frozen=True)
class Complex:
    """An example with the virtual environment that has its framework, and the roles that it asks for."""

    venv: str
    file: str
    roles: tuple[str, ...]

    def env(self, task: Task, venvs: Path) -> Program:
        python = str(venvs / self.venv / "bin" / "python")
        return Program(task, f"{EXAMPLES / self.file}:main", list(self.roles), python=python)


@dataclass(frozen=True)
class Tutorial(Complex):
    """A program in the style of its framework's own tutorial, which knows nothing of Cadre.

    models  the roles of its calls, by the model or the system prompt (`settings.models`)
    texts   answers that are drawn where no tool is called
    calls   answers of the model that is trained, beside those: calls of tools, and JSON
    """

    models: Mapping[str, str] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()

    def env(self, task: Task, venvs: Path) -> Program:
        limits = InstanceLimits(**LIMITS)
        return Program(task, python=str(venvs / self.venv / "bin" / "python"), limits=limits, **self.settings)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its recipe."""
        return {
            "run": f"{TUTORIALS / self.file}:main",
            "roles": list(self.roles),
            "models": dict(self.models),
            "reward": f"{TUTORIALS / 'score.py'}:score",
            "environment": NO_CERTIFICATES,
        }


def tutorial(venv: str, file: str, *calls: dict[str, Any], texts: tuple[str, ...] = (), **models: str) -> Tutorial:
    """Return a tutorial whose roles are told apart by their models, or by `role="system:words of its prompt"`.

    `calls` are JSON answers, or arguments of tools under the tool's name: `{"add": {"a": 1}}`.
    """
    rules = {rule: role for role, rule in models.items()}
    return Tutorial(venv, file, tuple(models), rules, (*texts, *TEXTS), tuple(map(as_answer, calls)))


def as_answer(call: dict[str, Any]) -> str:
    """Return a call of a tool as a model writes it; JSON as it is."""
    ((name, value), *others) = call.items()
    if others or not isinstance(value, dict):
        return json.dumps(call)
    return f"<tool_call>{json.dumps({'name': name, 'arguments': value})}</tool_call>"


TWO, THREE = ("scout", "walker"), ("scout", "walker", "manager")
MINI, LARGE = "gpt-4o-mini", "gpt-4o"
CODE = (
    "I answer.\n<code>\nfinal_answer('59')\n</code>",
    "I ask.\n<code>\nprint(web_search_agent(task='Find apples'))\n</code>",
)
PROGRAMS = {
    "langgraph-parallel": Complex("langgraph", "langgraph_parallel.py", ("scout", "walker", "judge")),
    "agents-parallel": Complex("agents", "openai_parallel.py", TWO),
    "agents-handoff": Complex("agents", "openai_handoff.py", TWO),
    "autogen-swarm": Complex("autogen", "autogen_swarm.py", TWO),
    "framework-concurrent": Complex("framework", "agent_framework_concurrent.py", TWO),
    "smolagents-managed": Complex("smolagents", "smolagents_managed.py", THREE),
    "crewai-hierarchical": Complex("crewai", "crewai_hierarchical.py", THREE),
    "dpbench": Complex("dpbench", "dining.py", ("philosopher",)),
    "openai-drafts": tutorial(
        "plain", "openai_drafts.py", {"number": 1, "reason": "It is short."}, drafter=MINI, editor=LARGE
    ),
    "anthropic-tools": tutorial(
        "anthropic",
        "anthropic_tools.py",
        {"add": {"a": 30, "b": 29}},
        researcher="claude-sonnet-*",
        writer="claude-haiku-*",
    ),
    "instructor-extract": tutorial(
        "instructor",
        "instructor_extract.py",
        {"Plan": {"steps": ["add"]}},
        {"Result": {"value": 59}},
        planner=LARGE,
        solver=MINI,
    ),
    "langgraph-supervisor": tutorial(
        "langgraph",
        "langgraph_experts.py",
        {"transfer_to_math_expert": {}},
        {"add": {"a": 30, "b": 29}},
        {"transfer_to_research_expert": {}},
        supervisor="system:You are a team supervisor",
        mathematician="system:You are a math expert",
        researcher="system:You are a researcher",
    ),
    "langgraph-workers": tutorial(
        "langgraph",
        "langgraph_workers.py",
        {"sections": ["One", "Two"]},
        planner="system:You plan",
        writer="system:You write",
    ),
    "deepagents-research": tutorial(
        "deepagents",
        "deepagents_research.py",
        {"task": {"description": "Check 59.", "subagent_type": "critic"}},
        {"write_todos": {"todos": [{"content": "Add", "status": "pending"}]}},
        {"search": {"query": "apples"}},
        critic="system:You are a critic",
        researcher=LARGE,
    ),
    "agents-triage": tutorial(
        "agents",
        "agents_triage.py",
        {"is_homework": True, "reasoning": "It is."},
        {"transfer_to_math_tutor": {}},
        {"multiply": {"a": 3, "b": 4}},
        {"translate": {"input": "59"}},
        guard="system:Check if the user",
        triage="system:You determine which agent",
        translator="system:You translate",
        tutor="*",
    ),
    "autogen-selector": tutorial(
        "autogen",
        "autogen_selector.py",
        {"search_web_tool": {"query": "apples"}},
        {"percentage_change_tool": {"start": 1.0, "end": 2.0}},
        planner="system:You are a planning agent",
        searcher="system:You are a web search agent",
        analyst="system:You are a data analyst",
        selector=MINI,
    ),
    "smolagents-code": tutorial(
        "smolagents",
        "smolagents_code.py",
        {"final_answer": {"answer": "59"}},
        {"visit_webpage": {"url": "a"}},
        texts=CODE,
        manager=LARGE,
        searcher=MINI,
    ),
    "crewai-flow": tutorial(
        "crewai",
        "crewai_flow.py",
        {"calculator": {"expression": "30 + 29"}},
        {"answer": "59"},
        researcher=MINI,
        writer=LARGE,
    ),
    "adk-pipeline": tutorial(
        "adk",
        "adk_pipeline.py",
        {"transfer_to_agent": {"agent_name": "ResearchPipeline"}},
        {"get_weather": {"city": "Rome"}},
        researcher="system:You are research assistant",
        merger="system:You combine",
        greeter="system:You greet",
        coordinator=LARGE,
    ),
    "dspy-react": tutorial(
        "dspy",
        "dspy_react.py",
        {"reasoning": "So.", "answer": "59"},
        {"reasoning": "So.", "final": "59", "confidence": 0.5},
        {"next_thought": "I add.", "next_tool_name": "evaluate_math", "next_tool_args": {"expression": "30 + 29"}},
        agent=MINI,
        checker=LARGE,
    ),
    "llamaindex-workflow": tutorial(
        "llamaindex",
        "llamaindex_workflow.py",
        {"handoff": {"to_agent": "WriteAgent", "reason": "Write."}},
        {"search_web": {"query": "apples"}},
        {"record_notes": {"notes": "59", "notes_title": "sum"}},
        researcher="system:You are the ResearchAgent",
        writer="system:You are the WriteAgent",
        reviewer="system:You are the ReviewAgent",
    ),
    "pydantic-delegation": tutorial(
        "pydantic-ai",
        "pydantic_delegation.py",
        {"ask_expert": {"topic": "apples"}},
        {"final_result": {"value": 59, "explanation": "So."}},
        {"final_result": {"response": ["a fact"]}},
        expert="system:You are the expert",
        writer=MINI,
        lead=LARGE,
    ),
    "agno-team": tutorial(
        "agno",
        "agno_team.py",
        {"delegate_task_to_member": {"member_id": "finance-agent", "task": "Add."}},
        {"get_stock_price": {"symbol": "A"}},
        member=MINI,
        leader=LARGE,
    ),
    "framework-handoff": tutorial(
        "framework",
        "framework_handoff.py",
        {"word_count": {"text": "a b"}},
        critic="system:You are the critic",
        optimist="system:You are the optimist",
        writer=MINI,
        reviewer=LARGE,
    ),
    "haystack-agent": tutorial(
        "haystack",
        "haystack_agent.py",
        {"calculator": {"a": 30, "b": 29}},
        {"research": {"messages": [{"role": "user", "content": "Add."}]}},
        coordinator=LARGE,
        researcher="system:You are a researcher",
        writer=MINI,
    ),
    "strands-swarm": tutorial(
        "strands",
        "strands_swarm.py",
        {"handoff_to_agent": {"agent_name": "coder", "message": "Count."}},
        {"summarize": {"text": "59"}},
        researcher="system:You research",
        coder="system:You write code",
        summarizer="system:You are a summarizer",
        lead=MINI,
    ),
    "semantic-kernel-handoff": tutorial(
        "semantic-kernel",
        "semantic_kernel_handoff.py",
        {"OrderPlugin-count_items": {"order": "a, b"}},
        physicist="system:You are an expert in physics",
        clerk="system:You are an expert in orders",
        analyst="system:You are an analyst",
        editor="system:You are an editor",
    ),
    "camel-roles": tutorial(
        "camel", "camel_roles.py", critic="system:You are a critic", teacher="system:*Teacher*USER*", solver="*"
    ),
    "qwen-agent-tools": tutorial(
        "qwen",
        "qwen_agent_tools.py",
        {"add_numbers": {"a": 30, "b": 29}},
        solver="system:You are a solver",
        writer="system:You are a writer",
    ),
    "langroid-tasks": tutorial(
        "langroid",
        "langroid_tasks.py",
        {"add": {"a": 30, "b": 29}},
        {"done_tool": {"content": "59"}},
        planner="system:You are a planner",
        solver="system:You are a solver",
    ),
    "ag2-agents": tutorial(
        "ag2",
        "ag2_agents.py",
        {"ask_expert": {"question": "How many?"}},
        {"add": {"a": 30, "b": 29}},
        expert=MINI,
        lead=LARGE,
    ),
}


class Drawn(ScriptedSampler):
    """Answers drawn by what is asked."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        super().__init__(lambda request: [""] * request.count)
        self.texts = texts

    async def sample(self, request: Request) -> list[Sample]:
        drawn = await super().sample(request)
        return [replace(one, **said(request, number, self.texts)) for number, one in enumerate(drawn)]


def said(request: Request, number: int, texts: Sequence[str]) -> dict[str, Any]:
    """JSON of the schema that the answer has to keep to, a call of a tool, or a text: one of `texts`, or moves."""
    draw = random_keys.generator(request.key, number)
    system = "".join(message.content for message in request.messages if message.role == "system")
    if SCHEMA in system:
        schema, _ = json.JSONDecoder().raw_decode(system.rpartition(SCHEMA)[2])
        return {"text": json.dumps(make_example(schema, draw))}
    moves = draw.choice(texts) if texts else "".join(draw.choices("UDLR", k=4)) + draw.choice(ENDINGS)
    if not request.tools or draw.random() >= CALLS:
        return {"text": moves}
    tool = draw.choice(request.tools)
    call = ToolCall("call_0", tool.name, json.dumps(arguments(tool, moves, draw)))
    return {"text": f"{call.name}({call.arguments})", "message": Message("assistant", "", (call,))}


def arguments(tool: Tool, moves: str, draw: random.Random) -> dict[str, Any]:
    """A value for every parameter, as its schema says."""
    properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
    return {name: value(name, part, moves, draw, tool.parameters) for name, part in properties.items()}


def value(name: str, schema: Mapping[str, Any], moves: str, draw: random.Random, root: Mapping[str, Any]) -> Any:
    if name == "coworker":
        return draw.choice(TWO)
    is_text = schema.get("type") == "string" and "enum" not in schema
    return moves if is_text else make_example(schema, draw, root)


def tasks(name: str, count: int) -> list[Task]:
    if isinstance(PROGRAMS[name], Tutorial):
        rows = (TUTORIALS / "tasks.jsonl").read_text().splitlines()[:count]
        return [Task(f"t{number}", json.loads(row)) for number, row in enumerate(rows)]
    if name == "dpbench":
        return [Task(f"t{number}", {"philosophers": 3 + number % 3, "steps": 4}) for number in range(count)]
    return grids(count)


def grown(name: str, venvs: Path) -> tuple[list[Tree], list[Failure]]:
    """The trees of a program, and those that failed after a second try."""
    program = PROGRAMS[name]
    sampler = Drawn(program.texts if isinstance(program, Tutorial) else ())
    samplers, sampling = dict.fromkeys(program.roles, sampler), dict.fromkeys(program.roles, Sampling())
    team = Team({role: role for role in program.roles}, samplers, sampling)
    rollout = Rollout(lambda task: program.env(task, venvs), team, shapes.greedy(4), 1.0)
    return asyncio.run(grow_many(tasks(name, TASKS), rollout, 1, stop_early=False))


def measure(name: str, venvs: Path, write: bool) -> None:
    trees, failures = grown(name, venvs)
    counts = Counter(failure.reason for failure in failures)
    steps = sum(len(node.branches) for tree in trees for node in walk.nodes(tree.root))
    print(name, len(trees), "trees,", steps, "steps,", dict(counts), flush=True)
    for failure in failures:
        print("   ", failure.task.id, failure.reason, failure.error[:1500], flush=True)
    if write:
        command = f"python bench/program_divergence.py --names {name}"
        rate = counts["diverged"] / TASKS
        record("programs", f"programs.divergence_rate.{name}", [rate], "share", command, TASKS)


def make_model(folder: Path, answers: Sequence[str]) -> None:
    """Write a tiny Llama that says one of the answers, each of which is a token, and ends: random weights, but for one
    dimension that favours the answers and one that, after them, favours the end of the turn."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "cadre_tasks" / "models" / "seed")
    tokenizer.add_tokens(list(answers))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=65536,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    seen, said = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    seen.normal_(0.0, 0.05)
    said.normal_(0.0, 0.02)
    seen[:, 0] = 4.0
    for token in tokenizer.convert_tokens_to_ids(list(answers)):
        said[token, 0], seen[token, 0], seen[token, 1] = 3.0, 0.0, 4.0
    said[tokenizer.eos_token_id, 1] = 4.0
    model.save_pretrained(folder)


def train(name: str, program: Tutorial, options: argparse.Namespace) -> bool:
    """Train two steps by the command line. Returns whether that was done; prints what was said of it."""
    folder = options.work / name
    make_model(folder / "model", [*program.texts, *program.calls])
    policies = {
        role: {"model": str(folder / "model"), "dtype": "float32", "lora": {"rank": 8, "alpha": 16}}
        for role in program.roles
    }
    python = str((options.venvs / program.venv / "bin" / "python").absolute())
    recipe = {
        "env": "program",
        "settings": program.settings
        | {"python": python, "limits": LIMITS, "tasks": str(TUTORIALS / "tasks.jsonl"), "held_out": 0.3},
        "team": {"policies": policies, "roles": {role: role for role in program.roles}},
        "algorithm": {"name": "at_grpo", "k": 3},
        "sampling": {"max_tokens": 8},
        "train": {"steps": 2, "tasks_per_step": 2},
        "evaluate": {"tasks": 0},
    }
    (folder / "recipe.json").write_text(json.dumps(recipe))
    made = Run(folder / "run", str(folder / "recipe.json"), 0, tasks=0)
    try:
        if not made.complete:
            made.train(threads=1)
    except subprocess.CalledProcessError:
        print(name, "does not train:", (folder / "run.log").read_text()[-1500:], flush=True)
        return False
    begun = [step["rollout/episodes"] + step["rollout/failures"] for step in made.steps()]
    diverged = sum(step["rollout/divergence_rate"] for step in made.steps()) / len(begun)
    failed = made.total("rollout/failures")
    warnings = [line for line in (folder / "run.log").read_text().splitlines() if line.startswith("warning")]
    print(name, "trains:", sum(begun), "trees, failed", failed, "diverged", diverged, *warnings, flush=True)
    if options.write:
        command, commit = f"python bench/program_divergence.py --train --names {name}", commits([made])
        record(
            "programs", f"programs.divergence_rate.{name}", [diverged], "share", command, int(sum(begun)), [0], commit
        )
    return True


def main(options: argparse.Namespace) -> None:
    names = [name for name in options.names.split(",") if not options.train or isinstance(PROGRAMS[name], Tutorial)]
    missing = [name for name in names if not (options.venvs / PROGRAMS[name].venv / "bin" / "python").exists()]
    for name in missing:
        print(name, "left out: there is no", options.venvs / PROGRAMS[name].venv, flush=True)
    trained = []
    for name in names:
        program = PROGRAMS[name]
        if name in missing:
            continue
        if not options.train:
            measure(name, options.venvs, options.write)
        elif isinstance(program, Tutorial):
            trained.append(train(name, program, options))
    # The share of those that were chosen by hand says nothing.
    if options.write and trained and options.names == ",".join(PROGRAMS):
        share = sum(trained) / len(trained)
        command = "python bench/program_divergence.py --train"
        record("programs", "programs.unmodified", [share], "share", command, len(trained), [0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--venvs", type=Path, default=Path("venvs"))
    parser.add_argument("--names", default=",".join(PROGRAMS))
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "tutorials")
    main(parser.parse_args())
