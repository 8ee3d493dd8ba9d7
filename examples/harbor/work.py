"""The process in which a harness works: a repository of files of the task; the folders of hidden checks are covered."""

import ctypes
import os
import re
import stat
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "harnesses"))
from repository import prepare, run

MAX_FILES, MAX_BYTES = 1_000, 4 << 20
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 1 << 14, 1 << 18
MS_RELATIME, ST_RELATIME = 1 << 21, 4096
# What verifies, and the Python that it runs on.
PROGRAMS = {str(Path(__file__).resolve().parents[2]), sys.prefix, sys.base_prefix}


def work(task):
    hide(task["hidden"])
    folder, variables = prepare(task)
    # What the task calls its working folder is here a folder of the instance.
    path = rf"(?<![\w./-]){re.escape(task['workdir'])}(?![\w.-])"
    values = {"{instruction}": re.sub(path, lambda _: str(folder), task["instruction"]), "{folder}": str(folder)}
    words = [re.sub("|".join(map(re.escape, values)), lambda match: values[match[0]], word) for word in task["harness"]]
    endpoint = {name: value for name, value in os.environ.items() if name.startswith(("OPENAI_", "ANTHROPIC_"))}
    run(words, folder, variables | endpoint | task["harness_variables"])
    return collect(folder)


def hide(folders):
    """Cover folders by empty ones, and make `PROGRAMS` read-only, for this process and whatever it starts.

    A second namespace locks the mounts of the first: whoever is root in it cannot take them off. Raises OSError.
    """
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()

    def call(name, *arguments):
        numbers = (ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments)
        if getattr(libc, name)(*numbers) == -1:
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

    for is_first in (True, False):
        call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
        maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        for name, text in maps.items():
            Path("/proc/self", name).write_text(text)
        call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
        for folder in map(os.fsencode, PROGRAMS if is_first else ()):
            call("mount", folder, folder, None, MS_BIND | MS_REC, None)
            # A remount repeats the flags of the mount (mount_namespaces(7)): no set-user-ID, devices, programs, times.
            flags = os.statvfs(folder).f_flag
            flags = flags & 14 | (MS_RELATIME if flags & ST_RELATIME else 0)
            call("mount", None, folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, None)
        for folder in map(os.fsencode, folders if is_first else ()):
            call("mount", b"none", folder, b"tmpfs", MS_RDONLY, b"size=4k")


def collect(folder):
    """Return the regular files of a folder as texts; links, devices, .git and what is too much are left out."""
    files, size = {}, 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in sorted(names):
            path = os.path.join(root, name)
            if not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                content = file.read(MAX_BYTES - size + 1)
            size += len(content)
            if size > MAX_BYTES or len(files) >= MAX_FILES:
                raise SystemExit(f"the harness left more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB")
            files[os.path.relpath(path, folder)] = as_text(content)
    return {"files": files}


def as_text(content):
    """Return bytes as a text that JSON can hold, and `as_bytes` can turn back."""
    return content.decode(errors="surrogateescape")


def as_bytes(text):
    return text.encode(errors="surrogateescape")
