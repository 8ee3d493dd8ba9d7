"""A run is a function of its program and its input: what a program draws, the time it sees, and the order of sets."""

import asyncio
import subprocess
import sys
from functools import cache

import pytest

from cadre_sandbox import Limits, Sandbox
from cadre_sandbox.checkers import check_tests
from cadre_sandbox.pool import seed_of
from tests.helpers.sandboxes import shared_sandbox
from tests.helpers.slow import few_of

ADDR_NO_RANDOMIZE = 0x0040000
MIX = "\nimport json\nx = [{} for _ in range(300)]\nprint(json.dumps(x))"  # leaves another memory behind than it found

DRAWS = {
    "random": "import random; print(random.random(), random.sample(range(99), 5))",
    "random.Random": "import random; print(random.Random().random(), random.Random().random())",
    "random.seed()": "import random; random.seed(); print(random.random())",
    "SystemRandom": "import random; print(random.SystemRandom().random())",
    "a subclass": "import random\nclass R(random.Random): pass\nprint(R().random())",
    "os.urandom": "import os; print(os.urandom(8), os.getrandom(8))",
    "secrets": "import secrets; print(secrets.token_hex(8), secrets.choice(range(10**6)))",
    "uuid": "import uuid; print(uuid.uuid4(), uuid.uuid1())",
    "tempfile": "import tempfile; print(next(tempfile._get_candidate_names()))",
    "the time": "import random, time; random.seed(time.time()); print(random.random())",
    "nanoseconds": "import random, time; random.seed(time.time_ns() ^ time.perf_counter_ns()); print(random.random())",
    "the date": "from datetime import datetime, date; print(datetime.now(), datetime.utcnow(), date.today())",
    "the time's parts": "import time; print(time.localtime(), time.gmtime(), time.ctime(), time.strftime('%c'))",
    "the system's time": "import time; print(*map(time.clock_gettime_ns, (time.CLOCK_REALTIME, 5, time.CLOCK_TAI)))",
    "the time since it began": "import os; print(os.times().elapsed)",
    "hashes": "print(hash('a'), hash(b'a'), {'a', 'b', 'c', b'd'})",
}
ORDERS = {
    "objects": "class A: pass\nobjects = [A() for _ in range(50)]\nprint([objects.index(a) for a in set(objects)])",
    "functions": "fs = [lambda: 0 for _ in range(50)]\nprint([fs.index(f) for f in set(fs)])",
    "types and None": "print({int, str, list, dict, None, len, ValueError})",
    "a printed address": "class A: pass\nprint(A())",
    "hash of None": "print(hash(None), hash((None, 1)))",
}


@cache
def outputs_in_two_sandboxes(level: str) -> dict[str, set[str]]:
    """Return what each program prints: in three runs each of two sandboxes, other programs in between."""

    async def run_all() -> dict[str, set[str]]:
        printed: dict[str, set[str]] = {name: set() for name in (*DRAWS, *ORDERS)}
        for _ in range(2):
            async with Sandbox(level, workers=1) as sandbox:  # type: ignore[arg-type]
                for number in range(3):
                    for name, program in (DRAWS | ORDERS).items():
                        result = await sandbox.run(program)
                        assert result.status == "ok", (name, result.stderr)
                        printed[name].add(result.stdout)
                    await sandbox.run(MIX * (number + 1))
        return printed

    return asyncio.run(run_all())


def output(program: str, stdin: str = "") -> str:
    return asyncio.run(shared_sandbox().run(program, stdin)).stdout


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("level", few_of(["confined", "isolated"], ["isolated"]))
def test_equal_programs_on_equal_input_print_the_same(level: str, name: str) -> None:
    assert len(outputs_in_two_sandboxes(level)[name]) == 1


def test_another_input_or_program_draws_otherwise() -> None:
    program = DRAWS["random"]
    assert len({output(program, stdin) for stdin in ("", "a", "b") * 2}) == 3
    assert output(program) != output(program + "\n")


def test_draws_of_one_run_differ() -> None:
    program = (
        "import os, random, time\nr = random.Random\ndraws = [r().random() for _ in range(9)]\n"
        "draws += [os.urandom(8) for _ in range(9)] + [time.time(), time.time()] + [random.random()]\n"
        "print(len(set(draws)))"
    )
    assert output(program) == "21\n"


