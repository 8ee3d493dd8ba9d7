"""The job scripts of examples/slurm on a SLURM of two nodes, which this machine pretends to be.

Needs Debian's packages slurm-wlm and munge: slurmctld, two slurmd with ports of their own, and munged, all in a
temporary folder. The scripts are submitted as they are; a file stands for each GPU.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from cadre.config.experiment import dump
from tests.cadre.cli.calling import call
from tests.docs.blocks import ROOT
from tests.helpers.training import configured, lines, weights

SCRIPTS = sorted((ROOT / "examples" / "slurm").glob("*.sbatch"))
STEPS = 120
needs_slurm = pytest.mark.skipif(
    not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))), reason="SLURM is not installed"
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_are_bash_and_end_alike(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    ends = {path.read_text().partition("cadre train")[2].replace(" that it has started", "") for path in SCRIPTS}
    assert len({re.sub(r"#.*|^kill .*\n", "", end, flags=re.MULTILINE) for end in ends}) == 1


@pytest.mark.slow  # a dry run for each row
def test_the_memory_on_the_page_is_that_of_dry_runs() -> None:
    page = (ROOT / "docs" / "several_nodes.md").read_text()
    rows = re.findall(
        r"^\| (plan-\S+) \| ([\w ]+) \| (?:(\d+), (\d+) )?\| ([\d.]+) \| (yes|no) \|$", page, re.MULTILINE
    )
    assert len(rows) == 9
    for recipe, gpus, samplers, ranks, gib, fits in rows:
        settings = [f"learner.ranks={ranks}", f"cluster.samplers={samplers}", f"cluster.learner_gpus={ranks}"]
        changes = [*settings, "cluster.sampler_gpus=1"] if ranks else []
        printed = call("train", recipe, "--dry-run", "--gpus", gpus, *changes).out.splitlines()[-1]
        largest = max(map(float, re.findall(r"(\d+\.\d)(?: of \d+)?(?: GiB| while)", printed)))
        assert (f"{largest:.1f}", "NOT" not in printed) == (gib, fits == "yes"), printed


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
GresTypes=gpu
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SelectType=select/cons_tres
SchedulerParameters=batch_sched_delay=1,sched_interval=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:8
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 Gres=gpu:8
PartitionName=all Nodes=n1,n2 Default=YES State=UP
"""


class Slurm:
    """A SLURM of two nodes. Jobs run in `folder`, with the tests' own `cadre`, `ray` and `python`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        commands = {"cadre": "-m cadre", "ray": "-m ray.scripts.scripts", "python": ""}
        (folder / "bin").mkdir()
        for name, arguments in commands.items():
            (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
            (folder / "bin" / name).chmod(0o755)
        path = f"{folder}/bin:{os.environ['PATH']}"
        settings = {"SLURM_CONF": f"{folder}/slurm.conf", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.env = {**os.environ, **settings, "PATH": path, "RAY_PORT": str(free_ports(1)[0])}
        facts = {"host": socket.gethostname(), "user": getpass.getuser(), "ports": free_ports(3), "folder": folder}
        (folder / "slurm.conf").write_text(CONFIGURATION.format(**facts))
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-7]\n")
        for number in range(8):
            (folder / f"gpu{number}").touch()
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        munge = [f"--{option}={folder}/munge.{name}" for option, name in files.items()]
        self._daemons = [self._start("munged", "--foreground", "--force", *munge)]
        until((folder / "munge.socket").exists, 30)
        self._daemons += [self._start("slurmctld", "-D"), *(self._start("slurmd", "-D", "-N", n) for n in ("n1", "n2"))]
        until(lambda: self.call("sinfo", "-h", "-N", "-o", "%T").split() == ["idle", "idle"], 60)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def call(self, *command: str) -> str:
        return subprocess.run(command, env=self.env, cwd=self.folder, capture_output=True, text=True).stdout

    def submit(self, script: str, *arguments: str) -> str:
        """Return the number of a job."""
        return self.call("sbatch", "--parsable", str(ROOT / "examples" / "slurm" / script), *arguments).strip()

    def state(self, job: str) -> dict[str, str]:
        """Return what SLURM has of a job, such as JobState, Restarts and ExitCode."""
        return dict(re.findall(r"(\w+)=(\S+)", self.call("scontrol", "show", "job", job)))

    def wait(self, job: str) -> dict[str, str]:
        until(lambda: self.state(job)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"))
        return self.state(job)

    def output(self, job: str) -> str:
        path = self.folder / f"slurm-{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        self.call("scancel", "--user", getpass.getuser())
        try:
            until(lambda: not self.call("squeue", "-h"))
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
                daemon.wait(30)


def until(true: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def processes_of(folder: Path) -> list[int]:
    """Return the processes that were started with the folder in their environment or command."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (path / "environ").read_bytes() + (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def slurm(speaker: Path) -> Iterator[Slurm]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    sections = {"train": {"steps": STEPS, "tasks_per_step": 4}, "evaluate": {"tasks": 0}}
    (folder / "digit.yaml").write_text(dump(configured(speaker, **sections)))
    cluster = None
    try:
        cluster = Slurm(folder)
        assert len(processes_of(folder)) >= 4
        yield cluster
        cluster.close()
        cluster = None
        until(lambda: not processes_of(folder), 30)
    finally:
        if cluster is not None:
            cluster.close()
        for process in processes_of(folder):
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def undisturbed(slurm: Slurm) -> Path:
    job = slurm.submit("one_node.sbatch", "digit.yaml", "--run", "undisturbed")
    state = slurm.wait(job)
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "0"), slurm.output(job)
    return slurm.folder / "undisturbed"


