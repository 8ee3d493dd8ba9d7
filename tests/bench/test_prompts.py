"""The bench of prompts: a made-up program is tried as the tool's, and shares are counted by hand."""

import asyncio

import prompts

CELL = prompts.Cell("plan-path", "function", 0.7)


def outcome(text: str, finish: str, tokens: int):
    env = next(prompts.make_envs(CELL, 1))
    return asyncio.run(prompts.try_program(CELL, env, prompts.Completion(text, finish, tokens)))


def test_shares_of_three_programs() -> None:
    broken = outcome("```python\ndef shortest_path(grid, start, goal):\n    return (", "length", 300)
    empty = outcome("def shortest_path(grid, start, goal):\n    return []\n", "stop", 20)
    beside = outcome("def shortest_path(grid, start, goal):\n    return 'U'\n", "stop", 10)
    shares = [list(one.shares.values()) for one in (broken, empty, beside)]  # cut, ran, answered, solved
    assert shares[0] == [True, False, False, False]
    assert shares[1] == [False, True, False, False]
    assert shares[2][:3] == [False, True, True]
    assert "SyntaxError" in broken.feedback
    summary = prompts.summarise([broken, empty, beside])
    assert summary.startswith("n 3, cut 1 (")
    assert "ran 2 (" in summary
    assert summary.endswith("tokens 20, 95% within 300")


def test_the_tokens_within_which_95_percent_end() -> None:
    assert prompts.quantile(range(1, 101)) == 95
    assert prompts.quantile([7]) == 7
