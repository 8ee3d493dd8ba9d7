"""Tasks that are drawn until one belongs to the split."""

import pytest

from cadre.envs.splits import TRIES, drawn_tasks
from cadre.errors import ConfigError


def test_the_first_attempt_that_is_not_refused_is_taken() -> None:
    def draw(index: int, attempt: int) -> dict[str, int] | None:
        return {"task": index, "attempt": attempt} if attempt in (3 + index, 5) else None

    tasks = drawn_tasks("test", draw, {}, "test")
    assert [tasks[index].data for index in range(2)] == [{"task": 0, "attempt": 3}, {"task": 1, "attempt": 4}]
    assert (len(tasks), tasks[1].id) == (10_000, "test-1")


def test_draws_end_with_the_settings_that_had_no_task() -> None:
    attempts: list[int] = []
    tasks = drawn_tasks("train", lambda index, attempt: attempts.append(attempt), {"size": 1, "kind": "odd"}, "train")
    with pytest.raises(
        ConfigError, match=r"got size 1, kind 'odd', with which none of 4000 draws .* 'train'; expected"
    ):
        tasks[0]
    assert attempts == list(range(TRIES))
