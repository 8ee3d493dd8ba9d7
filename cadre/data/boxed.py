"""The answer that a worked solution puts into its last box, as mathematical data sets and their solvers write it."""

BOXES = ("\\boxed", "\\fbox")


def last_boxed(text: str) -> str | None:
    """What the last `\\boxed{...}` of a text holds, braces balanced; None when there is none.

    >>> last_boxed("so \\\\boxed{1} or rather \\\\boxed{\\\\frac{1}{2}}.")
    '\\\\frac{1}{2}'
    """
    start = max(text.rfind(box) for box in BOXES)
    opening = text.find("{", start)
    if start < 0 or opening < 0 or text[start:opening].rstrip() not in BOXES:
        return None
    depth, place = 0, opening
    while (closing := text.find("}", place)) >= 0:
        depth += text.count("{", place, closing) - 1
        if depth == 0:
            return text[opening + 1 : closing].strip()
        place = closing + 1
    return None
