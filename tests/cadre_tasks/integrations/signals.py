"""A game for two roles: both signal at once, in a conversation that goes on, then one is asked anew."""

from cadre import Env, Message, Observation, Reward, Task


class Signals(Env):
    roles = ("left", "right")

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.turns: list[dict[str, str]] = []

    @classmethod
    def tasks(cls, split: str) -> list[Task]:
        return [Task(f"{split}-{number}", {"number": number}) for number in range(3)]

    def observe(self) -> dict[str, Observation]:
        if len(self.turns) == 3:
            return {}
        if len(self.turns) == 2:
            return {"left": Observation("left", (Message("user", "And now?"),))}
        shown = {}
        for role in self.roles:
            messages = [Message("system", "Signal."), Message("user", f"Turn 0 of {self.task.data['number']}.")]
            for turn in self.turns:
                messages += [Message("assistant", turn[role]), Message("user", "Turn 1.")]
            shown[role] = Observation(role, tuple(messages))
        return shown

    async def step(self, actions: dict[str, str]) -> Reward:
        self.turns = [*self.turns, dict(actions)]
        local = {role: float(len(text)) for role, text in actions.items()}
        return Reward(float(len(set(actions.values())) == 1), local, {"turns": 1.0})

    @property
    def success(self) -> bool:
        return len(self.turns) == 3 and self.turns[-1]["left"] == "yes"
