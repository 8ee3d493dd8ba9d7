#!/usr/bin/python3 -ISE
"""A fake of docker's command line, as far as Cadre uses it: containers are folders, and commands run on this machine.

Put it on the PATH as `docker` or `podman`. The folder `state` beside it holds a folder for each container. Files of the
name of a command there, such as `info`, make that command fail; `probe` has what the trial of the limits prints.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

STATE = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "state")
PROBE = "user=65534\nCapEff=0000\nCapBnd=0000\nNoNewPrivs=1\nmemory=1048576\nprocesses={processes}\n"


def options(words):
    """Return ([(name, value)], rest) of words that begin with options."""
    arguments = []
    while words and words[0].startswith("--"):
        name, _, value = words.pop(0)[2:].partition("=")
        arguments.append((name, value))
    return arguments, words


def run(words):
    arguments, (image, *_) = options(words)
    item = dict(arguments)
    folder = os.path.join(STATE, item["name"])
    target = next(value.partition(":")[0] for name, value in arguments if name == "tmpfs")
    paths = {target: f"{folder}/files"}
    for value in (value for name, value in arguments if name == "mount"):
        fields = dict(field.partition("=")[::2] for field in value.split(","))
        paths[fields["target"]] = fields["source"]
    os.makedirs(f"{folder}/files")
    record = {
        "pid": os.getpid(),
        "image": image,
        "processes": item["pids-limit"],
        "labels": dict(value.partition("=")[::2] for name, value in arguments if name == "label"),
        "environment": dict(value.partition("=")[::2] for name, value in arguments if name == "env"),
        "paths": paths,
    }
    with open(f"{folder}/record.json", "w") as file:
        json.dump(record, file)
    signal.signal(signal.SIGTERM, lambda *_: end(folder))
    print("ready", flush=True)
    sys.stdin.buffer.read()
    end(folder)


def end(folder):
    for name in os.listdir(folder):
        if name.startswith("pid-"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(name[4:]), signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(137)


def record_of(name):
    with open(os.path.join(STATE, name, "record.json")) as file:
        return json.load(file)


def execute(words):
    arguments, (name, *command) = options(words)
    record = record_of(name)

    def here(text):
        for present, path in record["paths"].items():
            text = text.replace(present, path)
        return text

    if any("cadre-probe" in word for word in command):
        form = PROBE
        with contextlib.suppress(FileNotFoundError), open(os.path.join(STATE, "probe")) as file:
            form = file.read()
        print(form.replace("{processes}", record["processes"]), end="")
        return 0
    os.setpgid(0, 0)
    open(os.path.join(STATE, name, f"pid-{os.getpid()}"), "w").close()
    os.chdir(here(dict(arguments).get("workdir", "/workspace")))
    environment = {**record["environment"], "PATH": os.environ["PATH"], "HOME": os.getcwd()}
    command = [here(word) for word in command]
    data = sys.stdin.buffer.read() if "interactive" in dict(arguments) else b""
    if data.startswith(b"{"):
        data = here(data.decode()).encode()
    return subprocess.run(command, input=data, env=environment, check=False).returncode


def main():
    command, *words = sys.argv[1:]
    if os.path.exists(os.path.join(STATE, command)):
        sys.exit(f"{command} does not work")
    if command == "--version":
        print("Docker version 0, a fake")
    elif command == "run":
        run(words)
    elif command == "exec":
        code = execute(words)
        sys.exit(code if code >= 0 else 128 - code)
    elif command == "kill":
        for name in words:
            os.kill(record_of(name)["pid"], signal.SIGTERM)
    elif command == "ps":
        print("\n".join(name for name in os.listdir(STATE) if os.path.isdir(os.path.join(STATE, name))))
    elif command == "inspect":
        for name in words[2:]:
            print(name, record_of(name)["labels"].get("cadre.owner", ""))
    elif command == "rm":
        for name in options(words)[1]:
            shutil.rmtree(os.path.join(STATE, name), ignore_errors=True)
    elif command == "image" and words[-1].startswith("missing"):
        sys.exit(f"Error: No such image: {words[-1]}")


main()
