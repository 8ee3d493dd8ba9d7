"""Numbers of the system calls that a confined program may make, for x86-64 and arm64.

All other calls return EPERM. Calls that are safe only with some arguments are in `seccomp.py`.
"""

import functools
import os

# The architecture's code in struct seccomp_data: the ELF machine number with flags for 64 bits and little-endian.
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None if the architecture has no such call.
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "open": (2, None), "close": (3, 57), "stat": (4, None), "fstat": (5, 80),
    "lstat": (6, None), "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226),
    "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "ioctl": (16, 29), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65),
    "writev": (20, 66), "access": (21, None), "pipe": (22, None), "select": (23, None), "sched_yield": (24, 124),
    "mremap": (25, 216), "madvise": (28, 233), "dup": (32, 23), "dup2": (33, None), "pause": (34, None),
    "nanosleep": (35, 101), "getitimer": (36, 102), "alarm": (37, None), "setitimer": (38, 103),
    "getpid": (39, 172), "sendfile": (40, 71), "sendto": (44, 206), "recvfrom": (45, 207), "recvmsg": (47, 212),
    "shutdown": (48, 210), "socketpair": (53, 199), "getsockopt": (55, 209), "clone": (56, 220), "execve": (59, 221),
    "exit": (60, 93), "arch_prctl": (158, None),
    "kill": (62, 129), "uname": (63, 160), "fcntl": (72, 25), "fsync": (74, 82), "fdatasync": (75, 83),
    "ftruncate": (77, 46), "getcwd": (79, 17), "chdir": (80, 49), "rename": (82, None), "mkdir": (83, None),
    "rmdir": (84, None), "unlink": (87, None), "gettimeofday": (96, 169), "getrlimit": (97, 163),
    "getrusage": (98, 165), "sysinfo": (99, 179), "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176),
    "geteuid": (107, 175), "getegid": (108, 177), "getppid": (110, 173), "getpgrp": (111, None),
    "getgroups": (115, 158), "getpgid": (121, 155), "getsid": (124, 156), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "gettid": (186, 178),
    "time": (201, None), "futex": (202, 98), "sched_getaffinity": (204, 123), "getdents64": (217, 61),
    "set_tid_address": (218, 96), "restart_syscall": (219, 128), "fadvise64": (221, 223),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "exit_group": (231, 94),
    "epoll_wait": (232, None), "epoll_ctl": (233, 21), "tgkill": (234, 131), "openat": (257, 56),
    "mkdirat": (258, 34), "newfstatat": (262, 79), "unlinkat": (263, 35), "renameat": (264, 38),
    "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73), "set_robust_list": (273, 99),
    "epoll_pwait": (281, 22), "epoll_create1": (291, 20), "dup3": (292, 24), "pipe2": (293, 59),
    "preadv": (295, 69), "pwritev": (296, 70), "prlimit64": (302, 261), "getcpu": (309, 168),
    "renameat2": (316, 276), "getrandom": (318, 278), "membarrier": (324, 283), "copy_file_range": (326, 285),
    "statx": (332, 291), "rseq": (334, 293), "clone3": (435, 435), "close_range": (436, 436),
    "faccessat2": (439, 439), "epoll_pwait2": (441, 441),
}  # fmt: skip

# Safe with any arguments: they affect only the process itself, or files that Landlock let it open.
ALWAYS = (
    "read", "write", "close", "stat", "fstat", "lstat", "poll", "lseek", "mmap", "mprotect", "munmap", "brk",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "pread64", "pwrite64", "readv", "writev", "access", "pipe",
    "select", "sched_yield", "mremap", "madvise", "dup", "dup2", "pause", "nanosleep", "getitimer", "alarm",
    "setitimer", "getpid", "recvfrom", "recvmsg", "shutdown", "getsockopt", "exit", "uname", "fsync", "fdatasync",
    "ftruncate", "getcwd", "chdir", "gettimeofday", "getrlimit", "getrusage", "sysinfo", "times", "getuid", "getgid",
    "geteuid", "getegid", "getppid", "getpgrp", "getgroups", "getpgid", "getsid", "rt_sigpending",
    "rt_sigtimedwait", "rt_sigsuspend", "sigaltstack", "gettid", "time", "futex", "sched_getaffinity", "getdents64",
    "set_tid_address", "restart_syscall", "fadvise64", "clock_gettime", "clock_getres", "clock_nanosleep",
    "exit_group", "epoll_wait", "epoll_ctl", "newfstatat", "faccessat", "pselect6", "ppoll", "set_robust_list",
    "epoll_pwait", "epoll_create1", "dup3", "pipe2", "preadv", "pwritev", "getcpu", "getrandom", "membarrier",
    "statx", "rseq", "close_range", "faccessat2", "epoll_pwait2",
)  # fmt: skip

# Added if the program has a writable folder; Landlock confines them to it.
IN_FOLDER = (
    "rename", "mkdir", "rmdir", "unlink", "mkdirat", "unlinkat", "renameat", "renameat2", "sendfile",
    "copy_file_range",
)  # fmt: skip

# Removed from the allowed calls if the kernel would return the name of the host (`host.py`).
NAMING = ("uname",)

# Added if the profile names executables; Landlock allows it only for these.
EXECUTING = ("execve",)


@functools.cache
def architecture() -> str:
    """Return this machine's name in `AUDIT_ARCH`. Raises OSError on an architecture without a table here."""
    machine = os.uname().machine
    if machine not in AUDIT_ARCH:
        raise OSError(f"no system call table for {machine!r}; known: {', '.join(AUDIT_ARCH)}")
    return machine


def number(name: str) -> int | None:
    """Return the number of a system call on this machine, or None if its architecture has no such call."""
    return NUMBERS[name][0 if architecture() == "x86_64" else 1]
