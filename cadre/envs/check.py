"""The environment contract as a callable test: `examine` plays an environment and reports what holds and what does not.

Use `check_env` in your own tests, or `cadre check my_file.py:MyEnv`.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import math
import os
import pickle
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, get_args, runtime_checkable

from cadre import random_keys
from cadre.concurrency import run_coroutine
from cadre.env import Env, Split
from cadre.envs import validation
from cadre.envs.spec import EnvSpec
from cadre.envs.splits import shared_tasks
from cadre.envs.validation import described
from cadre.errors import ContractError, DeadlineError
from cadre.rollout.deadlines import Deadline
from cadre.settings.user_code import describe_errors
from cadre.types import Message, Observation, Reward, Sample, Task, Tool, ToolCall

SPLITS: tuple[Split, ...] = get_args(Split)
SPLIT_SAMPLE = 200
# A program whose answer is drawn: it must draw the same in equal states.
DRAWN_MOVES = "```python\nimport random\nprint('Moves: ' + ''.join(random.choices('UDLR', k=12)))\n```"
ACTIONS = (
    "",
    "1",
    "U",
    "RRDD",
    "Moves: RRD",
    "print('RRD')",
    "```python\nprint(1)\n```",
    DRAWN_MOVES,
    "\\boxed{4}",
    "é\x00\n",
    "nan",
    "²",
    "9" * 5_000,
    "A " * 500,
)
RULES = {
    "observe": "observe is pure",
    "fork": "forks are independent of their origin",
    "replay": "equal actions give equal episodes",
    "reward": "rewards are finite, local ones only for roles that acted",
    "tasks": "train and test are disjoint and the same at every call",
    "end": "every episode ends",
}


@dataclass(frozen=True)
class CheckReport:
    """The result of a check.

    passed   the rules that held, a line each
    broken   a paragraph for every fault: what, got, expected, what to do
    notes    findings that are allowed and seldom meant
    prompts  the first conversation of each role
    tools    the tools offered there
    called   the names of the tools that were called, in order
    """

    passed: tuple[str, ...]
    broken: tuple[str, ...]
    notes: tuple[str, ...]
    prompts: Mapping[str, tuple[Message, ...]]
    tools: Mapping[str, tuple[Tool, ...]] = field(default_factory=dict)
    called: tuple[str, ...] = ()


@runtime_checkable
class ExaminedByOwnRules(Protocol):
    """An environment class with an examination of its own, as agent programs have: nobody steps them out of order."""

    async def examine(self, env_spec: EnvSpec) -> CheckReport:
        """Return the report on the environment."""


async def check_env(env_spec: EnvSpec, episodes: int = 5, actions: Sequence[str] = ACTIONS, seed: int = 0) -> list[str]:
    """Raise `ContractError` with all broken rules, a paragraph each; else return the rules that held, one line each."""
    report = await examine(env_spec, episodes, actions, seed)
    if report.broken:
        raise ContractError(*report.broken)
    return list(report.passed)


async def examine(
    env_spec: EnvSpec,
    episodes: int = 5,
    actions: Sequence[str] = ACTIONS,
    seed: int = 0,
    step_seconds: float = math.inf,
) -> CheckReport:
    """Return the report on the class, its tasks, and `episodes` episodes of actions drawn from `actions`.

    Faults neither raise nor end the check. Only a call that takes longer than `step_seconds` raises DeadlineError, as
    those that follow might take as long.
    """
    findings = Findings()
    faults = validation.declaration_faults(env_spec)
    for fault in faults:
        findings.add(fault.name, fault.paragraph)
    if any(fault.fatal for fault in faults):
        return CheckReport((), findings.paragraphs, (), {})

    # The tasks.
    name = env_spec.env_class.__name__
    splits = {split: _checked_tasks(findings, env_spec, split) for split in SPLITS}
    shared = shared_tasks(splits["train"], splits["test"])
    count, advice = f"{len(shared)} of {len(splits['test'])} are (by their data)", "Divide the problems by the split."
    got = f"test task {', '.join(shared[:1])} is also a training task, {count}"
    findings.require(not shared, "tasks", f"{name}.tasks: {got}; expected disjoint splits. {advice}")

    # The episodes. On the first one every action is tried.
    judged = not any(fault.name == "success" for fault in faults)
    played = [CheckedEpisode(findings, env_spec, task, judged, step_seconds) for task in splits["train"][:episodes]]
    for number, episode in enumerate(played):
        with findings.noting():
            await episode.play(actions, random_keys.generator(seed, episode.task.id), thorough=number == 0)

    # The report.
    ended = any(episode.ended for episode in played)
    unequal = {"replay"} if any(not episode.repeatable for episode in played) else set()
    passed = [f"{name}: {words}" for rule, words in RULES.items() if ended and rule not in findings.rules | unequal]
    called = sorted({tool for episode in played for tool in episode.called})
    prompts: dict[str, tuple[Message, ...]] = {}
    tools: dict[str, tuple[Tool, ...]] = {}
    for episode in played:
        prompts |= {role: messages for role, messages in episode.prompts.items() if role not in prompts}
        tools = {**episode.tools, **tools}
    notes = [note for episode in played for name, note in episode.failing.items() if name not in episode.working]
    if unequal:
        notes.append("repeatable = False: whether equal actions give equal results was not compared.")
    if not findings.paragraphs:
        notes += [
            f"{role} never acted in {len(played)} episodes; a role that never acts is not trained."
            for role in env_spec.roles
            if role not in prompts
        ]
        if len({repr(reward) for episode in played for _, _, reward in episode.history}) == 1:
            notes.append("every step had the same reward; a team learns only from answers with different rewards.")
    return CheckReport(tuple(passed), findings.paragraphs, tuple(notes), prompts, tools, tuple(called))


def task_digests(env_spec: EnvSpec) -> dict[str, str]:
    """Return a digest of the first tasks of each split, and of the first prompts (`observe`), the same in every process
    for equal tasks in equal order."""

    def digest(content: Any) -> str:
        return hashlib.sha256(json.dumps(content, default=repr).encode()).hexdigest()

    async def first_prompts() -> list[Any]:
        env = env_spec.make(env_spec.tasks("train")[0])
        await env.until_ready()
        return sorted((role, repr(observation.messages)) for role, observation in env.observe().items())

    digests: dict[str, str] = {
        split: digest([[task.id, dict(task.data)] for task in env_spec.tasks(split)[:SPLIT_SAMPLE]]) for split in SPLITS
    }
    with suppress(Exception):  # what is wrong with an episode is found by playing one
        digests["observe"] = digest(run_coroutine(first_prompts()))
    return digests


def tasks_by_process(target: str, settings: Mapping[str, Any], seconds: float = 120.0) -> str:
    """Return a paragraph if another process, in which texts have other hashes, has other tasks or another order of
    them; "" if it has the same. Raises ContractError if they cannot be listed there."""
    env_spec = EnvSpec(target, settings)
    code = (
        "import json, sys; from cadre.envs.check import task_digests; from cadre.envs.spec import EnvSpec; "
        "open(sys.argv[1], 'w').write(json.dumps(task_digests(EnvSpec(sys.argv[2], json.loads(sys.argv[3])))))"
    )
    other_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digests.json"
        command = [sys.executable, "-c", code, str(path), target, json.dumps(settings, default=str)]
        variables = {**os.environ, "PYTHONHASHSEED": other_seed}
        try:
            subprocess.run(command, env=variables, capture_output=True, timeout=seconds, check=True)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            got = f"its tasks could not be listed in another process ({type(error).__name__})"
            raise ContractError(f"{target}: {got}. Let tasks() depend on its settings alone.") from None
        elsewhere = json.loads(path.read_text())
    for part, digest in task_digests(env_spec).items():
        if digest != elsewhere.get(part):
            where, result = (f"tasks({part!r})", "tasks, or another order of them")
            if part == "observe":
                where, result = part, "prompts at the start of the same task"
            return (
                f"{env_spec.env_class.__name__}.{where}: another process has other {result}; expected the same in "
                "every process. Sort what comes out of a set, and use no hash() of a text: both differ by process."
            )
    return ""


def _checked_tasks(findings: Findings, env_spec: EnvSpec, split: Split) -> list[Task]:
    """Return the first tasks of a split; none if something is wrong with them."""
    where = f"{env_spec.env_class.__name__}.tasks({split!r})"

    def first_tasks() -> list[Any]:
        with findings.calling("tasks", where):
            tasks = env_spec.tasks(split)
            return [tasks[i] for i in range(min(SPLIT_SAMPLE, len(tasks)))]

    with findings.noting():
        tasks, again = (first_tasks() for _ in range(2))
        if not tasks:
            raise Broken("tasks", f"{where}: got no tasks; expected at least one. Make some, or change the settings.")
        for number, task in enumerate(tasks):
            for fault in validation.task_faults(f"{where}: task {number}", task):
                raise Broken("tasks", fault)
        names = [task.id for task in tasks]
        twice = sorted({name for name in names if names.count(name) > 1})
        expected = "expected every task to have its own. Number them."
        findings.require(not twice, "tasks", f"{where}: got the id {twice[:1]} more than once; {expected}")
        expected = 'expected the same tasks at every call. Seed what it draws, as in random.Random(f"{split}-{index}").'
        findings.require(tasks == again, "tasks", f"{where}: differs between calls; {expected}")
        return tasks
    return []


# Findings.


class Broken(ContractError):
    """A fault that ends what was being tried, such as an episode; the check goes on with the next."""

    def __init__(self, rule: str, paragraph: str) -> None:
        super().__init__(paragraph)
        self.rule = rule


class Findings:
    """The faults found so far. Owned by one check.

    A paragraph has what, got, "; expected", and what to do; of faults that expect the same of the same thing the first
    is kept.
    """

    def __init__(self) -> None:
        self.rules: set[str] = set()
        self._paragraphs: dict[tuple[str, str], str] = {}

    @property
    def paragraphs(self) -> tuple[str, ...]:
        return tuple(self._paragraphs.values())

    def add(self, rule: str, paragraph: str) -> None:
        """Note a fault against a rule."""
        self.rules.add(rule)
        kind = (paragraph.partition(":")[0], paragraph.partition("; expected")[2])
        self._paragraphs.setdefault(kind, paragraph)

    def require(self, holds: bool, rule: str, paragraph: str) -> None:
        """Note a fault unless the condition holds."""
        if not holds:
            self.add(rule, paragraph)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note a `Broken` that ends the block, and continue after it."""
        try:
            yield
        except Broken as fault:
            self.add(fault.rule, str(fault))

    @contextmanager
    def calling(self, rule: str, call: str, advice: str = "Fix that line.", when: str = "") -> Iterator[None]:
        """Turn an exception of the user's code in the block into `Broken`, with `when` it was raised. A call that does
        not end in time ends the check, as those that follow might take as long."""
        try:
            with describe_errors(call, when, advice):
                yield
        except (Broken, DeadlineError):
            raise
        except ContractError as error:
            raise Broken(rule, str(error)) from None


