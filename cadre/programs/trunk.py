"""The live instance at a state: it goes to whichever fork is played on first; the others start anew."""

from __future__ import annotations

from cadre.programs.instance import Instance
from cadre.programs.running import Running


class Trunk:
    """A state's hold on the instance that stands there. Forks share it; the state that has made it closes it."""

    def __init__(self, instance: Instance | None = None, cell: list[Instance] | None = None) -> None:
        self._owner = cell is None
        self._cell = cell if cell is not None else [instance] if instance else []

    @property
    def running(self) -> Running | None:
        """The program, if it is still here."""
        return self._cell[0].running if self._cell else None

    def shared(self) -> Trunk:
        """A fork's hold on the same instance."""
        return Trunk(cell=self._cell)

    def take(self) -> Instance | None:
        """The instance, for the first that asks."""
        return self._cell.pop() if self._cell else None

    def close(self) -> None:
        """End what nobody took, unless it is another state's."""
        if self._owner and (instance := self.take()) is not None:
            instance.close("its episode is over")
