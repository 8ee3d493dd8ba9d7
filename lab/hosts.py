"""Training over two hosts, which are network namespaces of this machine with a link between them. Needs root and Ray.

    python -m lab.hosts disturbed [--runs 10] [--write]    the second host is killed, or out of reach for 30 seconds
    python -m lab.hosts links --model DIR [--write]        bytes over the link for an update, by level
    python -m lab.hosts sync [--gigabytes 3] [--write]     seconds of a weight sync (lab/sync_hosts.py)

A disturbed run (40 updates, staleness 1, sampler and learner of a tiny model in Ray's processes) is compared with one
of a single process: metrics, evaluations and weights have to be equal to the bit, and no update may be missing.
`links` has samplers on the second host and learners on the first. L0 trains an adapter of the model for both roles, L1
one for each role, L2 a whole model for each; counted is what the link carries from the second update to the sixth of
eight, so that neither start nor the last checkpoint is in it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

import yaml

from bench.common import ROOT, record, timeless
from lab import worth_tasks
from lab.trainings import console
from lab.worth import speaker

RAY = f"exec {sys.executable} -m ray.scripts.scripts start --block --num-cpus 1 --object-store-memory 5000000000"
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "PYTHONPATH": str(ROOT),
}
# Shorter ones end before Ray and its workers notice; longer than about a minute, Ray gives the host up for good.
CUT_S = 30
STEPS, UPDATES = 40, 8


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


class Hosts:
    """Two hosts of a Ray cluster. The first runs the training; the second has GPUs in Ray's books, so that actors that
    ask for one are there."""

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
        output = self.folder / f"ray-{number}.log"
        with output.open("a") as log:
            self.run(number, "unshare", "-m", "sh", "-c", command, output=log)
        deadline = time.monotonic() + 90
        while "Ray runtime started" not in output.read_text():
            if time.monotonic() > deadline:
                raise TimeoutError(output.read_text())
            time.sleep(0.2)
        output.write_text("")

    def join(self) -> None:
        self.start(1, "--address 10.77.0.1:6379 --num-gpus 2")

    def run(self, number: int, *command: str, output: IO[str]) -> subprocess.Popen[bytes]:
        inside = ["ip", "netns", "exec", self.names[number], *command]
        return subprocess.Popen(inside, env=ENVIRONMENT, stdout=output, stderr=output, start_new_session=True)

    def carried(self) -> int:
        """Bytes over the link so far, in both directions."""
        counters = ("ip", "netns", "exec", self.names[0], "cat", "/sys/class/net/link0/statistics/rx_bytes")
        received = subprocess.check_output(counters, text=True)
        return int(received) + int(subprocess.check_output([*counters[:-1], counters[-1].replace("rx", "tx")]))

    def kill(self, number: int) -> None:
        for pid in subprocess.check_output(["ip", "netns", "pids", self.names[number]], text=True).split():
            with suppress(ProcessLookupError):  # it ended with another
                os.kill(int(pid), signal.SIGKILL)

    def cut(self, seconds: float = CUT_S) -> None:
        """Put the second host out of reach for a while."""
        ip(f"-n {self.names[1]} link set link1 down")
        time.sleep(seconds)
        ip(f"-n {self.names[1]} link set link1 up")

    def lose(self) -> None:
        """Kill all processes of the second host, and start Ray there again."""
        self.kill(1)
        self.join()

    def close(self) -> None:
        for number, name in enumerate(self.names):
            self.kill(number)
            ip(f"netns del {name}")
        subprocess.run(["rm", "-rf", str(self.temporary)], check=True)


def command(recipe: Path, run: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "cadre", "train", str(recipe), "--run", str(run), *options]


def steps(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def wait_for(driver: subprocess.Popen[bytes], run: Path, count: int) -> None:
    """Wait until a run has so many updates. Raises RuntimeError where it ended before."""
    while steps(run) < count:
        if driver.poll() is not None:
            raise RuntimeError(run.with_suffix(".log").read_text())
        time.sleep(0.02)


def content(run: Path) -> tuple[Any, ...]:
    """What has to be equal: metrics and evaluations without times, and the bytes of the last weights."""
    files = [run / name for name in ("metrics.jsonl", "evaluations.jsonl")]
    lines = [[timeless(json.loads(line)) for line in file.read_text().splitlines()] for file in files]
    last = max((run / "checkpoints").iterdir())
    return lines, [path.read_bytes() for path in sorted(last.rglob("*.safetensors"))]


@dataclass(frozen=True)
class Outcome:
    """A disturbed run: how, how many samplers were replaced, whether it equals the undisturbed one, and how many
    updates are missing."""

    how: str
    replaced: int
    equal: bool
    missing: int


def disturbed(folder: Path, runs: int) -> list[Outcome]:
    """Disturb runs at different updates, every second one by a link that is cut."""
    recipe = folder / "recipe.yml"
    model = str(speaker(folder / "models", 32, 64))
    sections = {
        "env": f"{worth_tasks.__file__}:Relay",
        "settings": {"known_fraction": 0.0},
        "team": {"policies": {"both": model}, "roles": {"first": "both", "second": "both"}},
        "algorithm": {"name": "at_grpo", "k": 8},
        "sampling": {"max_tokens": 1},
        "learner": {"learning_rate": 3e-3},
        "train": {"steps": STEPS, "tasks_per_step": 4, "max_staleness": 1},
        "evaluate": {"tasks": 4},
    }
    recipe.write_text(yaml.safe_dump(sections))
    subprocess.run(command(recipe, folder / "single"), env=ENVIRONMENT, check=True, capture_output=True)
    expected, outcomes = content(folder / "single"), []
    cluster = "cluster={address: '10.77.0.1:6379', sampler_gpus: 1, learner_kept: 2}"
    with closing(Hosts(folder)) as hosts:
        hosts.join()
        for number in range(runs):
            run = folder / f"run-{number}"
            with run.with_suffix(".log").open("w") as log:
                driver = hosts.run(0, *command(recipe, run, cluster), output=log)
            wait_for(driver, run, 4 + 3 * number % 30)
            (hosts.cut if number % 2 else hosts.lose)()
            if driver.wait(300):
                raise RuntimeError(run.with_suffix(".log").read_text())
            replaced = run.with_suffix(".log").read_text().count("SamplerProcess died and is replaced")
            how = "out of reach" if number % 2 else "killed"
            outcomes.append(Outcome(how, replaced, content(run) == expected, STEPS - steps(run)))
            console.print(f"run {number}: {outcomes[-1]}", highlight=False)
    return outcomes


def links(folder: Path, model: str, write: bool) -> None:
    """Bytes that the link carries for an update."""
    adapter = {"model": model, "lora": {"rank": 16, "alpha": 32}}
    levels: dict[str, dict[str, Any]] = {
        "L0": {"both": adapter},
        "L1": {"one": adapter, "other": adapter},
        "L2": {"one": {"model": model}, "other": {"model": model}},
    }
    with closing(Hosts(folder)) as hosts:
        hosts.join()
        for level, policies in levels.items():
            roles = dict(zip(("first", "second"), list(policies) * 2, strict=False))
            sections = {
                "env": f"{worth_tasks.__file__}:Relay",
                "settings": {"known_fraction": 0.0},
                "team": {"policies": policies, "roles": roles},
                "algorithm": {"name": "at_grpo", "k": 2},
                "sampling": {"max_tokens": 1},
                "train": {"steps": UPDATES, "tasks_per_step": 1, "checkpoint_minutes": 0.0},
                "evaluate": {"tasks": 0},
                "cluster": {"address": "10.77.0.1:6379", "sampler_gpus": 1, "learner_kept": 1000},
            }
            recipe, run = folder / f"{level}.yml", folder / level
            recipe.write_text(yaml.safe_dump(sections))
            with run.with_suffix(".log").open("w") as log:
                driver = hosts.run(0, *command(recipe, run), output=log)
            wait_for(driver, run, 2)
            before, first = hosts.carried(), steps(run)
            wait_for(driver, run, UPDATES - 2)
            carried, counted = hosts.carried() - before, steps(run) - first
            keep(f"link.bytes_per_update.{level}", carried / counted, "bytes", counted, "links --model DIR", write)
            driver.wait(300)


def sync(folder: Path, gigabytes: float, write: bool) -> None:
    """Seconds of a sync by the store and by gloo, and how often gloo's are in the store's."""
    seconds: dict[str, list[float]] = {}
    with closing(Hosts(folder)) as hosts:
        hosts.join()
        for way, ranks in (("store", (0,)), ("gloo", (0, 1))):
            outputs = [(folder / f"{way}-{rank}.txt").open("w+") for rank in ranks]
            command = [sys.executable, "-m", "lab.sync_hosts", way]
            started = [
                hosts.run(
                    rank, "env", f"GLOO_SOCKET_IFNAME=link{rank}", *command, str(rank), str(gigabytes), output=out
                )
                for rank, out in zip(ranks, outputs, strict=True)
            ]
            codes = [process.wait(600) for process in started]
            texts = [Path(out.name).read_text() for out in outputs]
            assert not any(codes), texts
            seconds[way] = json.loads(texts[0].splitlines()[-1])
            console.print(f"{way}: {', '.join(f'{value:.2f}' for value in seconds[way])} s", highlight=False)
    ratios = [slow / fast for slow, fast in zip(seconds["store"], seconds["gloo"], strict=True)]
    console.print(f"sync.vs_store: {median(ratios):.2f}", highlight=False)
    if write:
        line = f"python -m lab.hosts sync --gigabytes {gigabytes:g} --write"
        for name, values, unit in (
            ("sync.store_s", seconds["store"], "s"),
            ("sync.gloo_s", seconds["gloo"], "s"),
            ("sync.vs_store", ratios, "ratio"),
        ):
            record("hosts", name, values, unit, line, len(values))


def keep(name: str, value: float, unit: str, count: int, part: str, write: bool) -> None:
    console.print(f"{name}: {value:,.0f} {unit}", highlight=False)
    if write:
        record("hosts", name, [value], unit, f"python -m lab.hosts {part} --write", count, [0])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("disturbed", "links", "sync"))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--model", help="a folder of SmolLM2-135M-Instruct")
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if chosen.part == "disturbed":
            outcomes, part = disturbed(Path(folder), chosen.runs), f"disturbed --runs {chosen.runs}"
            differ, lost = sum(not it.equal for it in outcomes), sum(it.missing for it in outcomes)
            keep("hosts.mismatches", differ, "runs", chosen.runs, part, chosen.write)
            keep("hosts.lost_steps", lost, "updates", chosen.runs, part, chosen.write)
        elif chosen.part == "sync":
            sync(Path(folder), chosen.gigabytes, chosen.write)
        else:
            links(Path(folder), chosen.model, chosen.write)


if __name__ == "__main__":
    main()
