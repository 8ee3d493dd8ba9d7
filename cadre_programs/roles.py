"""The role of a call: by the name of its model, the name of the agent, a pattern, or a text of the system prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cadre.errors import ConfigError
from cadre_programs.calls import ModelCall

SYSTEM = "system:"
AGENT = "agent:"
# What may follow the name of a role in that of one of its agents: helper-3, helper_b, helper7.
SUFFIX = re.compile(r"[-_.:/#@ ].*|\d+")


@dataclass(frozen=True)
class RoleRules:
    """The roles of a program, and the rules of the setting `models`, in their order.

    A rule's key is the name of a model or an agent, a pattern of such names (`helper-*`), `agent:NAME` for agents
    alone, or `system:TEXT` for calls whose system prompt holds the text, or a part that matches it as a pattern.
    """

    roles: tuple[str, ...]
    rules: Mapping[str, str]

    @property
    def models(self) -> list[str]:
        """The names that may be called, for the list of models: roles, and rules that are one name."""
        names = [name for name in self.rules if not is_pattern(name) and not name.startswith((SYSTEM, AGENT))]
        return [*dict.fromkeys((*self.roles, *names))]

    def find(self, call: ModelCall) -> str | None:
        """Return the role of a call; None if no rule is about it.

        The system prompt comes first, as it is the only difference between agents that share a model; then the agent's
        name, the model's name, patterns, and last names that begin with a role's, such as those of sub-agents.
        """
        system = "\n".join(message.content for message in call.messages if message.role == "system")
        for key, role in self.rules.items():
            text = key.removeprefix(SYSTEM)
            if key.startswith(SYSTEM) and (text in system or (is_pattern(text) and fnmatchcase(system, f"*{text}*"))):
                return role
        for key, role in self.rules.items():
            name = key.removeprefix(AGENT)
            if call.agent and key.startswith(AGENT) and fnmatchcase(call.agent, name):
                return role
        if call.role in self.rules:
            return self.rules[call.role]
        if call.role in self.roles:
            return call.role
        if call.agent in self.rules:
            return self.rules[call.agent]
        if call.agent in self.roles:
            return call.agent
        patterns = {key: role for key, role in self.rules.items() if is_pattern(key) and not key.startswith(SYSTEM)}
        for name in filter(None, (call.role, call.agent)):
            for pattern, role in {**patterns, **{role: role for role in self.roles if is_pattern(role)}}.items():
                if fnmatchcase(name, pattern):
                    return role
        prefixes = [role for role in self.roles if call.role.startswith(role)]
        prefixes = [role for role in prefixes if SUFFIX.fullmatch(call.role, len(role))]
        return max(prefixes, key=len, default=None)

    def position(self, call: ModelCall) -> tuple[int, str]:
        """Return where the call's role stands among the roles, and the model's name."""
        role = self.find(call)
        return (self.roles.index(role) if role in self.roles else len(self.roles)), call.role


def is_pattern(name: str) -> bool:
    """Return True if the name has a wildcard."""
    return any(letter in name for letter in "*?[")


def make_role_rules(roles: Sequence[str], models: Mapping[str, str] | None) -> RoleRules:
    """Return the rules of the settings. Raises ConfigError for a rule that names no role."""
    for name, role in (models or {}).items():
        if role not in roles:
            raise ConfigError(f"settings.models.{name}: got {role!r}; expected one of the roles {', '.join(roles)}.")
    return RoleRules(tuple(roles), dict(models or {}))