def steps(run: Path) -> int:
    return (run / "metrics.jsonl").read_text().count("\n") if (run / "metrics.jsonl").exists() else 0


def starts(run: Path) -> int:
    return (run / "resumed.jsonl").read_text().count("\n") if (run / "resumed.jsonl").exists() else 0


@needs_slurm
@pytest.mark.slow
def test_a_job_that_is_requeued_ends_as_an_undisturbed_one(slurm: Slurm, undisturbed: Path) -> None:
    """By `scontrol requeue` as after a preemption, and by the signal that SLURM sends before the end of the time."""
    run = slurm.folder / "requeued"
    job = slurm.submit("one_node.sbatch", "digit.yaml", "--run", "requeued")
    until(lambda: steps(run) >= 3)
    slurm.call("scontrol", "requeue", job)
    until(lambda: starts(run) == 1)
    after = steps(run)
    assert after >= 3  # it was saved before it ended
    until(lambda: steps(run) >= after + 2)
    slurm.call("scancel", "--signal=USR1", "--batch", job)
    until(lambda: starts(run) == 2)
    state = slurm.wait(job)
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "2"), slurm.output(job)
    assert slurm.output(job).count("Stopping: what was begun is saved first.") == 2
    assert steps(run) == steps(undisturbed) == STEPS
    assert lines(run, "metrics.jsonl") == lines(undisturbed, "metrics.jsonl")
    assert weights(run, "shared") == weights(undisturbed, "shared")


@needs_slurm
@pytest.mark.slow
def test_a_job_that_is_cancelled_has_saved_and_stays_so(slurm: Slurm) -> None:
    run = slurm.folder / "cancelled"
    job = slurm.submit("one_node.sbatch", "digit.yaml", "--run", "cancelled")
    until(lambda: steps(run) >= 3)
    slurm.call("scancel", job)
    assert slurm.wait(job)["JobState"] == "CANCELLED"
    until(lambda: "Stopped after" in slurm.output(job), 60)
    until(lambda: not slurm.call("squeue", "-h"))
    assert slurm.state(job)["Restarts"] == "0"


@needs_slurm
@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_a_job_of_two_nodes_that_is_requeued_ends_as_one_of_a_node(slurm: Slurm, undisturbed: Path) -> None:
    """SLURM ends Ray with the driver, so the updates since the last checkpoint are made again. With the signal before
    the end of the time the driver saves."""
    run = slurm.folder / "nodes"
    job = slurm.submit("nodes.sbatch", "digit.yaml", "--run", "nodes", "cluster={samplers: 1}")
    until(lambda: steps(run) >= 3 and slurm.output(job).count("Ray runtime started") == 2)
    slurm.call("scontrol", "requeue", job)
    until(lambda: starts(run) == 1 and steps(run) >= 3 and slurm.output(job).count("Ray runtime started") == 4)
    slurm.call("scancel", "--signal=USR1", "--batch", job)
    until(lambda: starts(run) == 2)
    assert steps(run) >= 3
    state = slurm.wait(job)
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "2"), slurm.output(job)
    assert lines(run, "metrics.jsonl") == lines(undisturbed, "metrics.jsonl")
    assert weights(run, "shared") == weights(undisturbed, "shared")
