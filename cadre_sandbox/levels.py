"""Find out which level this machine can enforce: start a warm parent at the level and run a few real attacks."""

import asyncio
import functools
import logging
import os
import platform
import sys
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

# A busy machine may answer too late now and in time a moment later, so a slow trial is repeated. A breach is not.
TRIES = 3


@dataclass(frozen=True)
class Trial:
    """The outcome of trying a level. `reason` says why it does not hold; `slow` is True if the only reason is that the
    machine did not answer in time."""

    level: Level
    holds: bool
    reason: str
    slow: bool = False


@dataclass(frozen=True)
class GroupTrial:
    """The outcome of trying control groups: the delegated group if they held, else `reason` says why not."""

    delegation: cgroups.Delegation | None
    reason: str

    @property
    def described(self) -> str:
        return self.delegation.described if self.delegation else f"none: {self.reason}"


class OneWorker:
    """A `probes.Runner` with one warm parent and nothing else."""

    def __init__(self, level: Level, delegation: cgroups.Delegation | None = None) -> None:
        self.level: str = level
        self.worker = Worker(Setup(level, groups=delegation))

    async def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Result:
        """Run a program as `Sandbox.run` does. Raises WorkerDied."""
        endings = await self.worker.run([{"kind": "program", "program": program, "seed": 0}], stdin.encode(), limits)
        return result_of(endings[0], limits)


async def attack_level(level: Level) -> Trial:
    """Start a warm parent at the level and run `PROBES` on it; level `process` holds if it starts."""
    try:
        outcomes = await attack_one(OneWorker(level), probes.PROBES if level != "process" else [])
    except WorkerDied as error:
        return Trial(level, False, str(error), slow=isinstance(error.__cause__, TimeoutError))
    breached = [outcome for outcome in outcomes if outcome.breach]
    reason = "; ".join(f"{outcome.name}: {outcome.breach}" for outcome in breached)
    return Trial(level, not breached, reason, slow=bool(breached) and all(outcome.slow for outcome in breached))


async def attack_group(delegation: cgroups.Delegation) -> GroupTrial:
    """Run the attacks by many processes on a group below the delegated one. It holds if the group stopped them all."""
    # At level `process` nothing else stops them. An attack that ran out of time has shown nothing: it escaped.
    try:
        outcomes = await attack_one(OneWorker("process", delegation), probes.GROUP_PROBES)
    except WorkerDied as error:
        return GroupTrial(None, str(error))
    escaped = [
        f"{outcome.name}: {outcome.breach or f'ended by {outcome.layer}'}"
        for outcome in outcomes
        if outcome.layer != GROUP_LAYER
    ]
    return GroupTrial(None if escaped else delegation, "; ".join(escaped))


async def attack_one(runner: OneWorker, chosen: list[probes.Attack]) -> list[probes.Outcome]:
    """Run attacks on one warm parent, then end it. Raises WorkerDied."""
    try:
        with probes.World() as world:
            await runner.worker.hello()
            return await probes.assault(runner, world, chosen)
    finally:
        runner.worker.close()


@functools.cache
def attempt(level: Level) -> Trial:
    """Return the outcome of trying the level, cached per process; a slow trial is repeated."""
    for _ in range(TRIES):
        # In a thread, because the caller may be inside an event loop, where asyncio.run is not allowed.
        with ThreadPoolExecutor(1) as executor:
            trial = executor.submit(lambda: asyncio.run(attack_level(level))).result()
        if not trial.slow:
            break
    return trial


@functools.cache
def attempt_groups() -> GroupTrial:
    """Find the delegated control group and try one below it; cached per process like `attempt`."""
    try:
        delegation = cgroups.find()
        cgroups.settle(delegation)
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(lambda: asyncio.run(attack_group(delegation))).result()
    except (cgroups.NotDelegated, OSError) as error:
        return GroupTrial(None, str(error))


def choose_groups(mode: GroupMode) -> GroupTrial:
    """Return the control group to use, if any. Raises SandboxError if the mode is `on` and none holds."""
    if mode == "off":
        return GroupTrial(None, "switched off")
    trial = attempt_groups()
    if trial.delegation is not None:
        log.info("sandbox layer cgroup (%s)", trial.delegation.described)
    elif mode == "auto":
        log.info("no sandbox layer cgroup here: %s", trial.reason)
    else:
        raise SandboxError(
            f"this machine gives no control group to limit programs with. Got: {trial.reason}. Expected a cgroup v2 "
            f"group that we may divide, with the controllers memory and pids. Start with `systemd-run --user --scope "
            f"-p Delegate=yes`, or leave cgroup at 'auto'."
        )
    return trial


def choose(requested: LevelName) -> Level:
    """Return the level to use. Raises SandboxError if it does not hold, or if `auto` finds none from `confined` up."""
    candidates: tuple[Level, ...] = ("isolated", "confined") if requested == "auto" else (requested,)
    if requested == "process" and sys.platform != "linux":
        log.warning(
            "sandbox level process on %s: nothing keeps programs of a model from your files and the network. Train "
            "only models and tasks that you trust, or run in a Linux container or virtual machine.",
            sys.platform,
        )
    trials = []
    for level in candidates:
        trials.append(attempt(level))
        if trials[-1].holds:
            log.info("sandbox level %s (%s)", level, ", ".join(LAYERS[level]))
            return level
        # Never fall back because a machine is slow: the stricter level may well hold, and it is what was asked for.
        if trials[-1].slow:
            raise SandboxError(
                f"this machine is too busy to try the sandbox at level {level!r}. Got: {trials[-1].reason}, {TRIES} "
                f"times. Expected an answer within seconds. Start again when other programs leave it processor time."
            )
        log.warning("sandbox level %s does not hold here: %s", level, trials[-1].reason)
    reasons = "; ".join(f"{trial.level}: {trial.reason}" for trial in trials)
    raise SandboxError(
        f"this machine cannot confine programs at level {requested!r}. Got: {reasons}. Expected Linux 5.13 or later on "
        f"x86-64 or arm64 with Landlock and seccomp (and user namespaces for 'isolated'). Run where `cadre check "
        f"sandbox` lists the level, or ask for level 'process' by name, which keeps no program from your files."
    )


@dataclass(frozen=True)
class Row:
    """One row of `cadre check sandbox`: the name of a feature, whether this machine has it, and the details."""

    name: str
    given: bool
    detail: str


def table() -> list[Row]:
    """Return the features of this machine: first those of the kernel, then each level as tried."""
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
    rows.append(Row(f"layer {GROUP_LAYER}", groups.delegation is not None, groups.described))
    return rows
