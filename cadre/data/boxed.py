"""The answer that a worked solution puts into its last box, as mathematical data sets and their solvers write it."""

import re

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def last_boxed(text: str) -> str | None:
    """What the last `\\boxed{...}` of a text holds, braces balanced; None when there is none.

    >>> last_boxed("so \\\\boxed{1} or rather \\\\boxed{\\\\frac{1}{2}}.")
    '\\\\frac{1}{2}'
    """
    openings = [box.end() - 1 for box in BOX.finditer(text)]
    if not openings:
        return None
    depth, place = 0, openings[-1]
    while (closing := text.find("}", place)) >= 0:
        depth += text.count("{", place, closing) - 1
        if depth == 0:
            return text[openings[-1] + 1 : closing].strip()
        place = closing + 1
    return None
