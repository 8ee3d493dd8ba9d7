"""Attacks on what lies outside the program: files, secrets, other processes, the network, the kernel's rarer doors."""

from cadre.sandbox.attacks.records import Attack, tried

READ = "attack(lambda: print(open({path!r}, 'rb').read(4096)))"
WRITE = "attack(lambda: open({path!r}, 'w').write('BREACH'))"


def reading(name: str, path: str) -> Attack:
    return Attack(name, "secrets", READ.format(path=path))


def writing(name: str, path: str) -> Attack:
    return Attack(name, "writes", WRITE.format(path=path))


ATTACKS = [
    reading("secret by path", "@SECRET@"),
    reading("secret by symbolic link", "@LINK@"),
    reading("secret beside the library", "@LIBRARY@/../../../../../../../../../../@SECRET@"),
    reading("password file", "/etc/passwd"),
    reading("trainer's environment", "/proc/@TRAINER@/environ"),
    reading("trainer's memory map", "/proc/@TRAINER@/maps"),
    reading("parent's environment", "/proc/self/../1/environ"),
    reading("own environment as the kernel has it", "/proc/self/environ"),
    reading("disk", "/dev/vda"),
    Attack(
        "secret by native code",
        "secrets",
        "f = libc.open(b'@SECRET@', 0)\nattack(lambda: print(os.read(call(lambda: f), 99)))",
    ),
    Attack(
        "secret by a bare descriptor",
        "secrets",
        "f = os.open('@SECRET@', os.O_PATH)\nattack(lambda: print(os.read(f, 99)))",
        ("ok", "error"),
    ),
    Attack(
        "secret by database",
        "secrets",
        "import sqlite3\nattack(lambda: sqlite3.connect('@SECRET@').execute('select 1 from sqlite_master').fetchall())",
    ),
    Attack(
        "secret in the environment",
        "secrets",
        "print(dict(os.environ))\nif '@NAME@' in os.environ: print('BREACH')",
        layer="environment",
    ),
    Attack(
        "secret in the C environment",
        "secrets",
        "libc.getenv.restype = ctypes.c_char_p\nif libc.getenv(b'@NAME@'): print('BREACH')",
        layer="environment",
    ),
    Attack(
        "inherited descriptor",
        "secrets",
        "for f in range(3, 1024):\n    try: print(os.pread(f, 4096, 0))\n    except OSError: pass",
        layer="descriptors",
    ),
    tried("hard link to a secret", "secrets", "os.link('@SECRET@', '@FOLDER@/hard')"),
    tried("listing of a folder", "secrets", "print(os.listdir('@FOLDER@'))"),
    tried("listing of the root", "secrets", "print(os.listdir('/'))"),
    tried("chroot", "secrets", "os.chroot('@FOLDER@')"),
    writing("file in the current folder", "x"),
    writing("file in the temporary folder", "/tmp/cadre-attack"),
    writing("file in shared memory", "/dev/shm/cadre-attack"),
    writing("file in the library", "@LIBRARY@/cadre_attack.py"),
    writing("file beside the trainer", "@FOLDER@/x"),
    writing("over a file", "@CANARY@"),
    tried("emptied while reading", "writes", "os.open('@CANARY@', os.O_RDONLY | os.O_TRUNC)"),
    tried("emptied library", "writes", "os.open('@LIBRARY@/this.py', os.O_RDONLY | os.O_TRUNC)"),
    tried("truncate", "writes", "os.truncate('@CANARY@', 0)"),
    tried("unlink", "writes", "os.unlink('@CANARY@')"),
    tried("rename", "writes", "os.rename('@CANARY@', '@CANARY@2')"),
    tried("chmod", "writes", "os.chmod('@CANARY@', 0o777)"),
    tried("chmod of a descriptor", "writes", "os.fchmod(os.open('@LIBRARY@/this.py', 0), 0o777)"),
    tried("new times", "writes", "os.utime('@CANARY@', (0, 0))"),
    tried("extended attribute", "writes", "os.setxattr('@CANARY@', 'user.x', b'x')"),
    tried("folder", "writes", "os.mkdir('@FOLDER@/d')"),
    tried("symbolic link", "writes", "os.symlink('@SECRET@', '@FOLDER@/l')"),
    tried("named pipe", "writes", "os.mkfifo('@FOLDER@/p')"),
    tried("kill a neighbour", "signals", "os.kill(@NEIGHBOUR@, 9)"),
    tried("kill the trainer", "signals", "os.kill(@TRAINER@, 0)"),
    tried("kill the warm parent", "signals", "os.kill(os.getppid() or 1, 9)"),
    tried("kill everybody", "signals", "os.kill(-1, 9)"),
    tried("kill the group", "signals", "os.killpg(0, 9)"),
    tried("signal a thread", "signals", "call(libc.tgkill, @NEIGHBOUR@, @NEIGHBOUR@, 9)"),
    tried("queue a signal", "signals", "call(libc.sigqueue, @NEIGHBOUR@, 9, None)"),
    tried("signal by descriptor", "signals", "signal.pidfd_send_signal(os.pidfd_open(@NEIGHBOUR@), 9)"),
    Attack(
        "signal by asynchronous input",
        "signals",
        "a, b = socket.socketpair()\n"
        "def go():\n    fcntl.fcntl(a, fcntl.F_SETOWN, @NEIGHBOUR@)\n    fcntl.fcntl(a, 10, 9)\n"
        "    fcntl.fcntl(a, fcntl.F_SETFL, 0o20000)\n    b.send(b'x')\nattack(go)",
    ),
    tried("trace a neighbour", "signals", "call(libc.ptrace, 16, @NEIGHBOUR@, 0, 0)"),
    tried(
        "read a neighbour's memory",
        "signals",
        "call(libc.process_vm_readv, @TRAINER@, ctypes.c_char_p(bytes(16)), 1, None, 0, 0)",
    ),
    tried("limit a neighbour", "signals", "resource.prlimit(@NEIGHBOUR@, resource.RLIMIT_CPU, (1, 1))"),
    tried("outlive the parent", "signals", "call(libc.prctl, 1, 0, 0, 0, 0)"),
    tried("TCP connection", "network", "socket.create_connection(('127.0.0.1', @TCP@), 1)"),
    tried("TCP server", "network", "socket.create_server(('127.0.0.1', 0))"),
    tried("UDP", "network", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @UDP@))"),
    tried("unix socket", "network", "socket.socket(socket.AF_UNIX).connect('@UNIX@')"),
    tried("abstract socket", "network", "socket.socket(socket.AF_UNIX).connect('\\0@ABSTRACT@')"),
    Attack(
        "datagram from a pair",
        "network",
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\nattack(lambda: a.sendto(b'x', '@DATAGRAM@'))",
        ("error", "ok"),
    ),
    tried("netlink", "network", "socket.socket(16, socket.SOCK_RAW, 0)"),
    tried("kernel crypto socket", "network", "socket.socket(38, socket.SOCK_SEQPACKET)"),
    tried("name look-up", "network", "socket.getaddrinfo('example.org', 80)"),
    tried("user namespace", "kernel", "call(libc.unshare, 0x10000000)"),
    tried("mount namespace", "kernel", "call(libc.unshare, 0x20000)"),
    tried("mount", "kernel", "call(libc.mount, b'none', b'/tmp', b'tmpfs', 0, None)"),
    tried("io_uring", "kernel", "call(libc.syscall, 425, 8, ctypes.create_string_buffer(120))"),
    tried("bpf", "kernel", "call(libc.syscall, by_machine(321, 280), 0, ctypes.create_string_buffer(72), 72)"),
    tried(
        "perf events",
        "kernel",
        "call(libc.syscall, by_machine(298, 241), ctypes.create_string_buffer(128), 0, -1, -1, 0)",
    ),
    tried("kernel keys", "kernel", "call(libc.syscall, by_machine(248, 217), b'user', b'x', b'x', 1, -3)"),
    tried("page fault handler", "kernel", "call(libc.syscall, by_machine(323, 282), 1)"),
    tried("new filter", "kernel", "call(libc.prctl, 22, 2, 0, 0, 0)"),
    tried("regained privileges", "kernel", "os.setuid(0 if os.getuid() else 1)"),
    tried("host name", "kernel", "socket.sethostname('breach')"),
    tried("terminal input", "kernel", "fcntl.ioctl(0, 0x5412, b'x')"),
    tried("numbers of another architecture (x32)", "kernel", "call(libc.syscall, 0x40000000 + 39)", layer="seccomp"),
    Attack(
        "calls of another architecture (32 bit)",
        "kernel",
        "if os.uname().machine != 'x86_64': raise SystemExit('STOPPED no such calls here')\n"
        "m = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('b814000000cd80c3'))  # getpid by int 0x80\n"
        "attack(lambda: print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()))",
        layer="seccomp",
    ),
]
