"""No attack gets through, at either level, as root or as an ordinary user; and the attacks are real."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.assaults import ROOT, assault
from cadre_sandbox import Sandbox, probes
from cadre_sandbox.inside import landlock
from cadre_sandbox.inside.landlock import NEWEST as NEWEST
from tests.cadre_sandbox import attacks
from tests.cadre_sandbox.attacks import kernel
from tests.cadre_sandbox.attacks.world import World

# What would do lasting harm where nothing stops it is left out of the counter-check.
HARMLESS = (
    "secret by path",
    "secret by symbolic link",
    "file beside the trainer",
    "kill a neighbour",
    "TCP connection",
    "many processes",
    "memory of many processes",
)


QUICK = sorted({item.kind for item in attacks.ATTACKS} - set(attacks.SLOW))


@pytest.mark.parametrize(("level", "user"), [("confined", "ordinary"), ("isolated", "root")])
def test_an_attack_of_every_kind_does_not_get_through(level: str, user: str) -> None:
    outcomes = assault(level, user, kinds=QUICK, per_kind=1)
    assert len(outcomes) >= 25
    assert [(outcome["name"], outcome["breach"]) for outcome in outcomes if outcome["breach"]] == []
    assert {"seccomp", "landlock"} - ({"landlock"} if level == "isolated" else set()) <= {
        outcome["layer"] for outcome in outcomes
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "user", "slow"),
    [
        ("confined", "root", False),
        ("confined", "ordinary", True),
        ("isolated", "root", True),
        ("isolated", "ordinary", False),
    ],
)
def test_no_attack_gets_through(level: str, user: str, slow: bool) -> None:
    outcomes = assault(level, user, kinds=() if slow else QUICK)
    assert len(outcomes) >= (400 if slow else 300)
    assert [(outcome["name"], outcome["breach"]) for outcome in outcomes if outcome["breach"]] == []
    stopped_by = {outcome["layer"] for outcome in outcomes}
    assert {"seccomp", "rlimits", "landlock"} <= stopped_by
    assert not slow or {"clock", "watch"} <= stopped_by


@pytest.mark.slow
def test_an_attack_of_every_kind_on_files_does_not_get_through_an_older_landlock() -> None:
    outcomes = assault("confined", "root", 1, attacks.ON_FILES, per_kind=2)
    assert len(outcomes) >= len(attacks.ON_FILES)
    assert [(outcome["name"], outcome["breach"]) for outcome in outcomes if outcome["breach"]] == []


@pytest.mark.slow
@pytest.mark.parametrize("user", ["root", "ordinary"])
@pytest.mark.parametrize("abi", [1, 2])
def test_none_gets_through_an_older_landlock(abi: int, user: str) -> None:
    """It sees no truncation (ABI 3), no connection (4), no control of a device (5), no signal (6): the filter does."""
    outcomes = assault("confined", user, abi, attacks.ON_FILES)
    assert len(outcomes) >= 100
    assert [(outcome["name"], outcome["breach"]) for outcome in outcomes if outcome["breach"]] == []


BARE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from inside import kernel, landlock
rules = landlock.ruleset([], [], None, int(sys.argv[2]))
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
landlock.restrict(rules)
try:
    os.open(sys.argv[3], 3 | os.O_TRUNC)
except OSError as error:
    print(error.errno)
"""


def test_older_versions_are_really_emulated(tmp_path: Path) -> None:
    """Behind Landlock alone, the access mode 3 empties a file up to version 2; from 3 on it does not."""
    if landlock.version() < 3:
        pytest.skip("the kernel's own Landlock is as old")
    for abi, remaining in ((1, ""), (2, ""), (3, "full"), (NEWEST, "full")):
        file = tmp_path / str(abi)
        file.write_text("full")
        command = [sys.executable, "-c", BARE, str(ROOT / "cadre_sandbox"), str(abi), str(file)]
        subprocess.run(command, check=True, capture_output=True)
        assert file.read_text() == remaining, abi


def test_two_hundred_attacks_of_forty_kinds() -> None:
    assert len(attacks.ATTACKS) >= 200
    assert len({item.name for item in attacks.ATTACKS}) == len(attacks.ATTACKS)
    assert len({item.kind for item in attacks.ATTACKS}) >= 40
    assert {item.kind for item in attacks.ATTACKS} >= {*attacks.SLOW, *attacks.ON_FILES}


