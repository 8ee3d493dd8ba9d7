"""Attacks on the kernel: its rarer doors, what only an administrator may do, and ways around the filter of calls."""

from cadre_sandbox.probes import Attack, tried


def door(name: str, kind: str, x86: int | None, arm: int | None, arguments: str = "0, 0, 0, 0, 0") -> Attack:
    """A system call that the kernel must not even look at; its arguments do no harm where it does."""
    return tried(name, kind, f"raw({x86}, {arm}, {arguments})")


SPACES = [
    tried("user namespace", "namespaces", "call(libc.unshare, 0x10000000)"),
    tried("mount namespace", "namespaces", "call(libc.unshare, 0x20000)"),
    door("network namespace", "namespaces", 272, 97, "0x40000000"),
    door("table of descriptors", "namespaces", 272, 97, "0x400"),
    door("another's namespace", "namespaces", 308, 268, "0, 0"),
    tried("namespace by clone", "namespaces", "raw(56, 220, 0x10000000 | 17, None, None, None, None) or libc._exit(0)"),
    tried("thread in a namespace", "namespaces", "raw(56, 220, 0x3D0F00 | 0x10000000, None, None, None, None)"),
]
MOUNTS = [
    tried("mount", "mounts", "call(libc.mount, b'none', b'/tmp', b'tmpfs', 0, None)"),
    door("unmount", "mounts", 166, 39, "b'/nowhere', 2"),
    door("pivot_root", "mounts", 155, 41, "b'/nowhere', b'/nowhere'"),
    door("chroot by number", "mounts", 161, 51, "b'/nowhere'"),
    door("fsopen", "mounts", 430, 430, "b'tmpfs', 0"),
    door("open_tree", "mounts", 428, 428, "-100, b'/', 1"),
    door("move_mount", "mounts", 429, 429, "-1, b'', -100, b'/nowhere', 4"),
    door("mount_setattr", "mounts", 442, 442, "-100, b'/nowhere', 0, buffer(32), 32"),
    door("fspick", "mounts", 433, 433, "-100, b'/nowhere', 0"),
]
DOORS = [
    tried("io_uring", "kernel doors", "call(libc.syscall, 425, 8, buffer(120))"),
    door("io_uring register", "kernel doors", 427, 427, "-1, 0, None, 0"),
    door("old asynchronous input", "kernel doors", 206, 0, "1, buffer(8)"),
    tried("bpf", "kernel doors", "call(libc.syscall, by_machine(321, 280), 0, buffer(72), 72)"),
    tried("perf events", "kernel doors", "call(libc.syscall, by_machine(298, 241), buffer(128), 0, -1, -1, 0)"),
    tried("page fault handler", "kernel doors", "call(libc.syscall, by_machine(323, 282), 1)"),
    door("fanotify", "kernel doors", 300, 262, "0, 0"),
    door("secret memory", "kernel doors", 447, 447, "0"),
    door("vmsplice", "kernel doors", 278, 75, "-1, None, 0, 0"),
    door("protection keys", "kernel doors", 330, 289, "0, 0"),
    door("kernel's log", "kernel doors", 103, 116, "10, None, 0"),
    door("security modules", "kernel doors", 461, 461, "None, None, 0"),
    door("a Landlock of its own", "kernel doors", 444, 444, "None, 0, 1"),
]
KEYS = [
    tried("kernel keys", "kernel keys", "call(libc.syscall, by_machine(248, 217), b'user', b'x', b'x', 1, -3)"),
    door("request of a key", "kernel keys", 249, 218, "b'user', b'cadre', None, 0"),
    door("session of keys", "kernel keys", 250, 219, "1, None"),
]
BOOT = [
    door("module", "modules and boot", 175, 105, "None, 0, None"),
    door("module from a file", "modules and boot", 313, 273, "-1, None, 0"),
    door("module removed", "modules and boot", 176, 106, "b'cadre-nowhere', 0"),
    door("another kernel", "modules and boot", 246, 104, "0, 0, None, ctypes.c_ulong(-1)"),
    door("another kernel from a file", "modules and boot", 320, 294, "-1, -1, 0, None, ctypes.c_ulong(-1)"),
    door("restart", "modules and boot", 169, 142, "0, 0, 0, None"),
    door("swap", "modules and boot", 167, 224, "None, 0"),
    door("accounting", "modules and boot", 163, 89, "b'/nowhere'"),
    door("quotas", "modules and boot", 179, 60, "-1, None, 0, None"),
]
PRIVILEGES = [
    tried("regained privileges", "privileges", "os.setuid(0 if os.getuid() else 1)"),
    tried("another group", "privileges", "os.setgid(0 if os.getgid() else 1)"),
    tried("more groups", "privileges", "os.setgroups([0, 4, 6])"),
    tried("all three users", "privileges", "os.setresuid(0, 0, 0)"),
    door("user for files", "privileges", 122, 151, "0"),
    door("capabilities", "privileges", 126, 91, "buffer(8), buffer(24)"),
    tried("kept capabilities", "privileges", "call(libc.prctl, 8, 1, 0, 0, 0)"),
    tried("secure bits", "privileges", "call(libc.prctl, 28, 0, 0, 0, 0)"),
    tried("ambient capability", "privileges", "call(libc.prctl, 47, 2, 21, 0, 0)"),
    door("ports", "privileges", 172, None, "3"),
    door("ranges of ports", "privileges", 173, None, "0x80, 1, 1"),
]
# The host's name, looked for in what is read: the lookup raises ValueError where another name is found.
HOST = "[{}].index('@HOST@')"
C_NAME = "(lambda b: call(libc.{}, b{}) or b.raw.split(bytes(1)))(ctypes.create_string_buffer(500))"
MACHINE = [
    *(
        tried(f"host name by {name}", "host name", HOST.format(expression), layer="host name")
        for name, expression in {
            "os": "os.uname().nodename",
            "posix": "__import__('posix').uname().nodename",
            "socket": "socket.gethostname()",
            "the full name": "*socket.getfqdn().split('.'), socket.getfqdn()",
            "_socket": "__import__('_socket').gethostname()",
            "platform": "__import__('platform').node()",
            "platform's record": "__import__('platform').uname().node",
            "the setting": "open('/proc/sys/kernel/hostname').read().strip()",
            "the file": "open('/etc/hostname').read().strip()",
            "the table of hosts": "*open('/etc/hosts').read().split()",
            "the environment": "*os.environ.values()",
            "gethostname of libc": f"*(t.decode() for t in {C_NAME.format('gethostname', ', 500')})",
            "uname of libc": f"*(t.decode() for t in {C_NAME.format('uname', '')})",
            "the bare call": "*(lambda b: raw(63, 160, b) or b.raw.decode().split(chr(0)))(buffer(500))",
        }.items()
    ),
    tried("another host name", "machine", "socket.sethostname('breach')"),
    door("name of the domain", "machine", 171, 162, "b'', -1"),
    door("time of day", "machine", 164, 170, "None, None"),
    door("clock", "machine", 227, 112, "-1, buffer(16)"),
    door("drift of the clock", "machine", 159, 171, "buffer(208)"),
    door("terminals hung up", "machine", 153, 58, ""),
    door("memory policy", "machine", 238, 237, "0, None, 0"),
    door("files synchronized", "machine", 162, 81, ""),
]
DEVICES = [
    tried("terminal input", "devices", "fcntl.ioctl(0, 0x5412, b'x')"),
    tried("input of a terminal, high bits", "devices", "raw(16, 29, 0, ctypes.c_long(0xF00005412), b'x')"),
    tried("new terminal", "devices", "os.open('/dev/ptmx', os.O_RDWR)"),
    tried("terminal of the session", "devices", "os.open('/dev/tty', os.O_RDWR)"),
    tried("virtual machines", "devices", "os.open('/dev/kvm', os.O_RDWR)"),
    tried("file systems of users", "devices", "os.open('/dev/fuse', os.O_RDWR)"),
    tried("loop devices", "devices", "os.open('/dev/loop-control', os.O_RDWR)"),
    tried("network devices", "devices", "os.open('/dev/net/tun', os.O_RDWR)"),
    tried("shared memory of devices", "devices", "os.open('/dev/zero', os.O_RDWR)"),
]
FILTER = [
    tried("new filter", "filter", "call(libc.prctl, 22, 2, 0, 0, 0)"),
    door("filter by number", "filter", 317, 277, "1, 0, None"),
    door("privileges given up, and back", "filter", 157, 167, "38, 0, 0, 0, 0"),
    tried("no such call", "filter", "raw(999, 999)"),
    tried("negative call", "filter", "raw(-1, -1)"),
    tried("a call past the last", "filter", "raw(2**30 - 1, 2**30 - 1)"),
    door("thread by a pointer", "filter", 435, 435, "None, 0"),
]
ARCHITECTURES = [
    tried(
        "numbers of another architecture (x32)", "architectures", "call(libc.syscall, 0x40000000 + 39)", layer="seccomp"
    ),
    tried(
        "open of another architecture (x32)",
        "architectures",
        "call(libc.syscall, 0x40000002, b'@SECRET@', 0)",
        layer="seccomp",
    ),
    Attack(
        "calls of another architecture (32 bit)",
        "architectures",
        "if os.uname().machine != 'x86_64': raise SystemExit('STOPPED no such calls here')\n"
        "m = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('b814000000cd80c3'))  # getpid by int 0x80\n"
        "attack(lambda: print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()))",
        layer="seccomp",
    ),
    tried("local descriptors", "architectures", "raw(154, None, 1, buffer(16), 16)"),
    tried("segment registers", "architectures", "raw(158, None, 0x1003, buffer(8))"),
    tried("personality", "architectures", "raw(135, 92, 0x0400000)"),
    tried("32-bit personality", "architectures", "raw(135, 92, 8)"),
]
HIGH_BITS = [
    tried("control of a file, high bits", "high bits", "raw(72, 25, 0, ctypes.c_long(0xF00000008), 1)"),
    tried(
        "family of a socket pair, high bits", "high bits", "raw(53, 199, ctypes.c_long(0xF00000002), 1, 0, buffer(8))"
    ),
    tried("signal, high bits", "high bits", "raw(62, 129, ctypes.c_long(0xF00000000 | @NEIGHBOUR@), 9)"),
    tried(
        "limits, high bits",
        "high bits",
        "raw(302, 261, ctypes.c_long(0xF00000000), 9, buffer(bytes([255] * 16)), None)",
    ),
    tried("address that looks like none", "high bits", "raw(44, 206, 1, b'x', 1, 0, ctypes.c_long(0xF00000000), 16)"),
    tried(
        "thread flags, high bits",
        "high bits",
        "raw(56, 220, ctypes.c_long(0x100003D0F00 | 0x10000000), None, None, None, None)",
    ),
]
ATTACKS = [
    *SPACES, *MOUNTS, *DOORS, *KEYS, *BOOT, *PRIVILEGES, *MACHINE, *DEVICES, *FILTER, *ARCHITECTURES, *HIGH_BITS,
]  # fmt: skip
