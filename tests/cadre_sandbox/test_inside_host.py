"""No program learns what the machine is called, and what asks for its name goes on working."""

import asyncio
import os
import socket

import pytest

from bench.assaults import assault
from cadre_sandbox import Limits, Sandbox
from cadre_sandbox.checkers import check_tests
from cadre_sandbox.inside.host import NAME
from tests.helpers.sandboxes import shared_sandbox
from tests.helpers.slow import few_of

ASK = """
import os, platform, posix, socket, _socket, uuid, sysconfig, logging, asyncio
names = [socket.gethostname(), _socket.gethostname(), platform.node(), platform.uname().node, os.uname().nodename]
names += [os.uname()[1], posix.uname().nodename, socket.getfqdn(), platform.uname()[1]]
assert isinstance(os.uname(), posix.uname_result) and len(os.uname()) == 5
assert os.uname().sysname == platform.system() == 'Linux' and os.uname().machine == platform.machine()
assert platform.platform() and sysconfig.get_platform() and uuid.uuid1()
print(*names)
"""


@pytest.mark.parametrize(
    ("level", "mode"),
    few_of(
        [(level, mode) for level in ("process", "confined", "isolated") for mode in ("pool", "cold")],
        [("process", "pool"), ("isolated", "pool"), ("confined", "cold")],
    ),
)
def test_every_program_is_told_the_same_name(level: str, mode: str) -> None:
    async def go() -> str:
        sandbox = shared_sandbox(level) if mode == "pool" else Sandbox(level, mode="cold", workers=1)  # type: ignore[arg-type]
        result = await sandbox.run(ASK, limits=Limits(cpu_s=5.0))
        assert result.status == "ok", result.stderr
        return result.stdout

    assert set(asyncio.run(go()).split()) == {NAME}
    assert socket.gethostname() == os.uname().nodename  # ours is as it was


@pytest.mark.parametrize(
    ("level", "user"),
    [
        ("isolated", "root"),
        pytest.param("confined", "ordinary", marks=pytest.mark.slow),
        pytest.param("isolated", "ordinary", marks=pytest.mark.slow),
        pytest.param("confined", "root", marks=pytest.mark.slow),
    ],
)
def test_no_way_leads_to_the_host_s_own_name(level: str, user: str) -> None:
    outcomes = assault(level, user, kinds=["host name"])
    assert len(outcomes) >= 14
    assert [(outcome["name"], outcome["breach"]) for outcome in outcomes if outcome["breach"]] == []


def test_nor_does_a_solution_under_test() -> None:
    program = "import socket\ndef name():\n    return socket.gethostname()"
    assert asyncio.run(check_tests(shared_sandbox(), program, f"assert name() == {NAME!r}")).ok
