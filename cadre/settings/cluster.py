"""Settings of a run on several processes or machines (Ray)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from cadre.settings.section import Positive, Section, SetKeysOnly, setting_error


class PlacementConfig(Section):
    """The processes of one base model: a pool of samplers, and a learner for the policies that train on it."""

    samplers: Positive = Field(1, description="sampler processes of a base model, each with a copy of its weights")
    sampler_cards: int = Field(0, ge=0, description="GPUs of each sampler; 0: it samples on the CPU")
    learner_cards: int = Field(0, ge=0, description="GPUs of the learner; 0: it learns on the CPU")
    colocated: bool = Field(False, description="samplers share the learner's GPU instead of having their own")

    @model_validator(mode="after")
    def _check_shared_card(self) -> PlacementConfig:
        if self.colocated and self.learner_cards > 1:
            raise setting_error(
                "colocated",
                f"got colocated with {self.learner_cards} cards of the learner; expected 1, as Ray divides single "
                "cards only. Give samplers their own with sampler_cards, or lower learner_cards.",
            )
        return self

    @model_validator(mode="after")
    def _reject_sampler_cards(self) -> PlacementConfig:
        if self.colocated and self.sampler_cards:
            raise setting_error(
                "sampler_cards",
                f"got {self.sampler_cards} with colocated, under which samplers have no cards of their own; expected "
                "0. Remove it, or colocated.",
            )
        return self


class ClusterConfig(PlacementConfig):
    """Samplers, learners and environments as Ray actors; `cluster: {}` starts Ray on this machine."""

    address: str | None = Field(
        None, description="address of a running Ray cluster, or auto; unset: one is started here"
    )
    policies: dict[str, Annotated[PlacementConfig, SetKeysOnly]] = Field(
        default_factory=dict, description="policy: changes to samplers, GPUs and colocated for its base model"
    )
    environments: int = Field(0, ge=0, description="processes that step environments; 0: the training process does")
    threads: Positive = Field(1, description="threads of each process that samples, learns or steps on a CPU")
    replaced: int = Field(100, ge=0, description="times that a process that died is replaced before the run fails")
    learner_kept: Positive = Field(
        20,
        description="updates between copies of a learner's state; a learner that died repeats the updates since the "
        "last copy",
    )
