"""Static analysis of Python source that a model wrote: definitions, the use of a helper, asserts, and mutants.

Source text is hostile to a parser too (it may nest so deep that the interpreter dies), so this file is run in the
sandbox, as a program of the standard library alone, and answers in JSON. `cadre_tasks.code.inspect` asks it.
"""

import ast
import builtins
import copy
import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

GIVING = (ast.Return, ast.Yield, ast.YieldFrom)
MOST_SHORTER = 16  # versions of a source that lack a use of the helper
LONGEST = 2000  # letters of a call that is looked for in a text
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def find_function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    """Return the last function of that name at the top level, or None."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return functions[-1] if functions else None


def returns_value(function: ast.FunctionDef | None) -> bool:
    """Return True if the function exists and has a `return` or `yield` with a value."""
    exits = (node for node in ast.walk(function) if isinstance(node, GIVING)) if function is not None else ()
    return any(node.value is not None for node in exits)


def is_call(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def defining_statements(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Return the top-level statements that define `name`, the names in these, and so on."""
    statements, pending, visited = list[ast.stmt](), [name], set[str]()
    while pending:
        if (target := pending.pop()) in visited:
            continue
        visited.add(target)
        for node in tree.body:
            # `entry = helper(entry)` calls nothing in `entry`.
            is_rebinding = isinstance(node, ast.Assign) and target == name
            # The body of a function or a class binds no names around it.
            has_body = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            parts = [node] if has_body else ast.walk(node)
            if not is_rebinding and any(binds(part, target) for part in parts):
                statements.append(node)
                pending += [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return statements


def calls(statement: ast.stmt, name: str) -> bool:
    """Return True if the statement calls `name` or passes it on, as in `map(name, items)`. Running the program decides
    whether the result depends on the call (`cadre_tasks.code.grade_pairs`)."""
    return any(is_call(node, name) or any(map(is_name(name), passed_values(node))) for node in ast.walk(statement))


def passed_values(node: ast.AST) -> list[ast.expr]:
    """Return the arguments of a call, the value of an assignment, or the decorators of a function."""
    if isinstance(node, ast.Call):
        return [*node.args, *(keyword.value for keyword in node.keywords)]
    if isinstance(node, ast.FunctionDef):
        return node.decorator_list
    return [node.value] if isinstance(node, ast.Assign) else []


def is_name(name: str) -> Callable[[ast.expr], bool]:
    return lambda node: isinstance(node, ast.Name) and node.id == name


def wraps(function: ast.FunctionDef, name: str) -> bool:
    """Return True if the function only returns the result of `name`: constants and docstrings do not count as work.
    Wrappers that are spelt otherwise are detected by running them (`cadre_tasks.code.grade_pairs`)."""
    forwarded: set[str] = set()
    for statement in function.body:
        value = statement.value if isinstance(statement, ast.Assign | ast.Return | ast.Expr) else None
        # `x = helper(n)` and then `return x` is a wrapper as well.
        if isinstance(statement, ast.Assign) and is_call(statement.value, name):
            forwarded |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        elif isinstance(statement, ast.Return):
            if not (is_call(value, name) or (isinstance(value, ast.Name) and value.id in forwarded)):
                return False
        elif not isinstance(statement, ast.Pass) and not isinstance(value, ast.Constant):
            return False
    return True


def binds(node: ast.AST, name: str) -> bool:
    """Return True if the node binds the name."""
    match node:
        case ast.Name(id=bound, ctx=ast.Store() | ast.Del()) | ast.arg(arg=bound) | ast.MatchAs(name=bound):
            return bound == name
        case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound) | ast.ClassDef(name=bound):
            return bound == name
        case ast.ExceptHandler(name=bound) | ast.MatchStar(name=bound) | ast.MatchMapping(rest=bound):
            return bound == name
        case ast.alias(name=imported, asname=bound):
            return (bound or imported.split(".")[0]) == name
    return False