# One episode.

MAX_DECISIONS = 200
THOROUGH_DECISIONS = 8
# Characters that are quoted of a text that the check made up.
QUOTED = 40
# Arguments with which a tool is called until it raises nothing, and their texts.
ARGUMENTS_TRIED = 4
EXAMPLE_TEXTS = ("x", "1", "1 + 1", "2026-01-31")
ANY_TEXT = "A model may say anything: take every text, and pay less for what cannot be read."


class CheckedEpisode:
    """One episode under check. `judged` is False if the class has no usable success; a call may take `seconds`."""

    def __init__(
        self, findings: Findings, env_spec: EnvSpec, task: Task, judged: bool, seconds: float = math.inf
    ) -> None:
        self.seconds = seconds
        self.findings, self.env_spec, self.task, self.judged = findings, env_spec, task, judged
        self.name = env_spec.env_class.__name__
        self.history: list[tuple[dict[str, Observation], dict[str, Sample], Reward]] = []
        self.prompts: dict[str, tuple[Message, ...]] = {}
        self.tools: dict[str, tuple[Tool, ...]] = {}
        # Tools that were called, those that returned a result when they were tried, and a note on those that failed.
        self.called: set[str] = set()
        self.working: set[str] = set()
        self.failing: dict[str, str] = {}
        self.ended = self.shares = False
        self.repeatable = True

    async def play(self, actions: Sequence[str], generator: random.Random, thorough: bool = False) -> None:
        """Play one episode of random actions, then the same once more. Raises `Broken` if it cannot continue. If
        `thorough`, every action is tried on a fork of the first decisions."""
        self._task_before = task_state(self.task)
        env = await self._made()
        self.repeatable = env.repeatable
        self._class_before = class_state(type(env))
        while observations := self._observed(env):
            if len(self.history) >= MAX_DECISIONS:
                advice = "Count the turns, and return {} from observe when they are used up."
                raise Broken("end", f"{self.name}: not over after {MAX_DECISIONS} decisions; expected an end. {advice}")
            if "observe" not in self.findings.rules:
                for role, observation in observations.items():
                    self.prompts.setdefault(role, shortened(observation.messages, actions))
                    self.tools.setdefault(role, observation.tools)
            self._check_pure(env, observations)
            chosen = {role: _answer(role, shown, actions, generator) for role, shown in observations.items()}
            await self._check_fork(env, chosen, observations)
            if thorough and len(self.history) < THOROUGH_DECISIONS:
                await self._try_all(env, observations, actions)
            reward = await self._stepped(env, chosen)
            self.history.append((observations, chosen, reward))
        if not self.history:
            got, advice = f"over before anybody acted, on task {self.task.id}", "Return an observation for a role."
            raise Broken("end", f"{self.name}: {got}; expected someone to act. {advice}")
        success = self._success(env)
        self._check_task()
        self.ended = True
        if not self.shares and self.repeatable:  # which is why it would be played differently
            await self._check_replay(success)

    async def _try_all(self, env: Env, observations: Mapping[str, Observation], actions: Sequence[str]) -> None:
        """Try every action, by all who act at once, and every tool, until it raises nothing, each on its own fork."""

        async def try_one(samples: dict[str, Sample]) -> tuple[Env, Reward] | None:
            with self.findings.noting(), self.findings.calling("fork", f"{self.name}.fork"):
                fork = self._deadline("fork").blocking(env.fork)
                return fork, await self._stepped(fork, samples)
            return None

        for action in actions:
            await try_one({role: sample_of(role, action) for role in observations})
        for role, observation in observations.items():
            for tool in observation.tools:
                for variant in range(ARGUMENTS_TRIED):
                    sample = _call(role, tool, variant)
                    outcome = await try_one({**{name: sample_of(name, "") for name in observations}, role: sample})
                    if outcome is None or not outcome[1].parts.get("tools/errors"):
                        self.working.add(tool.name)
                        break
                    result = " ".join(self._observed(outcome[0])[role].messages[-1].content.split())[:200]
                    advice = "Mend the tool, unless it is right to refuse what the check made up."
                    note = f"tool {tool.name} failed in every call, such as {_shown(sample)}: {result}. {advice}"
                    self.failing.setdefault(tool.name, note)

    def _deadline(self, method: str) -> Deadline:
        return Deadline(f"{self.name}.{method}", self.seconds, "--step-seconds")

    async def _made(self) -> Env:
        context = f", given {self.task.id} with the data {', '.join(self.task.data) or '(none)'}"
        with self.findings.calling("end", f"{self.name}.__init__", when=context):
            env = self._deadline("__init__").blocking(self.env_spec.make, self.task)
        with self.findings.calling("observe", f"{self.name}.until_ready"):
            await self._deadline("until_ready").awaiting(env.until_ready())
        return env

    def _observed(self, env: Env) -> dict[str, Observation]:
        """Return what `observe` returns, if it is clear who acts, whatever else is wrong."""
        with self.findings.calling("observe", f"{self.name}.observe"):
            observations = self._deadline("observe").blocking(env.observe)
        shown = observations.values() if isinstance(observations, dict) else [observations]
        is_playable = all(isinstance(observation, Observation) for observation in shown)
        for fault in validation.observation_faults(self.name, observations, self.env_spec.roles):
            self.findings.add("observe", fault)
            if not is_playable:
                raise Broken("observe", fault)
        return observations

    async def _stepped(self, env: Env, chosen: dict[str, Sample]) -> Reward:
        """Take one step, by samples if the environment overrides `step_samples`. A step that returns no awaitable is a
        fault of the declaration, and is played all the same."""
        answers = ", ".join(f"{_shown(sample)} by {role}" for role, sample in chosen.items())
        method = "step" if type(env).step_samples is Env.step_samples else "step_samples"
        calling = self.findings.calling("reward", f"{self.name}.{method}", ANY_TEXT, f", given {answers}")
        with calling:
            deadline = self._deadline(method)
            texts = {role: sample.text for role, sample in chosen.items()}
            reward: Any = deadline.blocking(getattr(env, method), texts if method == "step" else dict(chosen))
            reward = await deadline.awaiting(reward) if inspect.isawaitable(reward) else reward
        roles = self.env_spec.roles
        rewarded = dict.fromkeys(roles) if env.rewards_absent else chosen
        for fault in validation.reward_faults(self.name, reward, rewarded, roles):
            raise Broken("reward", fault)
        self.called |= {*_called(chosen)}
        return reward

    def _success(self, env: Env) -> bool:
        if not self.judged:
            return False
        with self.findings.calling("success", f"{self.name}.success"):
            success = self._deadline("success").blocking(lambda: env.success)
        expected = "expected True or False. Write bool(...) around it."
        fault = f"{self.name}.success: got {described(success)}; {expected}"
        self.findings.require(isinstance(success, bool), "success", fault)
        return bool(success)

    def _check_pure(self, env: Env, observations: dict[str, Observation]) -> None:
        """Check that `observe` returns the same again, twice, and changes nothing."""
        state = env_state(env)
        if self._observed(env) == observations and self._observed(env) == observations:
            return
        if moved := changed(state, env_state(env)):
            cause, advice = f"changes {moved}", "Change the state in step alone"
        else:
            cause = "returned another observation when it was called again"
            advice = "Draw nothing and read no clock in observe: do it in __init__ or step, seeded by the task"
        # Whatever is compared after it differs, too.
        raise Broken("observe", f"{self.name}.observe: {cause}; expected the same at every call. {advice}.")

    async def _check_fork(self, env: Env, chosen: dict[str, Sample], observations: dict[str, Observation]) -> None:
        """Check that two forks given the same actions agree, and that the original does not change."""
        with self.findings.noting():
            advice = "Keep what cannot be copied (files, locks, generators) out of self, or write fork()."
            with self.findings.calling("fork", f"{self.name}.fork", advice):
                twins = [self._deadline("fork").blocking(env.fork) for _ in range(2)]
            state = env_state(env)
            first, second = await asyncio.gather(*(self._stepped(twin, chosen) for twin in twins))
            self._check_task()
            moved = changed(self._class_before, class_state(type(env))) or changed(state, env_state(env))
            if self._observed(env) != observations or (moved and first != second):
                self.shares = True
                got = f"stepping a fork moved the original{f' in {moved}' if moved else ''}"
                expected = f"expected copies that share nothing. {_copying(moved)}"
                self.findings.add("fork", f"{self.name}.fork: {got}; {expected}")
                return
            if not env.repeatable:
                return
            advice = _advice("step", _called(chosen))
            got = f"two forks gave the rewards {first} and {second} for the same actions; expected equal rewards"
            self.findings.require(first == second, "fork", f"{self.name}.fork: {got}. {advice}")
            got = "two forks show different things after the same actions; expected the same"
            is_equal = self._observed(twins[0]) == self._observed(twins[1])
            self.findings.require(is_equal, "fork", f"{self.name}.fork: {got}. {advice}")

    async def _check_replay(self, success: bool) -> None:
        """Check that the same actions lead to the same observations, rewards and success."""
        env = await self._made()
        called = list[str]()

        def require(is_equal: bool, how: str) -> None:
            if is_equal:
                return
            expected, advice = "expected the same", _advice("__init__ or step", called)
            if shared := changed(self._class_before, class_state(type(env))):
                how += f", as an episode changed {shared}, which all episodes share"
                advice = _copying(shared)
            raise Broken("replay", f"{self.name}: the same actions on {self.task.id} {how}; {expected}. {advice}")

        for observations, chosen, reward in self.history:
            require(self._observed(env) == observations, "led to another observation")
            called += _called(chosen)
            require(await self._stepped(env, chosen) == reward, "gave other rewards")
        require(self._success(env) == success, "ended in another success")

    def _check_task(self) -> None:
        """Check that the task is unchanged: others play it, too."""
        if moved := changed(self._task_before, task_state(self.task)):
            got = f"playing {self.task.id} changed the task itself, in {moved}; expected it as it was given"
            raise Broken("replay", f"{self.name}: {got}. Copy what changes in __init__: copy.deepcopy(task.data).")