@pytest.mark.slow
def test_the_doors_of_the_kernel_are_there_where_nothing_stops_a_program() -> None:
    """The kernel looks at nine in ten of the calls at level `process`; it may have been built without the others."""
    doors = [item for item in kernel.ATTACKS if "raw(" in item.program and item.kind not in ("mounts", "filter")]

    async def go() -> list[str]:
        with World() as world:
            async with Sandbox("process", workers=1, cgroup="off") as sandbox:
                runs = [(door.name, await sandbox.run(probes.program_of(door, world))) for door in doors]
        return [name for name, run in runs if "BREACH" not in run.stdout]

    if os.getuid() != 0:
        pytest.skip("an ordinary user is refused some of them anyway")
    assert len(doors) >= 40
    assert len(asyncio.run(go())) <= len(doors) // 5


@pytest.mark.slow
def test_the_attacks_get_through_where_nothing_stops_them() -> None:
    async def go(chosen: list[probes.Attack]) -> list[probes.Outcome]:
        outcomes = []
        async with Sandbox("process", workers=1, cgroup="off") as sandbox:
            for one in chosen:
                with World() as world:
                    outcomes.append(await probes.try_attack(sandbox, world, one))
        return outcomes

    chosen = [item for item in attacks.ATTACKS if item.name in HARMLESS]
    assert len(chosen) == len(HARMLESS)
    assert [outcome.name for outcome in asyncio.run(go(chosen)) if not outcome.breach] == []


POISONS = {
    "builtins": "import builtins\nbuiltins.print = builtins.sorted = builtins.len = lambda *a, **k: None",
    "modules": "import json, math, os, sys\njson.dumps = math.floor = None\nos.environ['X'] = '1'",
    "classes": "import json.encoder, collections\njson.encoder.JSONEncoder.encode = lambda *a: 'poisoned'\n"
    "collections.OrderedDict.update = None",
    "the warm parent's own code": "import sys\nfor name, module in list(sys.modules.items()):\n"
    "    if name.startswith('inside'):\n        for key in list(vars(module)): setattr(module, key, None)",
    "limits and signals": "import signal, sys\nsys.setrecursionlimit(50)\nsignal.signal(signal.SIGINT, signal.SIG_IGN)",
    "memory of the interpreter": "import ctypes\nctypes.c_int.from_address(id(7) + 24).value = 8",
}


@pytest.mark.parametrize("level", ["confined", "isolated"])
def test_a_run_leaves_nothing_to_the_next(level: str) -> None:
    probe = (
        probes.HEALTH
        + "\nimport sys, collections\nprint(7, sys.getrecursionlimit(), collections.OrderedDict(a=1)['a'])"
    )

    async def go() -> tuple[str, dict[str, str]]:
        async with Sandbox(level, workers=1) as sandbox:  # type: ignore[arg-type]
            original, updated = await sandbox.run(probe), {}
            for name, poison in POISONS.items():
                await sandbox.run(poison)
                updated[name] = (await sandbox.run(probe)).stdout
            return original.stdout, updated

    initial, final = asyncio.run(go())
    assert final == dict.fromkeys(POISONS, initial)
    assert initial.startswith(probes.HEALTHY)


def test_a_run_finds_nothing_of_the_run_before() -> None:
    """The warm parent never reads a program, an input or an output, so none is in the memory that a child gets."""
    hunt = (
        "import ctypes, gc\nneedle = 'PRE' + 'CIOUS'\n"
        "found = sum(needle in o for o in gc.get_objects() if isinstance(o, (str, bytes)))\n"
        "found += sum(needle in str(o) for o in gc.get_objects() if isinstance(o, (dict, list)) and len(o) < 30)\n"
        "print(found)"
    )

    async def go() -> list[str]:
        async with Sandbox("confined", workers=1) as sandbox:
            clean = await sandbox.run(hunt)
            for _ in range(3):
                await sandbox.run("x = 'PRECIOUS' + input()\nprint(x)", stdin="PRECIOUS")
            return [clean.stdout, (await sandbox.run(hunt)).stdout]

    clean, final = asyncio.run(go())
    assert clean == final
    assert final.strip().isdigit()
