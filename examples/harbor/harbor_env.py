"""A folder of Harbor tasks as an environment: a coding agent works on a copy, Harbor's verifier gives the reward.

    env: examples/harbor/harbor_env.py:Harbor
    settings: {tasks: FOLDER, harness: [DIR/bin/mini, --yolo, --task, "{instruction}"]}

The harness is a command that calls the model `coder` at OPENAI_BASE_URL. tests/test.sh then runs on the files that it
leaves, in a machine of its own (`machine.py`), and writes the reward to /logs/verifier, which is read as Harbor does.
"""

import asyncio
import json
import math
import os
import sys
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import machine  # noqa: E402
from task_folder import TaskFolder, read_task  # noqa: E402
from work import as_bytes, as_text, collect  # noqa: E402

from cadre import random_keys  # noqa: E402
from cadre.env import Split  # noqa: E402
from cadre.errors import ConfigError, DataError  # noqa: E402
from cadre.types import Task  # noqa: E402
from cadre_programs.program import Fraction, Program  # noqa: E402
from cadre_programs.settings import InstanceLimits  # noqa: E402

MAX_REWARD = 64_000  # bytes of the file
# Of docker or podman: the runtime and the image; nothing for a machine of `machine.py`.
Container = tuple[str, ...]
LIMITS = InstanceLimits(seconds=600, calls=50, memory=16)


class Harbor(Program):
    """Settings:

    harness  the words of a command; {instruction} is the task's text, {folder} where it works

    and those of `tasks` and of `env: program`.
    """

    def __init__(
        self,
        task: Task,
        harness: list[str],
        run: str = f"{HERE / 'work.py'}:work",
        reward: str = f"{HERE / 'harbor_env.py'}:score",
        roles: list[str] = ["coder"],  # noqa: B006 - never changed
        models: dict[str, str] = {"*": "coder"},  # noqa: B006
        limits: InstanceLimits = LIMITS,
        **others: Any,
    ) -> None:
        super().__init__(task, run=run, reward=reward, roles=roles, models=models, limits=limits, **others)

    @classmethod
    def tasks(
        cls,
        split: Split,
        tasks: str = "",
        held_out: Fraction = 0.25,
        verifier: Literal["machine", "docker", "podman"] = "machine",
        image: str = "python:3.12-slim",
        harness: list[str] = [],  # noqa: B006
        **settings: Any,
    ) -> list[Task]:
        """The tasks of a split.

        tasks     a folder with a folder for each task
        held_out  the share of them that is for testing, by their names
        verifier  where tests/test.sh runs: machine (see `machine.py`), or a container of docker or podman
        image     of such containers, for tasks that name no docker_image
        """
        if settings.get("isolation") == "container":
            raise ConfigError("settings.isolation: got container; expected fork; settings.verifier may be one.")
        found = []
        for folder in sorted(path for path in Path(tasks or "/nonexistent").glob("*") if (path / "task.toml").exists()):
            try:
                task = read_task(folder.absolute())
            except ValueError as error:
                raise DataError(f"settings.tasks: {error}.") from None
            if verifier == "machine" and task.needs_image:
                got = f"{task.name} has {task.needs_image!r}, which needs an image"
                raise DataError(f"settings.tasks: {got}. Build it, and set verifier to docker or podman, and image.")
            if (random_keys.key("harbor", task.name) % 10_000 < 10_000 * held_out) == (split == "test"):
                found.append(task)
        if not found:
            raise DataError(f"settings.tasks: got {tasks!r}, with no task to {split} with; expected a folder of tasks.")
        containers = [() if verifier == "machine" else (verifier, task.image or image) for task in found]
        for container in set(containers):
            check_machine(container)
        pairs = zip(found, containers, strict=True)
        given = {"harness_variables": settings.get("environment") or {}}
        return [Task(task.name, as_data(task, harness, container) | given) for task, container in pairs]


def as_data(task: TaskFolder, harness: list[str], container: Container) -> dict[str, Any]:
    """Return what the harness's process is given: nothing of tests/ and solution/ but where they are, to be hidden."""
    files = {path: as_text(content) for path, content in task.files.items()}
    # A word that names a file from here needs its whole path, as the command starts elsewhere.
    words = [str(Path(word).absolute()) if Path(word).is_file() else word for word in harness]
    data = {"instruction": task.instruction, "workdir": task.workdir, "harness": words, "files": files}
    places = {"folder": str(task.folder), "hidden": [str(task.folder.parent), str(scratch())], "container": container}
    return {"name": task.name, **places, **data}


