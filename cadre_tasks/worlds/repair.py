"""Repair of small repositories: a coder mends a seeded bug, a reviewer judges the patch, for some rounds.

A patch is judged by calls of the package in the sandbox, or with `isolation: container` in a container. The results
come back as values and are compared here: no test and no expected value is where a patch could read or change it. A
patch earns its author .1 if it can be read and .4 if it is right, and the team .5 at the end; true verdicts earn the
reviewer half a point over all rounds, false ones cost it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from cadre import random_keys
from cadre.env import Split
from cadre.envs import drawings
from cadre.envs.splits import drawn_tasks, in_split
from cadre.errors import ConfigError
from cadre.types import Drawing, Message, Reward, Task
from cadre_programs.containers import ContainerConfig, ContainerShell, check_containers, make_archive, run_in_container
from cadre_sandbox import FunctionProgram, Limits
from cadre_tasks import sandbox
from cadre_tasks.account import Account
from cadre_tasks.patterns.question import FORM, RIGHT, TEAM, VERDICT, Count, verdict
from cadre_tasks.patterns.refine import VERDICTS
from cadre_tasks.turn_based import Prompts, TurnBased
from cadre_tasks.worlds.repair_repositories import draw_repository

FORMAT = "Answer with the whole of each file that you change: a line `File: path`, then the file in a ```python block."
FILE = re.compile(r"^\W*File:[ *`]*([\w./-]+)[ *`]*\n+```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
MAX_PATCH = 20_000
LIMITS = Limits(cpu_s=2.0, output_bytes=1 << 20)
# Makes the files modules, without a file system: what a name means is in FILES.
IMPORT_FILES = """
import importlib.abc, importlib.util, sys
class Files(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        for self.path in (name.replace(".", "/") + "/__init__.py", name.replace(".", "/") + ".py"):
            if self.path in FILES:
                return importlib.util.spec_from_loader(name, self, is_package=self.path.endswith("__init__.py"))
    def exec_module(self, module):
        name = module.__name__.replace(".", "/")
        path = name + "/__init__.py" if hasattr(module, "__path__") else name + ".py"
        exec(compile(FILES[path], path, "exec"), module.__dict__)
sys.meta_path.insert(0, Files())
"""
RUN = "from {package}.main import run\ndef run_calls(calls):\n    return [run(*call) for call in calls]\n"
PRINT = "import json\nprint(json.dumps(run_calls(json.load(open('calls.json')))))\n"


class Repair(TurnBased):
    """Settings:

    rounds     patches at most
    prompts    full, or compact, which shows the file with the bug alone
    isolation  where patches run: sandbox, or container
    container  its settings
    """

    roles: ClassVar[tuple[str, ...]] = ("coder", "reviewer")

    def __init__(
        self,
        task: Task,
        rounds: Count = 2,
        prompts: Prompts = "full",
        isolation: Literal["sandbox", "container"] = "sandbox",
        container: ContainerConfig | None = None,
    ) -> None:
        super().__init__(task)
        self.rounds, self.prompts, self.isolation = rounds, prompts, isolation
        config = container or ContainerConfig(seconds=20)
        self.config = config.with_image(task.data.get("image", config.image))
        self.round, self.is_reviewing, self.is_right, self.is_finished = 0, False, False, False
        self.patch: dict[str, str] = {}
        self.text, self.outcome, self.review, self.account = "", "", "", Account()

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        """Return repositories with a bug; a template's bug is in one split only, whatever the package is called."""
        config = settings.get("container") or ContainerConfig()
        is_contained = settings.get("isolation") == "container"
        if settings.get("container") and not is_contained:
            raise ConfigError("settings.container: got it beside isolation: sandbox; expected isolation: container.")
        if is_contained:
            check_containers(config)

        def draw(index: int, attempt: int) -> dict[str, Any] | None:
            generator = random_keys.generator("repair", split, index, attempt)
            data = draw_repository(generator, lambda identity: in_split(split, identity))
            return data | {"image": config.image} if data and is_contained else data

        return drawn_tasks(split, draw, {}, split)

    @property
    def over(self) -> bool:
        return self.is_finished

    @property
    def acting(self) -> str:
        return "reviewer" if self.is_reviewing else "coder"

    @property
    def success(self) -> bool:
        return self.is_right

    def conversation(self) -> tuple[Message, ...]:
        data = self.task.data
        paths = (
            list(data["fixed"]) if self.prompts == "compact" else [path for path in data["files"] if path[-3:] == ".py"]
        )
        files = "\n".join(f"File: {path}\n```python\n{data['files'][path]}```" for path in paths if data["files"][path])
        results = f"returns {data['got']}" if data["got"] != "Error" else "raises an error"
        issue = f"`run(*{data['calls'][0]})` {results}; expected {data['expected'][0]}."
        past = f"The last patch:\n{self.text[-4000:]}\n\n{self.outcome}" if self.text else ""
        if self.is_reviewing:
            task = f"Review the patch of a bug.\n\n{past}\n\n{VERDICT}"
        else:
            review = f"{past}\n\nThe review:\n{self.review[-1500:]}\n\n" if past else ""
            task = f"Mend the bug.\n\n{review}{FORMAT}"
        description = "" if self.prompts == "compact" else f"{data['description']}\n\n"
        return (Message("user", f"{description}{files}\n\nThe bug: {issue}\n\n{task}"),)

    async def step(self, actions: dict[str, str]) -> Reward:
        if self.is_reviewing:
            return self.judge_review(actions["reviewer"])
        self.text, self.is_reviewing = actions["coder"], True
        self.patch = read_patch(self.text, self.task.data["files"], next(iter(self.task.data["fixed"])))
        values = await self.run_calls() if self.patch else None
        example = "no values" if not values else str(values[0])[:300]
        self.outcome = f"With it the call returns {example}." if self.patch else "No file could be read in it."
        self.is_right = values == self.task.data["expected"]
        earned = FORM * bool(self.patch) + RIGHT * self.is_right
        return self.settle(TEAM * self.is_right, {"coder": earned}, {"right": float(self.is_right)})

    def judge_review(self, text: str) -> Reward:
        judgement, rounds_left = verdict(text), self.rounds - self.round
        self.review, self.is_reviewing, self.round = text, False, self.round + 1
        self.is_finished = judgement == "right" or self.round >= self.rounds
        is_true = judgement is not None and (judgement == "right") == self.is_right
        # A verdict that ends the episode counts for all remaining rounds, as in `cadre_tasks.patterns.refine`.
        share = (1 if is_true else -1) * (rounds_left if self.is_finished else 1) / self.rounds
        earned = self.account.local.get("reviewer", 0.0) + VERDICTS * share
        team = TEAM * (self.is_right and self.is_finished)
        return self.settle(team, {"reviewer": earned}, {"verdict": float(is_true)})

    def settle(self, team: float, local: dict[str, float], parts: dict[str, float]) -> Reward:
        self.account, reward = self.account.settle(team, local, parts)
        return reward

    async def run_calls(self) -> Any:
        """Return the results of the task's calls with the patch; None if the package does not get so far."""
        data = self.task.data
        # The package alone: a patch of tests, of a runner or of Python's own start-up files changes nothing.
        files = {path: text for path, text in {**data["files"], **self.patch}.items() if path.endswith(".py")}
        if self.isolation == "sandbox":
            return await call_package(data["package"], files, data["calls"])
        command = ["python3", "-c", RUN.format(package=data["package"]) + PRINT]
        archive = make_archive({**files, "calls.json": json.dumps(data["calls"])})
        result = await run_in_container(self.config, command, archive)
        try:
            return json.loads(result.stdout.strip().rpartition("\n")[2])
        except (ValueError, RecursionError):
            return None

    def privileged(self) -> str:
        return "\n".join(self.task.data["fixed"].values())

    def render(self) -> Drawing:
        return drawings.code("\n".join(self.patch.values()), []) if self.patch else None


class RepairShell(Repair):
    """The coder also has a shell in a container of the task's image, in a git repository of the files."""

    tools = {"coder": [ContainerShell(seconds=20, git=True)]}
    tool_timeout_s = 60.0


async def call_package(package: str, files: dict[str, str], calls: list[Any]) -> Any:
    """Return the results of calls of `PACKAGE.main.run` in the sandbox; None if the package does not get so far."""
    program = f"FILES = {files!r}\n{IMPORT_FILES}{RUN.format(package=package)}"
    called = await sandbox.call(FunctionProgram(program, "run_calls", f"arguments = ({calls!r},)"), limits=LIMITS)
    return called.value if called.returned else None


def read_patch(text: str, files: dict[str, str], default: str) -> dict[str, str]:
    """Return the files of a patch by path: those of the repository's package that are Python. A single block without a
    path is the file `default`."""
    text = text[:MAX_PATCH]
    package = default.partition("/")[0]
    blocks = BLOCK.findall(text)
    sources = dict(FILE.findall(text + "\n")) or ({default: blocks[0]} if len(blocks) == 1 else {})
    allowed = re.compile(rf"{package}/(\w+/)*\w+\.py")
    return {path: source for path, source in sources.items() if allowed.fullmatch(path) and files.get(path) != source}
