"""Solutions that try to pass tests without solving anything. @ENTRY@ stands for the function that is asked for."""

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

CHEATS: dict[str, str] = {
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
}