def use(request: dict[str, Any]) -> dict[str, bool]:
    """Return five facts about how the function `entry` of the source `main` uses the function `helper` of `helping`."""
    helper_tree, main_tree = ast.parse(request["helping"]), ast.parse(request["main"])
    helper, main = find_function(helper_tree, request["helper"]), find_function(main_tree, request["entry"])
    # A main that defines `aux` itself calls its own function and not the team mate's.
    redefined = any(
        binds(node, request["helper"]) for node in ast.walk(main_tree)
    )  # its own one, in place of the other's
    called = not redefined and any(
        calls(node, request["helper"]) for node in defining_statements(main_tree, request["entry"])
    )
    return {
        "helps": returns_value(helper),
        "defined": returns_value(main),
        "bound": any(binds(node, request["entry"]) for node in ast.walk(main_tree)),
        "called": called,
        "wrapper": called and main is not None and wraps(main, request["helper"]),
    }


def asserts(request: dict[str, Any]) -> list[str]:
    """Return the asserts of the source, at the top level or in functions, that test the return value of `entry` and
    nothing else, each as one line without its message. Asserts with a call that occurs in the text `shown` are left
    out."""
    entry, shown = request["entry"], find_calls(request["shown"], request["entry"])
    tests = [node.test for node in ast.walk(ast.parse(request["source"])) if isinstance(node, ast.Assert)]
    tests_with_calls = [(test, [part for part in ast.walk(test) if is_call(part, entry)]) for test in tests]
    unshown = [test for test, calls in tests_with_calls if calls and not shown & set(map(ast.unparse, calls))]
    return [ast.unparse(ast.Assert(test)) for test in unshown if looks_at_values(test, entry)]


def shown_calls(request: dict[str, Any]) -> list[str]:
    """Return the calls of `entry` on plain values in the text `shown`."""
    return sorted(find_calls(request["shown"], request["entry"]))


def find_calls(text: str, name: str) -> set[str]:
    """Return the calls of `name` on plain values that occur in a text, such as a problem's examples, in normal form."""
    # A definition of the function is no call, nor is a longer name that ends in it.
    starts = [match.start() for match in re.finditer(rf"(?<!def )(?<!\w){re.escape(name)}\s*\(", text)]
    expressions = [parse_call(text[start : start + LONGEST]) for start in starts]
    names = [[node.id for node in ast.walk(call) if isinstance(node, ast.Name)] if call else [] for call in expressions]
    return {
        ast.unparse(call)
        for call, used in zip(expressions, names, strict=True)
        if call and used.count(name) == 1 and {*used} <= VALUES | {name} and looks_at_values(call, name)
    }


def parse_call(text: str) -> ast.expr | None:
    """Return the shortest expression at the start of a text that ends with a closing bracket, or None."""
    # In `f(g(1), 2)` the first bracket closes `g`: only a prefix that parses is the whole call.
    for closing in re.finditer(r"\)", text):
        try:
            return ast.parse(text[: closing.end()], mode="eval").body
        except (SyntaxError, ValueError):
            continue
    return None


def looks_at_values(test: ast.expr, entry: str) -> bool:
    """Return True if an expression can only compute with values: it reads neither the clock nor the system, draws no
    random numbers, and does not inspect its operands."""
    nodes = list(ast.walk(test))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    allowed = bound | VALUES | {entry}
    # A bound builtin, such as a loop variable `sum`, could stand for anything.
    return not bound & {*vars(builtins), "math", entry} and all(is_of_values(node, allowed) for node in nodes)


def is_of_values(node: ast.AST, allowed: set[str]) -> bool:
    if isinstance(node, ast.Attribute):
        of_math = isinstance(node.value, ast.Name) and node.value.id == "math"
        return node.attr in (MATHEMATICS if of_math else METHODS)
    if isinstance(node, ast.Name):
        return node.id in allowed or node.id == "math"
    return isinstance(node, EXPRESSIONS)


EXPRESSIONS = (
    ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.IfExp, ast.Call, ast.keyword, ast.Starred, ast.Constant,
    ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Subscript, ast.Slice, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp, ast.comprehension, ast.Lambda, ast.arguments, ast.arg, ast.expr_context, ast.operator, ast.boolop,
    ast.unaryop, ast.cmpop,
)  # fmt: skip
VALUES = frozenset(
    "abs all any ascii bin bool bytearray bytes chr complex dict divmod enumerate filter float frozenset hex int "
    "isinstance issubclass len list map max min next oct ord pow range repr reversed round set slice sorted str sum "
    "tuple type zip Counter Decimal Fraction OrderedDict defaultdict deque".split()
)
METHODS = frozenset(
    "lower upper title capitalize strip lstrip rstrip split rsplit splitlines join startswith endswith replace count "
    "index find isdigit isalpha isalnum isupper islower isspace items keys values get union intersection difference "
    "issubset issuperset isdisjoint copy real imag numerator denominator elements most_common".split()
)
MATHEMATICS = frozenset(
    "isclose isnan isinf isfinite pi e inf nan tau sqrt floor ceil fabs gcd lcm factorial comb perm prod log log2 "
    "log10 exp sin cos tan pow hypot dist trunc fsum".split()
)