def randomization_can_be_left_out() -> bool:
    script = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).personality({ADDR_NO_RANDOMIZE}) == -1)"
    return subprocess.run([sys.executable, "-c", script]).returncode == 0


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("level", few_of(["confined", "isolated"], ["confined"]))
def test_the_order_of_sets_is_the_same(level: str, name: str) -> None:
    if not randomization_can_be_left_out():
        pytest.skip("this machine forbids personality(ADDR_NO_RANDOMIZE)")
    assert len(outputs_in_two_sandboxes(level)[name]) == 1


def test_a_seed_of_ones_own_means_what_it_means_elsewhere() -> None:
    program = "import random; random.seed(42); print(random.random(), random.Random(7).getrandbits(64))"
    plain = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output(program) == plain.stdout


def test_numpy_draws_the_same_where_a_program_has_it() -> None:
    numpy = pytest.importorskip("numpy")
    packages = (numpy.__path__[0].rpartition("/")[0],)
    program = (
        "import os\nos.environ['OPENBLAS_NUM_THREADS'] = '1'\nimport numpy as np\n"
        "print(np.random.random(3), np.random.default_rng().random(3), np.random.RandomState().randint(10**6))"
    )

    async def go() -> set[str]:
        recorded = set()
        for _ in range(2):
            async with Sandbox("confined", workers=1, packages=packages) as sandbox:
                result = await sandbox.run(program, limits=Limits(cpu_s=10.0, memory_mb=2048))
                assert result.status == "ok", result.stderr
                recorded.add(result.stdout)
        return recorded

    assert len(asyncio.run(go())) == 1


def test_the_clocks_go_on() -> None:
    program = (
        "import time\nfrom datetime import datetime\nbegan, day = time.time(), datetime.now()\n"
        "assert isinstance(day, datetime) and type(day) is datetime\n"
        "time.sleep(0.2)\nslept = time.time() - began\nmark = time.perf_counter()\n"
        "while time.perf_counter() - mark < 0.3: pass\n"
        "took = time.time() - began, (datetime.now() - day).total_seconds()\n"
        "print(0.2 <= slept < 60, *(slept + 0.3 <= seconds < 60 for seconds in took))\n"
        "class Timer:\n    clock = time.time\n    wait = time.sleep\nTimer().clock(); Timer().wait(0)"
    )
    assert output(program) == "True True True\n"


def test_every_clock_begins_at_one_moment() -> None:
    program = (
        "import time\nlocal = time.localtime(time.time())[:5]\n"
        "print(*time.gmtime()[:3], time.gmtime(0)[0], time.localtime()[:5] == local)\n"
        "print(time.ctime()[:16] == time.asctime()[:16] == time.strftime('%a %b %e %H:%M'))\n"
        "print(time.strftime('%Y', time.gmtime(0)))\n"
        "print(int(time.clock_gettime(time.CLOCK_REALTIME) - time.time()))\n"
        "print(abs(time.clock_gettime_ns(time.CLOCK_MONOTONIC) - time.monotonic_ns()) < 10**9)"
    )
    assert output(program) == "2026 1 1 1970 True\nTrue\n1970\n0\nTrue\n"


def test_a_solution_that_draws_gets_the_same_verdict_each_time() -> None:
    program = "import random\ndef f(): return random.randrange(1000)"
    tests = "\n".join(f"assert f() < {bound}" for bound in range(100, 1000, 100))

    async def go() -> set[tuple[int, int]]:
        verdicts = await asyncio.gather(*(check_tests(shared_sandbox(), program, tests) for _ in range(4)))
        return {(verdict.passed, verdict.total) for verdict in verdicts}

    assert len(asyncio.run(go())) == 1


def test_the_seed_leaves_the_nonce_out() -> None:
    job = {"kind": "tester", "tests": "assert f()", "nonce": "a"}
    assert seed_of(job, "") == seed_of({**job, "nonce": "b"}, "")
    assert len({seed_of(job, ""), seed_of(job, "1"), seed_of({**job, "tests": "assert g()"}, "")}) == 3
