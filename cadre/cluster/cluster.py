"""What an experiment runs on, past one process: makes pools, learners and hosts of environments where Ray has room."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from cadre.cluster import connection
from cadre.cluster.actors import EnvironmentProcess, LearnerProcess, SamplerProcess
from cadre.cluster.environments import Environments, HostedSpec
from cadre.cluster.member import Member
from cadre.cluster.placement import Placement, placement
from cadre.cluster.rank_group import RankGroup
from cadre.cluster.recipes import LearnerRecipe, SamplerRecipe
from cadre.cluster.remote_learner import RemoteLearner
from cadre.cluster.sampler_pool import SamplerPool
from cadre.envs.spec import EnvSpec, name_of
from cadre.errors import EngineError
from cadre.settings import ClusterConfig, SandboxConfig
from cadre.team import closed_on_failure

log = logging.getLogger(__name__)


class Cluster:
    """The Ray cluster of a `config`, joined when this is made. The teams made of it own their actors."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self._groups: dict[str, dict[str, Any]] = {}
        self._cards = 0.0  # asked for so far
        connection.connect(config.address)

    def pool(self, recipe: SamplerRecipe, trains: bool) -> SamplerPool:
        """Samplers of the policies of a recipe; `trains` says whether there is a learner beside them."""
        places = placement(self.config, list(recipe.policies), trains)
        if not places.together:
            self._ask_for(places.samplers * places.sampler_cards)
        options = {"num_gpus": places.sampler_cards, **self._beside(recipe, places)}
        members = [self._member(SamplerProcess, (self.config.threads, recipe), options) for _ in range(places.samplers)]
        with closed_on_failure() as failed:
            for member in members:
                failed.callback(member.close)
            memory: int | None = members[0].ask(lambda handle: handle.memory.remote())
            if memory is not None:
                for member in members:
                    # All samplers of a pool cut their batches alike, those that replace one too.
                    member.arguments = (self.config.threads, recipe.within(memory))
                    member.ask(lambda handle: handle.stay_within.remote(memory))
        return SamplerPool(members, list(recipe.policies), memory)

    def learner(self, recipe: LearnerRecipe) -> RemoteLearner:
        """What trains the policies of a recipe that are not frozen; its ranks are on as few machines as have room."""
        policies = recipe.engine.policies
        places = placement(self.config, list(policies), trains=True)
        if recipe.ranks > 1:
            options = self._a_card_each(recipe.ranks) if places.learner_cards else [{}] * recipe.ranks
            each = [{"num_cpus": 0, **one} for one in options]
            member: Member = RankGroup((self.config.threads, recipe), each, self.config.replaced)
        else:
            if not places.together:
                self._ask_for(places.learner_cards)
            one = {"num_gpus": places.learner_cards, **self._beside(recipe.engine, places)}
            member = self._member(LearnerProcess, (self.config.threads, recipe), one)
        trained = [name for name, policy in policies.items() if not policy.frozen]
        return RemoteLearner(member, trained, self.config.learner_kept)

    def hosted(self, spec: EnvSpec, sandbox: SandboxConfig) -> EnvSpec:
        """The environment, stepped in as many processes as the settings say; as it is where they say none."""
        if not self.config.environments:
            return spec
        env = spec.declared if spec.declared.__module__ == "__main__" else name_of(spec.declared)
        arguments = (env, spec.settings, sandbox)
        members = [self._member(EnvironmentProcess, arguments, {}) for _ in range(self.config.environments)]
        return HostedSpec(spec, Environments(members))

    def _member(self, kind: type, arguments: tuple[Any, ...], options: dict[str, Any]) -> Member:
        return Member(kind, arguments, {"num_cpus": 0, **options}, self.config.replaced)

    def _ask_for(self, cards: float) -> None:
        """Count cards that are about to be asked for. Ray waits without a word for those that it does not have: that is
        refused where no more can come, and said where another machine may bring them."""
        self._cards += cards
        here: float = connection.ray_module().cluster_resources().get("GPU", 0.0)
        if self._cards <= here:
            return
        told = f"cluster: {self._cards:g} cards are asked for, and Ray has {here:g}"
        if self.config.address or os.environ.get("RAY_ADDRESS"):
            log.warning("%s; waiting until there are as many.", told)
            return
        raise EngineError(
            f"{told}; expected as many. Set sampler_cards and learner_cards of cluster.policies to what is here (0 is "
            "the processor), or name a cluster that has them with cluster.address."
        )

    def _a_card_each(self, ranks: int) -> list[dict[str, Any]]:
        """Options of actors that have a card each, all of them reserved at once."""
        self._ask_for(ranks)
        return [{"num_gpus": 1, **in_bundle} for in_bundle in _reserved([{"GPU": 1.0}] * ranks, "PACK")]

    def _beside(self, recipe: SamplerRecipe, places: Placement) -> dict[str, Any]:
        """Where actors that share a card are put: into one bundle of a placement group of their own."""
        if not places.together:
            return {}
        if recipe.model not in self._groups:
            cards = places.samplers * places.sampler_cards + places.learner_cards
            self._ask_for(cards)
            (self._groups[recipe.model],) = _reserved([{"GPU": cards}], "STRICT_PACK")
        return self._groups[recipe.model]


def _reserved(bundles: Sequence[dict[str, float]], strategy: str) -> list[dict[str, Any]]:
    """Options of actors that have one of these bundles each, once Ray has room for all of them."""
    ray = connection.ray_module()
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group(list(bundles), strategy=strategy)
    ray.get(group.ready())
    places = (PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=n) for n in range(len(bundles)))
    return [{"scheduling_strategy": place} for place in places]