def plain(request: dict[str, Any]) -> str:
    """Return the source in the form of its mutants: without its layout and its comments."""
    return ast.unparse(ast.parse(request["source"]))


def mutants(request: dict[str, Any]) -> list[str]:
    """Return up to `count` versions of the source with one change each, spread evenly over all possible changes."""
    tree = ast.parse(request["source"])
    # A site is a node by its index in the walk and one of its changes: the copy has the same indices.
    sites = [(index, kind) for index, node in enumerate(ast.walk(tree)) for kind in range(len(list(changes(node))))]
    count = min(request["count"], len(sites))
    # The middle of each of `count` equal parts of the list, so that the mutants come from the whole program.
    chosen = [sites[(2 * i + 1) * len(sites) // (2 * count)] for i in range(count)]
    return [mutant(tree, index, kind) for index, kind in chosen]


def mutant(tree: ast.Module, index: int, kind: int) -> str:
    changed = copy.deepcopy(tree)
    node = list(ast.walk(changed))[index]
    list(changes(node))[kind]()
    return ast.unparse(changed)


def changes(node: ast.AST) -> Iterator[Callable[[], None]]:
    """Yield functions that each change the node in place in one way."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield lambda: node.ops.__setitem__(0, SWAPS[type(node.ops[0])]())
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        yield lambda: setattr(node, "op", SWAPS[type(node.op)]())
    # True and False are ints in Python, but True + 1 would be no mutant that a programmer writes.
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        more = node.value + 1
        yield lambda: setattr(node, "value", more)
    if isinstance(node, ast.Return) and node.value is not None:
        yield lambda: setattr(node, "value", ast.Constant(None))


class Gates(ast.NodeTransformer):
    """Wraps every test of the value of `helper`, or of names computed from it, in a call of `cadre_gate`."""

    def __init__(self, tree: ast.Module, helper: str) -> None:
        self.names, self.count = {helper}, 0
        size_before = -1
        # A fixed point: y = helper(x); z = y makes z depend on the helper too.
        while size_before < len(self.names):  # until no further name is given a value by one of them
            size_before = len(self.names)
            for node in ast.walk(tree):
                self.names |= dependent_names(node, self.names)

    def gated(self, test: ast.expr) -> ast.expr:
        # These would act inside the lambda instead of in the function around it.
        bound = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)
        if not mentions(test, self.names) or any(isinstance(node, bound) for node in ast.walk(test)):
            self.generic_visit(test)
            return test
        self.count += 1
        # The number identifies the test, so that its first outcome can be repeated in later runs through it.
        call = ast.parse(f"cadre_gate({self.count}, lambda: 0)", mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.args[1], ast.Lambda)
        call.args[1].body = test
        return call

    def visit_tested(self, node: Any) -> ast.AST:
        """Wrap the `test` of a node and visit its other fields. The test of a `while` stays, since a loop without end
        would tell nothing."""
        if not isinstance(node, ast.While):
            node.test = self.gated(node.test)
        for name, part in ast.iter_fields(node):
            if name != "test":
                parts = part if isinstance(part, list) else [part]
                changed = [self.visit(item) if isinstance(item, ast.AST) else item for item in parts]
                setattr(node, name, changed if isinstance(part, list) else changed[0])
        return node

    visit_If = visit_IfExp = visit_Assert = visit_While = visit_tested

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return self.gated(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        return self.gated(node) if isinstance(node.op, ast.Not) else self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.iter, node.ifs = self.visit(node.iter), list(map(self.gated, node.ifs))
        return node


def mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))


def dependent_names(node: ast.AST, names: set[str]) -> set[str]:
    """Return the names that a node binds to values computed from `names`."""
    match node:
        case ast.Assign(targets=targets, value=value):
            bound_targets = targets
        case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value):
            bound_targets = [target]
        case ast.NamedExpr(target=target, value=value):
            bound_targets = [target]
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            bound_targets = [target]
        case _:
            return set()
    if value is None or not mentions(value, names):
        return set()
    return {part.id for target in bound_targets for part in ast.walk(target) if isinstance(part, ast.Name)}


def gated(request: dict[str, Any]) -> str:
    """Return the source with tests of the helper's results fixed to their first outcome (`replaced_helper`)."""
    tree = ast.parse(request["source"])
    return ast.unparse(ast.fix_missing_locations(Gates(tree, request["helper"]).visit(tree)))


def without_a_use(request: dict[str, Any]) -> list[str]:
    """Return up to `MOST_SHORTER` versions of the source that each lack one use of `helper`: an expression that hangs
    on it is replaced by a part that does not, or a statement is left out, or replaced by its body. A version that
    passes with a helper that works out nothing shows that the source has the whole answer itself."""
    tree = ast.parse(request["source"])
    values = Gates(tree, request["helper"]).names
    uses = values | changed_names(tree, values)
    shorter: list[tuple[bool, int, str]] = []  # those of a `return` first, then the longest

    def add(of_return: bool, weight: int) -> None:
        shorter.append((not of_return, -weight, ast.unparse(ast.fix_missing_locations(tree))))

    for parent in list(ast.walk(tree)):
        for name, block in ast.iter_fields(parent):
            if not isinstance(block, list) or not any(isinstance(item, ast.stmt) for item in block):
                continue
            for position, statement in enumerate(list(block)):
                if isinstance(statement, ast.FunctionDef):
                    decorators = statement.decorator_list
                    unrelated = [item for item in decorators if not mentions(item, uses)]
                    if unrelated != decorators:
                        statement.decorator_list = unrelated
                        add(True, len(decorators))
                        statement.decorator_list = decorators
                    continue
                if not mentions(statement, uses) or isinstance(statement, ast.ClassDef):
                    continue
                empty_body: list[ast.stmt] = [ast.Pass()]
                is_simple = isinstance(statement, ast.Return | ast.Assign)
                # First leave the statement out, then put each of its blocks in its place.
                for body in [] if is_simple else [empty_body, *blocks_of(statement)]:
                    setattr(parent, name, [*block[:position], *body, *block[position + 1 :]])
                    add(False, 1)
                setattr(parent, name, block)
                if isinstance(statement, ast.Return | ast.Assign) and (value := statement.value) is not None:
                    helper_calls = [node for node in ast.walk(value) if is_call(node, request["helper"])]
                    helper_nodes = [
                        part for call in helper_calls for part in ast.walk(call)
                    ]  # the helper's call and its arguments
                    # Replace the value by each of its parts that does not depend on the helper, as `n` in `n + aux(n)`.
                    for part in [node for node in list(ast.walk(value))[1:] if node not in helper_nodes]:
                        loads = isinstance(getattr(part, "ctx", ast.Load()), ast.Load)
                        if (
                            isinstance(part, ast.expr)
                            and loads
                            and not isinstance(part, ast.Constant | ast.Starred)
                            and not mentions(part, values)
                        ):
                            statement.value = part
                            add(isinstance(statement, ast.Return), len(ast.unparse(part)))
                    statement.value = value
    return list(dict.fromkeys(source for *_, source in sorted(shorter)))[:MOST_SHORTER]


def blocks_of(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks of a compound statement."""
    blocks = [getattr(statement, name, []) for name in ("body", "orelse")]
    return [block for block in [*blocks, *(case.body for case in getattr(statement, "cases", []))] if block]


def changed_names(tree: ast.Module, names: set[str]) -> set[str]:
    """Return the names of what statements such as `helper(items)` may change, of functions with `names` inside, and of
    their parameters with `names` in the default."""
    changed: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and mentions(node, names):
            changed |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        if isinstance(node, ast.FunctionDef) and mentions(node, names):
            changed.add(node.name)
            defaults = [*node.args.defaults, *(default for default in node.args.kw_defaults if default is not None)]
            if any(mentions(default, names) for default in defaults):
                changed |= {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
    return changed


QUESTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "use": use,
    "asserts": asserts,
    "calls": shown_calls,
    "gated": gated,
    "mutants": mutants,
    "plain": plain,
    "without_a_use": without_a_use,
}


def main() -> None:
    request = json.loads(sys.stdin.read())
    sys.stdout.write(json.dumps(QUESTIONS[request["question"]](request)))


if __name__ == "__main__":
    main()
