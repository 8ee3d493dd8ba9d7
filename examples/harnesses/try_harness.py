"""What a harness does behind the endpoint: `python examples/harnesses/try_harness.py HARNESS PART`.

episode   plays one task with completions that solve it, twice, and prints the calls and the reward
commands  tries which commands print the same when a run is repeated
train     trains two steps of the recipe with a tiny model whose tokens are whole completions

The values replace those of the recipe's settings, python=DIR/bin/python, and in training others: train.steps=1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from cadre.envs.spec import EnvSpec
from cadre.types import Message, Sample, Task, ToolCall
from cadre_programs.processes import ProgramDiverged
from cadre_programs.program import Program

HERE = Path(__file__).parent
ROLE = "coder"


@dataclass(frozen=True)
class Form:
    """How a harness is told to run a command: a tool with one argument for it and others, or JSON text (`keys`)."""

    tool: str = ""
    argument: str = "command"
    others: tuple[tuple[str, object], ...] = ()
    end: str = ""

    def run(self, command: str) -> Message:
        if not self.tool:
            return as_keystrokes(command, False)
        arguments = {self.argument: command, **dict(self.others)}
        return Message("assistant", "", (ToolCall("call_0", self.tool, json.dumps(arguments)),))

    def finish(self) -> Message:
        if not self.tool:
            return as_keystrokes("", True)
        return self.run(self.end) if self.end else Message("assistant", "I am done.")


def as_keystrokes(command: str, is_complete: bool, analysis: str = "") -> Message:
    commands = [{"keystrokes": f"{command}\n", "duration": 1.0}] if command else []
    answer = {"analysis": analysis, "plan": "", "commands": commands, "task_complete": is_complete}
    return Message("assistant", json.dumps(answer))


FORMS = {
    "mini_swe_agent": Form("bash", end="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    "qwen_code": Form("run_shell_command", others=(("is_background", False),)),
    "opencode": Form("bash", others=(("description", "A command"),)),
    "codex": Form("exec_command", "cmd"),
    "terminus": Form(),
}
# By kind of what differs from run to run.
COMMANDS = {
    "file contents": "cat README.md",
    "search": "grep -rn return . --include='*.py' | sort",
    "names": "ls",
    "an edit": "sed -i 's/return/return  /' test_run.py; git diff",
    "tests": "python -m unittest -q 2>&1",
    "git log": "git log --format='%h %ad'",
    "commit": "echo x > new.txt; git add new.txt; git commit -q -m x; git log -1 --format='%H %cd'",
    "date": "date",
    "old times": "ls -l README.md",
    "new times": "touch new.txt; ls -l --full-time new.txt",
    "Python's clock": "python -c 'import time; print(time.time())'",
    "monotonic clock": "python -c 'import time; print(time.monotonic())'",
    "how long it took": "bash -c 'time sleep 0.01' 2>&1 | grep real",
    "Python's random": "python -c 'import random, uuid; print(random.random(), uuid.uuid4())'",
    "$RANDOM": "bash -c 'echo $RANDOM'",
    "the system's random": "od -An -N4 -tx4 /dev/urandom",
    "mktemp": "mktemp",
    "tempfile": "python -c 'import tempfile; print(tempfile.mkdtemp())'",
    "process ids": "echo $$",
    "addresses": "python -c 'print(object())'",
    "ports": "python -c 'import socket; s = socket.socket(); s.bind((\"\", 0)); print(s.getsockname()[1])'",
    "folder": "pwd",
    "disk and memory": "free -b | head -2 | tail -1",
}


def load(name: str, overrides: list[str]) -> tuple[dict, list[Task]]:
    """Return the settings of a harness's recipe, with absolute paths, and its tasks."""
    settings = yaml.safe_load((HERE / f"{name}.yaml").read_text())["settings"]
    for key, _, value in (override.partition("=") for override in overrides):
        if "." not in key:
            settings[key] = yaml.safe_load(value)
    for key in ("run", "reward", "tasks"):
        settings[key] = str(HERE / settings[key])
    spec = EnvSpec("program", settings)
    return spec.episode_settings, list(spec.tasks("train"))


def as_sample(message: Message) -> Sample:
    text = message.content or message.tool_calls[0].arguments
    return Sample(ROLE, ROLE, text, (0,), (0,), (0.0,), "stop", 0, message)


async def play(env: Program, messages: list[Message], last: Message) -> int:
    """Answer the calls with these messages, and all further ones with the last; return the number of calls."""
    await env.until_ready()
    calls = 0
    while observations := env.observe():
        message = messages[calls] if calls < len(messages) else last
        calls += len(observations)
        await env.step_samples({role: as_sample(message) for role in observations})
    return calls


