"""Counts what a stranger's run folder makes this machine do: `python -m tests.cadre.cli.stranger_calls [--write]`.

Every setting that takes text (stranger.py) gets code in the folder and beside it, a module, a command,
an address and a path, and is given to every command that loads a run. Appends to results/cli.jsonl: `stranger.tried`,
the calls, and `stranger.ran`, how many of them ran something or opened a connection. Nothing is played with --trust but
the first setting, which shows that the trap works.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from unittest import mock

import yaml

from bench.common import record
from tests.cadre.cli.bad_calls import plain_recipe
from tests.cadre.cli.calling import call
from tests.cadre.cli.stranger import text_settings, texts
from tests.helpers.coordination import write_speaker

COMMAND = "python -m tests.cadre.cli.stranger_calls --write"
MODULE = "strange_module"
PATIENCE_S = 10  # what runs has run by then
TRAP = "from pathlib import Path\nPath({mark!r}).touch()\nfrom tests.helpers.games import *\n"
COMMANDS = {
    "eval": ["eval", "RUN", "--tasks", "1"],
    "play": ["play", "RUN"],
    "audit": ["audit", "RUN", "--tasks", "1", "--decisions", "1", "--plays", "2"],
    "chat": ["chat", "RUN"],
    "serve": ["serve", "RUN", "--port", "0"],
    "fork": ["fork", "RUN", "--at", "1", "--run", "OUT"],
    "resume": ["train", "train.steps=2", "--run", "RUN", "--resume"],
    "export": ["export", "RUN", "shared", "OUT"],
    "status": ["status", "RUN"],
    "view": ["view", "RUN", "--export", "OUT"],
    "report": ["report", "RUN", "--out", "OUT"],
    "compare": ["compare", "RUN", "RUN"],
}


class Trap:
    """A folder with the traps, and a listener that counts the connections which they make."""

    def __init__(self, folder: Path) -> None:
        self.mark, self.server = folder / "it-ran", socket.create_server(("127.0.0.1", 0))
        self.server.setblocking(False)
        self.address = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        for position in (folder, folder / "RUN"):
            (position / f"{MODULE}.py").write_text(TRAP.format(mark=str(self.mark)))
        questions = ({"question": f"{number}?", "answer": f"a{number}"} for number in range(9))
        (folder / "private.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in questions))
        sys.path.insert(0, str(folder / "RUN"))
        os.environ.update(PYTHONPATH=str(folder / "RUN"), HF_ENDPOINT=self.address)

    def has_run(self) -> bool:
        """Return True if something ran or connected since the last call."""
        has_run = self.mark.exists()
        self.mark.unlink(missing_ok=True)
        sys.modules.pop(MODULE, None)
        try:
            while True:
                self.server.accept()[0].close()
                has_run = True
        except BlockingIOError:
            return has_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help="append to results/cli.jsonl")
    parser.add_argument("--only", default="", help="the settings whose name holds this")
    parser.add_argument("--commands", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        attempts, ran = play(Path(name).resolve(), options.only, options.commands)
    print(f"{attempts} calls, {len(ran)} of them ran something", *ran, sep="\n")
    if options.write:
        record("cli", "stranger.tried", [attempts], "calls", COMMAND, attempts)
        record("cli", "stranger.ran", [len(ran)], "calls", COMMAND, attempts)


def play(folder: Path, only: str, commands: list[str]) -> tuple[int, list[str]]:
    """Return the number of calls, and those that ran something."""
    os.chdir(folder)
    signal.signal(signal.SIGALRM, _give_up)
    os.environ.update(XDG_STATE_HOME=str(folder / "state"))
    Path("RECIPE").write_text(plain_recipe(write_speaker(folder / "model")))
    assert call("train", "RECIPE", "train.trees_kept=1", "--run", "RUN").code == 0
    config, trap = yaml.safe_load(Path("RUN/config.yaml").read_text()), Trap(folder)
    hostile = texts(folder / "RUN", f"{trap.address}/v1", trap.mark, MODULE)
    Path("RUN/config.yaml").write_text(yaml.safe_dump({**config, "env": hostile["file"]}))
    call(*COMMANDS["eval"], "--trust")
    assert trap.has_run(), "the trap does not work"
    attempts, ran = 0, []
    for setting in text_settings():
        for kind, text in hostile.items() if only in setting.name else ():
            for value in setting.values(text):
                Path("RUN/config.yaml").write_text(yaml.safe_dump(setting.put(config, value), sort_keys=False))
                for command in commands:
                    attempts += 1
                    _call(command)
                    if trap.has_run():
                        ran.append(f"{command}: {setting.name} = {value!r} ({kind})")
    return attempts, ran


def _call(command: str) -> None:
    """Call a command as a user does; what it says is not counted, and neither is a traceback."""
    waiting = mock.patch(
        "cadre_programs.commands.threading", **{"Event.return_value.wait.side_effect": KeyboardInterrupt}
    )
    signal.alarm(PATIENCE_S)
    try:
        with waiting, mock.patch("sys.stdin", open(os.devnull)):
            call(*COMMANDS[command])
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        print(f"{command}: {type(error).__name__}: {str(error)[:200]}")
    finally:
        signal.alarm(0)
    shutil.rmtree("OUT", ignore_errors=True)
    Path("OUT").unlink(missing_ok=True)


def _give_up(*_: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    main()
