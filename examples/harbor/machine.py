"""A small machine for commands of a Harbor task: the system's programs, a few writable folders, and nothing else.

Made of the namespaces of Cadre's sandbox: another root, no network, no other process, no variable of the caller. It has
the users 0 and 65534, so that a verifier can run an agent's program as one that writes no reward; hence it needs root.
Unlike in the sandbox a command may start others, so there is no filter of system calls.
"""

import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from cadre_sandbox.inside import kernel, namespaces  # noqa: E402 - Harbor's own environment has no Cadre

SYSTEM = ["/usr", "/bin", "/sbin", "/lib", "/lib64"]
SYSTEM += ["/etc/alternatives", "/etc/ld.so.cache", "/etc/passwd", "/etc/group"]
PYTHON = sys.base_prefix
VARIABLES = {
    "PATH": f"{PYTHON}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}
MIB = 1 << 20
# CAP_CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID: what a container's root has and a verifier needs.
CAPABILITIES = {0, 1, 3, 5, 6, 7}
LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 64 * MIB,
    resource.RLIMIT_NPROC: 256,
    resource.RLIMIT_NOFILE: 256,
}
SHOWN = 20_000  # characters of what a command prints


def run(command, folders, cwd, seconds, memory=2 * 1024 * MIB, variables=None, container=()):
    """Run a command (words) with folders by their path in the machine; return (exit code, the end of what it prints).

    After `seconds` all of its processes are killed, and the code is 124. `memory` is that of a process, in bytes. What
    is left of the command when its first process ends is killed, too. With `container`, a runtime (docker, podman) and
    an image, the machine is a container.
    """
    order = {"command": command, "folders": {path: str(folder) for path, folder in folders.items()}, "cwd": cwd}
    order |= {"memory": memory, "variables": VARIABLES | (variables or {})}
    words, environment, label = [sys.executable, "-I", __file__, json.dumps(order)], {}, ""
    if container:
        (runtime, image), environment, label = container, dict(os.environ), f"cadre-harbor-{secrets.token_hex(8)}"
        words = [runtime, "run", "--rm", f"--name={label}", "--pull=never", "--network=none", "--cap-drop=ALL"]
        words += [f"--cap-add={name}" for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")]
        words += ["--security-opt=no-new-privileges", "--pids-limit=256", f"--memory={memory}", "--user=0:0"]
        words += [f"--volume={folder}:{path}" for path, folder in order["folders"].items()]
        # Both runtimes would hand on proxies with their passwords.
        proxies = [f"{kind}_PROXY" for kind in ("HTTP", "HTTPS", "FTP", "ALL", "NO")]
        proxies = dict.fromkeys([*proxies, *map(str.lower, proxies)], "")
        words += [f"--env={name}={value}" for name, value in (proxies | (variables or {})).items()]
        words += [f"--workdir={cwd}", f"--entrypoint={command[0]}", image, *command[1:]]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            process.kill()  # the others die with it, but for those of a container
            if label:
                subprocess.run([runtime, "kill", label], capture_output=True)
            process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - SHOWN))
        return code, output.read().decode(errors="replace")


def start(order):
    """Enter the namespaces in a child, whose users this process maps, and return the command's exit code."""
    asks, answers = os.pipe(), os.pipe()
    pid = os.fork()
    if pid:
        os.close(asks[1])
        if os.read(asks[0], 1):
            for name in ("uid_map", "gid_map"):
                namespaces.write(f"/proc/{pid}/{name}", "0 0 65536")
            os.write(answers[1], b"x")
        return end_of(pid)
    kernel.die_with_parent(signal.SIGKILL)
    new = namespaces.CLONE_NEWUSER | namespaces.CLONE_NEWNS | namespaces.CLONE_NEWPID | namespaces.CLONE_NEWNET
    new |= namespaces.CLONE_NEWIPC | namespaces.CLONE_NEWUTS | namespaces.CLONE_NEWCGROUP
    kernel.checked("unshare", new)
    os.write(asks[1], b"x")
    os.read(answers[0], 1)
    pid = os.fork()
    if pid:
        return end_of(pid)
    # Process 1 of the namespace: with its end the kernel kills all others.
    kernel.die_with_parent(signal.SIGKILL)
    change_root(order["folders"])
    for name, limit in {**LIMITS, resource.RLIMIT_AS: order["memory"]}.items():
        resource.setrlimit(name, (limit, limit))
    for capability in range(64):
        if capability not in CAPABILITIES:
            try:
                kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
            except OSError:  # past the last one that the kernel has
                break
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    os.closerange(3, 256)
    os.chdir(order["cwd"])
    os.execvpe(order["command"][0], order["command"], order["variables"])


def end_of(pid):
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def change_root(folders):
    """Replace the root by the system's folders, read-only, the given ones, and an empty /tmp."""
    namespaces.mount(None, "/", None, namespaces.MS_REC | namespaces.MS_PRIVATE)
    paths = [*SYSTEM, *([] if PYTHON.startswith("/usr") else [PYTHON]), *namespaces.DEVICES]
    sources = [namespaces.hold(path) for path in paths if os.path.lexists(path)]
    writable = {path: os.open(folder, os.O_PATH | os.O_DIRECTORY) for path, folder in folders.items()}
    new, quiet = namespaces.NEW_ROOT, namespaces.MS_NOSUID | namespaces.MS_NODEV
    namespaces.mount("tmpfs", new, "tmpfs", quiet, "size=1m,mode=755")
    for source in sources:
        namespaces.bind(source)
    for path, descriptor in writable.items():
        os.makedirs(new + path)
        namespaces.mount(f"/proc/self/fd/{descriptor}", new + path, None, namespaces.MS_BIND)
        namespaces.mount(None, new + path, None, namespaces.MS_REMOUNT | namespaces.MS_BIND | quiet)
    os.makedirs(f"{new}/tmp")
    namespaces.mount("tmpfs", f"{new}/tmp", "tmpfs", quiet, "size=64m,mode=1777")
    namespaces.mount_proc()
    os.chdir(new)
    kernel.checked("syscall", namespaces.PIVOT_ROOT[os.uname().machine], b".", b".")
    kernel.checked("umount2", b".", namespaces.MNT_DETACH)
    namespaces.mount(None, "/", None, namespaces.MS_REMOUNT | namespaces.MS_BIND | namespaces.MS_RDONLY | quiet)


if __name__ == "__main__":
    kernel.die_with_parent(signal.SIGKILL)
    # Not sys.exit: this runs in the forked processes too, and nothing is left to be cleaned up.
    os._exit(start(json.loads(sys.argv[1])))
