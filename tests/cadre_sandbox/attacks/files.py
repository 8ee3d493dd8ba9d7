"""Attacks on files: secrets that are read, and everything that would change what lies outside."""

from cadre_sandbox.probes import Attack, tried

TRUNCATE = "os.O_TRUNC"


def reading(name: str, path: str) -> Attack:
    return tried(name, "secrets by path", f"print(open({path!r}, 'rb').read(4096))")


def secret(name: str, expression: str) -> Attack:
    return tried(name, "secrets by call", expression, ("ok", "error"))


def writing(name: str, path: str, mode: str = "w") -> Attack:
    kind = "new files" if mode == "w" and "@CANARY@" not in path else "overwriting"
    return tried(name, kind, f"open({path!r}, {mode!r}).write('BREACH')")


def emptying(name: str, flags: str, path: str = "'@CANARY@'") -> Attack:
    return tried(name, "emptying", f"os.open({path}, {flags})")


PATHS = [
    reading("secret by symbolic link", "@LINK@"),
    reading("secret beside the library", "@LIBRARY@/../../../../../../../../../../@SECRET@"),
    reading("secret below a process's root", "/proc/self/root@SECRET@"),
    reading("secret below the trainer's root", "/proc/@TRAINER@/root@SECRET@"),
    reading("secret by the trainer's descriptor", "/proc/@TRAINER@/fd/0"),
    reading("password file", "/etc/passwd"),
    reading("shadow file", "/etc/shadow"),
    reading("host name", "/etc/hostname"),
    reading("mounts", "/proc/self/mountinfo"),
    reading("trainer's environment", "/proc/@TRAINER@/environ"),
    reading("trainer's command", "/proc/@TRAINER@/cmdline"),
    reading("trainer's memory map", "/proc/@TRAINER@/maps"),
    reading("parent's environment", "/proc/self/../1/environ"),
    reading("own environment as the kernel has it", "/proc/self/environ"),
    reading("own memory map", "/proc/self/maps"),
    reading("kernel's settings", "/proc/sys/kernel/core_pattern"),
    reading("kernel's symbols", "/proc/kallsyms"),
    reading("kernel's memory", "/proc/kcore"),
    reading("devices of the system", "/sys/class/net/lo/address"),
    reading("disk", "/dev/vda"),
    reading("physical memory", "/dev/mem"),
    reading("kernel log", "/dev/kmsg"),
]
CALLS = [
    Attack(
        "secret by native code",
        "secrets by call",
        "f = libc.open(b'@SECRET@', 0)\nattack(lambda: print(os.read(call(lambda: f), 99)))",
    ),
    Attack(
        "secret by a bare descriptor",
        "secrets by call",
        "f = os.open('@SECRET@', os.O_PATH)\nattack(lambda: print(os.read(f, 99)))",
        ("ok", "error"),
    ),
    Attack(
        "secret by a bare descriptor opened again",
        "secrets by call",
        "f = os.open('@SECRET@', os.O_PATH)\nattack(lambda: print(open(f'/proc/self/fd/{f}').read()))",
        ("ok", "error"),
    ),
    Attack(
        "secret by a bare folder",
        "secrets by call",
        "f = os.open('@FOLDER@', os.O_PATH)\nattack(lambda: print(os.read(os.open('secret', 0, dir_fd=f), 99)))",
        ("ok", "error"),
    ),
    Attack(
        "secret from the folder itself",
        "secrets by call",
        "def go():\n    os.chdir('@FOLDER@')\n    print(open('secret').read())\nattack(go)",
    ),
    secret("secret by database", "__import__('sqlite3').connect('@SECRET@').execute('select 1 from t').fetchall()"),
    secret(
        "secret by the import system",
        "print(__import__('importlib.machinery').machinery.SourceFileLoader('s', 'x').get_data('@SECRET@'))",
    ),
    secret("secret as a module", "__import__('runpy').run_path('@SECRET@')"),
    secret("secret as lines of source", "print(__import__('linecache').getlines('@SECRET@')) or 1 / 0"),
    secret("secret as a shared library", "ctypes.CDLL('@SECRET@')"),
    secret("secret mapped", "print(mmap.mmap(os.open('@SECRET@', 0), 0, prot=1)[:])"),
    secret("secret as a locale or an archive", "__import__('zipfile').ZipFile('@SECRET@')"),
    secret("openat2", "raw(437, 437, -100, b'@SECRET@', buffer(24), 24)"),
    secret("secret by handle", "raw(303, 264, -100, b'@SECRET@', buffer(140), buffer(4), 0)"),
    secret("file by handle", "raw(304, 265, -1, buffer(140), 0)"),
    secret("text of a symbolic link", "print(os.readlink('@LINK@'))"),
    secret("hard link to a secret", "os.link('@SECRET@', '@FOLDER@/hard')"),
    secret("copy of a secret", "__import__('shutil').copy('@SECRET@', '/tmp/cadre-attack')"),
    secret("chroot", "os.chroot('@FOLDER@')"),
    secret("pages in the cache", "raw(451, 451, 0, buffer(16), buffer(40), 0)"),
]
ENVIRONMENT = [
    Attack(
        "secret in the environment",
        "environment",
        "print(dict(os.environ))\nif '@NAME@' in os.environ: print('BREACH')",
        layer="environment",
    ),
    Attack(
        "secret in the C environment",
        "environment",
        "libc.getenv.restype = ctypes.c_char_p\nif libc.getenv(b'@NAME@'): print('BREACH')",
        layer="environment",
    ),
    Attack(
        "secret on the first stack",
        "environment",
        "environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')\n"
        "if environ and environ[0] is not None: print(environ[0])\n"
        "libc.getauxval.restype = ctypes.c_ulong\n"
        "text = ctypes.string_at(libc.getauxval(31) - 2048, 2048)  # the name of the program that was started\n"
        "print(text)\nif b'@NAME@' in text: print('BREACH')",
        layer="environment",
    ),
    Attack(
        "inherited descriptor",
        "environment",
        "for f in range(3, 1024):\n    try: print(os.pread(f, 4096, 0))\n    except OSError: pass",
        layer="descriptors",
    ),
    Attack(
        "inherited descriptor of any number",
        "environment",
        "for f in [*range(3, 65536, 7), 2**31 - 1]:\n    try: print('BREACH', os.fstat(f))\n    except OSError: pass",
        layer="descriptors",
    ),
]
MEMORY = [
    Attack(
        "secret among the objects",
        "memory",
        "import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and '@NAME@' in o: print('BREACH', o)\n"
        "print([o for o in gc.get_objects() if isinstance(o, (str, bytes)) and len(o) == 32])",
        layer="environment",
    ),
    Attack(
        "secret in the heap",
        "memory",
        "import re\nlibc.sbrk.restype = ctypes.c_void_p\ntop = libc.sbrk(0)\n"
        "heap = ctypes.string_at(top - (1 << 20), 1 << 20)\nprint(re.findall(rb'[0-9a-f]{32}', heap)[:999])\n"
        "if b'@NAME@' in heap.replace(b'@NA' + b'ME@', b''): pass",
        layer="environment",
    ),
    Attack(
        "secret in the frames of the warm parent",
        "memory",
        "import sys\nframe = sys._getframe().f_back\nwhile frame:\n"
        "    print(str(frame.f_locals).replace('BREACH', '')[:2000])\n"
        "    frame = frame.f_back",
        layer="environment",
    ),
]
LISTING = [
    tried("listing of a folder", "listing", "print(os.listdir('@FOLDER@'))"),
    tried("listing of the root", "listing", "print(os.listdir('/'))"),
    tried("listing of the processes", "listing", "print(os.listdir('/proc'))"),
    tried("listing of devices", "listing", "print(os.listdir('/dev'))"),
    tried("listing of the trainer's descriptors", "listing", "print(os.listdir('/proc/@TRAINER@/fd'))"),
    tried("pattern of names", "listing", "print(__import__('glob').glob('@FOLDER@/*')[0])"),
    tried("scan by descriptor", "listing", "list(os.scandir(os.open('@FOLDER@', os.O_RDONLY)))"),
    tried("watch of a folder", "listing", "raw(294, 26, 0)"),
    tried("size of a file system", "listing", "os.statvfs('@FOLDER@')"),
]
NEW = [
    writing("file in the current folder", "x"),
    writing("file in shared memory", "/dev/shm/cadre-attack"),
    writing("file in the library", "@LIBRARY@/cadre_attack.py"),
    writing("file beside the trainer", "@FOLDER@/x"),
    writing("file by the root of a process", "/proc/self/root/tmp/cadre-attack"),
    tried("nameless file", "new files", "os.open('@FOLDER@', os.O_TMPFILE | os.O_RDWR)"),
    tried("nameless file of the temporary folder", "new files", "os.open('/tmp', os.O_TMPFILE | os.O_WRONLY)"),
    tried("temporary file", "new files", "__import__('tempfile').TemporaryFile()"),
    tried("created to read", "new files", "os.open('@FOLDER@/x', os.O_RDONLY | os.O_CREAT)"),
    tried("created in access mode 3", "new files", "os.open('@FOLDER@/x', 3 | os.O_CREAT)"),
    tried("created as only one", "new files", "os.open('@FOLDER@/x', os.O_WRONLY | os.O_CREAT | os.O_EXCL)"),
    tried("creat", "new files", "raw(85, None, b'@FOLDER@/x', 0o600)"),
    tried("database", "new files", "__import__('sqlite3').connect('@FOLDER@/x').execute('create table t(x)')"),
]
OVER = [
    writing("over a file", "@CANARY@"),
    writing("at the end of a file", "@CANARY@", "a"),
    writing("within a file", "@CANARY@", "r+"),
    writing("over a secret by its link", "@LINK@", "a"),
    writing("over the trainer's memory", "/proc/@TRAINER@/mem", "r+"),
    writing("over a process's standing", "/proc/self/oom_score_adj", "a"),
    writing("over a map of users", "/proc/self/uid_map", "a"),
    tried("within a file, mapped", "overwriting", "mmap.mmap(os.open('@CANARY@', os.O_RDWR), 0)"),
    tried("within the library, mapped", "overwriting", "mmap.mmap(os.open('@LIBRARY@/this.py', 0), 0)"),
    tried("over a read descriptor", "overwriting", "os.pwrite(os.open('@LIBRARY@/this.py', 0), b'BREACH', 0)"),
    tried("copied by the kernel", "overwriting", "os.sendfile(os.open('@CANARY@', 3), 0, 0, 9)"),
    tried("spliced", "overwriting", "raw(275, 76, 0, None, 1, None, 9, 0)"),
    tried("cloned extents", "overwriting", "fcntl.ioctl(os.open('@LIBRARY@/this.py', 0), 0x40049409, 0)"),
]
EMPTYING = [
    emptying("emptied while reading", "os.O_RDONLY | os.O_TRUNC"),
    emptying("emptied while writing", "os.O_WRONLY | os.O_TRUNC"),
    emptying("emptied while doing both", "os.O_RDWR | os.O_TRUNC"),
    emptying("emptied in access mode 3", "3 | os.O_TRUNC"),
    emptying("emptied in access mode 3 at the end", "3 | os.O_TRUNC | os.O_APPEND"),
    emptying("emptied in access mode 3 without waiting", "3 | os.O_TRUNC | os.O_NONBLOCK | os.O_NOFOLLOW"),
    emptying("emptied in access mode 3 or made", "3 | os.O_TRUNC | os.O_CREAT"),
    emptying("emptied synchronously", "os.O_RDONLY | os.O_TRUNC | os.O_SYNC | os.O_NOATIME"),
    emptying("emptied by its link", "3 | os.O_TRUNC", "'@LINK@'"),
    emptying("emptied by a process's root", "3 | os.O_TRUNC", "'/proc/self/root@CANARY@'"),
    emptying("emptied library", "os.O_RDONLY | os.O_TRUNC", "'@LIBRARY@/this.py'"),
    emptying("emptied library in access mode 3", "3 | os.O_TRUNC", "'@LIBRARY@/this.py'"),
    Attack(
        "emptied from a bare folder",
        "emptying",
        "f = os.open('@FOLDER@', os.O_PATH)\nattack(lambda: os.open('canary', 3 | os.O_TRUNC, dir_fd=f))",
    ),
    Attack(
        "emptied by a bare descriptor",
        "emptying",
        "f = os.open('@CANARY@', os.O_PATH)\nattack(lambda: os.open(f'/proc/self/fd/{f}', 3 | os.O_TRUNC))",
    ),
    tried("truncate", "emptying", "os.truncate('@CANARY@', 0)"),
    tried("truncate by number", "emptying", "raw(76, 45, b'@CANARY@', 0)"),
    tried("truncate of a descriptor", "emptying", "os.ftruncate(os.open('@LIBRARY@/this.py', 0), 0)"),
    tried("truncate in access mode 3", "emptying", "os.ftruncate(os.open('@CANARY@', 3), 0)"),
    tried("creat over a file", "emptying", "raw(85, None, b'@CANARY@', 0o600)"),
    tried(
        "openat2 that empties", "emptying", "raw(437, 437, -100, b'@CANARY@', buffer(bytes([3, 2]) + bytes(22)), 24)"
    ),
    tried("open that empties, by number", "emptying", "raw(2, None, b'@CANARY@', 0x203, 0)"),
    tried("openat that empties, by number", "emptying", "raw(257, 56, -100, b'@CANARY@', 0x203, 0)"),
    tried("emptied with high bits", "emptying", "raw(257, 56, -100, b'@CANARY@', ctypes.c_long(0xF00000203), 0)"),
    tried("punched hole", "emptying", "raw(285, 47, os.open('@LIBRARY@/this.py', 0), 3, 0, 4096)"),
]
METADATA = [
    tried("chmod", "metadata", "os.chmod('@CANARY@', 0o777)"),
    tried("chmod of a descriptor", "metadata", "os.fchmod(os.open('@LIBRARY@/this.py', 0), 0o777)"),
    tried("chmod of a bare descriptor", "metadata", "os.chmod(os.open('@CANARY@', os.O_PATH), 0o777)"),
    tried("fchmodat2", "metadata", "raw(452, 452, -100, b'@CANARY@', 0o777, 0)"),
    tried("chown", "metadata", "os.chown('@CANARY@', os.getuid(), os.getgid())"),
    tried("new times", "metadata", "os.utime('@CANARY@', (0, 0))"),
    tried("new times by number", "metadata", "raw(280, 88, -100, b'@CANARY@', None, 0)"),
    tried("extended attribute", "metadata", "os.setxattr('@CANARY@', 'user.x', b'x')"),
    tried("removed attribute", "metadata", "os.removexattr('@CANARY@', 'user.x')"),
    tried("read attribute", "metadata", "os.listxattr('@CANARY@')"),
    tried("flags of a file", "metadata", "fcntl.ioctl(os.open('@LIBRARY@/this.py', 0), 0x40086602, bytes(8))"),
]
TREE = [
    tried("unlink", "tree", "os.unlink('@CANARY@')"),
    tried("unlink by number", "tree", "raw(263, 35, -100, b'@CANARY@', 0)"),
    tried("rename", "tree", "os.rename('@CANARY@', '@CANARY@2')"),
    tried("exchange", "tree", "raw(316, 276, -100, b'@CANARY@', -100, b'@SECRET@', 2)"),
    tried("folder", "tree", "os.mkdir('@FOLDER@/d')"),
    tried("folder removed", "tree", "os.rmdir('@FOLDER@')"),
    tried("symbolic link", "tree", "os.symlink('@SECRET@', '@FOLDER@/l')"),
    tried("hard link", "tree", "os.link('@CANARY@', '@FOLDER@/hard')"),
    tried("hard link of a descriptor", "tree", "raw(265, 37, 0, b'', -100, b'@FOLDER@/hard', 0x1000)"),
    tried("named pipe", "tree", "os.mkfifo('@FOLDER@/p')"),
    tried("device", "tree", "os.mknod('@FOLDER@/dev', 0o020666, 0x105)"),
    tried("whole folder", "tree", "__import__('shutil').rmtree('@FOLDER@')"),
]
LOCKS = [
    tried("lock on a file", "locks", "fcntl.flock(os.open('@LIBRARY@/this.py', 0), fcntl.LOCK_EX)"),
    tried("lock of a record", "locks", "fcntl.lockf(os.open('@LIBRARY@/this.py', 0), fcntl.LOCK_SH)"),
    tried("lease", "locks", "fcntl.fcntl(os.open('@LIBRARY@/this.py', 0), 1024, 0)"),
    tried("seal", "locks", "fcntl.fcntl(1, 1033, 1)"),
]
ATTACKS = [
    *PATHS, *CALLS, *ENVIRONMENT, *MEMORY, *LISTING, *NEW, *OVER, *EMPTYING, *METADATA, *TREE, *LOCKS,
]  # fmt: skip
