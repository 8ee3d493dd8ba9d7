"""The cluster of an experiment: makes sampler pools, learners and environment processes where Ray has resources."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

from cadre.engines.factory import LearnerSpec, SamplerSpec
from cadre.envs.spec import EnvSpec, name_of
from cadre.errors import EngineError
from cadre.settings import ClusterConfig, SandboxConfig
from cadre.settings.engines import Placement
from cadre.team import closed_on_failure
from cadre_ray import ray_actors
from cadre_ray.processes import EnvironmentProcess, LearnerProcess, RankProcess, SamplerProcess
from cadre_ray.ray_actors import SupervisedActor, SupervisedRanks, reserve
from cadre_ray.remote import EnvironmentPool, RemoteEnvSpec, RemoteLearner, SamplerPool

log = logging.getLogger(__name__)


class Cluster:
    """The Ray cluster of a `config`, joined when this is made. The teams built on it own their actors."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        # Options of the actors that share GPUs, by model.
        self._shared: dict[str, dict[str, Any]] = {}
        # Ray reports the GPUs of the cluster, whatever is requested of them, so requests are counted here.
        self._requested_gpus = 0.0
        ray_actors.connect(config.address)

    def make_pool(self, spec: SamplerSpec, trains: bool) -> SamplerPool:
        """Make the samplers of a spec's policies; `trains` means that there is a learner beside them."""
        placement = self.config.place(list(spec.policies), trains)
        if not placement.together:
            self._request_gpus(placement.samplers * placement.sampler_gpus)
        options = {"num_gpus": placement.sampler_gpus, **self._shared_options(spec, placement)}
        arguments = (self.config.threads, spec)
        actors = [self._make_actor(SamplerProcess, arguments, options) for _ in range(placement.samplers)]
        with closed_on_failure() as failed:
            for actor in actors:
                failed.callback(actor.close)
            memory: int | None = actors[0].call(lambda handle: handle.memory.remote())
            if memory is not None:
                for actor in actors:
                    # All samplers of a pool split their batches alike, replacements too.
                    actor.arguments = (self.config.threads, replace(spec, memory=memory))
                    actor.call(lambda handle: handle.limit_memory.remote(memory))
        return SamplerPool(actors, list(spec.policies), memory)

    def make_learner(self, spec: LearnerSpec) -> RemoteLearner:
        """Make the learner of a spec's policies that are not frozen; its ranks are on as few machines as possible."""
        policies, arguments = spec.engine.policies, (self.config.threads, spec)
        placement = self.config.place(list(policies), trains=True)
        if spec.ranks > 1:
            options: list[dict[str, Any]] = [{}] * spec.ranks
            if placement.learner_gpus:
                # A GPU a rank, all of them reserved at once.
                self._request_gpus(spec.ranks)
                options = [{"num_gpus": 1, **bundle} for bundle in reserve([{"GPU": 1.0}] * spec.ranks, "PACK")]
            rank_options = [{"num_cpus": 0, **option} for option in options]
            actor: SupervisedActor = SupervisedRanks(RankProcess, arguments, rank_options, self.config.replaced)
        else:
            if not placement.together:
                self._request_gpus(placement.learner_gpus)
            shared = self._shared_options(spec.engine, placement)
            actor = self._make_actor(LearnerProcess, arguments, {"num_gpus": placement.learner_gpus, **shared})
        trained = [name for name, policy in policies.items() if not policy.frozen]
        return RemoteLearner(actor, trained, self.config.learner_kept)

    def host_environment(self, spec: EnvSpec, sandbox: SandboxConfig) -> EnvSpec:
        """Return the environment, stepped in as many processes as the settings say; unchanged without any."""
        if not self.config.environments:
            return spec
        env = spec.declared if spec.declared.__module__ == "__main__" else name_of(spec.declared)
        arguments = (env, spec.settings, sandbox)
        actors = [self._make_actor(EnvironmentProcess, arguments, {}) for _ in range(self.config.environments)]
        return RemoteEnvSpec(spec, EnvironmentPool(actors))

    def _make_actor(self, kind: type, arguments: tuple[Any, ...], options: dict[str, Any]) -> SupervisedActor:
        return SupervisedActor(kind, arguments, {"num_cpus": 0, **options}, self.config.replaced)

    def _request_gpus(self, count: float) -> None:
        """Count GPUs that are about to be requested.

        Ray waits silently for those that it does not have. That is an error if no more can come, and a warning if
        another machine may bring them.
        """
        self._requested_gpus += count
        available: float = ray_actors.ray_module().cluster_resources().get("GPU", 0.0)
        if self._requested_gpus <= available:
            return
        got = f"cluster: {self._requested_gpus:g} GPUs are asked for, and Ray has {available:g}"
        if self.config.address or os.environ.get("RAY_ADDRESS"):
            log.warning("%s; waiting until there are as many.", got)
            return
        raise EngineError(
            f"{got}; expected as many. Set sampler_gpus and learner_gpus of cluster.policies to what is here (0 is "
            "the processor), or name a cluster that has them with cluster.address."
        )

    def _shared_options(self, spec: SamplerSpec, placement: Placement) -> dict[str, Any]:
        """Return the options of actors that share GPUs: one bundle of a placement group of their own."""
        if not placement.together:
            return {}
        if spec.model not in self._shared:
            gpus = placement.samplers * placement.sampler_gpus + placement.learner_gpus
            self._request_gpus(gpus)
            (self._shared[spec.model],) = reserve([{"GPU": gpus}], "STRICT_PACK")
        return self._shared[spec.model]
