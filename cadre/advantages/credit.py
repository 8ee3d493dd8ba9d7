"""What a sample is worth and against whom, as a point in four axes; the functions behind the names stand elsewhere.

`returns` (`cadre.advantages.returns`): the worth of a sample. `group`, `baseline`, `scale`
(`cadre.advantages.group_relative`): which samples it is compared with, what is subtracted, what it is divided by. Each
is a name of a table or, from the user's own file, `my_file.py:function`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cadre.rounding import NO_STD as NO_STD

Count = Literal["episodes", "decisions"]


@dataclass(frozen=True)
class Credit:
    """A point in the four axes. `alpha` weighs the team's reward against the local one, `gamma` discounts a turn.

    `count` says what counts once in a group's statistics: a whole episode, however many decisions a role makes in it,
    or every decision. `decay` is that of the running means. `threshold` is the reward from which an episode is passed,
    for returns that ask. Where a critic judges, `alpha` and `gamma` alone matter.

    With a `second` comparison the advantage is the sum of both, the second times `second_weight`.
    """

    returns: str
    group: str
    baseline: str
    scale: str
    alpha: float = 1.0
    gamma: float = 1.0
    count: Count = "decisions"
    decay: float = 0.95
    threshold: float = 1.0
    second: Credit | None = None
    second_weight: float = 1.0
