"""An environment of verifiers v1 with two agents: a solver answers twice, and a critic comments in between."""

import verifiers.v1 as vf


class ReviewConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    critic: vf.AgentConfig = vf.AgentConfig()


class Review(vf.Env[ReviewConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.solver.interaction(task) as solver:
            draft = await solver.turn()
            remark = await agents.critic.run(task.with_data(prompt=f"Comment: {draft.last_reply}"))
            await solver.turn(remark.last_reply)

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        for trace in episode.traces:
            trace.record_metric("traces", float(len(episode.traces)))


__all__ = ["Review"]
