"""A warning where a role has stopped to learn from comparisons, because nothing differs any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

PATIENCE = 5
SHARE = "/groups_without_std"


class StdWatch:
    """Counts, by role, the steps in a row in which all samples of each of its groups were worth the same. Owned by a
    loop, so that every role is warned about once a start."""

    def __init__(self, patience: int = PATIENCE) -> None:
        self.patience = patience
        self._in_a_row: Counter[str] = Counter()
        self._warned: set[str] = set()

    def warnings(self, metrics: Mapping[str, float]) -> list[str]:
        """What there is to say after a step with these metrics."""
        for name, share in metrics.items():
            role = name.removesuffix(SHARE)
            if role not in (name, "rollout"):
                self._in_a_row[role] = self._in_a_row[role] + 1 if share == 1.0 else 0
        new = [role for role, steps in self._in_a_row.items() if steps >= self.patience and role not in self._warned]
        self._warned.update(new)
        return [self._paragraph(role) for role in new]

    def _paragraph(self, role: str) -> str:
        return (
            f"warning: {role} learned nothing in the last {self.patience} steps, as all its samples were worth the "
            "same as those that they were compared with. Check what the environment pays this role at its own step; "
            "else sample more (algorithm.k, sampling.temperature), or take tasks that it neither always nor never "
            "solves."
        )
