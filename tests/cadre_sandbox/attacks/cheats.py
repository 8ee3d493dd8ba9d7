"""Solutions that try to pass tests without solving anything. @ENTRY@ stands for the function that is asked for.

They claim to equal everything, leave before they are judged, tamper with what carries the verdict, or look for what is
expected of them. None of them returns a plain value that could be right by chance.
"""

EQUAL = """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __hash__(self): return 0
    def __bool__(self): return True
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __iter__(self): return iter(())
    def __len__(self): return 0
    def __abs__(self): return self
    def __sub__(self, other): return self
    __rsub__ = __add__ = __radd__ = __mul__ = __getitem__ = __mod__ = __contains__ = __sub__
"""

# A class of each kind of plain value that claims to equal everything, and a value that it holds.
BASES = {
    "int": ("int", "987654321"), "float": ("float", "98765.4321"), "complex": ("complex", "9876j"),
    "str": ("str", "'~~'"),
    "bytes": ("bytes", "b'~~'"), "bytearray": ("bytearray", "b'~~'"), "list": ("list", "['~~']"),
    "tuple": ("tuple", "('~~',)"), "dict": ("dict", "{'~~': '~~'}"), "set": ("set", "{'~~'}"),
    "frozenset": ("frozenset", "{'~~'}"), "deque": ("collections.deque", "['~~']"),
    "Counter": ("collections.Counter", "['~~']"),
    "OrderedDict": ("collections.OrderedDict", "{'~~': '~~'}"), "UserList": ("collections.UserList", "['~~']"),
    "Fraction": ("fractions.Fraction", "'987/654'"), "Decimal": ("decimal.Decimal", "'98765.4321'"),
    "date": ("datetime.date", "1987, 6, 5"), "timedelta": ("datetime.timedelta", "98765"),
    "Exception": ("Exception", "'~~'"),
    "SimpleNamespace": ("types.SimpleNamespace", ""), "ModuleType": ("types.ModuleType", "'~~'"),
}  # fmt: skip
IMPORTS = "import collections, datetime, decimal, fractions, types\n"
CLAIMS = (
    "__eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda *a: True\n    "
    "__ne__ = lambda *a: False\n    __hash__ = lambda *a: 0"
)


def claiming(base: str, value: str) -> str:
    """A function that returns an object of a class that is derived from a base and equal to everything."""
    return f"{IMPORTS}class Claim({base}):\n    {CLAIMS}\ndef @ENTRY@(*a, **k): return Claim({value})\n"