@lru_cache
def check_machine(container: Container) -> None:
    """Raise ConfigError where a verifier's machine, or container of an image, cannot be had."""
    words = ["bash", "-c", "true"] if container else ["setpriv", "--reuid=65534", "true"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            code, output = machine.run(words, {"/app": folder}, "/app", 60, container=container)
        except OSError as error:  # no such runtime
            code, output = 1, str(error)
    if code:
        raise ConfigError(
            f"settings.verifier: {' '.join(container) or 'machine'} does not start ({output[-300:]!r}); expected an "
            "image that is here, or for a machine namespaces with two users. Run Cadre as root, or use a container."
        )


async def score(task: dict[str, Any], transcript: object, result: dict[str, Any]) -> dict[str, Any]:
    """Return the reward of an episode. A verifier that leaves none is a reward of 0."""
    try:
        files = {path: as_bytes(text) for path, text in result["files"].items()}
    except (AttributeError, LookupError, TypeError, ValueError):  # whatever ran beside the harness may have written it
        files = {}
    rewards = await asyncio.to_thread(judge, read_task(Path(task["folder"])), files, None, tuple(task["container"]))
    team = total(rewards)
    return {"team": team, "success": team >= 1.0, "parts": {"unverified": float(rewards is None)}}


def total(rewards: dict[str, float] | None) -> float:
    """Return the entry `reward`, or the mean of all entries."""
    if not rewards:
        return 0.0
    return rewards["reward"] if "reward" in rewards else sum(rewards.values()) / len(rewards)


def judge(
    task: TaskFolder, files: dict[str, bytes], script: Path | None = None, container: Container = ()
) -> dict[str, float] | None:
    """Return the verifier's rewards of a working folder with these files; None if it leaves none.

    A script, as a solution's, runs first, in a machine of its own of which only the files remain.
    """

    def run(path: str, folders: dict[str, Path], variables: dict[str, str]) -> None:
        # As Harbor starts a script: in the language that its first line names.
        command = ["bash", "-c", f"chmod +x {path} && {path}"]
        machine.run(command, folders, task.workdir, task.seconds, variables=variables, container=container)

    with tempfile.TemporaryDirectory(dir=scratch()) as name:
        root = Path(name)
        if script is not None:
            folders = {task.workdir: root / "before", "/solution": root / "solution"}
            write_files(folders[task.workdir], files)
            write_files(folders["/solution"], read_files(script.parent))
            run(f"/solution/{script.name}", folders, {})
            files = {path: as_bytes(text) for path, text in collect(root / "before")["files"].items()}
        logs = ("/logs/verifier", "/logs/agent", "/logs/artifacts")
        folders = {path: root / path[1:] for path in (task.workdir, "/tests", *logs)}
        contents = {task.workdir: files, "/tests": read_files(task.folder / "tests")}
        for path, folder in folders.items():
            write_files(folder, contents.get(path, {}))
        run("/tests/test.sh", folders, task.variables)
        return read_rewards(root / "logs" / "verifier")


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that was checked, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write files into a new folder. A path that leaves it is left out, as is one that no folder can have."""
    folder.mkdir(parents=True)
    for path, content in files.items():
        if not {"", ".", ".."} & set(path.split("/")):
            with suppress(OSError, ValueError):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)


def read_rewards(folder: Path) -> dict[str, float] | None:
    """Return the rewards as Harbor reads them, of reward.json, or of reward.txt if that is not there; None for none."""
    path = next((path for path in (folder / "reward.json", folder / "reward.txt") if os.path.lexists(path)), None)
    if path is None or path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_REWARD:
        return None
    try:
        rewards = json.loads(path.read_text()) if path.suffix == ".json" else {"reward": float(path.read_text())}
        values = {str(key): float(value) for key, value in rewards.items() if isinstance(value, int | float)}
    except (AttributeError, OverflowError, RecursionError, ValueError):
        return None
    is_valid = values and len(values) == len(rewards) and all(map(math.isfinite, values.values()))
    return values if is_valid else None


@lru_cache
def scratch() -> Path:
    """Return the folder of all verifiers of this user, which every harness's process hides."""
    folder = Path(tempfile.gettempdir()) / f"cadre-harbor-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise ConfigError(f"{folder}: expected a folder that is yours alone, for hidden checks. Remove it.")
    return folder
