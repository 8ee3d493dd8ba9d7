"""The time that is left, by hand."""

from rich.console import Console

from cadre.progress import Progress


def test_time_left_by_steps() -> None:
    progress = Progress(Console(quiet=True), steps=10, start=4)
    progress.took(tokens=100.0, seconds=2.0)
    assert progress.left(5) == 10.0  # 5 steps of 2 s
    progress.took(tokens=100.0, seconds=4.0)
    assert progress.left(6) == 12.0  # 4 steps of 3 s


def test_time_left_by_tokens_where_these_end_first() -> None:
    progress = Progress(Console(quiet=True), steps=100_000, most=1_000, spent=300.0)
    progress.took(tokens=100.0, seconds=2.0)
    assert progress.left(1) == 12.0  # 600 tokens at 50 a second
    progress.took(tokens=300.0, seconds=2.0)
    assert progress.left(2) == 3.0  # 300 tokens, 200 a step, 2 s a step
    progress.took(tokens=800.0, seconds=2.0)
    assert progress.left(3) == 0.0
