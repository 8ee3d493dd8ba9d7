"""Which level this machine gives, found by trying: a warm parent at the level, and a few real attacks on it."""

import asyncio
import functools
import logging
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cadre_sandbox import cgroups, probes
from cadre_sandbox.errors import SandboxError
from cadre_sandbox.inside import landlock
from cadre_sandbox.inside.layers import GROUP_LAYER
from cadre_sandbox.inside.layers import LAYERS as LAYERS
from cadre_sandbox.records import DEFAULT_LIMITS, LEVELS, GroupMode, Level, LevelName, Limits, Result
from cadre_sandbox.results import result_of
from cadre_sandbox.worker import Setup, Worker, WorkerDied

log = logging.getLogger("cadre_sandbox")

# A machine that others keep busy may answer too late now and in time a moment later. What got through is never excused.
TRIES = 3


@dataclass(frozen=True)
class Trial:
    """What a level gave when it was tried; `reason` says why it does not hold. `slow` where all that is known is that
    the machine did not get round to it in time."""

    level: Level
    holds: bool
    reason: str
    slow: bool = False


@dataclass(frozen=True)
class GroupTrial:
    """Where control groups may be made, if they held when tried; `reason` says why there are none."""

    found: cgroups.Delegation | None
    reason: str

    @property
    def described(self) -> str:
        return self.found.described if self.found else f"none: {self.reason}"


class OneWorker:
    """The least that attacks can be tried on: one warm parent."""

    def __init__(self, level: Level, found: cgroups.Delegation | None = None) -> None:
        self.level: str = level
        self.worker = Worker(Setup(level, groups=found))

    async def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Result:
        """Run a program as `Sandbox.run` does. Raises WorkerDied."""
        endings = await self.worker.run([{"kind": "program", "program": program, "seed": 0}], stdin.encode(), limits)
        return result_of(endings[0], limits)


async def attack_level(level: Level) -> Trial:
    """Start the level and let the sample of attacks loose on it; at level `process` it is enough that it starts."""
    try:
        outcomes = await attack_one(OneWorker(level), probes.PROBES if level != "process" else [])
    except WorkerDied as error:
        return Trial(level, False, str(error), slow=isinstance(error.__cause__, TimeoutError))
    breached = [one for one in outcomes if one.breach]
    reason = "; ".join(f"{one.name}: {one.breach}" for one in breached)
    return Trial(level, not breached, reason, slow=bool(breached) and all(one.slow for one in breached))


async def attack_group(found: cgroups.Delegation) -> GroupTrial:
    """Let the attacks by many processes loose on a group below this one, at level `process`, where nothing else stops
    them. It holds when it is what stopped them: one that ran out of time has shown nothing.
    """
    try:
        outcomes = await attack_one(OneWorker("process", found), probes.GROUP_PROBES)
    except WorkerDied as error:
        return GroupTrial(None, str(error))
    escaped = [f"{one.name}: {one.breach or f'ended by {one.layer}'}" for one in outcomes if one.layer != GROUP_LAYER]
    return GroupTrial(None if escaped else found, "; ".join(escaped))


async def attack_one(runner: OneWorker, chosen: list[probes.Attack]) -> list[probes.Outcome]:
    """Let attacks loose on one warm parent, and end it. Raises WorkerDied."""
    try:
        with probes.World() as world:
            await runner.worker.hello()
            return await probes.assault(runner, world, chosen)
    finally:
        runner.worker.close()


@functools.cache
def attempt(level: Level) -> Trial:
    """Try the level, once a process, and again where the machine was too slow to tell; in a thread, because the caller
    may be inside an event loop."""
    for _ in range(TRIES):
        with ThreadPoolExecutor(1) as executor:
            trial = executor.submit(lambda: asyncio.run(attack_level(level))).result()
        if not trial.slow:
            break
    return trial


@functools.cache
def attempt_groups() -> GroupTrial:
    """Find the control group that was delegated to us and try one below it, once a process, as in `attempt`."""
    try:
        found = cgroups.find()
        cgroups.settle(found)
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(lambda: asyncio.run(attack_group(found))).result()
    except (cgroups.NotDelegated, OSError) as error:
        return GroupTrial(None, str(error))


def choose_groups(asked: GroupMode) -> GroupTrial:
    """Whether programs get a control group. Raises SandboxError when it was asked for and none holds."""
    if asked == "off":
        return GroupTrial(None, "switched off")
    trial = attempt_groups()
    if trial.found is not None:
        log.info("sandbox layer cgroup (%s)", trial.found.described)
    elif asked == "auto":
        log.info("no sandbox layer cgroup here: %s", trial.reason)
    else:
        raise SandboxError(
            f"this machine gives no control group to limit programs with. Got: {trial.reason}. Expected a cgroup v2 "
            f"group that we may divide, with the controllers memory and pids. Start with `systemd-run --user --scope "
            f"-p Delegate=yes`, or leave cgroup at 'auto'."
        )
    return trial


def choose(asked: LevelName) -> Level:
    """The level to use. Raises SandboxError when it does not hold, or when `auto` finds none from `confined` up."""
    candidates: tuple[Level, ...] = ("isolated", "confined") if asked == "auto" else (asked,)
    trials = []
    for level in candidates:
        trials.append(attempt(level))
        if trials[-1].holds:
            log.info("sandbox level %s (%s)", level, ", ".join(LAYERS[level]))
            return level
        if trials[-1].slow:  # a lower level that answers in time would be one that nobody asked for
            raise SandboxError(
                f"this machine is too busy to try the sandbox at level {level!r}. Got: {trials[-1].reason}, {TRIES} "
                f"times. Expected an answer within seconds. Start again when other programs leave it processor time."
            )
        log.warning("sandbox level %s does not hold here: %s", level, trials[-1].reason)
    reasons = "; ".join(f"{trial.level}: {trial.reason}" for trial in trials)
    raise SandboxError(
        f"this machine cannot confine programs at level {asked!r}. Got: {reasons}. Expected Linux 5.13 or later on "
        f"x86-64 or arm64 with Landlock and seccomp (and user namespaces for 'isolated'). Run where `cadre check "
        f"sandbox` lists the level, or ask for level 'process' by name, which keeps no program from your files."
    )


@dataclass(frozen=True)
class Row:
    """One line of `cadre check sandbox`: what is looked at, whether this machine gives it, and what that is."""

    name: str
    given: bool
    detail: str


def table() -> list[Row]:
    """What this machine gives: the kernel's parts first, then each level as tried."""
    linux = platform.system() == "Linux"
    rows = [Row("system", linux, f"{platform.system()} {platform.release()}, {platform.machine()}")]
    rows.append(Row("user", True, "root" if os.getuid() == 0 else "ordinary user"))
    if linux:
        version = landlock.version()
        rows.append(Row("Landlock", version > 0, f"version {version}" if version else "missing or switched off"))
    for level in LEVELS:
        trial = attempt(level)
        rows.append(Row(f"level {level}", trial.holds, ", ".join(LAYERS[level]) if trial.holds else trial.reason))
    groups = attempt_groups()
    rows.append(Row(f"layer {GROUP_LAYER}", groups.found is not None, groups.described))
    return rows
