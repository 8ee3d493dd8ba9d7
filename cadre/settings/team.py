"""Who plays."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from cadre.errors import nearest
from cadre.settings import names
from cadre.settings.policy import Policy
from cadre.settings.section import Section, refused


class TeamConfig(Section):
    """The policies, and which of them plays each role."""

    policies: dict[str, Policy] = Field(min_length=1, description="policy: its model, or all about it")
    roles: dict[str, str] = Field(min_length=1, description="role: policy")
    prompts: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict, description="role: a system message before all that it sees"
    )
    exchange_every: int = Field(0, ge=0, description="updates after which each role goes to the next policy; 0: never")

    @model_validator(mode="after")
    def _names_can_be_used(self) -> TeamConfig:
        for kind, named in (("roles", self.roles), ("policies", self.policies)):
            for name in named:
                if wrong := names.fault(name):
                    raise refused(kind, wrong)
            if len({name.lower() for name in named}) < len(named):
                told = f"got {', '.join(named)}; expected names that differ in more than case. Rename one."
                raise refused(kind, told)
        return self

    @model_validator(mode="after")
    def _roles_name_policies(self) -> TeamConfig:
        for role, chosen in self.roles.items():
            if chosen not in self.policies:
                raise refused(
                    f"roles.{role}",
                    f"got policy {chosen!r}; expected one of {', '.join(self.policies)}. Define it under team.policies "
                    f"or name another.{nearest(chosen, self.policies)}",
                )
        return self

    @model_validator(mode="after")
    def _prompts_are_of_roles(self) -> TeamConfig:
        for role in self.prompts:
            if role not in self.roles:
                raise refused(
                    f"prompts.{role}",
                    f"got a prompt for a role that nobody plays; expected some of {', '.join(self.roles)}. Remove it."
                    f"{nearest(role, self.roles)}",
                )
        return self

    @model_validator(mode="after")
    def _every_policy_plays(self) -> TeamConfig:
        for name in self.policies:
            if name not in self.roles.values():
                raise refused(
                    f"policies.{name}",
                    "no role plays it; expected every policy under team.roles. "
                    f"Give it a role ({', '.join(self.roles)}) or remove it.",
                )
        return self