def shortened(messages: Sequence[Message], actions: Sequence[str]) -> tuple[Message, ...]:
    """Return the messages with the long texts among the actions cut short. A prompt that quotes another role is as long
    as a model's answer, not as the texts that try the environment."""
    short = list(messages)
    for text in (action.strip() for action in actions if len(action) > QUOTED):
        short = [replace(message, content=message.content.replace(text, f"{text[:QUOTED]}...")) for message in short]
    return tuple(short)


def sample_of(role: str, text: str) -> Sample:
    """Return a sample of a text, as from a model."""
    message = Message("assistant", text)
    return Sample(role, "check", text, (0,), (0,), (0.0,), "stop", 0, message)


def _called(chosen: Mapping[str, Sample]) -> list[str]:
    """Return the names of the tools that these samples call."""
    messages = [sample.message for sample in chosen.values() if sample.message is not None]
    return [call.name for message in messages for call in message.tool_calls]


def _call(role: str, tool: Tool, variant: int = 0) -> Sample:
    """Return a sample that calls a tool with arguments that its schema allows."""
    arguments = json.dumps(example_of(tool.parameters, variant) if tool.parameters else {})
    text = json.dumps({"name": tool.name, "arguments": json.loads(arguments)})
    message = Message("assistant", "", (ToolCall("call_0", tool.name, arguments),))
    return replace(sample_of(role, text), message=message)


