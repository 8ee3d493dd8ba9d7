"""Attacks on memory, the kernel's too, on limits, descriptors and disks."""

from cadre_sandbox.probes import FOLDER, QUICK, Attack, tried

MEMORY = [
    Attack("one big allocation", "allocation", "x = bytearray(8 << 30)", ("oom",)),
    Attack(
        "many small allocations", "allocation", "x = []\nwhile True: x.append(' ' * 10_000 + str(len(x)))", ("oom",)
    ),
    Attack("doubling string", "allocation", "s = 'x'\nwhile True: s += s", ("oom",)),
    Attack("doubling integer", "allocation", "n = 3\nwhile True: n *= n", ("oom", "timeout"), QUICK),
    Attack("a billion items", "allocation", "x = [[]] * (1 << 40)", ("oom",)),
    Attack("a dictionary without end", "allocation", "d = {}\nwhile True: d[len(d)] = bytes(9999)", ("oom",)),
    Attack("a long join", "allocation", "x = ','.join(['x' * 10**6] * 10**6)", ("oom",)),
    Attack(
        "compressed zeros",
        "allocation",
        "import zlib\nx = zlib.decompress(zlib.compress(bytes(10**8), 9) * 1) * 99",
        ("oom",),
    ),
    Attack(
        "native allocation",
        "allocation",
        "libc.malloc.restype = ctypes.c_void_p\nif libc.malloc(ctypes.c_size_t(8 << 30)): print('BREACH')",
    ),
    Attack(
        "caught out of memory",
        "caught shortage",
        "x = []\nwhile True:\n    try: x.append(bytearray(1 << 20))\n    except MemoryError: pass",
        ("timeout",),
        QUICK,
    ),
    Attack(
        "shortage in an exit function",
        "caught shortage",
        "import atexit\natexit.register(lambda: bytearray(8 << 30))",
        (),
    ),
    Attack(
        "shortage in a thread",
        "caught shortage",
        "import threading\nt = threading.Thread(target=lambda: bytearray(8 << 30))\nt.start()",
        (),
    ),
]
KERNEL_MEMORY = [
    tried("memory file", "kernel memory", "os.memfd_create('x')"),
    tried("big file behind stdin", "kernel memory", "os.ftruncate(0, 8 << 30)", ("ok", "flood")),
    Attack(
        "big pipes", "kernel memory", "r, w = os.pipe()\nattack(lambda: fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 1 << 20))"
    ),
    tried("locked memory", "kernel memory", "call(libc.mlockall, 3)"),
    tried("shared memory segment", "kernel memory", "call(libc.shmget, 0, 1 << 30, 0o1600)"),
    tried("queue of messages", "kernel memory", "raw(68, 186, 0, 0o1600)"),
    tried("set of semaphores", "kernel memory", "raw(64, 190, 0, 1000, 0o1600)"),
    tried("signals as descriptors", "kernel memory", "raw(289, 74, -1, buffer(8), 8, 0)"),
    tried("timers as descriptors", "kernel memory", "raw(283, 85, 1, 0)"),
    tried("counters as descriptors", "kernel memory", "raw(290, 19, 0, 0)"),
]
SPACE = [
    tried("big mapping", "address space", "mmap.mmap(-1, 8 << 30)"),
    tried("mapping that reserves nothing", "address space", "mmap.mmap(-1, 8 << 30, flags=0x4022)"),
    tried("mapping that grows", "address space", "mmap.mmap(-1, 4096).resize(8 << 30)"),
    tried("mapping of huge pages", "address space", "mmap.mmap(-1, 8 << 30, flags=0x40022)"),
    tried("many mappings", "address space", "[mmap.mmap(-1, 1 << 20) for _ in range(4096)]"),
    Attack("shared mapping", "address space", "attack(lambda: mmap.mmap(-1, 1 << 30, flags=mmap.MAP_SHARED))"),
]
LIMITS = [
    tried("raised memory limit", "limits", "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))"),
    tried("raised file limit", "limits", "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))"),
    tried("raised time limit", "limits", "resource.prlimit(0, resource.RLIMIT_CPU, (-1, -1))"),
    tried("raised limit of descriptors", "limits", "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))"),
    tried("raised limit of processes", "limits", "resource.setrlimit(resource.RLIMIT_NPROC, (-1, -1))"),
    tried("raised limit by the old call", "limits", "raw(160, 164, 9, buffer(bytes([255] * 16)))"),
    tried("raised priority", "limits", "os.setpriority(os.PRIO_PROCESS, 0, -20)"),
    tried("real-time priority", "limits", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"),
    tried("deadline", "limits", "raw(314, 274, 0, buffer(56), 0)"),
    tried("core of its own", "limits", "os.sched_setaffinity(0, {0})"),
    tried("disk priority", "limits", "raw(251, 30, 1, 0, 0x2000)"),
    tried("memory control", "limits", "open('/sys/fs/cgroup/cgroup.procs', 'a').write('0')"),
]
DESCRIPTORS = [
    Attack(
        "all descriptors",
        "descriptors",
        "n = 0\ntry:\n    while True:\n        os.dup(0); n += 1\nexcept OSError as error:\n"
        "    print('STOPPED', error.errno)\nif n > 200: print('BREACH')",
    ),
    tried("a descriptor of a high number", "descriptors", "os.dup2(0, 4096)"),
    Attack("all pipes", "descriptors", "attack(lambda: [os.pipe() for _ in range(200)])"),
    Attack(
        "all pairs", "descriptors", "kept = []\nattack(lambda: [kept.append(socket.socketpair()) for _ in range(200)])"
    ),
    Attack(
        "closed streams",
        "descriptors",
        "for f in range(3): os.close(f)\nattack(lambda: os.open('@CANARY@', os.O_RDWR))",
    ),
]
DISK = [
    tried(
        "full disk",
        "disk",
        "[open(f'{d}{i}', 'wb').write(b'x' * 65536) for i in range(4096) for d in ('', '@FOLDER@/')]",
    ),
    Attack(
        "full folder",
        "disk",
        "open('a', 'w').write('works')\nprint(open('a').read())\n"
        "attack(lambda: [open(f'f{i}', 'wb').write(b'x' * 65536) for i in range(4096)])",
        (),
        FOLDER,
    ),
    tried("full of empty files", "disk", "[open(f'f{i}', 'w').close() for i in range(20_000)]", (), FOLDER),
    tried("full of folders", "disk", "[os.mkdir(f'd{i}') for i in range(20_000)]", (), FOLDER),
    tried("way out of the folder", "disk", "open('../../tmp/cadre-attack', 'w').write('x')", (), FOLDER),
    tried("program in the folder", "disk", "open('p', 'w').write('x') and os.execv('p', ['p'])", (), FOLDER),
]
ATTACKS = [*MEMORY, *KERNEL_MEMORY, *SPACE, *LIMITS, *DESCRIPTORS, *DISK]
