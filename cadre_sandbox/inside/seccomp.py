"""The allow-list of system calls: a classic BPF program that the kernel runs before each call.

Calls that are not listed return EPERM, which a program sees as an exception and a model as feedback. A call of a
foreign architecture, or by an x32 number, kills the process. A filter cannot follow pointers, so it does not see paths:
Landlock decides which files may be opened.
"""

import ctypes
import struct

from . import kernel
from .syscalls import ALWAYS, AUDIT_ARCH, EXECUTING, IN_FOLDER, NAMING, architecture, number

# BPF opcodes on 32-bit words.
LOAD, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = 1, 38
# Calls by the x32 ABI have this bit set in their number, and the same architecture as x86-64.
X32 = 0x40000000
SIGKILL = 9
RLIMIT_STACK = 3

# The flags with which glibc and musl start a thread; a clone with any other set would make a process or a namespace.
THREAD_FLAGS = (0x003D0F00, 0x007D0F00)
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC. Not F_SETOWN, which sends signals to other processes.
SAFE_FCNTL = (0, 1, 2, 3, 4, 1030)
# TCGETS, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. Not TIOCSTI, which types into the terminal.
SAFE_IOCTL = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)
O_TRUNC, ACCESS, NEITHER = 0x200, 3, 3
# The C library of a newly executed program sets the base of its thread-local memory by this arch_prctl code.
ARCH_SET_FS = 0x1002

# A placeholder: no process has this id, and no other instruction has this constant.
ANY_PROCESS = 0x7FFFFFFF

Instruction = tuple[int, int, int, int]  # opcode, jump if true, jump if false, constant


def load_argument(index: int, high: bool = False) -> Instruction:
    """Load one 32-bit half of an argument of the call."""
    # struct seccomp_data: number (4 bytes), architecture (4), instruction pointer (8), then six arguments of 8 bytes
    # each, little-endian on both architectures.
    return (LOAD, 0, 0, 16 + 8 * index + (4 if high else 0))


def deny(code: int = EPERM) -> Instruction:
    return (RETURN, 0, 0, ERRNO | code)


def permit() -> Instruction:
    return (RETURN, 0, 0, ALLOW)


def if_one_of(index: int, values: tuple[int, ...]) -> list[Instruction]:
    """Allow the call if the low half of the argument is one of `values`."""
    # Each match jumps over the remaining tests and the deny. The kernel, too, reads these arguments as 32-bit integers.
    tests = [(EQUAL, len(values) - position, 0, value) for position, value in enumerate(values)]
    return [load_argument(index), *tests, deny(), permit()]


def if_null(index: int) -> list[Instruction]:
    """Allow the call if the whole 64-bit argument is zero."""
    return [load_argument(index), (EQUAL, 0, 2, 0), load_argument(index, high=True), (EQUAL, 1, 0, 0), deny(), permit()]


def to_itself(own_pid: int, signal_index: int) -> list[Instruction]:
    """Allow to signal the process itself, except by SIGKILL."""
    # A program that ended by SIGKILL was thus killed from outside, and the sandbox runs it again.
    tests = [(EQUAL, 0, 2, own_pid), load_argument(signal_index), (EQUAL, 0, 1, SIGKILL), deny(), permit()]
    return [load_argument(0), *tests]


def unless_truncating(index: int) -> list[Instruction]:
    """Deny opens that truncate a file without the right to write: O_TRUNC with O_RDONLY, and access mode 3."""
    # Landlock before version 3 checks only reading and writing, and not these. Access mode 3 is for ioctl alone; no
    # program needs it.
    odd = [load_argument(index), (AND, 0, 0, ACCESS), (EQUAL, 0, 1, NEITHER), deny()]
    return [*odd, load_argument(index), (AND, 0, 0, O_TRUNC | ACCESS), (EQUAL, 1, 0, O_TRUNC), permit(), deny()]


