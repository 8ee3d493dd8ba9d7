"""A software company of four roles mends a bug in a small repository: a team as one function.

    product manager   reads the bug report, and writes what the package has to do
    architect         reads the code, names the file to change and how
    engineer          writes that file; a second time if the tester's tests fail
    tester            writes tests from the requirement alone, at the same time as the engineer

cadre train examples/company.yaml
cadre view runs/company-001
"""

import asyncio
import json

import cadre
from cadre_tasks.worlds.repair import Repair, call_package, read_patch

TESTS = 3
TEST_FORM = 'one per line, as {"arguments": [...], "result": ...} in JSON'


def rows(split):
    """Return the repositories of the task `repair`: files, a bug, and calls with the results that are expected."""
    return [dict(task.data) for task in Repair.tasks(split)[:500]]


async def company(row, product_manager, architect, engineer, tester):
    code = {path: text for path, text in row["files"].items() if path.endswith(".py") and text}
    example = row["calls"][0]

    async def run(changes, calls):
        """Return the results of calls of the package with changed files, in the sandbox; None if one of them fails."""
        return await call_package(row["package"], {**row["files"], **changes}, calls)

    # Nobody but the product manager sees the report of the bug.
    requirement = await product_manager(
        f"{row['description']}\n\nA user reports: `run(*{example})` gives {row['got']}, not {row['expected'][0]}.\n"
        "Write in two sentences what has to work, for colleagues who do not see this report."
    )

    # Nobody but the architect sees all of the code. That it is the right file is to the credit of both.
    listing = "\n".join(f"{path}\n```python\n{text}```" for path, text in code.items())
    design = await architect(
        f"{listing}\n\nThe requirement: {requirement}\n\nWhich file has to change, and how? Begin with its path."
    )
    path = next((path for path in code if design.lstrip(" `*#").startswith(path)), None)
    product_manager.reward(0.25 * (path in row["fixed"]) - penalty(requirement))
    architect.reward(0.25 * (path in row["fixed"]) - penalty(design), part="found")

    # Both at once: the engineer does not see the tests, and the tester does not see the code.
    path, chat = path or next(iter(code)), engineer.conversation()
    answer, text = await asyncio.gather(
        chat(f"{path}\n```python\n{code[path]}```\n\nThe design: {design}\n\nWrite the whole file in one block."),
        tester(f"{row['description']}\n\n{requirement}\n\nWrite {TESTS} tests, {TEST_FORM}."),
    )
    tests = [(arguments, result) for arguments, result in read_tests(text) if arguments != example]
    calls = [arguments for arguments, _ in tests]
    right = await run(row["fixed"], calls) or []
    wrong = await run({}, calls) or [None] * len(right)
    # A test is right if the repaired package passes it, and finds the bug if the package as it is does not.
    holds = [result == value for (_, result), value in zip(tests, right, strict=False)]
    finds = [is_right and value != other for is_right, value, other in zip(holds, right, wrong, strict=False)]
    tester.reward(0.1 * bool(tests) + 0.2 * any(holds) + 0.2 * any(finds) - penalty(text), part="tests")

    patch = read_patch(answer, row["files"], path)
    results = await run(patch, calls)
    if results != [result for _, result in tests]:
        answer = await chat(f"The tests of a colleague: {tests}. The results: {results}. Write the file again.")
        patch = read_patch(answer, row["files"], path)

    # Hidden calls decide, whose results no role has seen.
    solved = await run(patch, row["calls"]) == row["expected"]
    engineer.reward(0.1 * bool(patch) + 0.4 * solved - penalty(answer))
    return cadre.Reward(team=0.5 * solved, success=solved)


def penalty(answer):
    """Return what an answer costs its author that was cut off at its greatest length."""
    return 0.05 * (answer.finish == "length")


def read_tests(text):
    """Return the tests in a text, as pairs of arguments and result; lines that are no tests are left out."""
    tests = []
    for line in text[:2000].splitlines():
        try:
            test = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(test, dict) and isinstance(test.get("arguments"), list) and "result" in test:
            tests.append((test["arguments"], test["result"]))
    return tests[:TESTS]