def _answer(role: str, observation: Observation, actions: Sequence[str], generator: random.Random) -> Sample:
    """Return a drawn text, or if tools are offered as often a call of one."""
    if observation.tools and generator.random() < 0.5:
        return _call(role, generator.choice(observation.tools))
    return sample_of(role, generator.choice(actions))


def _shown(sample: Sample) -> str:
    calls = sample.message.tool_calls if sample.message else ()
    return f"a call of {calls[0].name} with {calls[0].arguments[:QUOTED]}" if calls else repr(sample.text[:QUOTED])


def example_of(schema: Mapping[str, Any], variant: int = 0) -> Any:
    """Return a value that a JSON schema allows, of the schemas that tools have; another one by `variant`."""
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][variant % len(schema["enum"])]
    for name in ("anyOf", "oneOf"):
        if schema.get(name):
            return example_of(schema[name][0], variant)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: example_of(inner, variant) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [example_of(schema.get("items", {}), variant)] * max(1, schema.get("minItems", 1))
    minimum = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    number = min(minimum + variant, schema.get("maximum", math.inf))
    plain = {"integer": number, "number": number, "boolean": variant % 2 == 0, "null": None}
    text = EXAMPLE_TEXTS[variant % len(EXAMPLE_TEXTS)]
    return plain[kind] if kind in plain else text.ljust(schema.get("minLength", 1), text[-1])