def conditional_rules() -> dict[str, list[Instruction]]:
    """Return the rules of the calls that are safe only with some arguments."""
    # A process may read its own limits (a null pointer as new limit), and set that of its stack: its memory counts too.
    limits = [load_argument(1), (EQUAL, 0, 1, RLIMIT_STACK), permit(), *if_null(2)]
    return {
        "clone": if_one_of(0, THREAD_FLAGS),
        # Its flags are behind a pointer, where no filter can read them. After ENOSYS libc falls back to clone.
        "clone3": [deny(ENOSYS)],
        "prlimit64": [load_argument(0), (EQUAL, 1, 0, 0), deny(), *limits],
        # Without an address: only to the other end of a connected stream.
        "sendto": if_null(4),
        # AF_UNIX stream pairs alone, by which asyncio wakes its event loop; 0xF masks SOCK_CLOEXEC and SOCK_NONBLOCK.
        "socketpair": [load_argument(0), (EQUAL, 1, 0, 1), deny(), load_argument(1), (AND, 0, 0, 0xF)]
        + [(EQUAL, 1, 0, 1), deny(), permit()],
        "fcntl": if_one_of(1, SAFE_FCNTL),
        "ioctl": if_one_of(1, SAFE_IOCTL),
        "open": unless_truncating(1),
        "openat": unless_truncating(2),
    }


def when(name: str, body: list[Instruction]) -> list[Instruction]:
    """Return `body` guarded by the call's number, which must be loaded; nothing if the architecture lacks the call."""
    # Every path through a body returns, so the number is still loaded for whatever follows.
    code = number(name)
    return [] if code is None else [(EQUAL, 0, len(body), code), *body]


def head(own_pid: int = ANY_PROCESS) -> list[Instruction]:
    """Return the start of the filter, which depends on the process: it may signal only itself."""
    # Byte 4 has the architecture, byte 0 the number. A number means another call on another architecture, so the
    # architecture is checked first.
    machine = architecture()
    filters: list[Instruction] = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, AUDIT_ARCH[machine]), (RETURN, 0, 0, KILL_PROCESS)]
    filters += [(LOAD, 0, 0, 0)]
    if machine == "x86_64":
        filters += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL_PROCESS)]
    return [*filters, *when("kill", to_itself(own_pid, 1)), *when("tgkill", to_itself(own_pid, 2))]


def tail(folder: bool, executing: bool = False, unnamed: bool = False) -> list[Instruction]:
    """Return the rest of the filter, equal for all children; `unnamed` denies the call that returns the host's name."""
    names = ALWAYS + (IN_FOLDER if folder else ()) + (EXECUTING if executing else ())
    denied = NAMING if unnamed else ()
    numbers = {code for name in names if name not in denied and (code := number(name)) is not None}
    conditional = conditional_rules() | ({"arch_prctl": if_one_of(0, (ARCH_SET_FS,))} if executing else {})
    rules = [when(name, body) for name, body in conditional.items()]
    # The numbers at which deny and allow alternate, starting with deny: {1, 2, 5} gives [1, 3, 5, 6].
    starts = {code for code in numbers if code - 1 not in numbers}
    ends = {code + 1 for code in numbers if code + 1 not in numbers}
    return [*(instruction for rule in rules for instruction in rule), *search_tree(sorted(starts | ends))]


def search_tree(edges: list[int], allowed: bool = False) -> list[Instruction]:
    """Return a binary search for the call's number between the edges."""
    # When a filter is installed, the kernel runs it on every number to cache what is always allowed. A linear search
    # would make each start of a child slower.
    if not edges:
        return [permit() if allowed else deny()]
    middle = len(edges) // 2
    below = search_tree(edges[:middle], allowed)
    above = search_tree(edges[middle + 1 :], allowed ^ (middle % 2 == 0))
    return [(AT_LEAST, len(below), 0, edges[middle]), *below, *above]


def assemble(filters: list[Instruction]) -> bytes:
    """Return the instructions as an array of struct sock_filter."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in filters)


def personal(filters: bytes, own_pid: int) -> bytes:
    """Replace ANY_PROCESS in an assembled filter by a process id, which is faster than assembling it anew."""
    return filters.replace(struct.pack("=I", ANY_PROCESS), struct.pack("=I", own_pid))


def install(filters: bytes) -> None:
    """Install the filter on this process for good. Needs no_new_privs. Raises OSError if the kernel rejects it."""
    # struct sock_fprog: the number of 8-byte instructions, padding, and a pointer to them.
    array = bytearray(filters)
    header = bytearray(struct.pack("HxxxxxxP", len(filters) // 8, address(array)))
    kernel.prctl(kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, address(header))


def address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
