"""Attacks by other processes and on them: forks, programs, daemons, signals, tracing, and what neighbours may use."""

from cadre_sandbox.probes import Attack, tried

FORKS = [
    tried("fork bomb", "fork", "[os.fork() for _ in range(1000)]"),
    tried("vfork by hand", "fork", "call(libc.vfork) == 0 and libc._exit(0)", ("ok", "error")),
    tried("clone", "fork", "raw(56, 220, 17, None, None, None, None) or libc._exit(0)"),
    tried("clone of a thread group", "fork", "raw(56, 220, 0x800 | 17, None, None, None, None) or libc._exit(0)"),
    tried("clone that shares the memory", "fork", "raw(56, 220, 0x4100 | 17, None, None, None, None) or libc._exit(0)"),
    tried("clone below the warm parent", "fork", "raw(56, 220, 0x8000 | 17, None, None, None, None) or libc._exit(0)"),
    tried("clone3", "fork", "call(libc.syscall, 435, buffer(88), 88)"),
    tried("pseudo-terminal and fork", "fork", "__import__('pty').fork()"),
    tried("multiprocessing", "fork", "__import__('multiprocessing').get_context('fork').Process(target=print).start()"),
]
PROGRAMS = [
    tried("subprocess", "exec", "__import__('subprocess').run(['/bin/true'])"),
    tried("posix_spawn", "exec", "os.posix_spawn('/bin/sh', ['sh', '-c', ':'], {})"),
    tried("shell", "exec", "os.system('echo x') and 1 / 0", ("ok", "error")),
    tried("exec", "exec", "os.execv('/bin/echo', ['echo', 'BREACH'])"),
    tried("exec the interpreter", "exec", "os.execv('/proc/self/exe', ['python', '-c', 'print(\"BREACH\")'])"),
    tried("exec by descriptor", "exec", "os.execve(os.open('/bin/echo', os.O_PATH), ['echo', 'BREACH'], {})"),
    tried("execveat", "exec", "raw(322, 281, -100, b'/bin/true', None, None, 0)"),
    tried("the dynamic loader", "exec", "os.execv('/lib64/ld-linux-x86-64.so.2', ['ld', '/bin/true'])"),
    tried("exec of a file in memory", "exec", "os.execve(os.memfd_create('x'), ['x'], {})"),
]
DAEMONS = [
    Attack(
        "daemon",
        "daemon",
        "import os, time\ndef go():\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(1)\n"
        "        open('@FOLDER@/daemon', 'w')\nattack(go)",
    ),
    tried("outlive the parent", "daemon", "call(libc.prctl, 1, 0, 0, 0, 0)"),
    tried("reaper of orphans", "daemon", "call(libc.prctl, 36, 1, 0, 0, 0)"),
    tried("another process group", "daemon", "os.setpgid(0, 0)"),
    tried("another session", "daemon", "os.setsid()"),
    tried("no more dumps", "daemon", "call(libc.prctl, 4, 0, 0, 0, 0)"),
]
SIGNALS = [
    tried("kill the trainer", "signals", "os.kill(@TRAINER@, 0)"),
    tried("kill the warm parent", "signals", "os.kill(os.getppid() or 1, 9)"),
    tried("kill everybody", "signals", "os.kill(-1, 9)"),
    tried("kill the group", "signals", "os.killpg(0, 9)"),
    tried("kill the trainer's group", "signals", "os.killpg(os.getpgid(@TRAINER@), 0)"),
    tried("signal a thread", "signals", "call(libc.tgkill, @NEIGHBOUR@, @NEIGHBOUR@, 9)"),
    tried("signal a task", "signals", "raw(200, 130, @NEIGHBOUR@, 9)"),
    tried("queue a signal", "signals", "call(libc.sigqueue, @NEIGHBOUR@, 9, None)"),
    tried("queue a signal to a thread", "signals", "raw(297, 240, @NEIGHBOUR@, @NEIGHBOUR@, 9, buffer(128))"),
    tried("signal by descriptor", "signals", "signal.pidfd_send_signal(os.pidfd_open(@NEIGHBOUR@), 9)"),
    tried("a descriptor of a process", "signals", "raw(434, 434, @NEIGHBOUR@, 0)"),
    tried("kill itself unseen", "signals", "os.kill(os.getpid(), 9)"),
    Attack(
        "signals to all numbers near",
        "signals",
        "def go():\n    n = 0\n"
        "    for pid in {*range(1, 300), *range(os.getpid() - 300, os.getpid() + 300)} - {os.getpid()}:\n"
        "        try: os.kill(pid, 0); n += 1\n        except OSError as error: last = error\n"
        "    if not n: raise last\n"
        "attack(go)",
    ),
]
ASYNCHRONOUS = [
    Attack(
        "signal by asynchronous input",
        "asynchronous signals",
        "a, b = socket.socketpair()\n"
        "def go():\n    fcntl.fcntl(a, fcntl.F_SETOWN, @NEIGHBOUR@)\n    fcntl.fcntl(a, 10, 9)\n"
        "    fcntl.fcntl(a, fcntl.F_SETFL, 0o20000)\n    b.send(b'x')\nattack(go)",
    ),
    Attack(
        "owner of a pipe",
        "asynchronous signals",
        "r, w = os.pipe()\nattack(lambda: fcntl.fcntl(r, 15, bytes(4) + bytes(ctypes.c_int(@NEIGHBOUR@))))",
    ),
    Attack(
        "owner by ioctl", "asynchronous signals", "r, w = os.pipe()\nattack(lambda: fcntl.ioctl(r, 0x8901, b'1234'))"
    ),
    tried("signal of a pipe", "asynchronous signals", "fcntl.fcntl(0, 10, 9)"),
    tried("timer that signals", "asynchronous signals", "raw(222, 107, 0, buffer(64), buffer(8))"),
    tried("queue that signals", "asynchronous signals", "raw(240, 180, b'cadre', 0o102, 0o600, None)"),
    tried("lease that signals", "asynchronous signals", "fcntl.fcntl(os.open('@LIBRARY@/this.py', 0), 1024, 0)"),
    tried("notice of a folder", "asynchronous signals", "fcntl.fcntl(os.open('@LIBRARY@', 0), 1026, 1)"),
]
TRACING = [
    tried("trace a neighbour", "tracing", "call(libc.ptrace, 16, @NEIGHBOUR@, 0, 0)"),
    tried("seize the trainer", "tracing", "raw(101, 117, 0x4206, @TRAINER@, 0, 0)"),
    tried("be traced", "tracing", "call(libc.ptrace, 0, 0, 0, 0)"),
    tried("trace the warm parent", "tracing", "call(libc.ptrace, 16, os.getppid() or 1, 0, 0)"),
    tried(
        "read a neighbour's memory",
        "tracing",
        "call(libc.process_vm_readv, @TRAINER@, ctypes.c_char_p(bytes(16)), 1, None, 0, 0)",
    ),
    tried("write a neighbour's memory", "tracing", "raw(311, 271, @TRAINER@, buffer(16), 1, buffer(16), 1, 0)"),
    tried("compare two processes", "tracing", "raw(312, 272, os.getpid(), @TRAINER@, 0, 0, 0)"),
    tried("take a descriptor", "tracing", "raw(438, 438, 0, 0, 0)"),
    tried("advise on another's memory", "tracing", "raw(440, 440, 0, buffer(16), 1, 4, 0)"),
    tried("memory by the file of a process", "tracing", "os.open('/proc/@TRAINER@/mem', os.O_RDWR)"),
    tried("locks of another's threads", "tracing", "raw(274, 100, @TRAINER@, buffer(8), buffer(8))"),
    tried("allow to be traced", "tracing", "call(libc.prctl, 0x59616d61, -1, 0, 0, 0)"),
]
NEIGHBOURS = [
    tried("limit a neighbour", "neighbours", "resource.prlimit(@NEIGHBOUR@, resource.RLIMIT_CPU, (1, 1))"),
    tried("read a neighbour's limits", "neighbours", "resource.prlimit(@NEIGHBOUR@, resource.RLIMIT_AS)"),
    tried("a neighbour's priority", "neighbours", "os.setpriority(os.PRIO_PROCESS, @NEIGHBOUR@, 19)"),
    tried("a neighbour's core", "neighbours", "os.sched_setaffinity(@NEIGHBOUR@, {0})"),
    tried(
        "a neighbour's scheduler", "neighbours", "os.sched_setscheduler(@NEIGHBOUR@, os.SCHED_IDLE, os.sched_param(0))"
    ),
    tried("a neighbour's disk priority", "neighbours", "raw(251, 30, 1, @NEIGHBOUR@, 0x6000)"),
    tried("a neighbour's pages", "neighbours", "raw(279, 239, @NEIGHBOUR@, 0, None, None, None, 0)"),
    tried("a neighbour's memory nodes", "neighbours", "raw(256, 238, @NEIGHBOUR@, 8, buffer(8), buffer(8))"),
    tried("a neighbour's end awaited", "neighbours", "os.waitid(os.P_PID, @NEIGHBOUR@, os.WEXITED | os.WNOHANG)"),
    tried("a neighbour's group moved", "neighbours", "os.setpgid(@NEIGHBOUR@, 0)"),
]
ATTACKS = [*FORKS, *PROGRAMS, *DAEMONS, *SIGNALS, *ASYNCHRONOUS, *TRACING, *NEIGHBOURS]
