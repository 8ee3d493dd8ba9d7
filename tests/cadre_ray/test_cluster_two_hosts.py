"""Two machines without a shared network, address or disk, as namespaces of this one: what a lost or unreachable one
leaves of a run. Needs root."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.helpers.extras import skip_without
from tests.helpers.training import HERE, lines, weights

skip_without("ray")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces")]
RAY = f"exec {sys.executable} -m ray.scripts.scripts start --block --num-cpus 1 --object-store-memory 100000000"
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "PYTHONPATH": str(HERE.parent),
}
# Shorter ones end before GCS and workers notice; longer than about a minute, Ray gives the machine up for good.
CUT_S = 30


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


class Hosts:
    """The first host runs the training, the second has the only GPU, so that its sampler is there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, [f"cadre-{os.getpid()}-{number}" for number in range(2)]
        for name in self.names:
            ip(f"netns add {name}")
        first, second = self.names
        ip(f"link add link0 netns {first} type veth peer name link1 netns {second}")
        for number, name in enumerate(self.names):
            ip(f"-n {name} addr add 10.77.0.{number + 1}/24 dev link{number}")
            for device in ("lo", f"link{number}"):
                ip(f"-n {name} link set {device} up")
        # Unix sockets in it have paths of at most 107 characters.
        self.temporary = Path(f"/tmp/{first}")
        self.start(0, f"--head --port 6379 --include-dashboard false --temp-dir {self.temporary}")

    def start(self, number: int, options: str) -> None:
        """Start Ray on a host, in a mount namespace of its own."""
        command = f"{RAY} --node-ip-address 10.77.0.{number + 1} {options}"
        with (self.folder / f"ray-{number}.log").open("a") as log:
            self.run(number, "unshare", "-m", "sh", "-c", command, output=log)
        deadline = time.monotonic() + 90
        while "Ray runtime started" not in (self.folder / f"ray-{number}.log").read_text():
            assert time.monotonic() < deadline, (self.folder / f"ray-{number}.log").read_text()
            time.sleep(0.2)
        (self.folder / f"ray-{number}.log").write_text("")

    def join(self) -> None:
        self.start(1, "--address 10.77.0.1:6379 --num-gpus 1")

    def run(self, number: int, *command: str, output: object = None) -> subprocess.Popen[bytes]:
        inside = ["ip", "netns", "exec", self.names[number], *command]
        return subprocess.Popen(inside, env=ENVIRONMENT, stdout=output, stderr=output, start_new_session=True)  # type: ignore[call-overload]

    def kill(self, number: int) -> None:
        for pid in subprocess.check_output(["ip", "netns", "pids", self.names[number]], text=True).split():
            with suppress(ProcessLookupError):  # it ended with another
                os.kill(int(pid), signal.SIGKILL)

    def close(self) -> None:
        for number, name in enumerate(self.names):
            self.kill(number)
            ip(f"netns del {name}")
        subprocess.run(["rm", "-rf", str(self.temporary)], check=True)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.close()


@pytest.fixture
def recipe(speaker: Path, tmp_path: Path) -> Path:
    sections = {
        "env": f"{HERE}/helpers/games.py:Pair",
        "team": {"policies": {"shared": str(speaker)}, "roles": {"left": "shared", "right": "shared"}},
        "algorithm": {"name": "at_grpo", "k": 8},
        "sampling": {"max_tokens": 2},
        "learner": {"learning_rate": 3e-3},
        "train": {"steps": 40, "tasks_per_step": 4, "max_staleness": 1},
        "evaluate": {"tasks": 4},
    }
    file = tmp_path / "recipe.yml"
    file.write_text(yaml.safe_dump(sections))
    return file


CLUSTER = "cluster={address: '10.77.0.1:6379', sampler_gpus: 1, learner_kept: 2}"


def trained(recipe: Path, name: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "cadre", "train", str(recipe), "--run", str(recipe.with_name(name)), *options]


def steps(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_a_host_may_be_lost_or_out_of_reach(hosts: Hosts, recipe: Path, tmp_path: Path) -> None:
    subprocess.run(trained(recipe, "single"), env=ENVIRONMENT, check=True, capture_output=True)
    hosts.join()
    for disturbance in ("lost", "cut"):
        folder = tmp_path / disturbance
        with (tmp_path / f"{disturbance}.log").open("w") as log:
            driver = hosts.run(0, *trained(recipe, disturbance, CLUSTER), output=log)
        while steps(folder) < 4:
            assert driver.poll() is None, (tmp_path / f"{disturbance}.log").read_text()
            time.sleep(0.02)
        if disturbance == "lost":
            hosts.kill(1)
            hosts.join()
        else:
            ip(f"-n {hosts.names[1]} link set link1 down")
            time.sleep(CUT_S)
            ip(f"-n {hosts.names[1]} link set link1 up")
        assert driver.wait(300) == 0, (tmp_path / f"{disturbance}.log").read_text()
        assert "SamplerProcess died and is replaced" in (tmp_path / f"{disturbance}.log").read_text()
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            assert lines(folder, name) == lines(tmp_path / "single", name)
        assert weights(folder, "shared") == weights(tmp_path / "single", "shared")