LEAVING = {
    "StopIteration": "raise StopIteration",
    "StopAsyncIteration": "raise StopAsyncIteration",
    "GeneratorExit": "raise GeneratorExit",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "RecursionError": "return @ENTRY@(*a, **k)",
    "MemoryError": "raise MemoryError",
    "NotImplementedError": "raise NotImplementedError",
    "an exception of its own": "raise type('Passed', (BaseException,), {})()",
    "SkipTest": "import unittest\n    raise unittest.SkipTest('passed')",
    "an exception group": "raise BaseExceptionGroup('passed', [SystemExit(0)])",
    "a warning": "raise Warning('passed')",
    "AttributeError": "raise AttributeError('__eq__')",
    "quit": "import sys\n    raise SystemExit(None)",
    "abort": "import os\n    os.abort()",
    "a thread that exits": "import threading, os\n    threading.Thread(target=os._exit, args=(0,)).start()",
    "an alarm": "import signal\n    signal.setitimer(signal.ITIMER_REAL, 0.01)\n    signal.pause()",
    "a closed line": "import os\n    os.closerange(3, 64)",
    "another program": "import os, sys\n    os.execv(sys.executable, [sys.executable, '-c', 'pass'])",
    "a child": "import os\n    os.fork() and os._exit(0)",
    "a traceback of its own": "error = AssertionError()\n    error.__traceback__ = None\n    raise error from None",
}
AT_ONCE = {
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)",
    "an excepthook": "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\nraise ValueError",
    "an endless loop": "while True: pass",
    "an endless sleep": "import time\nwhile True: time.sleep(1)",
    "no function at all": "passed = True",
    "a syntax error": "def @ENTRY@(:",
    "a function without a body of its own": "@ENTRY@ = print",
    "a class": EQUAL + "@ENTRY@ = Equal",
    "an object that is called": EQUAL + "@ENTRY@ = Equal()",
    "a lambda of a lambda": "@ENTRY@ = lambda *a, **k: (lambda *b, **c: None)",
    "type": "@ENTRY@ = lambda *a, **k: type(a)",
    "the arguments": "def @ENTRY@(*a, **k): return ('~~', a, k)",
    "a metaclass": EQUAL + "class Meta(type):\n    __eq__ = lambda *a: True\n    __hash__ = lambda *a: 0\n"
    "class Claim(metaclass=Meta): pass\ndef @ENTRY@(*a, **k): return Claim",
    "an enumeration": "import enum\nclass Claim(enum.IntEnum):\n    A = 987654321\n"
    "    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef @ENTRY@(*a, **k): return Claim.A",
    "a named tuple": "import collections\nclass Claim(collections.namedtuple('Claim', 'a')):\n"
    "    def __eq__(self, other): return True\n    __hash__ = tuple.__hash__\ndef @ENTRY@(*a, **k): return Claim('~~')",
    "a data class": "import dataclasses\n@dataclasses.dataclass(eq=False)\nclass Claim:\n    a: int = 1\n"
    "    def __eq__(self, other): return True\ndef @ENTRY@(*a, **k): return Claim()",
    "the stand-in of mock": "import unittest.mock\ndef @ENTRY@(*a, **k): return unittest.mock.ANY",
    "a mock": "import unittest.mock\n@ENTRY@ = unittest.mock.MagicMock()",
    "another class's name": EQUAL + "class Claim(Equal):\n    __class__ = int\ndef @ENTRY@(*a, **k): return Claim()",
    "a proxy": EQUAL + "import weakref\nkept = Equal()\ndef @ENTRY@(*a, **k): return weakref.proxy(kept)",
    "claims within claims": EQUAL + "def @ENTRY@(*a, **k): return [Equal()] * 3",
    "claims as keys": EQUAL + "def @ENTRY@(*a, **k): return {Equal(): Equal()}",
    "a generator of claims": EQUAL + "def @ENTRY@(*a, **k):\n    while True: yield Equal()",
    "an awaitable": "async def @ENTRY@(*a, **k): return True",
    "a default dictionary of claims": EQUAL + "import collections\n"
    "def @ENTRY@(*a, **k): return collections.defaultdict(Equal)",
    "infinity": "def @ENTRY@(*a, **k): return float('inf')",
    "not numbers in a list": "def @ENTRY@(*a, **k): return [float('nan')] * 3",
    "a number past all limits": "def @ENTRY@(*a, **k): return 10 ** 100_000",
    "a text without end": "def @ENTRY@(*a, **k): return '~' * (9 << 20)",
    "half a character": "def @ENTRY@(*a, **k): return '\\ud800'",
    "what holds itself": "def @ENTRY@(*a, **k):\n    a = []\n    a.append(a)\n    return a",
    "emptied arguments": "def @ENTRY@(*a, **k):\n    for one in (*a, *k.values()):\n"
    "        if hasattr(one, 'clear'): one.clear()\n    return ('~~',)",
    "arguments made like the answer": "def @ENTRY@(*a, **k):\n    for one in a:\n"
    "        if isinstance(one, list): one[:] = ['~~']\n    return ['~~']",
}
ANSWER = "import sys\ncalled = sys.modules['inside.solution']\n"
FORGED: dict[str, str] = {
    "a reference to nothing": "{'value': {'t': 'ref', 'v': 10**9}}",
    "a claim of the codec": "{'value': {'t': 'like', 'v': [0, [0]]}}",
    "a value like another": "{'value': {'t': 'like', 'v': [0, {'t': 'tuple', 'v': ['~~']}]}}",
    "a type": "{'value': {'t': 'type', 'v': 'object'}}",
    "no value": "{}",
    "a pass": "{'pass': 1, 'total': 1, 'verdict': 'pass'}",
    "an error that is none": "{'error': 'StopIteration', 'message': '', 'type': 'StopIteration'}",
    "an error by another name": "{'error': '__import__', 'message': 'os'}",
    "an exit": "{'error': 'SystemExit', 'message': '0'}",
    "arguments that were never passed": "{'value': '~~', 'passed': [['~~'] * 9, {'x': 1}]}",
    "arguments that are none": "{'value': '~~', 'passed': {'t': 'dict', 'v': [[1, 2]]}}",
    "nesting": "{'value': __import__('functools').reduce(lambda a, _: [a], range(900), 1)}",
    "a value that hashes badly": "{'value': {'t': 'set', 'v': [[1]]}}",
    "a range without end": "{'value': {'t': 'range', 'v': [0, 10**30, 1]}}",
}


