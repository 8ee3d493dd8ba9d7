"""Similarity of two Python programs: CodeBLEU (Ren et al. 2020, arXiv 2009.10297) of a candidate and one reference.

A quarter each (equation 1): BLEU of the tokens, BLEU with Python's keywords weighted 5 times in its unigrams
(section 3.1), the share of the reference's subtrees that the candidate has (3.2), and of its data flows (3.3). Programs
that parse are compared without comments and docstrings. The published figures are of another tokeniser (white space)
and other parse trees, so compare with figures made here only. Like `source.py` this is run in the sandbox.
"""

import ast
import json
import keyword
import math
import re
import sys
from collections import Counter
from collections.abc import Hashable, Iterator

LONGEST = 4  # n of the longest n-gram
KEYWORD = 5.0  # the weight of a keyword where another token has 1
SMOOTH = 0.1  # stands for a count of no match at all (Chen and Cherry 2014, method 1)
SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


def parsed(source: str) -> ast.Module | None:
    """Return the program without docstrings, or None if it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, SCOPES) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def tokens_of(source: str, tree: ast.Module | None) -> list[str]:
    """Return names, numbers and single signs; for a program that parses, without comments and in one layout."""
    return re.findall(r"\w+|[^\w\s]", ast.unparse(tree) if tree else source)


def bleu(candidate: list[str], reference: list[str], keywords: float = 1.0) -> float:
    """Return BLEU-4 with a brevity penalty; `keywords` is the weight of Python's keywords among the unigrams."""
    if not candidate or not reference:
        return 0.0
    logs = []
    for n in range(1, LONGEST + 1):
        candidate_grams, reference_grams = grams(candidate, n), grams(reference, n)
        weight = {gram: keywords if n == 1 and keyword.iskeyword(gram[0]) else 1.0 for gram in candidate_grams}
        # Clipped counts: a repeated n-gram matches as often as the reference has it.
        common = sum(weight[gram] * min(count, reference_grams[gram]) for gram, count in candidate_grams.items())
        total = sum(weight[gram] * count for gram, count in candidate_grams.items())
        # One n without a match would make the whole geometric mean zero.
        logs.append(math.log((common or SMOOTH) / (total or 1.0)))
    # In logarithms: the brevity penalty exp(1 - r/c) applies only to a candidate shorter than the reference.
    penalty = min(0.0, 1.0 - len(reference) / len(candidate))
    return math.exp(penalty + sum(logs) / LONGEST)


def grams(tokens: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))


def subtrees(tree: ast.AST) -> Counter[Hashable]:
    """Return the count of every subtree of more than one node, by the kinds of its nodes: names and values
    are ignored."""
    counts: Counter[Hashable] = Counter()

    def shape(node: ast.AST) -> Hashable:
        inner = tuple(shape(child) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context))
        subtree = (type(node).__name__, *inner)
        if inner:
            counts[subtree] += 1
        return subtree

    shape(tree)
    return counts


def flows(tree: ast.Module) -> Counter[Hashable]:
    """Return the data flows: `(name, names that it is computed from)` for an assignment, `(name,)` for a reading of a
    name that has a value by then. Names are numbered in order of appearance, so renaming a variable changes nothing."""
    numbers: dict[str, int] = {}
    counts: Counter[Hashable] = Counter()
    for kind, name, sources in events(tree):
        if kind == "give":
            source_numbers = tuple(sorted(numbers[source] for source in sources if source in numbers))
            counts[(numbers.setdefault(name, len(numbers)), source_numbers)] += 1
        elif name in numbers:
            counts[(numbers[name],)] += 1
    return counts


def events(node: ast.AST) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the names that are read or assigned, in the order of execution."""
    if isinstance(node, ast.Assign):
        yield from assignments(node.value, node.targets)
    elif isinstance(node, ast.AugAssign):
        # `x += y` is read as `x = x + y`.
        name = node.target
        source = ast.Name(name.id, ast.Load()) if isinstance(name, ast.Name) else name
        yield from assignments(ast.BinOp(source, node.op, node.value), [name])
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield from assignments(node.value, [node.target])
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from assignments(node.iter, [node.target])
        for inner in node.ifs if isinstance(node, ast.comprehension) else [*node.body, *node.orelse]:
            yield from events(inner)
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        for clause in node.generators:
            yield from events(clause)
        for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            yield from events(part)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from assignments(node.context_expr, [node.optional_vars])
    elif isinstance(node, ast.arg):
        yield "give", node.arg, []
    elif isinstance(node, ast.Name):
        yield ("read" if isinstance(node.ctx, ast.Load) else "give"), node.id, []
    else:
        for child in ast.iter_child_nodes(node):
            yield from events(child)


def assignments(value: ast.AST, targets: list[ast.expr]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the readings of a value, then the assignments to its targets."""
    reading = list(events(value))
    yield from reading
    sources = [name for kind, name, _ in reading if kind == "read"]
    for target in targets:
        for kind, name, _ in events(target):
            yield kind, name, sources if kind == "give" else []


def share(candidate: Counter[Hashable], reference: Counter[Hashable]) -> float:
    """Return the fraction of the reference's facts that the candidate has too."""
    return (candidate & reference).total() / reference.total()


def codebleu(reference: str, candidate: str) -> dict[str, float]:
    """Return `codebleu` and its parts, 0 to 1 each. A part of which the reference has nothing (a program without
    variables has no flows) is left out of the mean. Empty if the reference does not parse, since nothing can be
    compared."""
    reference_tree, candidate_tree = parsed(reference), parsed(candidate)
    if reference_tree is None:
        return {}
    tokens = tokens_of(candidate, candidate_tree), tokens_of(reference, reference_tree)
    parts = {"bleu": bleu(*tokens), "keywords": bleu(*tokens, keywords=KEYWORD)}
    for name, facts in (("syntax", subtrees), ("flow", flows)):
        if reference_facts := facts(reference_tree):
            parts[name] = share(facts(candidate_tree), reference_facts) if candidate_tree else 0.0
    return {"codebleu": sum(parts.values()) / len(parts), **parts}


def main() -> None:
    request = json.loads(sys.stdin.read())
    sys.stdout.write(json.dumps(codebleu(request["reference"], request["candidate"])))


if __name__ == "__main__":
    main()
