"""A planner tells two workers what to do, and both then name a number at once: three roles, in turn and together.

cadre check examples/sum.py:Sum
cadre train examples/sum.yaml
"""

import re

from cadre import Env, Message, Observation, Reward, Task


class Sum(Env):
    """`planner` sees the goal; `left` and `right` see what it wrote, and their numbers must add up to the goal."""

    roles = ("planner", "left", "right")

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.goal = task.data["goal"]
        self.plan: str | None = None
        self.numbers: dict[str, int] = {}

    @classmethod
    def tasks(cls, split):
        goals = [goal for goal in range(2, 100) if (goal % 5 == 0) == (split == "test")]
        return [Task(f"{split}-{goal}", {"goal": goal}) for goal in goals]

    def observe(self):
        if self.plan is None:
            text = f"Two workers will each say a number. Both must add up to {self.goal}. Tell them what to say."
            return {"planner": Observation("planner", (Message("user", text),))}
        if not self.numbers:
            return {role: self.asked(role) for role in ("left", "right")}
        return {}

    def asked(self, role):
        text = f"{self.plan}\nYou are the {role} worker. Say your number and nothing else."
        return Observation(role, (Message("user", text),))

    async def step(self, actions):
        if "planner" in actions:
            self.plan = actions["planner"]
            return Reward(local={"planner": -0.1 if len(self.plan) > 100 else 0.0})
        self.numbers = {role: number_in(text) for role, text in actions.items()}
        missed = min(abs(self.goal - sum(self.numbers.values())), 100)
        return Reward(team=1.0 - missed / 100, parts={"missed": missed})

    @property
    def success(self):
        return len(self.numbers) == 2 and sum(self.numbers.values()) == self.goal


def number_in(text):
    """The first number of at most three digits, or 0."""
    found = re.search("[0-9]{1,3}", text)
    return int(found[0]) if found else 0
