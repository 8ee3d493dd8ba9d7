"""The allow-list of system calls, as a classic BPF program that the kernel runs before each call.

Default EPERM, which a program sees as an exception and a model as feedback; a foreign architecture or the x32 numbers
kill at once. Pointers cannot be followed from here: which files may be opened is Landlock's work.
"""

import ctypes
import struct

from . import kernel
from .syscalls import ALWAYS, AUDIT_ARCH, EXECUTING, IN_FOLDER, NAMING, architecture, number

LOAD, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06  # BPF opcodes, 32-bit words
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = 1, 38
X32 = 0x40000000
SIGKILL = 9
RLIMIT_STACK = 3

# The flags with which glibc and musl start a thread; a clone with any other set would make a process or a namespace.
THREAD_FLAGS = (0x003D0F00, 0x007D0F00)
SAFE_FCNTL = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC; no F_SETOWN
SAFE_IOCTL = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
O_TRUNC, ACCESS, NEITHER = 0x200, 3, 3
ARCH_SET_FS = 0x1002  # how a program that has just been executed says where its thread-local memory lies

ANY_PROCESS = 0x7FFFFFFF  # no process has this id, and no other instruction this constant

Instruction = tuple[int, int, int, int]  # opcode, jump if true, jump if false, constant


def load_argument(index: int, high: bool = False) -> Instruction:
    """Load one half of the call's argument; struct seccomp_data keeps them from byte 16 on, little-endian."""
    return (LOAD, 0, 0, 16 + 8 * index + (4 if high else 0))


def deny(code: int = EPERM) -> Instruction:
    return (RETURN, 0, 0, ERRNO | code)


def permit() -> Instruction:
    return (RETURN, 0, 0, ALLOW)


def if_one_of(index: int, values: tuple[int, ...]) -> list[Instruction]:
    """Allow when the low half of the argument is one of `values`."""
    tests = [(EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [load_argument(index), *tests, deny(), permit()]


def if_null(index: int) -> list[Instruction]:
    """Allow when the whole 64-bit argument is zero."""
    return [load_argument(index), (EQUAL, 0, 2, 0), load_argument(index, high=True), (EQUAL, 1, 0, 0), deny(), permit()]


def to_itself(own_pid: int, signal_index: int) -> list[Instruction]:
    """Allow to signal the process itself, but by SIGKILL: who ends so was killed by somebody else, and is run again."""
    tests = [(EQUAL, 0, 2, own_pid), load_argument(signal_index), (EQUAL, 0, 1, SIGKILL), deny(), permit()]
    return [load_argument(0), *tests]


def unless_truncating(index: int) -> list[Instruction]:
    """Deny what empties a file unseen by Landlock before ABI 3, which looks only at reading and writing: O_TRUNC on a
    descriptor opened to read, and the access mode 3, which is neither and which no program needs.
    """
    odd = [load_argument(index), (AND, 0, 0, ACCESS), (EQUAL, 0, 1, NEITHER), deny()]
    return [*odd, load_argument(index), (AND, 0, 0, O_TRUNC | ACCESS), (EQUAL, 1, 0, O_TRUNC), permit(), deny()]


def conditional_rules() -> dict[str, list[Instruction]]:
    """The calls that are safe only with some arguments."""
    # One's own limits may be read, and that of the stack set: its memory counts like any other.
    limits = [load_argument(1), (EQUAL, 0, 1, RLIMIT_STACK), permit(), *if_null(2)]
    return {
        "clone": if_one_of(0, THREAD_FLAGS),
        "clone3": [deny(ENOSYS)],  # its flags lie behind a pointer; libc falls back to clone
        "prlimit64": [load_argument(0), (EQUAL, 1, 0, 0), deny(), *limits],
        "sendto": if_null(4),  # a connected stream, never an address
        "socketpair": [load_argument(0), (EQUAL, 1, 0, 1), deny(), load_argument(1), (AND, 0, 0, 0xF)]
        + [(EQUAL, 1, 0, 1), deny(), permit()],  # unix stream pairs: asyncio wakes itself through one
        "fcntl": if_one_of(1, SAFE_FCNTL),
        "ioctl": if_one_of(1, SAFE_IOCTL),
        "open": unless_truncating(1),
        "openat": unless_truncating(2),
    }


def when(name: str, body: list[Instruction]) -> list[Instruction]:
    """`body` for this call alone; nothing where the architecture has no such call. The call's number is loaded."""
    code = number(name)
    return [] if code is None else [(EQUAL, 0, len(body), code), *body]


def head(own_pid: int = ANY_PROCESS) -> list[Instruction]:
    """The start of the filter, which differs from process to process: it may signal only itself."""
    machine = architecture()
    filters: list[Instruction] = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, AUDIT_ARCH[machine]), (RETURN, 0, 0, KILL_PROCESS)]
    filters += [(LOAD, 0, 0, 0)]
    if machine == "x86_64":
        filters += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL_PROCESS)]
    return [*filters, *when("kill", to_itself(own_pid, 1)), *when("tgkill", to_itself(own_pid, 2))]


def tail(folder: bool, executing: bool = False, unnamed: bool = False) -> list[Instruction]:
    """The rest of the filter, the same for every child of a parent; `unnamed` refuses what tells the host's name."""
    names = ALWAYS + (IN_FOLDER if folder else ()) + (EXECUTING if executing else ())
    refused = NAMING if unnamed else ()
    numbers = {code for name in names if name not in refused and (code := number(name)) is not None}
    conditional = conditional_rules() | ({"arch_prctl": if_one_of(0, (ARCH_SET_FS,))} if executing else {})
    rules = [when(name, body) for name, body in conditional.items()]
    return [*(instruction for rule in rules for instruction in rule), *search_tree(boundaries(numbers))]


def boundaries(allowed: set[int]) -> list[int]:
    """The numbers at which the answer changes, from deny to allow, to deny, and so on: {1, 2, 5} gives [1, 3, 5, 6]."""
    starts = {code for code in allowed if code - 1 not in allowed}
    ends = {code + 1 for code in allowed if code + 1 not in allowed}
    return sorted(starts | ends)


def search_tree(edges: list[int], allowed: bool = False) -> list[Instruction]:
    """Find the call's number between the edges by halving; the kernel tries every number when a filter is installed."""
    if not edges:
        return [permit() if allowed else deny()]
    middle = len(edges) // 2
    below = search_tree(edges[:middle], allowed)
    above = search_tree(edges[middle + 1 :], allowed ^ (middle % 2 == 0))
    return [(AT_LEAST, len(below), 0, edges[middle]), *below, *above]


def assemble(filters: list[Instruction]) -> bytes:
    """The instructions as an array of struct sock_filter."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in filters)


def personal(filters: bytes, own_pid: int) -> bytes:
    """An assembled filter whose head was made for ANY_PROCESS, for one."""
    return filters.replace(struct.pack("=I", ANY_PROCESS), struct.pack("=I", own_pid))


def install(filters: bytes) -> None:
    """Put the filter on this process for good. Needs no_new_privs. Raises OSError when the kernel refuses."""
    array = bytearray(filters)
    header = bytearray(struct.pack("HxxxxxxP", len(filters) // 8, address(array)))
    kernel.prctl(kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, address(header))


def address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
