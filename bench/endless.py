"""Throws what has no end at the command line and at the servers: files, recipes, models, templates, connections.

Each attack runs in a process of its own. It is through where nothing came within a minute, where Python showed a
traceback, or where it was not refused. Prints a table; `attacks()` gives it to others.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

from cadre.plugins import embedded_models

SECONDS = 120
Attack = Callable[[], tuple[int, str]]
TEMPLATE = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
LAUGHS = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))])
RECIPES = {
    "contains itself": "a: &a [*a]",
    "aliases of aliases": LAUGHS,
    "nested": "[" * 50_000,
    "digits": "train: {steps: " + "9" * 5_000 + "}",
    "large": "#" * (2 << 20),
}
ENVIRONMENTS = ["..:x", ".:x", "/dev/zero:X", "pipe.py:X", "zero.py:X", "x" * 300 + ".py:X", '"a\\0.py:X"', "a..b:x"]
NUMBERS = [
    {"num_hidden_layers": 10**9},
    {"num_hidden_layers": 10**9, "model_type": "qwen3"},
    {"hidden_size": 10**12},
    {"vocab_size": 10**12},
    {"num_key_value_heads": 10**12},
    {"model_type": "mixtral", "num_local_experts": 10**9},
    {"text_config": {"num_hidden_layers": 10**9, "hidden_size": 64}},
]
FILES = ["tokenizer.json", "generation_config.json", "chat_template.jinja", "model.safetensors"]


def call(*arguments: str, descriptors: int | None = None) -> Attack:
    """`cadre ARGUMENTS`, which is to be refused in a paragraph."""

    def limited() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    def attack() -> tuple[int, str]:
        command = [sys.executable, "-m", "cadre", *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, preexec_fn=limited, check=False
            )
        except subprocess.TimeoutExpired:
            return 1, "no end"
        refused = done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.startswith("error: ")
        return int(not refused), done.stderr.strip()[-200:]

    return attack


def connection(address: tuple[str, int], sent: bytes, again: bytes = b"") -> Attack:
    """What is sent, and again and again; the server is to close the connection."""

    def attack() -> tuple[int, str]:
        began = time.monotonic()
        with socket.create_connection(address, SECONDS) as made, contextlib.suppress(ConnectionError):
            made.settimeout(1)
            made.sendall(sent)
            while time.monotonic() - began < SECONDS:
                with contextlib.suppress(TimeoutError):
                    if again:
                        made.sendall(again)
                        time.sleep(0.1)
                    if not made.recv(65_536):
                        return 0, "closed"
            return 1, "no end"
        return 0, "closed"

    return attack


def attacks(folder: Path, address: tuple[str, int]) -> Iterator[tuple[str, Attack]]:
    """Every attack by its name, with files in the folder, which is the current one, and a server at the address."""
    os.mkfifo("pipe.py")
    os.mkfifo("pipe.yaml")
    Path("zero.py").symlink_to("/dev/zero")
    for name in ("/dev/zero", "pipe.yaml"):
        for command in ("train", "eval", "play", "serve"):
            yield f"recipe {name} {command}", call(command, name)
    for name, text in RECIPES.items():
        Path(f"{name}.yaml").write_text(text)
        yield f"recipe {name}", call("train", f"{name}.yaml")
    for env in ENVIRONMENTS:
        yield f"environment {env[:20]}", call("train", "plan-path", f"env={env}", "--dry-run")
    for number, numbers in enumerate(NUMBERS):
        model = _model(folder / f"model-{number}", numbers)
        yield f"model {numbers}", call("train", "plan-path", f"team.policies.shared={model}", "--dry-run")
    for name in FILES:
        model = _model(folder / f"pipe-{name}", {})
        (model / name).unlink(missing_ok=True)
        os.mkfifo(model / name)
        yield (
            f"model, {name} a pipe",
            call("train", "plan-path", f"team.policies.shared={model}", "--run", f"run-{name}"),
        )
    model = _model(folder / "template", {})
    (model / "chat_template.jinja").write_text(TEMPLATE)
    yield "template", call("check", "plan-path", "--model", str(model))
    for command in ("train", "view", "serve"):
        yield f"16 descriptors {command}", call(command, "plan-path", descriptors=16)
    yield "no head", connection(address, b"")
    yield "half a head", connection(address, b"GET / HTTP/1.1\r\nhost: x\r\n")
    yield "a head that trickles", connection(address, b"GET / HTTP/1.1\r\n", b"x: y\r\n")
    yield "a head without end", connection(address, b"GET / HTTP/1.1\r\nx: ", b"y" * 65_536)
    yield "half a body", connection(address, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n")
    chunked = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    yield "a body without end", connection(address, chunked, b"1\r\nx\r\n")


def _model(folder: Path, numbers: dict[str, object]) -> Path:
    """The embedded model, described by other numbers."""
    copytree(embedded_models()["seed"], folder)
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**known, **numbers}))
    return folder


@contextlib.contextmanager
def served(run: Path) -> Iterator[tuple[str, int]]:
    """`cadre view` of a run; its address."""
    command = [sys.executable, "-m", "cadre", "view", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found is not None
        try:
            yield "127.0.0.1", int(found[1])
        finally:
            process.send_signal(signal.SIGINT)


def main() -> None:
    tried = through = 0
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        os.environ["HF_HUB_OFFLINE"] = "1"
        steps = ("train.steps=1", "train.tasks_per_step=1", "algorithm.k=2", "evaluate.tasks=0")
        subprocess.run([sys.executable, "-m", "cadre", "train", "plan-path", "--run=run", *steps], check=True)
        with served(Path("run")) as address:
            for title, attack in attacks(Path(name), address):
                got, said = attack()
                tried, through = tried + 1, through + got
                print(f"{'THROUGH' if got else 'refused'}  {title}: {said}", flush=True)
    print(f"attacks.tried {tried}  attacks.through {through}")


if __name__ == "__main__":
    main()