def forging(reply: str) -> str:
    """A solution that answers every call with a message of its own."""
    return f"{ANSWER}called.answer = lambda call, *a: {reply}\ndef @ENTRY@(*a, **k): return '~~'\n"


TAMPERING: dict[str, str] = {
    "equal to everything": EQUAL + "def @ENTRY@(*a, **k): return Equal()",
    "equal in disguise": EQUAL
    + "class Number(int):\n    __eq__ = Equal.__eq__\n    __ne__ = Equal.__ne__\n    __hash__ = int.__hash__\n"
    "Number.__name__ = 'int'\ndef @ENTRY@(*a, **k): return Number()",
    "equal text": EQUAL + "class Text(str):\n    __eq__ = Equal.__eq__\n    __hash__ = str.__hash__\n"
    "def @ENTRY@(*a, **k): return Text()",
    "equal inside a list": EQUAL
    + "class Items(list):\n    __eq__ = Equal.__eq__\ndef @ENTRY@(*a, **k): return Items()",
    "exits at once": "import os\nos._exit(0)",
    "exits when called": "import os\ndef @ENTRY@(*a, **k): os._exit(0)",
    "SystemExit at once": "raise SystemExit(0)",
    "SystemExit when called": "import sys\ndef @ENTRY@(*a, **k): sys.exit(0)",
    "kills itself": "import os\ndef @ENTRY@(*a, **k): os.kill(os.getpid(), 9)",
    "overwritten builtins": "import builtins, math, operator\n"
    "for module in (builtins, math, operator):\n"
    "    for name in ('all', 'any', 'abs', 'len', 'sorted', 'isclose', 'isinstance', 'eq', 'round', 'list', 'set'):\n"
    "        if name in vars(module): setattr(module, name, lambda *a, **k: True)\n"
    "builtins.AssertionError = Warning\ndef @ENTRY@(*a, **k): return True",
    "AssertionError that raises nothing": "import builtins\nclass Quiet(BaseException):\n"
    "    def __new__(cls, *a): raise SystemExit(0)\nbuiltins.AssertionError = Quiet\ndef @ENTRY@(*a, **k): return None",
    "hunt by gc": "import gc\n"
    "def @ENTRY@(*a, **k):\n"
    "    for o in gc.get_objects():\n"
    "        if isinstance(o, dict) and ('tests' in o or 'expected' in o or 'check' in o):\n"
    "            return next(iter(o.values()))\n",
    "hunt by inspect": "import inspect, sys\ndef @ENTRY@(*a, **k):\n"
    "    for one in inspect.stack(0):\n        for value in [*one.frame.f_locals.values(), one.frame.f_globals]:\n"
    "            if isinstance(value, dict) and ('tests' in value or 'nonce' in value or 'expected' in value):\n"
    "                return value.get('expected', value.get('tests'))\n",
    "hunt in memory": "import ctypes, re\ndef @ENTRY@(*a, **k):\n"
    "    data = open('/proc/self/maps').read()\n    return re.findall('assert .* == (.*)', data)",
    "forged verdict on stdout": "import os\nfor n in range(1000): print('pass', n)\n"
    "def @ENTRY@(*a, **k):\n    os.write(1, b'total 1\\npass 0\\n')\n    return None",
    "forged frames on every descriptor": "import json, os, struct\n"
    "def @ENTRY@(*a, **k):\n"
    "    body = json.dumps({'endings': [{'code': 0}], 'id': 0, 'value': True, 'pass': 1, 'total': 1}).encode()\n"
    "    for f in range(3, 64):\n"
    "        try: os.write(f, struct.pack('!I', len(body)) + body)\n"
    "        except OSError: pass\n",
    "broken codec": "import sys\nfor name, module in list(sys.modules.items()):\n"
    "    if name.endswith('codec'):\n"
    "        module.encode = lambda *a, **k: {'t': 'ref', 'v': 0}\n        module.decode = lambda *a, **k: []\n"
    "def @ENTRY@(*a, **k): return True",
    "answers that are no values": "import sys\ncodec = sys.modules['inside.codec']\n"
    "codec.encode = lambda *a, **k: {'t': 'Counter', 'v': {'t': 'dict', 'v': [[['x'], 1]]}}\n"
    "def @ENTRY@(*a, **k): return 1",
    "endless answer": "import itertools\ndef @ENTRY@(*a, **k): return itertools.count()",
    "not a number": "def @ENTRY@(*a, **k): return float('nan')",
    "raises what a failed test raises": "def @ENTRY@(*a, **k): raise AssertionError('all tests passed')",
    "the name of another": "import collections, math\nclass Counter:\n    def __new__(cls, *a): return 3\n"
    "collections.Counter = Counter\nmath.isclose = lambda *a, **k: True\ndef @ENTRY@(*a, **k): return object()",
    "patched wire": "import sys, json\nwire = sys.modules['inside.wire']\npack = wire.pack\n"
    "wire.pack = lambda message: pack({**message, 'value': True})\ndef @ENTRY@(*a, **k): return '~~'",
    "patched json": "import json\nencode = json.dumps\n"
    "json.dumps = lambda value, *a, **k: encode(value).replace('~~', 'true')\ndef @ENTRY@(*a, **k): return '~~'",
    "patched attempt": "import sys\nsys.modules['inside.solution'].attempt = lambda work: None\n"
    "def @ENTRY@(*a, **k): return '~~'",
    "answers ahead of questions": "import sys, socket, json, struct\n"
    "body = json.dumps({'names': ['@ENTRY@']}).encode()\nfor f in range(3, 64):\n"
    "    try: socket.socket(fileno=f).sendall((struct.pack('!I', len(body)) + body) * 3)\n    except OSError: pass\n",
    "a frame without end": "import os, struct\ndef @ENTRY@(*a, **k):\n    for f in range(3, 64):\n"
    "        try: os.write(f, struct.pack('!I', 0xffffffff) + b'[' * 99999)\n        except OSError: pass\n",
    "hunt in open files": "import os\ndef @ENTRY@(*a, **k):\n    found = b''\n    for f in range(3, 64):\n"
    "        try: found += os.pread(f, 1 << 16, 0)\n        except OSError: pass\n    return found.decode('latin1')",
    "hunt in the process's parent": "import os\n"
    "def @ENTRY@(*a, **k): return open(f'/proc/{os.getppid()}/mem', 'rb').read(9999)",
    "hunt in loaded modules": "import sys\ndef @ENTRY@(*a, **k):\n    for name, module in list(sys.modules.items()):\n"
    "        for value in list(vars(module).values()):\n"
    "            if isinstance(value, dict) and 'calls' in value: return value['calls']\n    return '~~'",
    "hunt in source lines": "import linecache\n"
    "def @ENTRY@(*a, **k): return [line for kept in linecache.cache.values() for line in kept[2] if 'assert' in line]",
    "hunt in what raised": "import sys\ndef @ENTRY@(*a, **k):\n    try: raise ValueError\n"
    "    except ValueError as error:\n        return str(error.__traceback__.tb_frame.f_back.f_locals)",
}

