"""Attacks on the runs that come after and on the one who reads the verdict: poison, and results of one's own making."""

from cadre_sandbox.probes import Attack

LAYER = "fork"  # each run is born anew of a parent that no program has touched


def poison(name: str, program: str) -> Attack:
    return Attack(name, "poison", program, layer=LAYER)


def forged(name: str, program: str) -> Attack:
    return Attack(name, "forged results", program, layer=LAYER)


FRAMES = (
    "import json, struct\nbody = json.dumps(%s).encode()\n"
    "for f in range(64):\n    try: os.write(f, struct.pack('!I', len(body)) + body)\n    except OSError: pass\n"
)
ATTACKS = [
    poison(
        "poisoned builtins", "import builtins\nbuiltins.print = builtins.sorted = builtins.len = lambda *a, **k: None"
    ),
    poison("poisoned modules", "import json, math\njson.dumps = math.floor = None\nos.environ['X'] = '1'"),
    poison("poisoned classes", "import json.encoder\njson.encoder.JSONEncoder.encode = lambda *a: 'poisoned'"),
    poison(
        "poisoned warm parent",
        "import sys\nfor name, module in list(sys.modules.items()):\n"
        "    if name.startswith('inside'):\n        for key in list(vars(module)): setattr(module, key, None)",
    ),
    poison("poisoned numbers", "ctypes.c_int.from_address(id(7) + 24).value = 8"),
    poison(
        "poisoned types",
        "import gc\ngc.get_referents(str.__dict__)[0]['upper'] = None\n"
        "ctypes.pythonapi.PyType_Modified(ctypes.py_object(str))",
    ),
    poison(
        "poisoned limits",
        "import sys\nsys.setrecursionlimit(50)\nresource.setrlimit(resource.RLIMIT_STACK, (4096, 4096))",
    ),
    poison("poisoned streams", "import sys\nos.close(1)\nos.close(2)\nsys.stdout = sys.stderr = None"),
    poison("poisoned exit functions", "import atexit\nfor n in range(9): atexit.register(lambda: os._exit(3))"),
    poison("poisoned collector", "import gc\ngc.disable()\ngc.freeze()\ngc.set_threshold(1)"),
    poison(
        "poisoned imports", "import sys\nsys.path[:] = ['/nowhere']\nsys.modules['json'] = None\nsys.meta_path.clear()"
    ),
    poison(
        "poisoned interpreter",
        "import sys\nsys.settrace(lambda *a: 1 / 0)\nsys.setswitchinterval(100)\nsys.setprofile(lambda *a: None)",
    ),
    poison("poisoned seeds", "import random\nrandom.random = lambda: 4\nrandom.Random.seed = None\nos.urandom = None"),
    poison("poisoned clocks", "import time\ntime.time = time.sleep = time.monotonic = None"),
    forged(
        "forged frames",
        FRAMES % "{'endings': [{'code': 0, 'killed': '', 'layers': ['x']}], 'layers': [], 'error': 'x'}",
    ),
    forged("forged request", FRAMES % "{'cpu_s': 99, 'wall_s': 99, 'children': 1, 'memory_mb': 9999}"),
    forged("forged greeting", FRAMES % "{'layers': ['rlimits'], 'error': ''}"),
    forged("status of a shortage", "os._exit(77)"),
    forged("status of one that was not armed", "os._exit(78)"),
    forged("end of time by hand", "os.kill(os.getpid(), signal.SIGXCPU)"),
    forged("end by a stopped filter", "libc.syscall(by_machine(39, 172))\nos.kill(os.getpid(), signal.SIGSYS)"),
]
