"""The allow-list of Verilog that is run, token by token: the constructs that designs and benches are made of.

What it keeps out would reach past the ports of a circuit (names with dots, force, bind), past the simulator (system
tasks, directives), or out of its own text (comments and strings without an end, text outside modules). The simulator
has no files, no network and no time to lose either (`cadre_tasks.worlds.verilog_judge`); this tells why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

MAX_LETTERS, MAX_TOKENS, MAX_NAME = 20_000, 6000, 60
TOP, BENCH = "top", "tb"
TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|//[^\n]*|/\*[\s\S]*?\*/)
    |(?P<string>"(?:[^"\\\n]|\\[^\n])*")
    |(?P<name>[A-Za-z_][A-Za-z0-9_$]*)
    |(?P<system>\$[A-Za-z_][A-Za-z0-9_$]*)
    |(?P<number>[0-9][0-9_]*(?:\.[0-9]+)?)
    |(?P<mark>/\*|::|[][(){};:,.\#@=+*/%&|^~!<>?'-])
    |(?P<other>[\s\S])""",
    re.VERBOSE,
)
# Words that reach out of a module, change another's nets, or declare something that a circuit does not need.
WORDS = frozenset(
    "bind force release deassign defparam config endconfig library include incdir use primitive endprimitive table "
    "specify endspecify specparam import export package endpackage class endclass program endprogram interface "
    "endinterface checker macromodule connectmodule alias extern virtual static_assert nature discipline timeunit "
    "timeprecision trireg tran tranif0 tranif1 rtran".split()
)
FUNCTIONS = frozenset("$signed $unsigned $clog2 $bits".split())
TASKS = FUNCTIONS | frozenset(
    "$display $write $strobe $monitor $finish $time $stime $random $urandom $urandom_range".split()
)
TIMED = frozenset("fork join join_any join_none wait forever event".split())  # of no use in a circuit
SPECIAL = {"/*": "a comment without an end", '"': "a string without an end", "`": "a directive", "\\": "a backslash"}


def design_refusal(text: str) -> str:
    """Return the reason for which a design is not run, "" if it is run. It is modules alone, one of them `top`."""
    return refusal(text, TOP, FUNCTIONS, design=True)


def bench_refusal(text: str) -> str:
    """Return the reason for which a bench is not run, "" if it is run. It is the one module `tb`."""
    return refusal(text, BENCH, TASKS, design=False)


def refusal(text: str, module: str, system: frozenset[str], design: bool) -> str:
    if not text.strip():
        return "there is no Verilog"
    if len(text) > MAX_LETTERS:
        return f"expected at most {MAX_LETTERS:,} letters"
    tokens: list[str] = []
    for kind, token in tokens_of(text):
        problem = wrong_token(kind, token, system, design)
        if problem or len(tokens) > MAX_TOKENS:
            return problem or f"expected at most {MAX_TOKENS:,} words and signs"
        tokens.append(token)
    return wrong_order(tokens, design) or wrong_modules(tokens, module, design)


def tokens_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of each token but spaces and comments."""
    for match in TOKEN.finditer(text):
        if match.lastgroup and match.lastgroup != "space":
            yield match.lastgroup, match[0]


def wrong_token(kind: str, token: str, system: frozenset[str], design: bool) -> str:
    """Return the reason to reject a token by itself, or ""."""
    if kind == "other" or token == "/*":
        return f"{SPECIAL.get(token, f'the sign {token!r}')} is not allowed"
    if token == "::" or (kind == "string" and design):
        return f"{token[:40]} is not allowed in a {'design' if design else 'bench'}"
    if kind == "system" and token not in system:
        return f"{token[:40]} is not allowed; these are: {' '.join(sorted(system))}"
    if kind == "name" and (token in WORDS or (design and token in TIMED)):
        return f"the word {token} is not allowed"
    return f"names have at most {MAX_NAME} letters" if kind == "name" and len(token) > MAX_NAME else ""


def wrong_order(tokens: list[str], design: bool) -> str:
    """Return the reason to reject neighbouring tokens, or "": names of another module's nets, attributes, delays in a
    design."""
    modules = {name for word, name in pairwise(tokens) if word == "module"}
    for position, (token, next_token) in enumerate(pairwise(tokens), start=1):
        if next_token == "." and token not in ("(", ","):
            return f"a dot after {token[:40]} is not allowed: nothing inside another module can be named"
        if (token, next_token) == ("(", "*") and (position < 2 or tokens[position - 2] != "@"):
            return "(* attributes *) are not allowed"
        if design and next_token == "#" and not (token in modules and opens(tokens, position)):
            return "delays are not allowed in a design"
    return ""


def opens(tokens: list[str], position: int) -> bool:
    """Return True if the sign at this position, behind a module's name, begins parameters: no delay, and no label of a
    block before it."""
    return tokens[position + 1 : position + 2] == ["("] and (position < 2 or tokens[position - 2] != ":")


def wrong_modules(tokens: list[str], module: str, design: bool) -> str:
    """Return the reason to reject the text as a whole, or "": it must be modules and nothing else, each ended before
    the next."""
    names, inside = [], False
    for position, token in enumerate(tokens):
        if token == "module" and not inside:
            names.append("".join(tokens[position + 1 : position + 2]))
            inside = True
        elif token == "module" or not inside:
            return "expected modules and nothing around them, each with its endmodule"
        inside = inside and token != "endmodule"
    if inside or module not in names or len(set(names)) < len(names):
        return f"expected a module named {module}, and each with a name of its own and its endmodule"
    return "" if design or names == [module] else f"expected the module {module} alone"