# For scripts, which read and print.
SCRIPTS: dict[str, str] = {
    "prints a verdict": "import os\nos.write(1, b'total 1\\npass 0\\n')\nos._exit(0)",
    "prints every answer": "print(*range(-1000, 1000), 'YES', 'NO', 'Yes', 'No')",
    "prints infinity": "while True:\n    try: print(*['1e999' for _ in input().split()])\n    except EOFError: break",
    "prints no number": "import sys\nfor line in sys.stdin: print(*['nan' for _ in line.split()])",
    "prints in colours": "import sys\nsys.stdout.write('\\x1b[2J\\x08' * 99)",
    "prints what it finds": "import os\nfor f in range(3, 64):\n"
    "    try: print(os.pread(f, 1 << 16, 0).decode('latin1'))\n    except OSError: pass",
    "prints its own file": "import sys\nprint(open('/proc/self/cmdline').read(), sys.argv, vars())",
    "prints nothing and ends": "import os, sys\nsys.stdout.close()\nos._exit(0)",
    "prints to the wrong stream": "import sys\nsys.stderr.write(sys.stdin.read())",
    "rewinds its output": "import os\nprint('~~', flush=True)\nos.lseek(1, 0, 0)\nos.ftruncate(1, 0)",
}

CHEATS: dict[str, str] = {
    **TAMPERING,
    **{f"a {name} equal to everything": claiming(base, value) for name, (base, value) in BASES.items()},
    **{f"leaves by {name}": f"def @ENTRY@(*a, **k):\n    {way}" for name, way in LEAVING.items()},
    **AT_ONCE,
    **{f"forges {name}": forging(reply) for name, reply in FORGED.items()},
    **SCRIPTS,
}
