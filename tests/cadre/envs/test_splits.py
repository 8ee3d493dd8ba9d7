"""Tasks that are drawn until one belongs to the split."""

import pytest

from cadre.envs.splits import TRIES, drawn
from cadre.errors import ConfigError


def test_the_first_attempt_that_is_not_refused_is_taken() -> None:
    assert drawn("test", lambda attempt: {"attempt": attempt} if attempt in (3, 5) else None, {}) == {"attempt": 3}


def test_draws_end_with_the_settings_that_had_no_task() -> None:
    attempts: list[int] = []
    with pytest.raises(
        ConfigError, match=r"got size 1, kind 'odd', with which none of 4000 draws .* 'train'; expected"
    ):
        drawn("train", attempts.append, {"size": 1, "kind": "odd"})
    assert attempts == list(range(TRIES))