def _copying(attribute: str) -> str:
    if attribute and not attribute.startswith("self."):
        return f"Make {attribute} an attribute of self in __init__, and keep no state in the class."
    values = attribute or "every list and dict"
    return f"Copy {values} in fork(), or leave out fork(), as cadre.Env's copies all, and keep no state in the class."


def _advice(where: str, called: Sequence[str] = ()) -> str:
    """Return what to do about differences, after a step that `called` these tools or none."""
    if called:
        return (
            f"Before it {', '.join(dict.fromkeys(called))} was called: if a result is drawn or read from a clock, "
            f"declare `repeatable = False` in the class; else draw nothing unseeded in {where}."
        )
    return f"Draw nothing unseeded in {where}, and read no clock: seed random.Random from the task and the state."


# States, as bytes by name. What cannot be pickled is not compared.


def env_state(env: Env) -> dict[str, bytes]:
    """Return the attributes of an environment, `self.board` each."""
    return pickled({f"self.{name}": value for name, value in vars(env).items()})


def class_state(kind: type) -> dict[str, bytes]:
    """Return the lists, dicts and sets that a class of the user's, or one of its parents, holds itself."""
    return pickled(
        {
            f"{base.__name__}.{name}": value
            for base in kind.__mro__
            if not base.__module__.startswith(("cadre.", "builtins"))
            for name, value in vars(base).items()
            if isinstance(value, dict | list | set) and not name.startswith("__")
        }
    )


def task_state(task: Task) -> dict[str, bytes]:
    """Return the data of a task."""
    return pickled({f"data[{name!r}]": value for name, value in task.data.items()})


def pickled(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the values as bytes, without those that cannot be pickled."""
    state = {}
    for name, value in values.items():
        with suppress(Exception):
            state[name] = pickle.dumps(value)
    return state


def changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return the name of the first value that is another than before, or nothing."""
    return next((name for name in {**before, **after} if before.get(name) != after.get(name)), "")
