"""Split test code into units that pass or fail on their own: asserts, `check(candidate)`, functions and test cases."""

import ast
import builtins
import collections
import importlib
import math
import types
from collections.abc import Callable
from typing import Any

from .boundary import Returned, attempt
from .program import execute

Function = ast.FunctionDef | ast.AsyncFunctionDef
Unit = tuple[str, Callable[[], object]]  # the source text, and what runs it

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NEED_A_FUNCTION = (ast.Return, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)

# Names that test code uses without an import. They are never taken from the solution, which could falsify the tests.
KNOWN_MODULES = (
    "bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math", "operator",
    "random", "re", "statistics", "string", "sys", "unittest",
)  # fmt: skip
KNOWN_CLASSES = {
    "Counter": "collections",
    "defaultdict": "collections",
    "OrderedDict": "collections",
    "deque": "collections",
    "Decimal": "decimal",
    "Fraction": "fractions",
}


def names_used(source: str) -> set[str]:
    """Return every name that the code uses. Raises SyntaxError."""
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


def load_known_names(used: set[str]) -> dict[str, Any]:
    """Return the module or class of each known name that is used."""
    modules = {name: importlib.import_module(name) for name in used & set(KNOWN_MODULES)}
    classes = {name: getattr(importlib.import_module(KNOWN_CLASSES[name]), name) for name in used & set(KNOWN_CLASSES)}
    return modules | classes


def solution_names(used: set[str], namespace: dict[str, Any], offered: list[str]) -> list[str]:
    """Return the names that the tests use and only the solution defines."""
    return sorted(name for name in used & set(offered) if name not in namespace and name not in vars(builtins))


def split(source: str, namespace: dict[str, Any], candidate: object) -> list[Unit]:
    """Return the units of test code. Raises SyntaxError.

    Definitions and imports are run at once; other statements run with the test that follows them. Statements after the
    last test are a unit of their own if they call anything.
    """
    return units_of(ast.parse(source).body, namespace, candidate)


def units_of(statements: list[ast.stmt], namespace: dict[str, Any], candidate: object) -> list[Unit]:
    tests: list[Unit] = []
    pending: list[ast.stmt] = []  # plain statements, waiting for the assert that needs them
    for statement in statements:
        if is_main_guard(statement) or is_trivial(statement) or calls_check(statement, namespace):
            continue
        if isinstance(statement, FUNCTIONS) and statement.name == "check" and len(statement.args.args) == 1:
            tests += units_of_check(statement, namespace, candidate)
        elif isinstance(statement, DEFINITIONS) and try_definition(statement, namespace):
            tests += units_of_definition(statement, namespace)
        else:
            pending.append(statement)
            if can_fail(statement):
                tests.append(unit_of(pending, namespace))
                pending = []
    return tests + ([unit_of(pending, namespace)] if any(map(does_something, pending)) else [])


def try_definition(statement: ast.stmt, namespace: dict[str, Any]) -> bool:
    """Run a definition or an import; return False if it fails, as it may need statements that run with a test."""
    return isinstance(attempt(lambda: run_statements([statement], namespace)), Returned)


def units_of_definition(statement: ast.stmt, namespace: dict[str, Any]) -> list[Unit]:
    """Return the tests of a definition."""
    if isinstance(statement, FUNCTIONS) and statement.name.startswith("test"):
        test = namespace[statement.name]
        return [(statement.name, lambda: run_to_end(test()))]
    return units_of_class(namespace[statement.name]) if isinstance(statement, ast.ClassDef) else []


def units_of_check(function: Function, namespace: dict[str, Any], candidate: object) -> list[Unit]:
    """Return each assert of HumanEval's `check` as a unit, or all of it as one if it uses statements of a function."""
    if any(isinstance(node, NEED_A_FUNCTION) for node in ast.walk(function)):
        run_statements([function], namespace)
        check = namespace[function.name]
        return [("check(candidate)", lambda: run_to_end(check(candidate)))]
    run_statements([function], namespace)  # for tests that call it
    namespace[function.args.args[0].arg] = candidate
    return units_of(function.body, namespace, candidate)


def run_to_end(result: object) -> None:
    """Run the generator or coroutine that a test returned. Raises TypeError for a coroutine that waits for an event."""
    if isinstance(result, types.GeneratorType):
        collections.deque(result, maxlen=0)
    elif isinstance(result, types.CoroutineType):
        try:
            result.send(None)
        except StopIteration:
            return
        raise TypeError("a test waits for what does not come")


def unit_of(statements: list[ast.stmt], namespace: dict[str, Any]) -> Unit:
    return ast.unparse(statements[-1]), lambda: run_statements(statements, namespace)


def call_unit(candidate: Any, arguments: list[Any], expected: Any) -> Unit:
    """Return a test that calls the candidate and fails unless the result is like the expected value."""

    def run() -> None:
        got = candidate(*arguments)
        if not is_alike(got, expected):
            raise AssertionError(f"got {got!r}")

    return f"{tuple(arguments)!r} gives {expected!r}", run


def is_alike(got: Any, expected: Any) -> bool:
    """Return True if the values are equal, floats to six digits, and tuples like lists, as usual graders compare."""
    if isinstance(expected, list | tuple):
        same_length = isinstance(got, list | tuple) and len(got) == len(expected)
        return same_length and all(
            is_alike(item, expected_item) for item, expected_item in zip(got, expected, strict=True)
        )
    if isinstance(expected, dict):
        return (
            isinstance(got, dict) and got.keys() == expected.keys() and all(is_alike(got[k], expected[k]) for k in got)
        )
    if isinstance(expected, float) and isinstance(got, int | float) and not isinstance(got, bool):
        if math.isnan(expected):
            return math.isnan(got)
        return got == expected or math.isclose(got, expected, rel_tol=1e-6, abs_tol=1e-9)
    return isinstance(got, bool) == isinstance(expected, bool) and got == expected


def units_of_class(kind: object) -> list[Unit]:
    """Return the test methods of a unittest.TestCase, each run as unittest does."""
    # Imported late, so that a cold interpreter does not wait for it.
    unittest = importlib.import_module("unittest")
    if not (isinstance(kind, type) and issubclass(kind, unittest.TestCase)):
        return []
    return [(f"{kind.__name__}.{name}", kind(name).debug) for name in unittest.TestLoader().getTestCaseNames(kind)]


def run_statements(statements: list[ast.stmt], namespace: dict[str, Any]) -> None:
    execute("\n".join(ast.unparse(statement) for statement in statements), "<test>", namespace)


def can_fail(statement: ast.stmt) -> bool:
    """Return True if a statement is a test: it contains an assert, or a raise below its top level."""
    nodes = list(ast.walk(statement))
    return any(isinstance(node, ast.Assert) for node in nodes) or any(isinstance(node, ast.Raise) for node in nodes[1:])


def does_something(statement: ast.stmt) -> bool:
    """Return True if a statement calls anything except `print`."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return any(not (isinstance(call.func, ast.Name) and call.func.id == "print") for call in calls)


def is_trivial(statement: ast.stmt) -> bool:
    """Return True for an assert of a constant, which no program can fail."""
    return isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Constant)


def is_main_guard(statement: ast.stmt) -> bool:
    """Return True for `if __name__ ...` and `unittest.main(...)`, which run a file as a script."""
    if isinstance(statement, ast.If):
        return "__name__" in ast.unparse(statement.test)
    return isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("unittest.main(")


def calls_check(statement: ast.stmt, namespace: dict[str, Any]) -> bool:
    """Return True for a bare call of HumanEval's `check`, whose asserts are units of their own."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    is_check_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check"
    return is_check_call and "check" in namespace
