"""The exact figures of a game under a team's policies: from the probabilities of their legal answers, not from play."""

from __future__ import annotations

from collections.abc import Sequence

from cadre.envs.spec import EnvSpec
from cadre.team import Team
from cadre.types import Choice


def figures(team: Team, env_spec: EnvSpec) -> dict[str, float]:
    """What the environment says of the team's policies, by name; nothing where it lists no decisions, or where a policy
    runs elsewhere, so that nobody here knows its probabilities."""
    choices = env_spec.choices()
    if not choices:
        return {}
    from cadre.engines.torch import TorchEngine

    if not all(isinstance(team.samplers[policy], TorchEngine) for policy in team.assignment.values()):
        return {}
    return env_spec.figures(_probabilities(team, choices))


def as_field(team: Team, env_spec: EnvSpec) -> dict[str, dict[str, float]]:
    """The figures as the field `exact` of a report, where there are some."""
    found = figures(team, env_spec)
    return {"exact": found} if found else {}


def _probabilities(team: Team, choices: Sequence[Choice]) -> list[tuple[float, ...]]:
    """Those of every choice, asked for policy by policy."""
    from cadre.engines.torch import TorchEngine
    from cadre.engines.torch.answers import answer_probabilities

    found: dict[int, tuple[float, ...]] = {}
    for policy in dict.fromkeys(team.assignment.values()):
        engine = team.samplers[policy]
        assert isinstance(engine, TorchEngine)
        mine = [n for n, choice in enumerate(choices) if team.assignment[choice.observation.role] == policy]
        found |= zip(mine, answer_probabilities(engine, policy, [choices[n] for n in mine]), strict=True)
    return [found[number] for number in range(len(choices))]
