"""Attacks on patience: what never ends, what waits, what fills the output, and what ends with a crash."""

from cadre_sandbox.probes import QUICK, Attack
from cadre_sandbox.records import Status

LOOP = "while True: pass"
LATE: tuple[Status, ...] = ("timeout", "error")

TIME = [
    Attack("cpu loop", "endless work", LOOP, ("timeout",), QUICK),
    Attack(
        "caught exceptions",
        "endless work",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        ("timeout",),
        QUICK,
    ),
    Attack("power tower", "endless work", "print(len(str(9**9**9)))", ("timeout", "oom", "error"), QUICK),
    Attack("factorial", "endless work", "import math\nmath.factorial(10**7)", ("timeout", "oom"), QUICK),
    Attack("regex bomb", "endless work", "import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')", ("timeout",), QUICK),
    Attack("endless sum", "endless work", "import itertools\nsum(itertools.repeat(1))", ("timeout",), QUICK),
    Attack(
        "endless sort", "endless work", "sorted(range(10**6), key=lambda x: sorted(range(99)))", ("timeout",), QUICK
    ),
    Attack(
        "endless comparison",
        "endless work",
        "class A:\n    def __eq__(self, o):\n        while True: pass\nA() == A()",
        ("timeout",),
        QUICK,
    ),
    Attack(
        "endless exit function",
        "endless work",
        "import atexit\n@atexit.register\ndef f():\n    " + LOOP,
        ("timeout",),
        QUICK,
    ),
    Attack(
        "endless destructor",
        "endless work",
        "class A:\n    def __del__(self):\n        " + LOOP + "\na = A()",
        ("timeout",),
        QUICK,
    ),
    Attack(
        "endless native loop",
        "endless work",
        "libc.qsort(buffer(10**7), 10**7, 1, ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, "
        "ctypes.c_void_p)(lambda a, b: 1))",
        ("timeout",),
        QUICK,
    ),
]
WAITING = [
    Attack("sleep", "waiting", "import time\ntime.sleep(60)", ("wall",), QUICK),
    Attack("naps", "waiting", "import time\nwhile True: time.sleep(0.001)", ("wall", "timeout"), QUICK),
    Attack("stops itself", "waiting", "os.kill(os.getpid(), signal.SIGSTOP)", ("wall",), QUICK),
    Attack("waits for input", "waiting", "r, w = os.pipe()\nos.dup2(r, 0)\ninput()", ("wall", "error"), QUICK),
    Attack(
        "waits for itself",
        "waiting",
        "import threading\nl = threading.Lock()\nl.acquire()\nl.acquire()",
        ("wall",),
        QUICK,
    ),
    Attack("waits for a signal", "waiting", "signal.pause()", ("wall",), QUICK),
    Attack("waits for all signals", "waiting", "signal.sigwait(signal.valid_signals())", ("wall",), QUICK),
    Attack("waits for nothing", "waiting", "import select\nselect.select([], [], [], None)", ("wall", "error"), QUICK),
    Attack(
        "waits for a thread that waits",
        "waiting",
        "import threading\nthreading.Thread(target=signal.pause).start()",
        ("wall",),
        QUICK,
    ),
    Attack("fills a pipe", "waiting", "r, w = os.pipe()\nwhile True: os.write(w, bytes(65536))", ("wall",), QUICK),
]
SIGNALS = [
    Attack(
        "ignored signals",
        "ignored signals",
        "for n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n" + LOOP,
        ("timeout",),
        QUICK,
    ),
    Attack(
        "blocked signals",
        "ignored signals",
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n" + LOOP,
        ("timeout",),
        QUICK,
    ),
    Attack(
        "caught end of time",
        "ignored signals",
        "signal.signal(signal.SIGXCPU, lambda *a: None)\n" + LOOP,
        ("timeout",),
        QUICK,
    ),
    Attack(
        "storm of alarms",
        "ignored signals",
        "signal.signal(signal.SIGALRM, lambda *a: None)\nsignal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)\n" + LOOP,
        ("timeout",),
        QUICK,
    ),
    Attack(
        "caught interrupts",
        "ignored signals",
        "signal.signal(signal.SIGINT, lambda *a: None)\nsignal.signal(signal.SIGTERM, lambda *a: None)\n" + LOOP,
        ("timeout",),
        QUICK,
    ),
]
THREADS = [
    Attack(
        "busy threads",
        "threads",
        "import threading\ndef spin():\n    while True: pass\nfor _ in range(8): threading.Thread(target=spin).start()",
        LATE,
        QUICK,
    ),
    Attack(
        "thread bomb",
        "threads",
        "import threading, time\nthreading.stack_size(32768)\nn = 0\n"
        "while n < 5000:\n    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n    n += 1\n"
        "print('BREACH')",
        ("killed", "error"),
        layer="watch",
    ),
    Attack(
        "leader that leaves",
        "threads",
        "import threading, time\ndef spin():\n    time.sleep(0.05)\n    while True: pass\n"
        "threading.Thread(target=spin).start()\nlibc.syscall(by_machine(60, 93), 0)",
        LATE,
        QUICK,
    ),
    Attack(
        "threads that come and go",
        "threads",
        "import threading\nwhile True:\n    t = threading.Thread(target=sum, args=(range(99),))\n    t.start()\n"
        "    t.join()",
        LATE,
        QUICK,
    ),
    Attack(
        "threads of huge stacks",
        "threads",
        "import threading, time\nthreading.stack_size(1 << 30)\nattack(lambda: threading.Thread(target=print).start())",
    ),
]
FLOODS = [
    Attack("stdout flood", "flood", "while True: print('x' * 4096)", ("flood",)),
    Attack("stderr flood", "flood", "import sys\nwhile True: sys.stderr.write('x' * 4096)", ("flood",)),
    Attack("flood past the stream", "flood", "while True: os.write(1, b'x' * 65536)", ("flood",)),
    Attack("flood of vectors", "flood", "while True: os.writev(1, [b'x' * 65536] * 99)", ("flood",)),
    Attack("flood at the end", "flood", "import atexit\natexit.register(print, 'x' * 10**7)", ("flood", "error")),
    Attack(
        "flood of errors",
        "flood",
        "class E(Exception):\n    def __str__(self): return 'x' * 10**7\nraise E",
        ("error", "flood"),
    ),
    Attack("flood into stdin", "flood", "while True: os.write(0, b'x' * 65536)", ("flood",)),
    Attack(
        "flood that ignores the signal",
        "flood",
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nwhile True:\n"
        "    try: os.write(1, b'x' * 65536)\n    except OSError: pass",
        ("timeout", "flood"),
        QUICK,
    ),
    Attack("far seek in stdout", "flood", "os.lseek(1, 1 << 40, 0)\nos.write(1, b'x')", ("ok", "flood", "error")),
    Attack("far write in stdout", "flood", "fcntl.fcntl(1, fcntl.F_SETFL, 0)\nos.pwrite(1, b'x', 1 << 40)", ("flood",)),
    Attack("long stdout", "flood", "os.ftruncate(1, 1 << 40)", ("flood",)),
]
OUTPUT = [
    Attack("bytes that are no text", "odd output", "os.write(1, bytes(range(256)) * 8)", ("ok",), layer="decoding"),
    Attack("lone surrogates", "odd output", "print('\\ud800\\udcff')", ("ok", "error"), layer="decoding"),
    Attack(
        "codes of a terminal", "odd output", "print('\\x1b[2J\\x1b]0;x\\x07\\x00\\x08' * 99)", ("ok",), layer="decoding"
    ),
    Attack(
        "a record of our own",
        "odd output",
        'print(\'{"endings": [{"code": 0, "killed": ""}]}\' * 99)',
        ("ok",),
        layer="decoding",
    ),
]
CRASHES = [
    Attack(
        "deep recursion",
        "crash",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        ("oom", "killed", "timeout"),
        QUICK,
    ),
    Attack(
        "deep recursion in native code",
        "crash",
        "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(200_000): x = [x]\nprint(repr(x))",
        ("oom", "killed", "error"),
        layer="kernel",
    ),
    Attack("null pointer", "crash", "ctypes.string_at(0)", ("killed",), layer="kernel"),
    Attack("abort", "crash", "os.abort()", ("killed",), layer="kernel"),
    Attack(
        "illegal instruction",
        "crash",
        "m = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('0f0b'))\n"
        "ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
        ("killed",),
        layer="kernel",
    ),
    Attack(
        "past the end of a file",
        "crash",
        "os.ftruncate(0, 4096)\nm = mmap.mmap(0, 4096)\nos.ftruncate(0, 0)\nm[0]",
        ("killed", "error"),
        layer="kernel",
    ),
    Attack("stack of signals", "crash", "import faulthandler\nfaulthandler._sigsegv()", ("killed",), layer="kernel"),
    Attack(
        "double free",
        "crash",
        "libc.malloc.restype = ctypes.c_void_p\nlibc.free.argtypes = [ctypes.c_void_p]\np = libc.malloc(9)\n"
        "libc.free(p)\nlibc.free(p)",
        ("killed",),
        layer="kernel",
    ),
    Attack("trace and stop", "crash", "os.kill(os.getpid(), signal.SIGTRAP)", ("killed",), layer="kernel"),
    Attack(
        "deep syntax", "crash", "eval('(' * 10_000 + ')' * 10_000)", ("error", "oom", "killed"), layer="interpreter"
    ),
    Attack(
        "broken code",
        "crash",
        "f = lambda: 0\nf.__code__ = f.__code__.replace(co_code=bytes(256), co_stacksize=0)\nf()",
        ("killed", "error", "ok"),
        layer="interpreter",
    ),
    Attack(
        "broken object",
        "crash",
        "ctypes.memset(id([]), 255, 64)\nimport gc\ngc.collect()\nx = [[] for _ in range(99)]",
        ("killed", "error", "ok"),
        layer="interpreter",
    ),
]
ATTACKS = [*TIME, *WAITING, *SIGNALS, *THREADS, *FLOODS, *OUTPUT, *CRASHES]