async def episode(name: str, settings: dict, task: Task) -> float:
    """Play a task with completions that solve it, check that it can be replayed, and return the reward."""
    form, hidden = FORMS[name], json.loads((HERE / "hidden" / f"{task.data['name']}.json").read_text())
    commands = ["cat */*.py", "python -m unittest -q 2>&1"]
    commands += [f"cat > {path} <<'EOF'\n{text}EOF" for path, text in hidden["fixed"].items()]
    commands += ["python -m unittest -q 2>&1", "git diff"]
    env = Program(task, **settings)
    try:
        calls = await play(env, [form.run(command) for command in commands], form.finish())
        for answered in env.history:
            print("---", answered.role, answered.answer.message.content, *answered.answer.message.tool_calls)
            print(answered.call.messages[-1].content[-600:])
        print(f"{calls} calls, reward {env.total_team_reward}, success {env.success}")
        await env.check_replay()
        print("replayed with the same calls")
        return env.total_team_reward
    finally:
        env.close()


def make_model(folder: Path, completions: list[str]) -> None:
    """Write a tiny Llama that answers one of the completions, each of which is a token, and ends: random weights, but
    for one dimension that favours the completions and one that, after them, favours the end of the turn."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    import cadre_tasks

    tokenizer = AutoTokenizer.from_pretrained(Path(cadre_tasks.__file__).parent / "models" / "seed")
    tokenizer.add_tokens(completions)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=131072,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    embeddings, outputs = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    embeddings.normal_(0.0, 0.05)
    outputs.normal_(0.0, 0.02)
    embeddings[:, 0] = 4.0
    for token in tokenizer.convert_tokens_to_ids(completions):
        outputs[token, 0], embeddings[token, 0], embeddings[token, 1] = 3.0, 0.0, 4.0
    outputs[tokenizer.eos_token_id, 1] = 4.0
    model.save_pretrained(folder)


def train(name: str, settings: dict, tasks: list[Task], overrides: list[str]) -> list[dict]:
    """Train two steps by the command line and return their metrics. Raises CalledProcessError if that fails."""
    form, commands = FORMS[name], ["cat */*.py", "python -m unittest -q 2>&1"]
    for task in tasks[:2]:  # few completions, so that one of them soon ends an episode
        fixed = json.loads((HERE / "hidden" / f"{task.data['name']}.json").read_text())["fixed"]
        commands += [f"test -f {path} && cat > {path} <<'EOF'\n{text}EOF" for path, text in fixed.items()]
    messages = [*map(form.run, commands), form.finish()]
    if not form.tool:  # it has to finish twice in a row
        messages += [as_keystrokes("", True, str(number)) for number in range(8)]
    completions = []
    for message in messages:
        call = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in message.tool_calls]
        completions.append(f"<tool_call>{json.dumps(call[0])}</tool_call>" if call else message.content)
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model", [*dict.fromkeys(completions)])
        command = [sys.executable, "-m", "cadre", "train", str(HERE / f"{name}.yaml"), "--run", f"{folder}/run"]
        command += [f"team.policies.coder.model={folder}/model", "team.policies.coder.dtype=float32"]
        command += ["algorithm.k=2", "sampling.max_tokens=64", "train.steps=2", "train.tasks_per_step=2"]
        named = [text if "." in text.partition("=")[0] else f"settings.{text}" for text in overrides]
        subprocess.run([*command, *named], check=True)
        return [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]


async def repeats(name: str, settings: dict, task: Task, command: str) -> str:
    """Return "" if a run with this command can be replayed, else the lines that differ."""
    form, env = FORMS[name], Program(task, **settings)
    try:
        await play(env, [form.run(command)], form.finish())
        await env.check_replay()
    except ProgramDiverged as error:
        return "\n".join(re.findall(r"^[-+](?![-+]).*$", str(error), re.MULTILINE))
    finally:
        env.close()
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("harness", choices=FORMS)
    parser.add_argument("what", choices=["episode", "commands", "train"])
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    settings, tasks = load(options.harness, options.overrides)
    if options.what == "episode":
        asyncio.run(episode(options.harness, settings, tasks[0]))
        return
    if options.what == "train":
        for step in train(options.harness, settings, tasks, options.overrides):
            print({key: step[key] for key in sorted(step) if key.startswith(("rollout/", "reward"))})
        return
    for kind, command in COMMANDS.items():
        difference = asyncio.run(repeats(options.harness, settings, tasks[0], command))
        print(f"{'differs' if difference else 'same   '} {kind}: {command}", difference, sep="\n", flush=True)


if __name__ == "__main__":
    main()
